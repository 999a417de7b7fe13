"""Whatever a person types wrong, at any door: exit code 2, one line with key, rule and value,
nothing created and no code run; what is accepted is what was given."""

import importlib
import logging
import math
import os
import random
import re
import sys
from dataclasses import Field, fields
from enum import Enum
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_type_hints

import numpy as np
import pytest

from nocap import outside
from nocap.config import hardware
from nocap.config.choices import of_a_grid
from nocap.config.compose import composed
from nocap.config.keys import LIMITS, TEXT
from nocap.config.other_trainers import GUESSES
from nocap.config.overrides import overrides_of
from nocap.config.run import Run, Store
from nocap.config.trainer import Trainer
from nocap.data.shards import write_shard
from nocap.generate import Generate
from nocap.launch.chosen_launcher import launcher_option
from tests.conftest import REPO, SMALL, Door
from tests.test_config import CHOICES, EXPERIMENTS, MANDATORY, ONE_ROW, OPTIONS

BASE = ("model=nano", "tracker=none", "data=synthetic", "trainer.device=cpu", *ONE_ROW)

# --- every key with every kind of wrong value -----------------------------------------------------


@cache
def places(
    choices: tuple[tuple[str, str], ...] = tuple(CHOICES),
) -> list[tuple[tuple[str, ...], str, Field[Any], Any]]:
    """Words that choose an option, where it lies, a field of it, and the field's type: every key of
    every schema of these choices once."""
    owners: dict[type, tuple[tuple[str, ...], str]] = {Run: ((), ""), Trainer: ((), "trainer.")}
    owners |= {Store: ((), "store.")}
    for group, option in choices:
        if group == "ideas":
            word = f"{group}=[{option}]"
        else:
            word = f"{group}={option}"
        chosen = (word, *MANDATORY.get(option, ()))
        for place, settings in composed([*BASE, *chosen]).run.options():
            if place.partition(".")[0] == group:
                owners.setdefault(type(settings), (chosen, f"{place}."))
    owners[outside.options("launcher")["pool"]] = (("hydra/launcher=pool",), "hydra.launcher.")
    parts = {*outside.groups(), "trainer", "store"}
    keys = []
    for owner, (words, place) in owners.items():
        hints = get_type_hints(owner)
        for f in fields(owner):  # type: ignore[arg-type]
            if owner is not Run or f.name not in parts:
                keys.append((words, f"{place}{f.name}", f, hints[f.name]))
    return keys


WRONG = [
    *[
        "abc",
        "1.5",
        "true",
        "null",
        "-1",
        "0",
        "1e30",
        "1e400",
        "-1e400",
        "nan",
        "inf",
        "-inf",
        "",
        "''",
        "0x10",
        "1_000",
        "007",
        "1e21",
        "é",
        "日本",
        "½",
        "²",
        "١٢",
    ],
    *("9" * 25, "9" * 400, "9" * 5000, "-" + "9" * 400, f"{2**63}", f"-{2**63}", "x" * 5000),
    *(
        "'a\x1b[31mb'",
        "'a\nb'",
        "'a\x00b'",
        "'a\x7fb'",
        "'a\u202eb'",
        "'a\u2028b'",
        "'\ud800'",
        "\u200b",
    ),
    *(
        "${oc.env:NOCAP_NO_SUCH}",
        "${no.such}",
        "${trainer}",
        "${data}",
        "${.kind}",
        "${oc.create:[1]}",
        "'${'",
    ),
    *(
        "${now:%Y}",
        "[1]",
        "[]",
        "{a: 1}",
        "{}",
        "[[1]]",
        "[" * 40 + "]" * 40,
        "{_target_: os.system}",
        "1,2",
    ),
    *(
        "range(0,3)",
        "glob(*)",
        "int(3)",
        "'='",
        '"',
        "'",
        "\\",
        "$(id)",
        "`id`",
        "a b",
        "~",
        "*a",
        "&a 1",
    ),
    *("!!python/none x", "<script>"),
]


def limits_of(f: Field[Any]) -> list[str]:
    """Just beyond each limit."""
    step = {"ge": -1, "gt": 0, "le": 1, "lt": 0}
    values: list[str] = []
    for name, by in step.items():
        if f.metadata.get(name) is not None:
            values.append(str(f.metadata[name] + by))
    return values


