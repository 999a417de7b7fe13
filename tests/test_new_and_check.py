"""`nocap new` writes options that work, in every group; `nocap check` passes what works and names what is
broken."""

from __future__ import annotations

import importlib.util
import inspect
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from nocap import check, new, outside
from nocap.__main__ import COMMANDS
from nocap.checks.contract import CHECKS, composes
from nocap.checks.trial import Trial
from nocap.study.plan import prepare
from nocap.study.spec import load
from tests.conftest import REPO, Door

SHORT = ("trainer.steps=12", "trainer.val_every=5", "trainer.checkpoint_every=4")


@pytest.fixture(autouse=True)
def nothing_from_outside() -> Iterator[None]:
    """What a door has put in use in this process is out of use after the test."""
    yield
    os.environ.pop(outside.VARIABLE, None)


@pytest.fixture
def dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def written(folder: Path, group: str, source: str, **keys: object) -> Path:
    """An option `broken` of this group, with these keys in its yaml."""
    head = "from dataclasses import dataclass\nimport torch\nfrom torch import nn\n"
    place = folder / outside.place(group)
    place.mkdir(parents=True)
    (place / "broken.py").write_text(f"{head}{inspect.cleandoc(source)}\n")
    lines = [f"# @package {group}.broken"] if group == "ideas" else []
    lines += ["kind: broken", *(f"{key}: {value}" for key, value in keys.items())]
    (place / "broken.yaml").write_text("\n".join(lines))
    return folder


# --- nocap new ----------------------------------------------------------------------------------------------


def test_doors_and_table_know_every_group() -> None:
    assert {"new", "check"} <= COMMANDS.keys()
    assert set(CHECKS) == set(outside.groups())


