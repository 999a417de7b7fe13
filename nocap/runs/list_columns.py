"""What a list of runs can show, sort by and filter: columns with units, and every key of the
configs."""

from __future__ import annotations

import math
import operator
import os
import re
import stat
import string
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from operator import methodcaller
from pathlib import Path
from typing import Any

from nocap.config.keys import require
from nocap.display import BYTES, NONE, count, duration, integer, shorten, size
from nocap.judge.arm_labels import has
from nocap.judge.arms import spell
from nocap.metrics import METRICS, OF_A_RUN
from nocap.store import lease
from nocap.store.record import Record
from nocap.store.record_files import RunStatus
from nocap.store.times import moment

DAY_S = 86_400.0
UNITS = {
    "s": 1.0,
    "min": 60.0,
    "h": 3600.0,
    "d": DAY_S,
    "w": 7 * DAY_S,
    "K": 1e3,
    "M": 1e6,
    "B": 1e9,
    "G": 1e9,
    "T": 1e12,
    "": 1.0,
}


RUNNING = "running"


def status(run: Record) -> str:
    """Return a run's status as its summary has it; without one, a process may be training it."""
    if run.status == RunStatus.unfinished and lease.is_held(run.folder):
        return RUNNING
    return run.status


def age_s(run: Record) -> float | None:
    """Return the seconds since the last attempt began; `None`: the record does not say when."""
    began = moment(str(run.attempt.get("started")))
    if began is None:
        return None
    return max(0.0, time.time() - began)


def age(seconds: float | None) -> str:
    """Return an age as a list shows it: from two days on in days."""
    if seconds is not None and seconds >= 2 * DAY_S:
        return f"{seconds / DAY_S:.1f} d"
    return duration(seconds)


def size_of(folder: Path) -> int:
    """Return the bytes of the files below; a link counts as nothing, and is not followed."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):  # gone by now
                about = os.lstat(os.path.join(place, name))
                total += about.st_size * stat.S_ISREG(about.st_mode)
    return total


def swept(run: Record) -> str | None:
    """Return what a run's grid swept, with its own values: options by their names."""
    values = {**run.config, "seed": run.seed, **run.options}
    words = list[str]()
    for key in run.attempt["swept"]:
        name = key.rpartition(".")[2]
        words.append(f"{name}={spell(values.get(key))}")
    return " ".join(words) or None


# --- columns --------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class RunColumn:
    name: str
    of: Callable[[Record], Any]  # text or a number; None where there is none
    show: Callable[[Any], str] = spell
    order: Callable[[Any], Any] | None = None  # what to sort a value by; None: by itself

    def text(self, run: Record) -> str:
        value = self.of(run)
        return NONE if value is None else self.show(value)

    def sorts(self, run: Record) -> tuple[int, Any]:
        """Return what to sort a run by: first those without a value, then numbers, then text."""
        value = self.of(run)
        if value is not None and self.order is not None:
            value = self.order(value)
        if value is None:
            return 0, 0
        if isinstance(value, int | float):
            return 1, value
        return 2, str(value)


COLUMNS: dict[str, RunColumn] = {}


def _define(column: RunColumn) -> None:
    COLUMNS[column.name] = column


_define(RunColumn(name="run", of=lambda run: run.folder.name))
_define(RunColumn(name="name", of=lambda run: run.name))
_define(RunColumn(name="arm", of=lambda run: run.arm))
_define(RunColumn(name="identity", of=lambda run: run.identity))
_define(RunColumn(name="seed", of=lambda run: run.seed))
_define(RunColumn(name="status", of=status))
_define(RunColumn(name="swept", of=swept))
_define(RunColumn(name="grid", of=lambda run: run.attempt.get("grid")))
_define(RunColumn(name="host", of=lambda run: run.attempt.get("host")))
_define(RunColumn(name="machine", of=lambda run: run.machine_name))
_define(RunColumn(name="started", of=lambda run: run.attempt.get("started"), order=moment))
_define(RunColumn(name="age", of=age_s, show=age))
_define(RunColumn(name="size", of=lambda run: size_of(run.folder), show=size))
_define(RunColumn(name="steps", of=lambda run: run.number("steps"), show=integer))
_define(RunColumn(name="tokens", of=lambda run: run.number("tokens"), show=count))
_define(RunColumn(name="wall_s", of=lambda run: run.wall_s, show=duration))
for _name in OF_A_RUN:
    _define(RunColumn(name=_name, of=methodcaller("value", _name), show=METRICS[_name].show))


