"""The tracker options: where the rows of a run go besides its own record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from nocap.config.keys import flat
from nocap.config.option import Option


@dataclass(frozen=True, kw_only=True, slots=True)
class RunFacts:
    """What a tracker gets to know about a run. The config's group goes before `group`; its tags and `tags`
    are joined."""

    identity: str
    name: str  # for people: what sets the run apart from those beside it, and the seed
    arm: str  # the same without the seed
    arm_id: str = ""  # equal for the runs of an arm alone: two arms may have one name in two grids
    seed: int
    run_dir: Path
    config: Mapping[str, object]  # resolved, plain
    group: str | None = None
    tags: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)  # group → the name of the option that was chosen
    # what sets the run apart, by short names, with its values
    swept: Mapping[str, object] = field(default_factory=dict)


# name of a table → its rows, each by the same columns
Tables = Mapping[str, Sequence[Mapping[str, object]]]

_IN_CONFIG = ("identity", "name", "arm", "seed")


def at_the_end(summary: Mapping[str, Any]) -> dict[str, Any]:
    """`summary.json`, flat, without its nulls. What the rows have too has its name there, so that a dashboard
    shows it once, as it is at the end; what the config says is left out."""
    from nocap.store.metrics import METRICS

    names = {"/".join(metric.path): metric.curve for metric in METRICS.values() if metric.curve}
    names |= {"mfu": "perf/mfu", "memory_mib/peak": "memory/peak_mib", "steps": "step"}
    values = {}
    for key, value in flat(summary, "/"):
        head, _, line = key.partition("/")
        if value is not None and key not in _IN_CONFIG:
            values[f"clock/{line}_s" if head == "clock_s" else names.get(key, key)] = value
    return values


class TrackerSession:
    """One open mirror of a run. This one mirrors nothing."""

    url_or_hint: str | None = None  # the run's address, or the command that uploads an offline run

    def log(self, row: Mapping[str, object]) -> None:
        """Mirror one row of `metrics.jsonl`."""

    def log_comparison(self, tables: Tables, report: Path) -> None:
        """Mirror what a grid's comparison says, and its report's file."""

    def finish(self, *, summary: Mapping[str, object], status: str) -> None:
        """Mirror `summary.json` and close."""


@dataclass(kw_only=True, slots=True)
class Tracker(Option):
    """A mirror of the local record, which is the truth: a mirror may lag, go offline or stop, and never stops
    a training."""

    uploader: ClassVar[str] = ""
    # modules that take long to import: the runs of a grid share one import of them
    imports: ClassVar[tuple[str, ...]] = ()
    # more trackers that get the same rows: those that need no keys
    also: list[str] = field(default_factory=list)

    def open(self, facts: RunFacts) -> TrackerSession:
        """Open a session, in the first rank only. A resumed run opens a new one and logs its kept rows
        again."""
        raise NotImplementedError(f"tracker.kind={self.kind} must define open")

    def open_comparison(self, facts: RunFacts) -> TrackerSession | None:
        """A session for a grid's comparison; None: it is not mirrored."""
        return None

    def gathered(self, folder: Path, runs: Mapping[str, Path]) -> str | None:
        """The command that shows a grid's runs together, by their labels; `folder` is the grid's. None: there
        is none on this machine."""
        return None

    @classmethod
    def offline(cls, folder: Path) -> list[Path]:
        """What a run's or a grid's folder has of mirrors that still are to be uploaded, by the command
        `uploader`."""
        return []