def test_new_study_is_one_that_can_be_carried_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Arms composed, claims checked: what `--plan` does before anything runs."""
    folder = tmp_path / "heads"
    assert new.main(["study", "heads", "--dir", str(folder)]) == 0
    assert capsys.readouterr().out.splitlines()[0] == str(folder / "study.yaml")
    plan = prepare(load(folder), "cpu", output_dir=str(tmp_path / "out"))
    assert [claim.id for claim in plan.study.claims] == ["heads.speed", "heads.params"]
    with pytest.raises(SystemExit):
        new.main(["study", "heads", "--dir", str(folder)])
    assert "NAME must be new: the file must not be there" in capsys.readouterr().err


@pytest.mark.parametrize("group", outside.groups())
def test_new_option_composes_and_computes_its_formula(
    group: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "mine"
    assert new.main([group, "brand_new", "--dir", str(folder)]) == 0
    paths = [
        folder / outside.place(group) / "brand_new.py",
        folder / outside.place(group) / "brand_new.yaml",
        folder / "test_brand_new.py",
    ]
    told = capsys.readouterr().out.splitlines()
    assert told[:3] == [str(path) for path in paths]
    assert all(path.is_file() for path in paths)
    assert f"nocap check {folder}" in told[5]
    assert not any(word in path.read_text() for path in paths for word in ("NAME", "CLASS", "OVERRIDE"))
    assert len(paths[0].read_text().splitlines()) <= 38
    assert check.main([str(folder), "--only", "composes"]) == 0
    spec = importlib.util.spec_from_file_location(f"test_brand_new_{group}", paths[2])
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.test_formula(*([tmp_path] if inspect.signature(module.test_formula).parameters else []))


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("attention", "gqa"), "nocap: NAME must be new: "),
        (("mlp", "mlp"), "nocap: NAME must be new: an option of mlp has this kind already, got mlp"),
        (
            ("mlp", "2x"),
            "nocap: NAME must be a Python name, in letters, digits and _, that begins with a letter, got 2x",
        ),
        (
            ("mlp", "class"),
            "nocap: NAME must be a Python name, in letters, digits and _, that begins with a "
            "letter, got class",
        ),
        (("mpl", "mine"), "nocap: GROUP must be one of attention, data, "),
        (
            ("mlp", "mine", "--dir", __file__),
            f"nocap: {__file__}/mlp must be a place that can be read or written, got Not a directory",
        ),
    ],
)
def test_new_refuses_in_a_line(
    words: tuple[str, ...],
    line: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        new.main(list(words))
    said = capfd.readouterr().err
    assert (ended.value.code, said.count("\n")) == (2, 1)
    assert said.startswith(line)
    assert list(tmp_path.iterdir()) == []


def test_new_overwrites_nothing(tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text("mine")
    with pytest.raises(SystemExit) as ended:
        new.main(["mlp", "mine", "--dir", str(tmp_path)])
    assert ended.value.code == 2
    assert (tmp_path / "test_mine.py").read_text() == "mine"
    assert not (tmp_path / "mlp").exists()


# --- nocap check --------------------------------------------------------------------------------------------

MIXER = """
    from nocap.options.attention import Attention

    @dataclass(kw_only=True)
    class Broken(Attention):
        kind: str = "broken"
        cap: float = 0.5

        def mixer(self, run, layer):
            def mix(q, k, v):
                T = q.shape[2]
                scores = q @ k.transpose(2, 3) / q.shape[3] ** 0.5
                {change}
                future = torch.ones(T, T, dtype=torch.bool).triu({first})
                return scores.masked_fill(future, float("-inf")).softmax(-1) @ v
            return mix
    """
CLAIM = """

        def cache_slots(self, layer, capacity):
            return capacity
    """
BATCH = """
    from nocap.options.norm import Norm

    class OverBatch(nn.Module):
        def forward(self, x):
            return x / (x.abs().mean() + 1e-6)

    @dataclass(kw_only=True)
    class Broken(Norm):
        kind: str = "broken"

        def build(self, d_model):
            return OverBatch()
    """
FLOPS = """
    from nocap.options.mlp import Mlp

    @dataclass(kw_only=True)
    class Broken(Mlp):
        kind: str = "broken"

        def build(self, d_model):
            return nn.Linear(d_model, d_model, bias=False)

        def flops_per_token(self, d_model):
            return 2.0 * d_model**2
    """
RISING = """
    from nocap.options.schedule import Schedule

    @dataclass(kw_only=True)
    class Broken(Schedule):
        kind: str = "broken"

        def shape(self, *, step, steps):
            return step / 10
    """
IDLE = """
    from nocap.options.ideas import Idea

    @dataclass(kw_only=True)
    class Broken(Idea):
        kind: str = "broken"

        def build_layer(self, run, layer):
            return nn.Linear(2, 2)

        def enter(self, part, x, context):
            return x
    """
CHANCE = """
    import os
    import numpy as np
    from nocap.data.made import made, write_shards
    from nocap.options.data import Data

    @dataclass(kw_only=True)
    class Broken(Data):
        kind: str = "broken"

        def locate(self, tokenizer, *, cache_dir):
            def make(target):
                draw = lambda: np.frombuffer(os.urandom(20000), dtype=np.uint8).astype(np.uint16)
                return {}, {split: write_shards(target, split, [draw()]) for split in ("train", "val")}
            return made("broken", tokenizer.name, {}, cache_dir=cache_dir, make=make)
    """
UNTYPED = """
    from typing import Any
    from nocap.options.norm import Norm

    @dataclass(kw_only=True)
    class Broken(Norm):
        kind: str = "broken"
        eps: float

        def build(self, d_model):
            return nn.Identity()
    """
ATTENTION = {"n_kv_heads": 4}
DATA = {"order": "shuffled", "read_sequences": 16}


@pytest.mark.parametrize(
    ("what", "group", "source", "keys", "line"),
    [
        (
            "causal",
            "attention",
            MIXER.format(change="", first=2),
            ATTENTION,
            "the logits of token 0 change with the tokens from 1 on",
        ),
        ("causal", "norm", BATCH, {}, "the logits of token 0 change with the tokens from 1 on"),
        (
            "decodes",
            "attention",
            MIXER.format(change="scores = scores.tanh() * 9", first=1) + CLAIM,
            ATTENTION,
            "it says cache_slots, and",
        ),
        ("counts", "mlp", FLOPS, {}, "flops_per_token says 8,192, and 24,576 are counted"),
        (
            "rates",
            "schedule",
            RISING,
            {"warmup_steps": 2},
            "the factor of step 11 of 30 is 1.1: it must be in [0, 1]",
        ),
        ("builds", "ideas", IDLE, {}, "gets no gradient, for which two ranks would wait"),
        ("prepares", "data", CHANCE, DATA, "made twice, its fingerprints are"),
        (
            "composes",
            "norm",
            UNTYPED,
            {"eps": "small"},
            "Value 'small' of type 'str' could not be converted to Float",
        ),
        ("composes", "norm", UNTYPED, {"eps": 1, "epsilon": 1}, "norm.epsilon"),
    ],
)
def test_broken_option_fails_with_the_reason(
    what: str,
    group: str,
    source: str,
    keys: dict[str, object],
    line: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert check.main([str(written(tmp_path, group, source, **keys)), "--only", what]) == 1
    told = capsys.readouterr().out.splitlines()
    (failed,) = [row for row in told if row.startswith("FAIL")]
    assert f" {what} " in failed
    assert line in failed
    assert told[-1] == "1 failed"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # torch's compiler warns of its own deprecated parts
def test_what_breaks_the_graph_fails(
    tmp_path: Path, dynamo: None, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = written(
        tmp_path, "attention", MIXER.format(change="torch._dynamo.graph_break()", first=1), **ATTENTION
    )
    assert check.main([str(folder), "--only", "compiles"]) == 1
    assert "FAIL attention=broken compiles  Unsupported: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("nowhere",), "nocap: DIR must be a folder with options, got nowhere"),
        (
            (".",),
            " must hold an option: GROUP/NAME.yaml, with GROUP one of attention, data, ideas, "
            "hydra/launcher, ",
        ),
        (
            ("unread",),
            "broken.py cannot be imported: ModuleNotFoundError: No module named 'no_such_module' (line 4)",
        ),
        (
            (str(REPO / "tests/strangers/power_law"), "--only", "nothing"),
            "nocap: --only must be a check's name (composes, ",
        ),
        (
            (str(REPO / "tests/strangers/power_law"), "schedule=wsd"),
            "nocap: schedule must be left out, where schedule=power_law is what is checked, got schedule=wsd",
        ),
    ],
)
def test_check_refuses_in_a_line(
    words: tuple[str, ...],
    line: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    written(tmp_path / "unread", "mlp", "import no_such_module")
    with pytest.raises(SystemExit) as ended:
        check.main(list(words))
    said = capsys.readouterr().err
    assert (ended.value.code, said.count("\n")) == (2, 1)
    assert line in said


def test_yaml_alone_is_an_option(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mlp").mkdir()
    (tmp_path / "mlp" / "wide.yaml").write_text("kind: mlp\nactivation: gelu\nexpansion: 8\n")
    assert check.main([str(tmp_path), "mlp.expansion=2", "--only", "composes"]) == 0
    assert "mlp=wide composes  kind=mlp, activation=gelu, expansion=2.0" in capsys.readouterr().out


@pytest.mark.slow
def test_a_key_that_must_be_given_is_named_and_the_rest_of_the_folder_is_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = REPO / "experiments" / "atlas" / "ideas"
    assert check.main([str(folder), "--only", "composes", "attention=sliding"]) == 0
    told = capsys.readouterr().out.splitlines()
    for name in ("distill", "easy_first"):
        assert f"skip ideas=[{name}] composes  ideas.{name}.run must be given  " in "\n".join(told)
    assert [line.split()[0] for line in told if " composes " in line].count("ok") == len(
        [*folder.glob("*/*.yaml")]
    ) - 2
    assert told[-1] == "all passed, 2 skipped"
    given = Trial(
        group="ideas", name="easy_first", more=("ideas.easy_first.run=outputs/runs/mine",), folder=tmp_path
    )
    assert "run=outputs/runs/mine" in composes(given)


@pytest.mark.parametrize("door_module", ["nocap.new", "nocap.check"])
def test_help_needs_neither_torch_nor_hydra(door_module: str) -> None:
    code = f"import sys, {door_module} as door\ntry: door.main(['--help'])\nexcept SystemExit: pass\n"
    code += "print(sorted({'torch', 'hydra'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=REPO, timeout=60)
    assert done.stdout.endswith("[]\n"), done.stderr


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("dynamo")
@pytest.mark.filterwarnings("ignore")  # torch's compiler warns of its own deprecated parts
def test_a_strangers_block_passes(here: Door) -> None:
    """The others train at once, and resume: tests/test_outside.py."""
    done = here(str(REPO / "tests" / "strangers" / "parallel"), *SHORT, module="nocap.check")
    assert done.code == 0, done.out + done.err


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("group", ["attention", "optimizer", "launcher"])
@pytest.mark.usefixtures("dynamo")
@pytest.mark.filterwarnings("ignore")
def test_new_options_pass(group: str, here: Door, tmp_path: Path) -> None:
    assert here(group, "brand_new", module="nocap.new").code == 0
    done = here("brand_new", *SHORT, module="nocap.check")
    assert done.code == 0, done.out + done.err
    assert [path.name for path in tmp_path.iterdir()] == ["brand_new"]
