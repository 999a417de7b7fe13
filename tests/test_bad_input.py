"""Every key of the schema with every kind of wrong value: one line, nothing created; what is accepted is what
was given."""

from __future__ import annotations

import importlib
import itertools
import math
import os
import random
import sys
import time
from dataclasses import Field, fields
from enum import Enum
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_type_hints

import pytest

from nocap import outside
from nocap.checks.trial import launcher
from nocap.config.compose import composed
from nocap.config.keys import LIMITS, TEXT
from nocap.config.run import Run, Store
from nocap.config.trainer import Trainer
from nocap.generate import Generate
from tests.conftest import SMALL
from tests.studies import study, written
from tests.test_config import CHOICES, MANDATORY, ONE_ROW

BASE = ("model=nano", "tracker=none", "data=synthetic", "trainer.device=cpu", *ONE_ROW)
SECONDS = 5.0  # of this process: the first door imports, and a busy machine takes twice as long


@cache
def places(
    choices: tuple[tuple[str, str], ...] = tuple(CHOICES),
) -> list[tuple[tuple[str, ...], str, Field[Any], Any]]:
    """Words that choose an option, where it lies, a field of it, and the field's type: every key of every
    schema of these choices once."""
    owners: list[tuple[tuple[str, ...], str, type]] = [
        ((), "", Run),
        ((), "trainer.", Trainer),
        ((), "store.", Store),
    ]
    schemas: set[type] = set()
    for group, option in choices:
        chosen = (
            f"{group}=[{option}]" if group == "ideas" else f"{group}={option}",
            *MANDATORY.get(option, ()),
        )
        for place, settings in composed([*BASE, *chosen]).run.options():
            if place.partition(".")[0] == group and type(settings) not in schemas:
                schemas.add(type(settings))
                owners.append((chosen, f"{place}.", type(settings)))
    owners.append((("hydra/launcher=pool",), "hydra.launcher.", outside.options("launcher")["pool"]))
    own = [
        name
        for name in get_type_hints(Run)
        if name not in outside.groups() and name not in ("trainer", "store")
    ]
    return [
        (words, f"{place}{f.name}", f, get_type_hints(owner)[f.name])
        for words, place, owner in owners
        for f in fields(owner)  # type: ignore[arg-type]
        if owner is not Run or f.name in own
    ]


WRONG = [
    *(
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
    ),
    *(
        "9" * 25,
        "9" * 400,
        "9" * 5000,
        "-" + "9" * 400,
        "1e21",
        f"{2**63}",
        f"-{2**63}",
        "x" * 5000,
        "é",
        "日本",
        "½",
        "²",
        "١٢",
    ),
    *("'a\x1b[31mb'", "'a\nb'", "'a\x00b'", "'a\x7fb'", "'a\u202eb'", "'a\u2028b'", "'\ud800'", "\u200b"),
    *(
        "${oc.env:NOCAP_NO_SUCH}",
        "${no.such}",
        "${trainer}",
        "${data}",
        "${.kind}",
        "${oc.create:[1]}",
        "'${'",
        "${now:%Y}",
    ),
    *(
        "[1]",
        "[]",
        "{a: 1}",
        "{}",
        "[[1]]",
        "[" * 40 + "]" * 40,
        "{_target_: os.system}",
        "1,2",
        "range(0,3)",
        "glob(*)",
        "int(3)",
    ),
    *("'='", '"', "'", "\\", "$(id)", "`id`", "a b", "~", "!!python/none x", "*a", "&a 1", "<script>"),
]


def limits_of(f: Field[Any]) -> list[str]:
    """Just beyond each limit."""
    step = {"ge": -1, "gt": 0, "le": 1, "lt": 0}
    return [str(f.metadata[name] + by) for name, by in step.items() if f.metadata.get(name) is not None]


