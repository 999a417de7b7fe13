"""Code from outside: all of it makes the run's identity, and its forward is tried before the first step."""

from __future__ import annotations

import json
import re
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import REPO, SMALL, Door, rows_of, the_run

HEAD = """
import importlib, os, pathlib, sys
from dataclasses import dataclass
import torch
import torch.nn.functional as F
from torch import nn
from nocap.options.attention import Attention
from nocap.options.attention.softmax import Softmax
from nocap.options.mlp import Mlp
"""
BESIDE = "sys.path.insert(0, os.path.dirname(__file__))\n"
ATTENTION = """
@dataclass(kw_only=True)
class Mine(Attention):
    kind: str = "mine"
    n_kv_heads: int = 4

    def mixer(self, run, layer):
        def mix(q, k, v):
            T = q.shape[2]
            scores = q @ k.transpose(2, 3) * {factor} / q.shape[3] ** 0.5
            future = torch.ones(T, T, dtype=torch.bool).triu({first})
            return scores.masked_fill(future, float("-inf")).softmax(-1).type_as(v) @ v
        return mix
"""
GATE = """
class Gate(nn.Module):
    def __init__(self):
        super().__init__()
        self.zero = nn.Parameter(torch.zeros(()))

    def forward(self, x):
        return x + self.zero * x.mean(1, keepdim=True)

@dataclass(kw_only=True)
class Mine(Mlp):
    kind: str = "mine"

    def build(self, d_model):
        return nn.Sequential(Gate(), nn.Linear(d_model, d_model, bias=False))
"""
DROPOUT = """
@dataclass(kw_only=True)
class Mine(Mlp):
    {line}
    kind: str = "mine"

    def build(self, d_model):
        return nn.Sequential(nn.Linear(d_model, d_model, bias=False), nn.Dropout(0.1))
"""


OWN_SCALE = ATTENTION.format(factor="_helpermod.scale", first=1)
HIDDEN = ATTENTION.format(factor="hidden.scale", first=1)
LATE = BESIDE.strip() + '; hidden = importlib.import_module("_helper" + "mod")'
EDITS = 'pathlib.Path(_helpermod.__file__).write_text("scale = 2.0")'  # stands for a person who does


def inside(source: str, line: str) -> str:
    """With a line at the begin of the forward."""
    return source.replace("T = q.", f"{line}\n            T = q.")


def words(folder: Path, source: str, *, group: str = "attention", keys: str = "") -> list[str]:
    """The words of a short run with an option of this source."""
    (folder / group).mkdir(parents=True, exist_ok=True)
    (folder / group / "mine.py").write_text(HEAD + source)
    (folder / group / "mine.yaml").write_text(f"kind: mine\n{keys}")
    (folder / group / "_helpermod.py").write_text("scale = 1.0\n")
    out = f"output_dir={folder.parent / folder.name}-outputs"
    return ["--config-dir", str(folder), *SMALL, "trainer.steps=3", out, f"{group}=mine"]


def manifest(run_dir: Path) -> dict[str, Any]:
    return json.loads((run_dir / "manifest.json").read_text())


# --- what makes another run ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "source",
    [
        f"{LATE}\n{HIDDEN}",  # named by no import statement
        inside(HIDDEN, LATE),
        f"{BESIDE}import _helpermod\n{inside(OWN_SCALE, EDITS)}",  # changed after the command began
    ],
    ids=["above", "in the forward", "edited"],
)
def test_code_that_is_not_in_the_identity_is_refused(
    source: str, here: Door, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sys, "path", list(sys.path))
    done = here(*words(tmp_path / "own", source))
    sys.modules.pop("_helpermod", None)  # a new process would import it anew
    assert (done.code, len(done.err.splitlines()), "_helpermod" in done.err) == (2, 1, True), done.err


