"""`nocap new` writes options that work, in every group; `nocap check` passes what works and names
what is broken."""

import inspect
import os
import re
import runpy
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from nocap import check, new, outside
from nocap.checks.contract import CHECKS, composes
from nocap.checks.trial import OptionTrial
from nocap.study.study_folder import load_study
from nocap.study.study_plan import prepare
from tests.conftest import REPO, Door

SHORT = ("trainer.steps=12", "trainer.val_every=5", "trainer.checkpoint_every=4")


@pytest.fixture(autouse=True)
def nothing_from_outside() -> Iterator[None]:
    """What a door has put in use in this process is out of use after the test."""
    yield
    os.environ.pop(outside.VARIABLE, None)


def written(folder: Path, group: str, source: str, **keys: object) -> Path:
    """An option `broken` of this group, with these keys in its yaml."""
    head = "from dataclasses import dataclass\nimport torch\nfrom torch import nn\n"
    place = folder / outside.place(group)
    place.mkdir(parents=True)
    (place / "broken.py").write_text(f"{head}{inspect.cleandoc(source)}\n")
    if group == "ideas":
        lines = [f"# @package {group}.broken"]
    else:
        lines = []
    lines += ["kind: broken", *(f"{key}: {value}" for key, value in keys.items())]
    (place / "broken.yaml").write_text("\n".join(lines))
    return folder


# --- nocap new ------------------------------------------------------------------------------------