def kinds(hint: Any) -> tuple[Any, ...]:
    if isinstance(hint, UnionType):
        return get_args(hint)
    return (hint,)


def legal(value: Any, f: Field[Any], hint: Any, text: str) -> bool:
    """Whether the config holds a value of the key's type, within its limits, that is what was asked
    for."""
    if value is None:
        return type(None) in kinds(hint) and text == "null"
    for scalar in value if isinstance(value, list) else [value]:
        if isinstance(scalar, int | float) and not isinstance(scalar, bool):
            limits = [(k, holds) for k, (_, holds) in LIMITS.items() if k in f.metadata]
            within = [holds(scalar, f.metadata[k]) for k, holds in limits]
            if not (math.isfinite(scalar) and all(within)):
                return False
        if isinstance(scalar, str) and (
            len(scalar) > TEXT or {*scalar} & {*"\x1b\n\x00\x7f\u202e\u2028\ud800"}
        ):
            return False
    if type(value) in (int, float):
        return "${" in text or value == (
            {"007": 7, "1_000": 1000, "int(3)": 3}.get(text) or float(text)
        )
    own = tuple(kind for kind in kinds(hint) if isinstance(kind, type)) or list
    return isinstance(value, Enum | str | bool | list) and (hint is Any or isinstance(value, own))


def check(words: tuple[str, ...], key: str, f: Field[Any], hint: Any, text: str) -> bool:
    """One case; whether it was refused."""
    before = sorted(Path.cwd().rglob("*"))
    given = [*BASE, *words, f"{key}={text}"]
    try:
        node: Any = (
            launcher_option(of_a_grid(overrides_of(given, grid=True)))
            if "hydra/launcher=pool" in words
            else composed(given).run
        )
    except ValueError as error:
        line = str(error)
        assert sorted(Path.cwd().rglob("*")) == before
        assert line.strip() == line != ""
        assert not {*"\n\r\x1b\x00"} & {*line}, ascii(line)
        named = key.rpartition(".")[2] in line or key.partition(".")[0] in line
        assert "${" in text or named, (key, text[:80], line)
        return True
    if "hydra/launcher=pool" not in words:
        for part in key.split("."):
            if isinstance(node, dict):
                node = node[part]
            else:
                node = getattr(node, part)
        assert legal(node, f, hint, text), (key, text[:80], node)
    return False


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, and the cache: nothing may be created there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NOCAP_CACHE", str(tmp_path / "cache"))
    return tmp_path


def some_bad_values(choices: list[tuple[str, str]], seed: int, n: int) -> tuple[int, int]:
    """How many were tried and refused: `n` of each key of these choices, and what is beyond its
    limits."""
    chance = random.Random(seed)
    keys = places(tuple(choices))
    cases = []
    for place in keys:
        limits = limits_of(place[2])
        for wrong in (*chance.sample(WRONG, n), *limits):
            cases.append((*place, wrong))
    if n == 1:
        cases = chance.sample(cases, 16)
    return len(cases), sum(check(*case) for case in cases)


