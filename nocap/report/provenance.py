"""Where a comparison's figures come from, for one line of a page: when, by which versions, on what,
of which data and code, and what was typed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from nocap.display import shorten
from nocap.judge.comparison import Comparison
from nocap.store.record import Record

HASH = 12  # letters
MOST_NAMES = 3  # machines, or versions, that are named


@dataclass(frozen=True, kw_only=True, slots=True)
class Fact:
    """A part of the line. `code`: it is to be typed."""

    name: str
    text: str
    code: bool = False


def facts(comparison: Comparison, command: str | None) -> list[Fact]:
    """Return what is known, in the line's order: the first three stand on a page before it is
    opened."""
    runs = [run for run, _ in comparison.runs]
    found = [
        Fact(name="runs of", text=_dates(runs)),
        Fact(name="nocap", text=_each(run.versions.get("nocap") for run in runs)),
        Fact(name="on", text=_each(map(_machine, runs))),
        Fact(name="torch", text=_each(run.versions.get("torch") for run in runs)),
        Fact(name="data", text=_each(map(_data, runs))),
        Fact(name="commit", text=_each(map(_commit, runs))),
        Fact(name="command", text=command or "", code=True),
    ]
    return [fact for fact in found if fact.text]


def _each(texts: Iterable[object]) -> str:
    """Return what the runs have, each text once."""
    return shorten(dict.fromkeys(str(text) for text in texts if text), most=MOST_NAMES)


def _dates(runs: Iterable[Record]) -> str:
    days = sorted({run.started[:10] for run in runs if run.started})
    ends = [*days[:1], *days[-1:]]
    return " to ".join(dict.fromkeys(ends))


def _machine(run: Record) -> str:
    """Name the hardware; the name of the computer is nobody's business."""
    name = run.hardware.get("name")
    if not name:
        return ""
    devices = run.machine.devices
    if devices > 1:
        return f"{devices} × {name}"
    return str(name)


def _data(run: Record) -> str:
    name = run.options.get("data", "")
    tokens = (run.data_hash or "")[:HASH]
    return f"{name} {tokens}".strip()


def _commit(run: Record) -> str:
    if run.commit and run.has_changes:
        return f"{run.commit} with changes"
    return run.commit
