"""Code from outside: all of it makes the run's identity, and its forward is tried before the first step."""

from __future__ import annotations

import json
import sys
import sysconfig
from collections.abc import Callable, Iterator
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


def words(folder: Path, source: str, *, group: str = "attention", keys: str = "") -> list[str]:
    """The words of a short run with an option of this source."""
    (folder / group).mkdir(parents=True, exist_ok=True)
    (folder / group / "mine.py").write_text(HEAD + source)
    (folder / group / "mine.yaml").write_text(f"kind: mine\n{keys}")
    return ["--config-dir", str(folder), *SMALL, "trainer.steps=3", f"{group}=mine"]


def manifest(run_dir: Path) -> dict[str, Any]:
    return json.loads((run_dir / "manifest.json").read_text())


# --- what makes another run ---------------------------------------------------------------------------------


@pytest.fixture
def forget(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """Forgets the helper that an option in this process has imported: a new process would import it anew."""

    def call() -> None:
        sys.modules.pop("_helpermod", None)

    monkeypatch.setattr(sys, "path", list(sys.path))
    yield call
    call()


@pytest.mark.slow
def test_editing_a_helper_module_of_an_option_makes_another_run(door: Door, tmp_path: Path):
    asked = words(
        tmp_path / "mine", BESIDE + "import _helpermod" + ATTENTION.format(factor="_helpermod.scale", first=1)
    )
    for text in ("scale = 1.0\n", "scale = 30.0\n"):
        (tmp_path / "mine" / "attention" / "_helpermod.py").write_text(text)
        done = door(*asked)
        assert done.code == 0, done.err
    losses = {rows_of(run)[-1]["val/loss"] for run in (tmp_path / "outputs" / "runs").iterdir()}
    assert len(losses) == 2


@pytest.mark.parametrize("where", ["above", "in the forward"])
def test_code_that_no_import_statement_names_is_refused(
    here: Door, tmp_path: Path, where: str, forget: Callable[[], None]
):
    line = BESIDE.strip() + '; hidden = importlib.import_module("_helper" + "mod")'
    source = ATTENTION.format(factor="hidden.scale", first=1)
    source = (
        f"{line}\n{source}" if where == "above" else source.replace("T = q.", f"{line}\n            T = q.")
    )
    asked, helper = words(tmp_path / "mine", source), tmp_path / "mine" / "attention" / "_helpermod.py"
    helper.write_text("scale = 1.0\n")
    done = here(*asked)
    assert (done.code, len(done.err.splitlines())) == (2, 1), done.err
    assert f"_helpermod ({helper})" in done.err


def test_a_helper_that_changes_after_the_command_began_is_refused(
    here: Door, tmp_path: Path, forget: Callable[[], None]
):
    """A forward that edits it stands for a person who does."""
    source = ATTENTION.format(factor="_helpermod.scale", first=1)
    source = source.replace(
        "T = q.", 'pathlib.Path(_helpermod.__file__).write_text("scale = 2.0")\n            T = q.'
    )
    asked = words(tmp_path / "mine", BESIDE + "import _helpermod\n" + source)
    (tmp_path / "mine" / "attention" / "_helpermod.py").write_text("scale = 1.0\n")
    done = here(*asked)
    assert (done.code, len(done.err.splitlines())) == (2, 1), done.err
    assert "_helpermod" in done.err


@pytest.mark.slow
def test_the_record_names_all_that_an_option_imports(door: Door, tmp_path: Path):
    """Modules of one's own by content, also inside packages and functions; installed packages by version."""
    site = tmp_path / "lib" / "site-packages"
    for name, installed in (("pinned", "null"), ("copied", '{"url": "file:///copied", "dir_info": {}}')):
        facts = site / f"{name}_package-1.5.dist-info"
        facts.mkdir(parents=True)
        (site / f"{name}.py").write_text("import json\nfactor = 1.0\n")
        (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}-package\nVersion: 1.5\n")
        (facts / "RECORD").write_text(f"{name}.py,,\n")
        (facts / "direct_url.json").write_text(installed)
    package = tmp_path / "path" / "ours"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("from . import first\nfrom .inner.deep import factor\n")
    (package / "first.py").write_text("def f():\n    from .second import g\n")
    (package / "second.py").write_text("import statistics\nrule = 3\n")
    (package / "inner").mkdir()
    (package / "inner" / "deep.py").write_text("from ..first import f\nfactor = 1.0\n")
    (tmp_path / "mine" / "attention").mkdir(parents=True)
    (tmp_path / "mine" / f"fast{sysconfig.get_config_var('EXT_SUFFIX')}").write_bytes(b"\x7fELF\0")
    source = "import pinned, copied\nfrom ours import factor\n" + ATTENTION.format(factor="factor", first=1)
    asked = words(tmp_path / "mine", source + "\ndef never():\n    import fast, nothing_like_this\n")
    path = ":".join(map(str, (REPO, site, package.parent)))
    done = door(*asked, env={"PYTHONPATH": path})
    assert done.code == 0, done.err
    modules = manifest(the_run(tmp_path / "outputs"))["parts"]["source"]
    assert modules.pop("pinned-package") == "1.5"
    own = {name for name in modules if not name.startswith("nocap.")}
    assert own == {"copied", "ours", "ours.first", "ours.second", "ours.inner.deep", "fast"}


# --- what is tried before the first step --------------------------------------------------------------------


def test_an_attention_that_sees_the_future_is_refused(here: Door, tmp_path: Path):
    refused = here(*words(tmp_path / "mine", ATTENTION.format(factor=1, first=2)))
    assert (refused.code, len(refused.err.splitlines())) == (2, 1), refused.err
    assert "attention.kind=mine" in refused.err
    assert "causal = False" in refused.err
    allowed = ATTENTION.format(factor=1, first=2).replace("    kind:", "    causal = False\n    kind:")
    done = here(*words(tmp_path / "other", allowed), "output_dir=other")
    assert done.code == 0, done.err
    assert manifest(the_run(tmp_path / "other"))["declared"] == {"attention": ["not causal"]}


def test_a_gate_that_starts_at_zero_hides_nothing(here: Door, tmp_path: Path):
    refused = here(*words(tmp_path / "mine", GATE, group="mlp"))
    assert (refused.code, len(refused.err.splitlines())) == (2, 1), refused.err
    assert "mlp.kind=mine" in refused.err


def test_a_random_forward_is_refused_unless_its_class_says_so(here: Door, tmp_path: Path):
    refused = here(*words(tmp_path / "mine", DROPOUT.format(line=""), group="mlp"))
    assert (refused.code, len(refused.err.splitlines())) == (2, 1), refused.err
    assert "random = True" in refused.err
    done = here(
        *words(tmp_path / "other", DROPOUT.format(line="random = True"), group="mlp"), "output_dir=other"
    )
    assert done.code == 0, done.err
    assert manifest(the_run(tmp_path / "other"))["declared"] == {"mlp": ["random"]}


def test_the_probe_changes_no_loss(here: Door, tmp_path: Path):
    """An option from outside that is a built-in one by another name trains as that one, which is not
    tried."""
    source = '\n@dataclass(kw_only=True)\nclass Mine(Softmax):\n    kind: str = "mine"\n'
    keys = "n_kv_heads: ${model.n_head}\nkernel: fused\n"
    losses = []
    for out, asked in (
        ("plain", [*SMALL, "trainer.steps=3"]),
        ("outside", words(tmp_path / "mine", source, keys=keys)),
    ):
        done = here(*asked, f"output_dir={out}")
        assert done.code == 0, done.err
        losses.append(
            [(row.get("train/loss"), row.get("val/loss")) for row in rows_of(the_run(tmp_path / out))]
        )
    assert losses[0] == losses[1]