def kinds(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if isinstance(hint, UnionType) else (hint,)


def refused(words: tuple[str, ...], word: str) -> str | None:
    """The line, or None: it was accepted."""
    try:
        launcher([*BASE, *words, word]) if "hydra/launcher=pool" in words else composed([*BASE, *words, word])
    except ValueError as error:
        return str(error)
    return None


def legal(value: Any, f: Field[Any], hint: Any, text: str) -> bool:
    """Whether the config holds a value of the key's type, within its limits, that is what was asked for."""
    if value is None:
        return type(None) in kinds(hint) and text == "null"
    for scalar in value if isinstance(value, list) else [value]:
        number = isinstance(scalar, int | float) and not isinstance(scalar, bool)
        if number and not (
            math.isfinite(scalar)
            and all(holds(scalar, f.metadata[k]) for k, (_, holds) in LIMITS.items() if k in f.metadata)
        ):
            return False
        if isinstance(scalar, str) and (
            len(scalar) > TEXT or any(c in scalar for c in "\x1b\n\x00\x7f\u202e\u2028\ud800")
        ):
            return False
    if type(value) in (int, float):
        return "${" in text or bool(
            value == {"007": 7, "1_000": 1000, "int(3)": 3}.get(text) or value == float(text)
        )
    own = tuple(kind for kind in kinds(hint) if isinstance(kind, type)) or list
    return isinstance(value, Enum | str | bool | list) and (hint is Any or isinstance(value, own))


def check(words: tuple[str, ...], key: str, f: Field[Any], hint: Any, text: str) -> bool:
    """One case; whether it was refused."""
    before = sorted(Path.cwd().rglob("*"))
    line = refused(words, f"{key}={text}")
    if line is not None:
        assert sorted(Path.cwd().rglob("*")) == before
        assert line.strip() == line != ""
        assert line.isprintable() or not any(c in line for c in "\n\r\x1b\x00"), ascii(line)
        assert "${" in text or key.rpartition(".")[2] in line or key.partition(".")[0] in line, (
            key,
            text[:80],
            line,
        )
        return True
    if "hydra/launcher=pool" not in words:
        run = composed([*BASE, *words, f"{key}={text}"]).run
        node: Any = run
        for part in key.split("."):
            node = node[part] if isinstance(node, dict) else getattr(node, part)
        assert legal(node, f, hint, text), (key, text[:80], node)
    return False


def cases(
    choices: tuple[tuple[str, str], ...] = tuple(CHOICES),
) -> list[tuple[tuple[str, ...], str, Field[Any], Any, str]]:
    return [(*place, text) for place in places(choices) for text in (*WRONG, *limits_of(place[2]))]


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, and the cache: nothing may be created there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NOCAP_CACHE", str(tmp_path / "cache"))
    return tmp_path


def test_some_bad_values(empty: Path) -> None:
    chance = random.Random(0)
    chosen = chance.sample(cases(tuple(chance.sample(CHOICES, 6))), 16)
    # the choices themselves were composed, and a default may have been measured for one
    before = sorted(empty.rglob("*"))
    assert sum(check(*case) for case in chosen) > 8
    assert sorted(empty.rglob("*")) == before


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_some_bad_values_of_every_key(empty: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chance = random.Random(int(os.environ.get("FUZZ_SEED", "0")))
    every = [
        (*place, text) for place in places() for text in (*chance.sample(WRONG, 4), *limits_of(place[2]))
    ]
    count = sum(check(*case) for case in every)
    with capsys.disabled():
        print(f"\n{len(places())} keys, {len(every)} values: {count} refused, {len(every) - count} legal")
    # a legal value's default may be measured
    assert {path.name for path in empty.rglob("*")} <= {"cache", "bf16.json"}


@pytest.mark.parametrize(
    "owner", [Run, Trainer, Generate, *(cls for g in outside.groups() for cls in outside.options(g).values())]
)
def test_every_number_has_limits(owner: type) -> None:
    hints = get_type_hints(owner)
    numbers = [f for f in fields(owner) if {int, float} & set(kinds(hints[f.name]))]  # type: ignore[arg-type]
    assert all({"ge", "gt"} & f.metadata.keys() and {"le", "lt"} & f.metadata.keys() for f in numbers), owner


# --- random words at every door -----------------------------------------------------------------------------


class StartedError(Exception):
    """A door took its words for good."""


STARTS = {
    "train": ["launch.attempt.start", "launch.runner.Runner.run", "launch.grid.Grid.write"],
    "bench": ["measure.bench.bench"],
    "profile": ["measure.profile.profile"],
    "generate": ["measure.generation.load"],
    "study": ["study.conduct.carry_out", "study.preview.render"],
    "compare": [],
    "data": ["data.prepare.prepare", "data.prepare.verify"],
    "check": ["checks.contract.results"],
    "new": ["new.write_file"],
}


def at_the_door(door: str, words: list[str], monkeypatch: pytest.MonkeyPatch) -> int | str | None:
    """The exit code; "started" where the words were taken."""
    module = importlib.import_module(
        f"nocap.{door}.__main__" if door in ("study", "data") else f"nocap.{door}"
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


ODD_KEYS = (
    "seed",
    "model",
    "attention",
    "ideas",
    "experiment",
    "hydra.x",
    "samples",
    "run",
    "scale",
    "output_dir",
    "é",
    "",
)
ODD = [
    None,
    1,
    -1,
    10**400,
    1e300,
    "x",
    "",
    [],
    {},
    [[]],
    {"a": 1},
    True,
    "a\x1bb",
    "${no}",
    "../x",
    [1, "a"],
    2**63,
    math.inf,
    "x" * 9999,
]


def a_word(chance: random.Random) -> str:
    key = chance.choice([*(place[1] for place in places()), *ODD_KEYS])
    mark = chance.choice(["", "", "", "+", "++", "~", "-", "--", "@", " "])
    equals = chance.choice(["=", "=", "=", "=", "", "==", " = "])
    return (
        f"{mark}{key}{equals}{chance.choice(WRONG)}".replace("\x00", "").encode(errors="replace").decode()
        or "x"
    )


def bad_study(folder: Path, chance: random.Random) -> str:
    """A study's folder with one thing wrong, or odd."""
    content = study()
    node, key = content, chance.choice(list(content))
    while isinstance(node[key], dict | list) and node[key] and chance.random() < 0.7:
        node = node[key]
        key = chance.choice(list(node)) if isinstance(node, dict) else chance.randrange(len(node))  # type: ignore[assignment]
    node[key] = chance.choice(ODD)
    written(folder, content)
    return str(folder)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.filterwarnings("ignore")
def test_random_words_at_every_door(
    empty: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    chance, counts = random.Random(int(os.environ.get("FUZZ_SEED", "0"))), dict[Any, int]()
    folder, known = empty / "given", set[Path]()
    folder.mkdir()
    for number, door in zip(range(300), itertools.cycle(STARTS), strict=False):
        first = {
            "study": [bad_study(folder / f"s{number}", chance)],
            "check": [str(folder)],
            "new": ["attention"],
            "data": ["prepare"],
        }
        more = list(SMALL) if door in ("train", "profile", "bench", "data") else []
        arms = ["--arm", "attention=mha", "--arm", "attention=flash"] if door == "bench" else []
        words = [
            *first.get(door, []),
            *more,
            *arms,
            *(a_word(chance) for _ in range(chance.randint(door != "study", 2))),
        ]
        if door == "train" and chance.random() < 0.5:
            words.append("--multirun")
        began = time.process_time()
        with monkeypatch.context() as patched:
            code = at_the_door(door, words, patched)
        took, printed = time.process_time() - began, capsys.readouterr()
        assert code in (0, 2, "started"), (door, words, code, printed.err)
        assert took < SECONDS, (door, words, took)
        lines = [line for line in printed.err.splitlines() if line.startswith("nocap: ")]
        assert code != 2 or "usage:" in printed.err or lines, (door, words, printed.err)
        assert "Traceback" not in printed.err
        counts[door, code] = counts.get((door, code), 0) + 1
        left = {path for path in empty.iterdir() if path.name not in ("cache", "given")}
        # a cache_dir that was accepted may be made
        assert code == "started" or not left - known, (door, words)
        known |= left
    with capsys.disabled():
        print(f"\n{number + 1} tries: {counts}")