def test_new_study_is_one_that_can_be_carried_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Arms composed, claims checked: what `--plan` does before anything runs."""
    folder = tmp_path / "heads"
    assert new.main(["study", "heads", "--dir", str(folder)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == str(folder / "study.yaml")
    output_dir = str(tmp_path / "out")
    plan = prepare(load_study(folder), "cpu", output_dir=output_dir)
    ids = [claim.id for claim in plan.study.claims]
    assert ids == ["heads.speed", "heads.params"]


@pytest.mark.parametrize(
    "group",
    [
        pytest.param(
            group, marks=() if group in ("attention", "ideas", "optimizer") else pytest.mark.slow
        )
        for group in outside.groups()
    ],
)
def test_new_option_composes_and_computes_its_formula(
    group: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert set(CHECKS) == set(outside.groups())
    folder = tmp_path / "mine"
    assert new.main([group, "brand_new", "--dir", str(folder)]) == 0
    option = folder / outside.place(group) / "brand_new.py"
    test = folder / "test_brand_new.py"
    paths = [option, option.with_suffix(".yaml"), test]
    told = capsys.readouterr().out.splitlines()
    assert told[:3] == [str(path) for path in paths]
    assert f"nocap check {folder}" in told[5]
    text = "".join(path.read_text() for path in paths)
    assert not re.search("NAME|CLASS|OVERRIDE", text)
    lines = option.read_text().splitlines()
    assert len(lines) <= 38
    assert check.main([str(folder), "--only", "composes"]) == 0
    formula = runpy.run_path(str(test))["test_formula"]
    parameters = inspect.signature(formula).parameters
    formula(*[tmp_path] * len(parameters))


LETTERS = (
    "nocap: NAME must be a Python name, in letters, digits and _, that begins with a letter, got "
)
OVERWRITTEN = "nocap: NAME must be new, "
AT = f"nocap: {__file__}/mlp cannot be read or written: Not a directory"


NEW_REFUSED = [
    ("attention gqa", OVERWRITTEN),
    ("mlp mlp", "nocap: NAME must be new, but an option of mlp already has kind=mlp, got mlp"),
    ("mlp mine --dir there", OVERWRITTEN),
    ("study there --dir there", OVERWRITTEN),
    ("mlp 2x", f"{LETTERS}2x"),
    ("mlp class", f"{LETTERS}class"),
    ("mpl mine", "nocap: GROUP must be one of attention, data, "),
    (f"mlp mine --dir {__file__}", AT),
]


@pytest.mark.parametrize(("words", "line"), NEW_REFUSED)
def test_new_refuses_in_a_line_and_overwrites_nothing(
    words: str,
    line: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    there = tmp_path / "there" / "test_mine.py"
    there.parent.mkdir()
    there.write_text("mine")
    (there.parent / "study.yaml").write_text("mine")
    with pytest.raises(SystemExit, match="2"):
        new.main(words.split())
    said = capfd.readouterr().err
    assert said.count("\n") == 1
    assert said[: len(line)] == line
    assert there.read_text() == "mine"
    paths = sorted(tmp_path.rglob("*"))
    assert paths == [there.parent, there.parent / "study.yaml", there]


# --- nocap check ----------------------------------------------------------------------------------

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
    from nocap.data.shard_cache import cached_set, write_shards
    from nocap.options.data import Data

    @dataclass(kw_only=True)
    class Broken(Data):
        kind: str = "broken"

        def locate(self, tokenizer, *, cache_dir):
            def make(target):
                draw = lambda: np.frombuffer(os.urandom(20000), dtype=np.uint8).astype(np.uint16)
                splits = ("train", "val")
                return {}, {split: write_shards(target, split, [draw()]) for split in splits}
            return cached_set("broken", tokenizer.name, {}, cache_dir=cache_dir, make=make)
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


FUTURE = "the logits of token 0 change with the tokens from 1 on"
NO_FLOAT = "Value 'small' of type 'str' could not be converted to Float"
IN_TANH = MIXER.format(change="scores = scores.tanh() * 9", first=1) + CLAIM
BREAK = MIXER.format(change="torch._dynamo.graph_break()", first=1)
# torch's compiler warns of its own parts
COMPILES = (
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),
)


BROKEN_OPTIONS = [
    ("causal", "attention", MIXER.format(change="", first=2), ATTENTION, FUTURE),
    ("causal", "norm", BATCH, {}, FUTURE),
    ("decodes", "attention", IN_TANH, ATTENTION, "the option says cache_slots, and"),
    (
        "counts",
        "mlp",
        FLOPS,
        {},
        "a formula says 16,384 FLOPs a token for mlp, and 49,152 are counted",
    ),
    (
        "rates",
        "schedule",
        RISING,
        {"warmup_steps": 2},
        "the factor of step 11 of 30 is 1.1: it must be in",
    ),
    ("builds", "ideas", IDLE, {}, "gets no gradient, and two ranks would wait for it"),
    ("prepares", "data", CHANCE, DATA, "made twice, its fingerprints are"),
    ("composes", "norm", UNTYPED, {"eps": "small"}, NO_FLOAT),
    ("composes", "norm", UNTYPED, {"eps": 1, "epsilon": 1}, "norm.epsilon"),
    pytest.param("compiles", "attention", BREAK, ATTENTION, "Unsupported: ", marks=COMPILES),
]


@pytest.mark.parametrize(("what", "group", "source", "keys", "line"), BROKEN_OPTIONS)
def test_broken_option_fails_with_the_reason(
    what: str,
    group: str,
    source: str,
    keys: dict[str, object],
    line: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    torch._dynamo.reset()
    option = str(written(tmp_path, group, source, **keys))
    assert check.main([option, "--only", what]) == 1
    torch._dynamo.reset()
    told = capsys.readouterr().out.splitlines()
    (failed,) = [row for row in told if row.startswith("FAIL")]
    assert f" {what} " in failed, failed
    assert line in failed, failed
    assert told[-1] == "1 failed", failed


DROPPED = """
    from nocap.options.mlp import Mlp

    class Dropped(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.up = nn.Linear(width, width)
            self.dropout = nn.Dropout(0.3)

        def forward(self, x):
            return self.dropout(self.up(x))

    @dataclass(kw_only=True)
    class Broken(Mlp):
        kind: str = "broken"

        def build(self, d_model):
            return Dropped(d_model)
    """
RANDOM = DROPPED.replace('kind: str = "broken"', 'kind: str = "broken"\n        random = True')


@pytest.mark.slow
def test_an_option_that_draws_is_told_to_say_so(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    option = str(written(tmp_path, "mlp", DROPPED))
    assert check.main([option, "--only", "learns"]) == 1
    lines = capfd.readouterr().out.splitlines()
    (line,) = [row for row in lines if row.startswith("FAIL")]
    assert "mlp.kind=broken must give the same numbers" in line
    assert "set random = True in its class" in line


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # torch's compiler warns of its own parts
@pytest.mark.parametrize("what", ["compiles", "learns", "resumes"])
def test_an_option_that_says_that_it_draws_passes(what: str, tmp_path: Path) -> None:
    torch._dynamo.reset()
    option = str(written(tmp_path, "mlp", RANDOM))
    assert check.main([option, "--only", what]) == 0


POWER_LAW = str(REPO / "tests/strangers/power_law")


CHECK_REFUSED = [
    (["nowhere"], "nocap: DIR must be an existing folder that holds options, got nowhere"),
    (
        ["."],
        " must hold the yaml of an option as GROUP/NAME.yaml (GROUP is one of attention, "
        "data, ideas, "
        "hydra/launcher",
    ),
    (
        ["unread"],
        "broken.py cannot be imported: ModuleNotFoundError: No module named 'no_such_module' "
        "(line 4)",
    ),
    ([POWER_LAW, "--only", "nothing"], "nocap: --only must be the name of a check (composes, "),
    (
        [POWER_LAW, "schedule=wsd"],
        "nocap: schedule=wsd does not work here, because nocap.check itself sets "
        "schedule=power_law",
    ),
]


@pytest.mark.parametrize(("words", "line"), CHECK_REFUSED)
def test_check_refuses_in_a_line(
    words: list[str],
    line: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    written(tmp_path / "unread", "mlp", "import no_such_module")
    with pytest.raises(SystemExit, match="2"):
        check.main(words)
    said = capsys.readouterr().err
    assert said.count("\n") == 1, said
    assert line in said, said


@pytest.mark.slow
def test_a_key_that_must_be_given_is_named_and_the_rest_of_the_folder_is_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ideas = REPO / "experiments" / "atlas" / "ideas" / "ideas"
    given = "ideas.distill.run=outputs/runs/mine"
    wanted = shutil.ignore_patterns("[!bd]*", "__pycache__")  # backout and distill
    shutil.copytree(ideas, tmp_path / "ideas", ignore=wanted)
    assert check.main([str(tmp_path), "--only", "composes", "attention=sliding"]) == 0
    told = capsys.readouterr().out
    assert "skip ideas=[distill] composes  ideas.distill.run must have a value  " in told
    assert told.endswith("all passed, 1 skipped\n")
    trial = OptionTrial(group="ideas", name="distill", more=(given,), folder=tmp_path)
    assert "run=outputs/runs/mine" in composes(trial)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("option", ["parallel", "optimizer", "launcher"])
@pytest.mark.filterwarnings("ignore")  # torch's compiler warns of its own deprecated parts
def test_a_strangers_block_and_new_options_pass(option: str, here: Door, tmp_path: Path) -> None:
    """Others: tests/test_outside.py trains all strangers, tests/test_contract.py has all new
    options."""
    folder = REPO / "tests" / "strangers" / option
    if not folder.exists():
        folder = tmp_path / "brand_new"
        assert here(option, "brand_new", module="nocap.new").code == 0
    torch._dynamo.reset()
    done = here(str(folder), *SHORT, module="nocap.check")
    assert done.code == 0, done.out + done.err
    names = {path.name for path in tmp_path.iterdir()}
    assert names <= {"brand_new"}
