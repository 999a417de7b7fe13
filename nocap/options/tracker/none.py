"""No mirror."""

from __future__ import annotations

from dataclasses import dataclass

from nocap.options.tracker import RunFacts, Tracker, TrackerSession


@dataclass(kw_only=True, slots=True)
class NoTracker(Tracker):
    """The local record alone."""

    kind: str = "none"

    def open(self, facts: RunFacts) -> TrackerSession:
        return TrackerSession()
