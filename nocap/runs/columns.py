"""What a list of runs can show, sort by and filter: columns with units, and every key of the configs."""

from __future__ import annotations

import math
import operator
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from fnmatch import fnmatchcase
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from nocap.config.keys import require
from nocap.judge.arms import has, spell
from nocap.store import lease
from nocap.store.formats import BYTES, NONE, count, duration, size, whole
from nocap.store.metrics import METRICS, OF_A_RUN
from nocap.store.runs import Record, glance

DAY_S = 86_400.0
UNITS = {"s": 1.0, "min": 60.0, "h": 3600.0, "d": DAY_S, "w": 7 * DAY_S, "K": 1e3, "M": 1e6, "B": 1e9, "G": 1e9, "T": 1e12}


@dataclass(frozen=True, kw_only=True)
class Listed:
    """A run as a list has it."""

    folder: Path
    record: Record
    now: float = field(default_factory=time.time)

    @cached_property
    def status(self) -> str:
        """As its summary has it; without one, a process may be training it."""
        found = self.record.status
        return "running" if found == "not finished" and lease.is_held(self.folder) else found

    @cached_property
    def size(self) -> int:
        return size_of(self.folder)

    @property
    def attempt(self) -> dict[str, Any]:
        """The last one."""
        return (self.record.manifest.get("attempts") or [{}])[-1] or {}

    @property
    def age_s(self) -> float | None:
        """Since the last attempt began."""
        try:
            return max(0.0, self.now - datetime.fromisoformat(str(self.attempt.get("started"))).timestamp())
        except ValueError:
            return None


def look(folders: Iterable[Path], *, sound: bool = True) -> tuple[list[Listed], list[str]]:
    """The runs in these folders, and a line for each that cannot be read, or with `sound` was changed."""
    found, problems = list[Listed](), list[str]()
    for folder in folders:
        try:
            found.append(Listed(folder=folder, record=glance(folder, sound=sound)))
        except ValueError as error:
            problems.append(f"{folder.name}: {error}")
    return found, problems


def size_of(folder: Path) -> int:
    """Bytes of the files below; a link counts as nothing, and is not followed."""
    total = 0
    with suppress(OSError), os.scandir(folder) as entries:  # another user's, or gone by now
        for entry in entries:
            with suppress(OSError):
                if entry.is_dir(follow_symlinks=False):
                    total += size_of(Path(entry.path))
                elif not entry.is_symlink():
                    total += entry.stat(follow_symlinks=False).st_size
    return total


def age(seconds: float | None) -> str:
    return f"{seconds / DAY_S:.1f} d" if seconds is not None and seconds >= 2 * DAY_S else duration(seconds)


# --- columns -------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Column:
    name: str
    of: Callable[[Listed], Any]  # text or a number; None where there is none
    show: Callable[[Any], str] = spell


def _value(metric: str, run: Listed) -> float | None:
    return run.record.value(metric)


def _swept(run: Listed) -> str | None:
    """What its grid swept, with its own values: options by their names."""
    options, config = run.record.manifest.get("options") or {}, {**run.record.config, "seed": run.record.seed}
    words = [f"{key.rpartition('.')[2]}={spell(options.get(key, config.get(key)))}" for key in run.attempt.get("swept") or ()]
    return " ".join(words) or None


COLUMNS = {
    column.name: column
    for column in (
        Column(name="run", of=lambda run: run.folder.name),
        Column(name="name", of=lambda run: run.record.name),
        Column(name="arm", of=lambda run: run.record.arm),
        Column(name="identity", of=lambda run: run.record.identity),
        Column(name="seed", of=lambda run: run.record.seed),
        Column(name="status", of=lambda run: run.status),
        Column(name="swept", of=_swept),
        Column(name="grid", of=lambda run: run.attempt.get("grid")),
        Column(name="host", of=lambda run: run.attempt.get("host")),
        Column(name="machine", of=lambda run: run.record.machine_name),
        Column(name="started", of=lambda run: run.attempt.get("started")),
        Column(name="age", of=lambda run: run.age_s, show=age),
        Column(name="size", of=lambda run: run.size, show=size),
        Column(name="steps", of=lambda run: run.record.number("steps"), show=whole),
        Column(name="tokens", of=lambda run: run.record.number("tokens"), show=count),
        Column(name="wall_s", of=lambda run: run.record.number("clock_s", "wall"), show=duration),
        *(Column(name=name, of=partial(_value, name), show=METRICS[name].show) for name in OF_A_RUN),
    )
}
DEFAULT = ("run", "status", "steps", "val_loss", "tokens_per_s", "train_s", "age", "size")


