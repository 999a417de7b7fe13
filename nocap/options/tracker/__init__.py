"""The tracker options: where the rows of a run go besides its own record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nocap.config.option import Option


@dataclass(frozen=True, kw_only=True, slots=True)
class RunFacts:
    """What a tracker gets to know about a run. The config's group goes before `group`; its tags and `tags` are joined."""

    identity: str
    name: str
    arm: str
    seed: int
    run_dir: Path
    config: Mapping[str, object]  # resolved, plain
    group: str | None = None
    tags: tuple[str, ...] = ()


class TrackerSession:
    """One open mirror of a run. This one mirrors nothing."""

    url_or_hint: str | None = None  # the run's address, or the command that uploads an offline run

    def log(self, row: Mapping[str, object]) -> None:
        """Mirror one row of `metrics.jsonl`."""

    def log_comparison(self, comparison: Mapping[str, Any], report: Path) -> None:
        """Mirror a grid's verdicts and its report's file."""

    def finish(self, *, summary: Mapping[str, object], status: str) -> None:
        """Mirror `summary.json` and close."""


@dataclass(kw_only=True, slots=True)
class Tracker(Option):
    """A mirror of the local record, which is the truth: a mirror may lag, go offline or stop, and never stops a training."""

    def open(self, facts: RunFacts) -> TrackerSession:
        """Open a session, in the first rank only. A resumed run opens a new one and logs its kept rows again."""
        raise NotImplementedError(f"tracker.kind={self.kind} must define open")

    def open_comparison(self, facts: RunFacts) -> TrackerSession | None:
        """A session for a grid's comparison; None: it is not mirrored."""
        return None
