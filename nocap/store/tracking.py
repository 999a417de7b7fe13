"""Trackers mirror the record, without its secrets. One that fails costs one warning, and training goes on."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeVar, cast

from nocap.config import registry
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


class Several(TrackerSession):
    """The sessions of several trackers, each guarded by itself."""

    def __init__(self, sessions: Sequence[TrackerSession]) -> None:
        self._sessions = sessions

    @property
    def url_or_hint(self) -> str | None:  # type: ignore[override]
        return "; ".join(hint for session in self._sessions if (hint := session.url_or_hint)) or None

    def log(self, row: Mapping[str, object]) -> None:
        for session in self._sessions:
            session.log(row)

    def log_comparison(self, comparison: Mapping[str, Any], report: Path) -> None:
        for session in self._sessions:
            session.log_comparison(comparison, report)

    def finish(self, *, summary: Mapping[str, object], status: str) -> None:
        for session in self._sessions:
            session.finish(summary=summary, status=status)


def _each(tracker: Tracker) -> list[Tracker]:
    return [tracker, *(cast(type[Tracker], registry.options("tracker")[kind])(kind=kind) for kind in tracker.also)]


def open_tracker(tracker: Tracker, facts: RunFacts, *, rows: Sequence[Mapping[str, object]] = ()) -> TrackerSession:
    """Open what the config asks for and log the rows that a resumed run already has."""
    facts = _clean(facts)
    if not tracker.also:
        return _open(_clean(tracker), facts, rows)
    return Several([_open(_clean(one), facts, rows) for one in _each(tracker)])


def _open(tracker: Tracker, facts: RunFacts, rows: Sequence[Mapping[str, object]]) -> TrackerSession:
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
    """A grid's verdicts and report, where a tracker has a place for them; their address, or how to sync them."""
    facts = _clean(facts)
    opened = [(one, one.open_comparison(facts)) for one in map(_clean, _each(tracker))]
    session = Several([Guarded(one, found) for one, found in opened if found is not None])
    session.log_comparison(comparison, report)
    session.finish(summary={"arms": len(comparison["arms"]), "runs": len(comparison["runs"])}, status="finished")
    return session.url_or_hint


def offline(tracker: Tracker | None, folders: Iterable[Path]) -> dict[str, list[Path]]:
    """Command → what it would upload of these folders of runs and grids: what this tracker left offline, or any that there is."""
    folders = list(folders)
    kinds = cast(Iterable[type[Tracker]], registry.options("tracker").values() if tracker is None else map(type, _each(tracker)))
    found = {kind.uploader: [place for folder in folders for place in kind.offline(folder)] for kind in kinds}
    return {uploader: places for uploader, places in found.items() if places}


def _clean(facts: T) -> T:
    """A copy of a dataclass whose texts have no secrets."""
    return replace(cast(Any, facts), **{f.name: redact(getattr(facts, f.name)) for f in fields(cast(Any, facts))})


def _warn(tracker: Tracker, error: Exception) -> None:
    line = " ".join(str(error).split())[:200] or type(error).__name__
    print(f"nocap: tracker={tracker.kind}: {NO_MIRROR}{line}", file=sys.stderr, flush=True)