def column(name: str, runs: Sequence[Listed]) -> Column:
    """The column of this name, or of a key of the configs: whole, or its last part.

    Errors:
        ValueError: no run has such a key.
    """
    if name in COLUMNS:
        return COLUMNS[name]
    _check_key(name, runs)

    def of(run: Listed) -> Any:
        return next((value for key, value in run.record.config.items() if key == name or key.endswith(f".{name}")), None)

    return Column(name=name, of=of)


def _check_key(name: str, runs: Sequence[Listed], *, group: bool = False) -> None:
    found = any(
        key == name or key.endswith(f".{name}") or (group and key.startswith(f"{name}.")) for run in runs for key in run.record.config
    )
    require(found or not runs, name, f"be a key of the runs' configs, or one of {', '.join(COLUMNS)}", "neither")


def text(column: Column, run: Listed) -> str:
    value = column.of(run)
    return NONE if value is None else column.show(value)


def in_order(runs: Iterable[Listed], column: Column) -> list[Listed]:
    """Ascending; those without a value come first."""

    def key(run: Listed) -> tuple[int, Any]:
        value = column.of(run)
        return (0, 0) if value is None else (1, value) if isinstance(value, int | float) else (2, str(value))

    return sorted(runs, key=key)


# --- filters -------------------------------------------------------------------------------------------------------------------------

FILTER = re.compile(r"([\w.]+)([=<>])(.*)")
ORDER = {"<": operator.lt, ">": operator.gt}


def is_filter(word: str) -> bool:
    return FILTER.fullmatch(word) is not None


def matching(word: str, runs: Sequence[Listed]) -> list[Listed]:
    """Those with `status=failed`, `run=nano-*`, `val_loss<3`, `age>30d`, `size>1G`, `optimizer.lr=0.003` or `attention=gqa`.

    Errors:
        ValueError: no such key, or no number where one is compared.
    """
    found = FILTER.fullmatch(word)
    assert found is not None
    key, sign, wanted = found.groups()
    if sign == "=" and key not in COLUMNS:
        _check_key(key, runs, group=True)
        return [run for run in runs if has(run.record, word)]
    shown = column(key, runs)
    if sign == "=":
        return [run for run in runs if (value := shown.of(run)) is not None and _equals(value, wanted)]
    limit = amount(word, wanted, UNITS | BYTES if shown.name == "size" else UNITS)
    return [run for run in runs if isinstance(value := shown.of(run), int | float) and ORDER[sign](value, limit)]


def _equals(value: Any, wanted: str) -> bool:
    return math.isclose(value, amount(wanted, wanted)) if isinstance(value, int | float) else fnmatchcase(str(value), wanted)


def amount(key: str, word: str, units: Mapping[str, float] = UNITS) -> float:
    """`30d` in seconds, `1.5G` in bytes, or a plain number.

    Errors:
        ValueError: it is none of them.
    """
    found = re.fullmatch(r"([-+]?\d[\d.]*(?:e[-+]?\d+)?)([a-zA-Z]*)", word)
    rule = f"end with a number, perhaps with one of {', '.join(units)}"
    try:
        return float(found[1]) * (units[found[2]] if found[2] else 1.0) if found else float(word)
    except (KeyError, ValueError):
        raise ValueError(f"{key} must {rule}") from None
