"""The local record alone."""

from __future__ import annotations

from dataclasses import dataclass

from nocap.options.tracker import RunFacts, Tracker, TrackerSession


@dataclass(kw_only=True, slots=True)
class NoTracker(Tracker):
    kind: str = "none"

    def open(self, facts: RunFacts) -> TrackerSession:
        return TrackerSession()
