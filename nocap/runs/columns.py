"""What a list of runs can show, sort by and filter: columns with units, and every key of the configs."""

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
from nocap.judge.arms import spell
from nocap.judge.labels import has
from nocap.store import lease
from nocap.store.formats import BYTES, NONE, count, duration, shorten, size, whole
from nocap.store.metrics import METRICS, OF_A_RUN, moment
from nocap.store.runs import Record

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
    """Return the status that the summary has; without one, a process may be training the run."""
    return RUNNING if run.status == "not finished" and lease.is_held(run.folder) else run.status


def age_s(run: Record) -> float | None:
    """Since the last attempt began."""
    began = moment(str(run.attempt.get("started")))
    return None if began is None else max(0.0, time.time() - began)


def age(seconds: float | None) -> str:
    return f"{seconds / DAY_S:.1f} d" if seconds is not None and seconds >= 2 * DAY_S else duration(seconds)


def size_of(folder: Path) -> int:
    """Bytes of the files below; a link counts as nothing, and is not followed."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):  # gone by now
                about = os.lstat(os.path.join(place, name))
                total += about.st_size * stat.S_ISREG(about.st_mode)
    return total


def swept(run: Record) -> str | None:
    """Return what its grid swept, with its own values: options by their names."""
    values = {**run.config, "seed": run.seed, **run.manifest["options"]}
    return (
        " ".join(f"{key.rpartition('.')[2]}={spell(values.get(key))}" for key in run.attempt["swept"]) or None
    )


# --- columns ------------------------------------------------------------------------------------------------


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
        """Ascending; those without a value come first."""
        value = self.of(run)
        if value is not None and self.order is not None:
            value = self.order(value)
        return (0, 0) if value is None else (1, value) if isinstance(value, int | float) else (2, str(value))


COLUMNS = {
    column.name: column
    for column in (
        RunColumn(name="run", of=lambda run: run.folder.name),
        RunColumn(name="name", of=lambda run: run.name),
        RunColumn(name="arm", of=lambda run: run.arm),
        RunColumn(name="identity", of=lambda run: run.identity),
        RunColumn(name="seed", of=lambda run: run.seed),
        RunColumn(name="status", of=status),
        RunColumn(name="swept", of=swept),
        RunColumn(name="grid", of=lambda run: run.attempt.get("grid")),
        RunColumn(name="host", of=lambda run: run.attempt.get("host")),
        RunColumn(name="machine", of=lambda run: run.machine_name),
        RunColumn(name="started", of=lambda run: run.attempt.get("started"), order=moment),
        RunColumn(name="age", of=age_s, show=age),
        RunColumn(name="size", of=lambda run: size_of(run.folder), show=size),
        RunColumn(name="steps", of=lambda run: run.number("steps"), show=whole),
        RunColumn(name="tokens", of=lambda run: run.number("tokens"), show=count),
        RunColumn(name="wall_s", of=lambda run: run.number("clock_s", "wall"), show=duration),
        *(RunColumn(name=name, of=methodcaller("value", name), show=METRICS[name].show) for name in OF_A_RUN),
    )
}


def column(name: str, runs: Sequence[Record]) -> RunColumn:
    """Find the column of this name, or of a key of these runs' configs: whole, or its last part.

    Errors:
        ValueError: no run has such a key, or several keys end so.
    """
    if name in COLUMNS:
        return COLUMNS[name]
    _check_key(name, runs)
    every = {key: None for run in runs for key in run.config}
    ends = [key for key in every if key.endswith(f".{name}")]
    require(name in every or len(ends) < 2, name, f"be one key, as {shorten(ends, most=4)}", "several")
    return RunColumn(name=name, of=partial(_configured, name))


def _configured(name: str, run: Record) -> Any:
    return next((value for key, value in run.config.items() if key == name or key.endswith(f".{name}")), None)


def _check_key(name: str, runs: Sequence[Record], *, group: bool = False) -> None:
    keys = [f".{key}" for run in runs for key in run.config]
    known = any(key.endswith(f".{name}") or (group and key.startswith(f".{name}.")) for key in keys)
    require(
        known or not runs, name, f"be a key of the runs' configs, or one of {', '.join(COLUMNS)}", "neither"
    )


# --- filters ------------------------------------------------------------------------------------------------

FILTER = re.compile(r"([\w.]+)([=<>])(.*)")
ORDER = {"<": operator.lt, ">": operator.gt}


def matching(word: str, runs: Sequence[Record], *, named: Sequence[Record]) -> list[Record]:
    """Return those with `status=failed`, `run=nano-*`, `val_loss<3`, `age>30d`, `size>1G`,
    `optimizer.lr=0.003` or `attention=gqa`. `named`: the runs before any filter, whose keys there are.

    Errors:
        ValueError: no such key, or no number where one is compared.
    """
    key, sign, wanted = FILTER.findall(word)[0]
    require(not wanted.startswith("="), word, "be KEY=VALUE, KEY<NUMBER or KEY>NUMBER", "two signs")
    if sign == "=" and key not in COLUMNS:
        _check_key(key, named, group=True)
        return [run for run in runs if has(run, word)]
    shown = column(key, named)
    if sign == "=":
        return [run for run in runs if (value := shown.of(run)) is not None and _equals(value, wanted)]
    limit = amount(word, wanted, UNITS | BYTES if shown.name == "size" else UNITS)
    first = next((value for run in named if (value := shown.of(run)) is not None), limit)
    is_number = isinstance(first, int | float) and not isinstance(first, bool)
    require(is_number, word, f"compare numbers; {key}=VALUE compares other values", spell(first))
    return [
        run for run in runs if isinstance(value := shown.of(run), int | float) and ORDER[sign](value, limit)
    ]


def _equals(value: Any, wanted: str) -> bool:
    return (
        math.isclose(value, amount(wanted, wanted))
        if isinstance(value, int | float)
        else fnmatchcase(str(value), wanted)
    )


def amount(key: str, word: str, units: Mapping[str, float] = UNITS) -> float:
    """`30d` in seconds, `1.5G` in bytes, or a plain number.

    Errors:
        ValueError: it is none of them.
    """
    number = word.rstrip(string.ascii_letters)
    try:
        return float(number) * units[word.removeprefix(number)]
    except (KeyError, ValueError):
        raise ValueError(
            f"{key} must end with a number, perhaps with one of {', '.join(filter(None, units))}"
        ) from None