@pytest.mark.slow
def test_some_bad_values_are_refused_in_a_line(empty: Path) -> None:
    chance = random.Random(0)
    assert some_bad_values(chance.sample(CHOICES, 6), 0, 1)[1] > 8


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_some_bad_values_of_every_key_are_refused_in_a_line(
    empty: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tried, no = some_bad_values(CHOICES, int(os.environ.get("FUZZ_SEED", "0")), 2)
    with capsys.disabled():
        print(f"\n{len(places())} keys, {tried} values: {no} refused")
    assert list(empty.rglob("*")) == []


def test_every_number_has_limits() -> None:
    options = []
    for group in outside.groups():
        options += outside.options(group).values()
    for owner in (Run, Trainer, Generate, *options):
        hints = get_type_hints(owner)
        numbers = [f for f in fields(owner) if {int, float} & set(kinds(hints[f.name]))]  # type: ignore[arg-type]
        limits = [f.metadata.keys() for f in numbers]
        for keys in limits:
            assert {"ge", "gt"} & keys, owner
            assert {"le", "lt"} & keys, owner


# --- a table of refusals, at the doors ------------------------------------------------------------


class StartedError(Exception):
    """A door took its words for good."""


STARTS = {
    "train": [
        "launch.attempt.run_and_report",
        "launch.runner.Runner.run",
        "launch.grid.Grid.write",
    ],
    "bench": ["measure.bench.carry_out"],
    "profile": ["measure.profile.profiles"],
    "generate": ["generation.sampling.load"],
    "study": ["study.carry_out.carry_out", "study.plan_preview.render"],
    "compare": [],
    "data": ["data.prepare.prepare", "data.prepare.verify"],
    "check": ["checks.contract.results"],
    "race": ["sources.races.race.Race.run"],
}


def at_the_door(door: str, words: list[str], monkeypatch: pytest.MonkeyPatch) -> int | str | None:
    """The exit code; "started" where the words were taken."""
    module = importlib.import_module(
        f"nocap.{door}{'.__main__' if door in ('study', 'data') else ''}"
    )

    def started(*args: object, **more: object) -> None:
        raise StartedError

    for place in STARTS[door]:
        monkeypatch.setattr(f"nocap.{place}", started)
    monkeypatch.setattr(sys, "argv", [door, *words])
    os.environ.pop("NOCAP_OUTSIDE", None)
    try:
        return module.main() or 0  # type: ignore[no-any-return]
    except StartedError:
        return "started"
    except SystemExit as left:
        return left.code


Asked = tuple[int | str | None, list[str]]


@pytest.fixture
def ask(empty: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Return a door's exit code and its lines on stderr; `canary` must not be there."""

    def call(door: str, *words: str) -> Asked:
        with monkeypatch.context() as patched:
            # Hydra's --info adds one
            patched.setattr(logging.root, "handlers", [*logging.root.handlers])
            patched.setattr(logging.root, "level", logging.root.level)
            code = at_the_door(door, list(words), patched)
        assert not (empty / "canary").exists(), "code ran"
        return code, capsys.readouterr().err.splitlines()

    return call


def refused(asked: Asked, *says: str) -> None:
    """Expect one line with these words, and exit code 2."""
    code, lines = asked
    assert code == 2, asked
    assert len(lines) == 1, asked
    for word in says:
        assert word in lines[0], lines


TOUCH = "{_target_: pathlib.Path.touch, _args_: [{_target_: pathlib.Path, _args_: [CANARY]}]}"
LOGGING = (
    "{version: 1, root: {handlers: [x]}, handlers: {x: {class: logging.FileHandler, "
    "filename: CANARY}}}"
)
CALLED = TOUCH.replace(" ", "")
LOGGED = LOGGING.replace(" ", "")
FP8 = "model.fp8_head=true trainer.precision="
SHARDS = "data=shards data.val=val.bin data.train="
RACED = "--metric x --arm idea=true --arm base="
NOWHERE = "--config-dir nowhere", "--config-dir must be a folder that exists, got "
# A door, its first word → words that are added to a small run's, and what the line says. ␣ is a
# blank in a word, CANARY a path, and OWN a folder with options.
REFUSED = {
    "train": [
        NOWHERE,
        # keys and options that do not exist
        ("attention=sliding attention.windw=3", "attention.windw", "window"),
        ("attention=sliding ++attention.windw=3", "attention.windw", "window"),
        ("+attention.window=3", "attention.window", "attention=sliding"),
        ("trainer.stepz=10", "trainer.stepz", "steps"),
        ("+attn=gqa", "attn", "attention"),
        ("steps=3", "steps"),
        ("+wandb={a:1}", "wandb"),
        ("~attention", "attention"),
        ("~attention.n_kv_heads", "attention.n_kv_heads"),
        ("~model.x" + "x" * 400, "model.xxx"),
        *(
            (f"{group}=xyz", f"{group}/xyz", *OPTIONS[group])
            for group in ("attention", "ideas", "tracker")
        ),
        ("experiment=xyz", "experiment/xyz", *EXPERIMENTS),
        ("model=" + "x" * 400, "model/xxx"),
        ("model=[nano,tiny]", "model must be one option"),
        ("model=[1]", "model must hold names of options"),
        ("ideas=[[a]]", "ideas must hold names of options"),
        ("attention.kind=sliding", "attention.kind", "sliding"),  # an option's kind is the option
        # types and values
        *((f"trainer.steps={value}", "trainer.steps", value) for value in ("many", "1.5")),
        ("trainer.steps=null", "trainer.steps"),
        ("trainer.precision=fp17", "trainer.precision", "fp17", "fp32", "bf16"),
        ("model.qk_norm=1_000", "model.qk_norm must be true or false, got 1000"),
        ("model.qk_norm=", "model.qk_norm must be true or false, got ''"),
        (
            "data=shards data.val=val.bin data.train=[a,b]",
            "data.train must be one text and not a list",
            "['a', 'b']",
        ),
        *(
            (
                f"data=text data.path={path}",
                f"'data.path={path}' cannot be read",
                f"data.path='{path}'",
            )
            for path in ("step=100.txt", "a#b.txt")
        ),
        ("optimizer.lr=nan", "optimizer.lr", "nan"),
        ("optimizer.lr=" + "9" * 400, "optimizer.lr"),
        ("trainer.steps=0", "trainer.steps must be at least 1, got 0"),
        ("trainer.steps=1000000000000000000000", "trainer.steps must be at most 1000000000"),
        ("trainer.threads=100000000", "trainer.threads must be at most 4096"),
        ("trainer.grad_clip=0", "trainer.grad_clip", "above 0", "0.0"),
        ("optimizer.beta1=1", "optimizer.beta1", "below 1", "1.0"),
        ("attention=hybrid attention.pattern=LX", "attention.pattern", "LX"),
        ("attention=hybrid attention.pattern=", "attention.pattern", "''"),
        ("attention=hybrid attention.pattern=LL", "attention.pattern", "LL"),
        # what would have no effect
        *(
            (
                f"{key}={{}}",
                f"{key} must be the name of an option, or hold keys in braces, because {{}} "
                "changes nothing, "
                "got {}",
            )
            for key in ("mlp", "optimizer", "ideas", "trainer")
        ),
        (
            "--config-dir OWN objective=own_loss objective.loss_chunks=8",
            "objective.loss_chunks must keep its default, 1, with objective.kind=own_loss, "
            "which does not "
            "use this key",
            "got 8",
        ),
        (
            "attention=hybrid attention.pattern=LLLG",
            "have an L and a G among its first 2 letters (model.n_layer=2)",
            "LLLG",
        ),
        ("attention=hybrid model.n_layer=1", "attention.pattern must hold both letters", "'G'"),
        (
            "optimizer=muon optimizer.momentum_start=0.6",
            "optimizer.momentum_start must keep its default, 0.85, with "
            "optimizer.momentum_warmup_steps=0",
            "0.6",
        ),
        (
            "ideas=[bigram] ideas.bigram.rows=1000",
            "ideas.bigram.rows must keep its default, 65536, because each of the 66,049 "
            "pairs has its own row",
            "1000",
        ),
        (
            "ideas=[ngrams] ideas.ngrams.sizes=[2] ideas.ngrams.rows=9",
            "ideas.ngrams.rows must keep its default",
            "9",
        ),
        ("norm.bias=true", "norm.bias", "RMSNorm"),
        ("output_dir=", "output_dir"),
        ("output_dir='a\nb'", "output_dir must hold no control characters"),
        ("tracker=wandb tracker.tags=" + "[" * 100, "tracker.tags=[[["),
        ("data=text", "data.path"),
        ("data=text data.path=7", "data.path", "7"),
        ("data=shards data.train=a.bin", "data.val"),
        ("data=fineweb data.train_shards=104", "data.train_shards", "103", "104"),
        ("trainer.steps", "trainer.steps"),
        ("trainer.steps=1,2", "trainer.steps=1,2", "--multirun"),
        # where two keys meet
        (
            FP8 + "bf16 objective.loss_chunks=2",
            *("model.fp8_head", "objective.loss_chunks=2", "True"),
        ),
        (FP8 + "fp32", "model.fp8_head", "false", "trainer.precision=fp32", "True"),
        (FP8 + "bf16 model.pad_logits=true", "model.fp8_head", "model.pad_logits=true", "True"),
        (
            FP8 + "bf16 model.seq_len=31 trainer.micro_batch=1",
            "model.fp8_head",
            "multiple of 16",
            "True",
        ),
        (
            "model.residual_precision=bf16",
            "model.residual_precision",
            "fp32",
            "trainer.precision=fp32",
            "bf16",
        ),
        (
            "trainer.device=cpu trainer.cuda_graphs=true",
            "trainer.cuda_graphs",
            "trainer.device=cpu",
            "True",
        ),
        (
            "trainer.device=cuda trainer.cuda_graphs=true trainer.devices=2",
            *("trainer.cuda_graphs", "trainer.devices=2", "True"),
        ),
        (
            "trainer.device=cuda trainer.cuda_graphs=true ideas=[multi_token]",
            *("trainer.cuda_graphs", "ideas.multi_token", "True"),
        ),
        (
            "optimizer.cautious_decay=true optimizer.weight_decay=0",
            *("optimizer.cautious_decay", "optimizer.weight_decay=0", "True"),
        ),
        (
            "optimizer.beta2_half_life_tokens=1e5 optimizer.beta2=0.9",
            *("optimizer.beta2", "optimizer.beta2_half_life_tokens=100000", "0.9"),
        ),
        ("optimizer=schedule_free", "schedule", "constant", "wsd"),
        (
            "optimizer=schedule_free schedule=constant optimizer.beta1=0",
            "optimizer.beta1",
            "above 0",
            "0.0",
        ),
        (
            "optimizer=schedule_free schedule=constant optimizer.cautious_decay=true",
            *("optimizer.cautious_decay", "false", "True"),
        ),
        ("attention.n_kv_heads=3", "attention.n_kv_heads must divide model.n_head=4, got 3"),
        ("attention=gqa model.n_head=7 model.d_model=112", "attention=gqa", "3, 2 or 5", "7"),
        ("model.d_model=100 model.n_head=3", "model.d_model", "model.n_head=3", "100"),
        ("model.d_model=12", "model.d_model", "even", "position=rope", "3"),
        (
            "trainer.batch_tokens=2049",
            "trainer.batch_tokens must be divisible by",
            "8 × 128 × 1 = 1024, got 2049",
        ),
        (
            "trainer.devices=4",
            "trainer.batch_tokens must be divisible by",
            "8 × 128 × 4 = 4096, got 2048",
        ),
        ("trainer.val_tokens=1000", "trainer.val_tokens", "8 × 128 = 1024", "1000"),
        ("objective.loss_chunks=1025", "objective.loss_chunks", "8 × 128 = 1024", "1025"),
        (
            "schedule.warmup_steps=13",
            "schedule.warmup_steps must be at most trainer.steps=12, got 13",
        ),
        (
            "schedule.warmup_steps=10 schedule.decay_steps=3",
            *("schedule.decay_steps", "schedule.warmup_steps=10", "12", "3"),
        ),
        ("trainer.device=cpu attention=sliding attention.kernel=flex", "attention.kernel", "flex"),
        ("attention=sliding attention.kernel=materialized", "attention.kernel", "materialized"),
        ("trainer.device=cuda attention.kernel=flash", "attention.kernel", "flash"),
        ("attention=flash attention.kernel=blocks", "attention.kernel", "blocks"),
        ("trainer.device=cpu attention.kernel=cudnn", "attention.kernel", "cudnn"),
        ("experiment=recipe_cpu ideas=[]", "ideas.ngrams", "ideas=[ngrams]", "1.26"),
        # data that is missing, small or damaged; folders that cannot be written
        ("trainer.val_tokens=102400", "trainer.val_tokens must be at most", "got 102400"),
        ("data.train_tokens=100", "data must have a shard of at least", "129 tokens", "got 100"),
        ("data=text data.path=missing.txt", "data.path", "missing.txt"),
        ("data=text data.path=empty", "data.path", "empty"),
        (SHARDS + "none_*.bin", "data.train must match at least one file", "none_*.bin"),
        (SHARDS + "cut.bin", "cut.bin", "truncated", "3024"),
        (SHARDS + "magic.bin", "magic.bin", "20240520", "got 7"),
        (SHARDS + "ids.bin tokenizer=bytes", "ids.bin", "below 257", "got 300 at token 5"),
        ("output_dir=file/below", "output_dir must be a folder that can be written", "file/below"),
        *(
            []
            if hardware.cuda_devices()
            else [("trainer.device=cuda", "trainer.device=cuda must have ")]
        ),
        # Hydra's own
        (f"+hydra.callbacks.x={CALLED}",),
        (f"++hydra={{callbacks:{{x:{CALLED}}}}}",),
        (f"hydra.job_logging={LOGGED}",),
        ("hydra/job_logging=default",),
        ("hydra.job.env_set={LD_PRELOAD:x}",),
        ("hydra.run.dir=canary",),
        ("hydra.searchpath=[pkg://evil]",),
        ("--cfg job hydra.searchpath=[pkg://evil]",),
        ("--info all hydra.searchpath=[pkg://evil]",),
        ("+experiment@hydra.callbacks=small_bytes",),
        ("+hydra/callbacks=evil",),
        ("hydra/launcher=pool",),
        ("--config-path pkg://evil",),
        ("--config-name evil",),
        ("--config-di .",),
        ("--run seed=0",),
        ("--resolve", "--resolve works only with --cfg job"),
        (
            "--cfg job --multirun seed=0,1",
            "--cfg is for one run, and does not work with --multirun",
        ),
        ("--info --plan", "--info is for one run, and does not work with --plan"),
        (
            "data.read_sequences=8",
            "data.read_sequences must keep its default, 16, with data.order=shuffled",
        ),
        ("--experimental-rerun run.pickle",),  # which Hydra would load
    ],
    "train --multirun": [
        ("seed=0,1 trainer.stepz=1,2", "trainer.stepz"),  # before the first cell
        ("seed=0,1 output_dir=file/below", "output_dir", "file/below"),
        ("seed=range(0,1000000000)", "seed must have at most 10,000 values"),
        ("seed=shuffle(range(0,1000000000))", "seed must have at most 10,000 values"),
        ("optimizer.lr=range(0,1,1e-300)", "at most 10,000 values"),
        ("optimizer.lr=range(0,1e400)", "be a range of numbers"),
        ("seed=range(0,200) trainer.steps=range(1,200)", "at most 10,000 cells"),
        ("seed=range(0,5,0)", "with a step"),
        ("seed=glob(*)", "seed must be a group"),
        ("seed=interval(0,1)", "draws values from an interval"),
        (
            "+hydra.sweeper.params.seed=range(0,1000000000)",
            "hydra.sweeper.params.seed must not be set",
        ),
        (
            "seed=0 hydra.launcher._target_=os.system",
            "hydra.launcher._target_ must be set only in a command that also chooses",
        ),
        (
            "seed=0 hydra.launcher.jobs=2",
            "hydra.launcher.jobs must be set only in a command that also chooses a launcher ",
        ),
        (
            "seed=0 hydra/launcher=pool ++hydra.launcher._target_=os.system",
            "and no other launcher of Hydra",
        ),
        (f"seed=0 hydra/launcher=pool ++hydra.launcher.jobs={CALLED}",),
        (f"seed=0 ++hydra.launcher.x={CALLED}",),
        ("seed=0 hydra.sweeper._target_=os.system",),
        (f"seed=0 ++hydra.sweeper.x={CALLED}",),
        (f"seed=0 +hydra.callbacks.x={CALLED}",),
    ],
    "generate run=x": [
        ("samples=100000000", "samples must be at most 4096"),
        ("max_tokens=" + "9" * 30, "max_tokens must be at most"),
        ("temperature=0 top_k=5", "top_k must be 0 with temperature=0"),
        ("temperature=0 seed=5", "seed must be 0 with temperature=0"),
    ],
    "race": [
        NOWHERE,
        (
            f"{RACED}python␣t.py␣{{seed}}␣&&␣true",
            "arm base must not have &&, which only a shell reads",
        ),
        (
            f"{RACED}X=1␣python␣t.py",
            "arm base must be a command that begins with",
            "(to set a variable: env X=1 PROGRAM), got X=1",
        ),
    ],
    **{door: [NOWHERE] for door in STARTS if door not in ("train", "race")},
}
CASES = [(door.split(" "), row[0], row[1:]) for door, rows in REFUSED.items() for row in rows]


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Files that cannot be trained on."""
    folder = tmp_path_factory.mktemp("material")
    tokens = np.arange(1000) % 257
    for name in ("val", "cut", "magic"):
        write_shard(folder / f"{name}.bin", np.roll(tokens, len(name)))
    broken_id = np.arange(1000) == 5
    write_shard(folder / "ids.bin", np.where(broken_id, 300, tokens))
    made = {path.name: path.read_bytes() for path in folder.iterdir()} | {
        "file": b"a file, no folder\n" * 4000
    }
    cut = made["magic.bin"][4:]
    return made | {"cut.bin": made["cut.bin"][:2000], "magic.bin": b"\7\0\0\0" + cut}


def in_place(word: str, folder: Path) -> str:
    """Return a word of the table as it is typed in this folder."""
    own = REPO / "tests" / "own_ideas" / "own_loss"
    return word.replace("␣", " ").replace("CANARY", str(folder / "canary")).replace("OWN", str(own))


@pytest.mark.parametrize(
    ("door", "words", "says"), CASES, ids=[f"{' '.join(c[0])} {c[1][:70]}" for c in CASES]
)
def test_words_that_are_refused_at_once(
    door: list[str],
    words: str,
    says: tuple[str, ...],
    ask: Any,
    empty: Path,
    material: dict[str, bytes],
) -> None:
    (empty / "empty").mkdir()
    for name in material if ".bin" in words or "file" in words else ():
        (empty / name).write_bytes(material[name])
    before = {path for path in empty.iterdir() if path.name != "cache"}
    given = [in_place(word, empty) for word in words.split(" ")]
    data = any(word.startswith("data=") for word in given)
    small = []
    for word in SMALL:
        if door[0] == "train" and not (data and word.startswith("data")):
            small.append(word)
    refused(ask(*door, *small, *given), *says)
    assert {path for path in empty.iterdir() if path.name != "cache"} == before


def test_what_the_refusals_start_from_is_accepted(ask: Any) -> None:
    assert ask("train", *SMALL)[0] == "started"
    assert ask("train", "--multirun", *SMALL, "norm=glob(rms*)")[0] == "started"


def test_a_process_refuses_in_the_same_way(door: Door, tmp_path: Path) -> None:
    done = door(*SMALL, "trainer.stepz=1")
    assert done.code == 2
    assert done.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
    assert done.err.startswith("nocap: trainer.stepz is no key")


def test_compilation_without_a_compiler_is_refused(
    ask: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "/nonexistent")
    says = "trainer.compile=regional on the CPU needs a C++ compiler", "/nonexistent"
    refused(ask("train", *SMALL, "trainer.compile=regional", "trainer.device=cpu"), *says)


BLOCKS = "the number of blocks is model.n_layer"
UPDATES = "the number of updates is trainer.steps"
GPT2 = "GPT-2 of 124M parameters is model=d12 tokenizer=gpt2"


@pytest.mark.parametrize(
    ("word", "line"),
    [
        (
            "batch_size=8",
            "batch_size is no key of run: tokens of an update are trainer.batch_tokens, ",
        ),
        ("trainer.batch_size=8", "trainer.batch_tokens, sequences of a forward are "),
        ("lr=0.1", "lr is no key of run (did you mean optimizer.lr?)"),
        ("epochs=2", f"epochs is no key of run: a run has no epochs; {UPDATES}"),
        ("dropout=0.1", "dropout is no key of run: nocap's models have no dropout"),
        ("model.dropout=0.1", "model.dropout is no key of gpt: nocap's models have no dropout"),
        ("seeds=3", "seeds is no key of run: a run has one seed; seed=0,1,2 with --multirun"),
        ("n_layers=4", f"n_layers is no key of run: {BLOCKS}"),
        ("model.n_layers=4", "model.n_layers is no key of gpt: "),
        ("n_embd=64", "n_embd is no key of run: the model's width is model.d_model"),
        ("block_size=128", "the length of a sequence in tokens is model.seq_len"),
        ("max_iters=100", f"max_iters is no key of run: {UPDATES}"),
        ("gpt2=true", f"gpt2 is no key of run: {GPT2}"),
        ("model=gpt2", f"model/gpt2 is no option: {GPT2}"),
    ],
)
@pytest.mark.parametrize("door", [("train",), ("train", "--multirun")], ids=" ".join)
def test_a_guess_leads_to_the_right_key(
    door: tuple[str, ...], word: str, line: str, ask: Any
) -> None:
    refused(ask(*door, *SMALL, word), line)


def test_help_leads_from_a_guess_to_the_right_key(ask: Any) -> None:
    refused(ask("train", "--help", "max_iters=3"), f"max_iters is no key: {UPDATES}")


def test_every_guess_is_of_a_key_that_is_there() -> None:
    """No option has a key of such a name, and what a line names is a key."""
    known = {place for _, place, _, _ in places()}
    for guess, line in GUESSES.items():
        assert not [name for name in known if name.rpartition(".")[2] == guess], guess
        named = re.findall(r"\b(?:trainer|model|optimizer)\.\w+", line)
        assert set(named) <= known, line
