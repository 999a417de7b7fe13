"""The local record alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from nocap.options.tracker import RunFacts, Tracker, TrackerSession


@dataclass(kw_only=True, slots=True)
class NoTracker(Tracker):
    kind: str = "none"
    mirrors: ClassVar[bool] = False

    def open(self, facts: RunFacts) -> TrackerSession:
        return TrackerSession()