def column(name: str, runs: Sequence[Record]) -> RunColumn:
    """Find the column of this name, or of a key of these runs' configs: whole, or its last part.

    Errors:
        ValueError: no run has such a key, or several keys end so.
    """
    if name in COLUMNS:
        return COLUMNS[name]
    _check_key(name, runs)
    keys: dict[str, None] = {}
    for run in runs:
        keys |= dict.fromkeys(run.config)
    same_end = [key for key in keys if key.endswith(f".{name}")]
    is_one = name in keys or len(same_end) < 2
    require(
        is_one,
        name,
        f"be a whole key, such as {shorten(same_end, most=4)}",
        "the last part of several keys",
    )
    return RunColumn(name=name, of=partial(_configured, name))


def _configured(name: str, run: Record) -> Any:
    """Return what a run's config has in a key, by its name or its last part."""
    for key, value in run.config.items():
        if key == name or key.endswith(f".{name}"):
            return value
    return None


def _check_key(name: str, runs: Sequence[Record], *, group: bool = False) -> None:
    """Refuse what is a key of no run. `group`: the name may be that of a group too."""
    known = any(_has_key(run, name, group=group) for run in runs)
    rule = f"be a key of the runs' configs, or one of {', '.join(COLUMNS)}"
    require(known or not runs, name, rule, "neither")


def _has_key(run: Record, name: str, *, group: bool) -> bool:
    keys = [f".{key}" for key in run.config]
    if any(key.endswith(f".{name}") for key in keys):
        return True
    return group and any(key.startswith(f".{name}.") for key in keys)


# --- filters --------------------------------------------------------------------------------------

FILTER = re.compile(r"([\w.]+)([=<>])(.*)")
ORDER = {"<": operator.lt, ">": operator.gt}


def matching(word: str, runs: Sequence[Record], *, named: Sequence[Record]) -> list[Record]:
    """Return the runs with `status=failed`, `run=nano-*`, `val_loss<3`, `age>30d`, `size>1G`,
    `optimizer.lr=0.003` or `attention=gqa`. `named`: the runs before any filter, whose keys there
    are.

    Errors:
        ValueError: no such key, or no number where one is compared.
    """
    key, sign, text = FILTER.findall(word)[0]
    require(not text.startswith("="), word, "be KEY=VALUE, KEY<NUMBER or KEY>NUMBER", "two signs")
    if sign == "=" and key not in COLUMNS:
        _check_key(key, named, group=True)
        return [run for run in runs if has(run, word)]
    of_key = column(key, named)
    if sign == "=":
        return [run for run in runs if _equals(of_key.of(run), text)]
    units = UNITS
    if of_key.name == "size":
        units = UNITS | BYTES
    limit = amount(word, text, units)
    example = _first_value(of_key, named, default=limit)
    is_number = isinstance(example, int | float) and not isinstance(example, bool)
    require(
        is_number,
        word,
        f"compare a key whose values are numbers ({key}=VALUE works for all keys)",
        spell(example),
    )
    matches = list[Record]()
    for run in runs:
        value = of_key.of(run)
        if isinstance(value, int | float) and ORDER[sign](value, limit):
            matches.append(run)
    return matches


def _first_value(of_key: RunColumn, runs: Sequence[Record], *, default: float) -> Any:
    """Return the value of the first run that has one in a column."""
    for run in runs:
        value = of_key.of(run)
        if value is not None:
            return value
    return default


def _equals(value: Any, text: str) -> bool:
    """Say whether a value is the one that a person typed: a number, or text with `*`."""
    if value is None:
        return False
    if isinstance(value, int | float):
        return math.isclose(value, amount(text, text))
    return fnmatchcase(str(value), text)


def amount(key: str, word: str, units: Mapping[str, float] = UNITS) -> float:
    """Return `30d` in seconds, `1.5G` in bytes, or a plain number.

    Errors:
        ValueError: it is none of them.
    """
    number = word.rstrip(string.ascii_letters)
    try:
        return float(number) * units[word.removeprefix(number)]
    except (KeyError, ValueError):
        names = ", ".join(filter(None, units))
        raise ValueError(
            f"{key} must end with a number, or a number and a unit ({names})"
        ) from None
