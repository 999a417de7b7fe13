"""The tracker options: where the rows of a run go besides its own record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from nocap.config.keys import flat
from nocap.config.option import Option
from nocap.metrics import METRICS
from nocap.row_keys import MFU, PEAK_MIB, WALL, clock_key


@dataclass(frozen=True, kw_only=True, slots=True)
class RunFacts:
    """Says what a tracker gets to know about a run. The config's group goes before `group`; its
    tags and `tags` are joined."""

    identity: str
    name: str  # for people: what sets the run apart from those beside it, and the seed
    arm: str  # the same without the seed
    arm_id: str = ""  # equal for the runs of an arm alone: two arms may have one name in two grids
    seed: int
    run_dir: Path
    config: Mapping[str, object]  # resolved, plain
    group: str | None = None
    tags: tuple[str, ...] = ()
    # group → the name of the option that was chosen
    options: Mapping[str, str] = field(default_factory=dict)
    # what sets the run apart, by short names, with its values
    swept: Mapping[str, object] = field(default_factory=dict)
    # the keys of the config that make the run what it is, flat: without its paths and what changes
    # no number
    counted: Mapping[str, object] = field(default_factory=dict)
    # commit, machine and parameters, flat
    about: Mapping[str, object] = field(default_factory=dict)
    born: str = ""  # when and where its first attempt started
    # of each attempt: seconds since the epoch when it started, and what the run had spent before
    attempts: tuple[tuple[float, float], ...] = ()

    def time_of(self, row: Mapping[str, object]) -> float | None:
        """Return when a row was made, in seconds since the epoch; None: the record does not
        tell."""
        wall_s = row.get(clock_key(WALL))
        if not isinstance(wall_s, int | float):
            return None
        zero: float | None = None  # when the run's clock stood at 0, by the attempt of the row
        for started, spent_s in self.attempts:
            if spent_s <= wall_s:
                zero = started - spent_s
        if zero is None:
            return None
        return zero + wall_s


# name of a table → its rows, each by the same columns
Tables = Mapping[str, Sequence[Mapping[str, object]]]

_IN_CONFIG = ("identity", "name", "arm", "seed")


def at_the_end(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return `summary.json`, flat, without its nulls. What the rows have too has its name there, so
    that a dashboard shows it once, as it is at the end; what the config says is left out."""
    curves = {"/".join(metric.path): metric.curve for metric in METRICS.values() if metric.curve}
    curves |= {"mfu": MFU, "memory_mib/peak": PEAK_MIB, "steps": "step"}
    values = {}
    for key, value in flat(summary, "/"):
        if value is None or key in _IN_CONFIG:
            continue
        head, _, line = key.partition("/")
        name = curves.get(key, key)
        if head == "clock_s":
            name = clock_key(line)
        values[name] = value
    return values


class NoLoginError(ValueError):
    """Nobody is logged in at a tracker's server, so no run can be sent."""


class TrackerSession:
    """One open mirror of a run. This one mirrors nothing."""

    # the run's address, or the command that uploads what is missing there
    url_or_hint: str | None = None
    link: str | None = None  # the run's address, where rows go there while it trains
    sent = 0  # rows
    complete = False  # the server has said that it has all rows
    finish_s = 0.0  # the longest that `finish` may take without a heartbeat of the training

    def log(self, row: Mapping[str, object]) -> None:
        """Mirror one row of `metrics.jsonl`."""

    def log_comparison(self, tables: Tables, report: Path) -> None:
        """Mirror what a grid's comparison says, and its report's file."""

    def finish(self, *, summary: Mapping[str, object], status: str) -> None:
        """Mirror `summary.json` and close."""


@dataclass(kw_only=True, slots=True)
class Tracker(Option):
    """A mirror of the local record, which is the truth: a mirror may lag, go offline or stop, and
    never stops a training."""

    mirrors: ClassVar[bool] = True  # the rows go anywhere at all
    uploads: ClassVar[bool] = False  # to a server, which `nocap.runs sync` can send a record later
    # modules that take long to import: the runs of a grid share one import of them
    imports: ClassVar[tuple[str, ...]] = ()
    # more trackers that get the same rows; only trackers that work without keys
    also: list[str] = field(default_factory=list)

    def check_start(self) -> None:
        """Refuse what cannot work, before anything is trained.

        Errors:
            ValueError: the environment has a setting that cannot work.
        """

    def begin_grid(self, group: str) -> str | None:
        """Return the address under which a grid's runs will stand together, or why there is none.
        It is asked once, in the process that starts the runs."""
        return None

    def open(self, facts: RunFacts) -> TrackerSession:
        """Open a session, in the first rank only. A resumed run opens a new one and logs its kept
        rows again."""
        raise NotImplementedError(f"tracker.kind={self.kind} must define the method open")

    def is_awaited(self) -> bool:
        """Say whether somebody waits for this run's record, also where it has been trained
        before."""
        return False

    def would_send(self) -> bool:
        """Say whether a session that is opened now would send to a server."""
        return False

    def resend(self, facts: RunFacts) -> TrackerSession:
        """Open a session that sends to the server what it lacks of a run or a comparison.

        Errors:
            NoLoginError: there is no login.
            OSError: the server does not answer, also for another run.
            ValueError: it does not take this one.
        """
        raise NotImplementedError(
            f"tracker.kind={self.kind} must define the method resend, because its class has "
            "uploads = True"
        )

    def open_comparison(self, facts: RunFacts) -> TrackerSession | None:
        """Open a session for a grid's comparison; None: it is not mirrored."""
        return None

    def show_command(self, folder: Path, runs: Mapping[str, Path]) -> str | None:
        """Return the command that shows a grid's runs together, by their labels. `folder` is the
        grid's. None: there is none on this machine."""
        return None

    @classmethod
    def has_unsent(cls, folder: Path) -> bool:
        """Say whether a run's or a grid's folder has a mirror of which the server lacks
        something."""
        return False
