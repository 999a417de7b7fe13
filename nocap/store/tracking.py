"""Trackers mirror the record, without its secrets. One that fails costs one warning, and training goes on."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeVar, cast

from nocap.config.outward import redact
from nocap.options.tracker import RunFacts, Tracker, TrackerSession

T = TypeVar("T")

NO_MIRROR = "no mirror of this run from here on: "


class Guarded(TrackerSession):
    """A session whose first failure is one warning. After it, nothing more is sent."""

    def __init__(self, tracker: Tracker, session: TrackerSession) -> None:
        self._tracker, self._session = tracker, session
        self._failed = False

    @property
    def url_or_hint(self) -> str | None:  # type: ignore[override]
        return self._session.url_or_hint

    def log(self, row: Mapping[str, object]) -> None:
        self._call("log", row)

    def log_comparison(self, comparison: Mapping[str, Any], report: Path) -> None:
        self._call("log_comparison", comparison, report)

    def finish(self, *, summary: Mapping[str, object], status: str) -> None:
        self._call("finish", summary=summary, status=status)

    def _call(self, method: str, *args: object, **named: object) -> None:
        if not self._failed:
            try:
                getattr(self._session, method)(*redact(args), **redact(named))
            except Exception as error:  # anything a tracker may raise: the record has all rows
                self._failed = True
                _warn(self._tracker, error)


def open_tracker(tracker: Tracker, facts: RunFacts, *, rows: Iterable[Mapping[str, object]] = ()) -> TrackerSession:
    """Open what the config asks for and log the rows that a resumed run already has."""
    tracker, facts = _clean(tracker), _clean(facts)
    try:
        opened = tracker.open(facts)
    except Exception as error:
        _warn(tracker, error)
        return TrackerSession()
    if type(opened) is TrackerSession:  # mirrors nothing
        return opened
    session = Guarded(tracker, opened)
    for row in rows:
        session.log(row)
    return session


def track_comparison(tracker: Tracker, facts: RunFacts, *, comparison: Mapping[str, Any], report: Path) -> str | None:
    """A grid's verdicts and report, where the tracker has a place for them; their address, or how to sync them."""
    tracker, facts = _clean(tracker), _clean(facts)
    opened = tracker.open_comparison(facts)
    if opened is None:
        return None
    session = Guarded(tracker, opened)
    session.log_comparison(comparison, report)
    session.finish(summary={"arms": len(comparison["arms"]), "runs": len(comparison["runs"])}, status="finished")
    return session.url_or_hint


def _clean(facts: T) -> T:
    """A copy of a dataclass whose texts have no secrets."""
    return replace(cast(Any, facts), **{f.name: redact(getattr(facts, f.name)) for f in fields(cast(Any, facts))})


def _warn(tracker: Tracker, error: Exception) -> None:
    line = " ".join(str(error).split())[:200] or type(error).__name__
    print(f"nocap: tracker={tracker.kind}: {NO_MIRROR}{line}", file=sys.stderr, flush=True)