@pytest.mark.slow
def test_the_record_names_all_that_an_option_imports_and_an_edit_makes_another_run(
    door: Door, tmp_path: Path
):
    """Modules of one's own by content, also inside packages and functions; installed packages by version."""
    files = {
        "path/ours/__init__.py": "from . import first\nfrom .inner.deep import factor\n",
        "path/ours/first.py": "def f():\n    from .second import g\n",
        "path/ours/second.py": "import statistics\nrule = 3\n",
        "path/ours/inner/deep.py": "from ..first import f\nfactor = 1.0\n",
        f"mine/fast{sysconfig.get_config_var('EXT_SUFFIX')}": "\x7fELF\0",
    }
    for name, installed in (("pinned", "null"), ("copied", '{"url": "file:///copied", "dir_info": {}}')):
        facts = f"site-packages/{name}_package-1.5.dist-info"
        files[f"site-packages/{name}.py"] = "import json\nfactor = 1.0\n"
        files[f"{facts}/METADATA"] = f"Metadata-Version: 2.1\nName: {name}-package\nVersion: 1.5\n"
        files |= {f"{facts}/RECORD": f"{name}.py,,\n", f"{facts}/direct_url.json": installed}
    for path, text in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    source = "import pinned, copied\nfrom ours import factor\n" + ATTENTION.format(factor="factor", first=1)
    asked = words(tmp_path / "mine", source + "\ndef never():\n    import fast, nothing_like_this\n")
    path = {"PYTHONPATH": ":".join(map(str, (REPO, tmp_path / "site-packages", tmp_path / "path")))}
    for factor in ("1.0", "30.0"):
        (tmp_path / "path" / "ours" / "inner" / "deep.py").write_text(
            f"from ..first import f\nfactor = {factor}\n"
        )
        done = door(*asked, env=path)
        assert done.code == 0, done.err
    first, second = (tmp_path / "mine-outputs" / "runs").iterdir()
    assert rows_of(first)[-1]["val/loss"] != rows_of(second)[-1]["val/loss"]
    modules = manifest(first)["parts"]["source"]
    assert modules.pop("pinned-package") == "1.5"
    own = {name for name in modules if not name.startswith("nocap.")}
    assert own == {"copied", "ours", "ours.first", "ours.second", "ours.inner.deep", "fast"}


# --- what is tried before the first step --------------------------------------------------------------------

FUTURE = ATTENTION.format(factor=1, first=2)
SAID = FUTURE.replace("    kind:", "    causal = False\n    kind:")


@pytest.mark.parametrize(
    ("group", "source", "says", "declared"),
    [
        ("attention", FUTURE, "attention.kind=mine.*causal = False", None),
        ("attention", SAID, "", "not causal"),
        ("mlp", GATE, "mlp.kind=mine", None),  # a gate that starts at zero hides nothing
        ("mlp", DROPOUT.format(line=""), "random = True", None),
        ("mlp", DROPOUT.format(line="random = True"), "", "random"),
    ],
)
def test_a_forward_that_sees_the_future_or_draws_is_refused_unless_its_class_says_so(
    group: str, source: str, says: str, declared: str | None, here: Door, tmp_path: Path
):
    done = here(*words(tmp_path / "own", source, group=group))
    assert re.search(says, done.err), done.err
    if declared is None:
        assert (done.code, len(done.err.splitlines())) == (2, 1), done.err
    else:
        assert manifest(the_run(tmp_path / "own-outputs"))["declared"] == {group: [declared]}


def test_the_probe_changes_no_loss(here: Door, tmp_path: Path):
    """An option from outside that is a built-in one by another name trains as that one, which is not
    tried."""
    source = '\n@dataclass(kw_only=True)\nclass Mine(Softmax):\n    kind: str = "mine"\n'
    asked = words(tmp_path / "own", source, keys="n_kv_heads: ${model.n_head}\nkernel: fused\n")
    assert here(*asked).code == here(*SMALL, "trainer.steps=3").code == 0
    own, plain = (rows_of(the_run(tmp_path / out)) for out in ("own-outputs", "outputs"))
    for name in ("train/loss", "val/loss"):
        assert [row.get(name) for row in own] == [row.get(name) for row in plain]
