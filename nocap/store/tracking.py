"""Trackers mirror the record, without its secrets. One that fails costs one warning, and training
goes on."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeVar, cast

from nocap import outside
from nocap.config.errors import line_of
from nocap.config.outgoing_text import redact
from nocap.options.tracker import RunFacts, Tables, Tracker, TrackerSession
from nocap.store.record_files import RunStatus

T = TypeVar("T")

NO_MIRROR = "no mirror of this run from here on: "


class Mirrors(TrackerSession):
    """Passes rows on to the sessions of several trackers. The first failure of one is a warning;
    after it, nothing more is sent there."""

    def __init__(self, sessions: Sequence[tuple[Tracker, TrackerSession]]) -> None:
        self._working = list(sessions)
        self._all = [session for _, session in sessions]

    @property
    def url_or_hint(self) -> str | None:  # type: ignore[override]
        hints = [session.url_or_hint for session in self._all]
        return "; ".join(filter(None, hints)) or None

    @property
    def link(self) -> str | None:  # type: ignore[override]
        links = [session.link for session in self._all]
        return "; ".join(filter(None, links)) or None

    @property
    def finish_s(self) -> float:  # type: ignore[override]
        return max((session.finish_s for _, session in self._working), default=0.0)

    def log(self, row: Mapping[str, object]) -> None:
        self._call("log", row)

    def log_comparison(self, tables: Tables, report: Path) -> None:
        self._call("log_comparison", tables, report)

    def finish(self, *, summary: Mapping[str, object], status: str) -> None:
        self._call("finish", summary=summary, status=status)
        self._working.clear()  # each ends once

    def _call(self, method: str, *args: object, **named: object) -> None:
        for tracker, session in list(self._working):
            try:
                getattr(session, method)(*redact(args), **redact(named))
            except Exception as error:  # anything a tracker may raise: the record has all rows
                self._working.remove((tracker, session))
                _warn(tracker, error)


def _with_others(tracker: Tracker) -> list[Tracker]:
    """Return the chosen tracker and those beside it, without secrets in their keys."""
    trackers = [_without_secrets(tracker)]
    for kind in tracker.also:
        option = cast(type[Tracker], outside.options("tracker")[kind])
        trackers.append(_without_secrets(option(kind=kind)))
    return trackers


def has_mirror(tracker: Tracker) -> bool:
    """Say whether the rows go anywhere besides the record."""
    return any(each.mirrors for each in _with_others(tracker))


def open_tracker(
    tracker: Tracker, facts: RunFacts, *, rows: Sequence[Mapping[str, object]] = ()
) -> TrackerSession:
    """Open what the config asks for and log the rows that a resumed run already has."""
    sessions = list[tuple[Tracker, TrackerSession]]()
    for each in _with_others(tracker):
        try:
            session = each.open(_without_secrets(facts))
        except Exception as error:
            _warn(each, error)
            continue
        mirrors_nothing = type(session) is TrackerSession
        if not mirrors_nothing:
            sessions.append((each, session))
    mirrors = Mirrors(sessions)
    for row in rows:
        mirrors.log(row)
    return mirrors


def show_commands(tracker: Tracker, folder: Path, runs: Mapping[str, Path]) -> list[str]:
    """Return the commands that show a grid's runs together."""
    commands = [each.show_command(folder, runs) for each in _with_others(tracker)]
    return list(filter(None, commands))


@dataclass(frozen=True, kw_only=True, slots=True)
class ComparisonFacts:
    """What a tracker gets of a grid's comparison, which is a run of the grid's group."""

    facts: RunFacts
    tables: Tables
    report: Path  # the page's file
    summary: Mapping[str, object]


def track_comparison(tracker: Tracker, comparison: ComparisonFacts) -> str | None:
    """Mirror a grid's comparison and report, where a tracker has a place for them. Return their
    address, or how to sync them."""
    sessions = list[tuple[Tracker, TrackerSession]]()
    for each in _with_others(tracker):
        session = each.open_comparison(_without_secrets(comparison.facts))
        if session is not None:
            sessions.append((each, session))
    mirrors = Mirrors(sessions)
    _log_comparison(mirrors, comparison)
    return mirrors.url_or_hint


def has_unsent(tracker: Tracker, folder: Path) -> bool:
    """Say whether a server lacks something of the mirror in a run's or a grid's folder."""
    return any(each.has_unsent(folder) for each in _with_others(tracker))


def send(
    tracker: Tracker,
    facts: RunFacts,
    *,
    rows: Iterable[Mapping[str, object]],
    summary: Mapping[str, object],
) -> TrackerSession:
    """Send a record to the tracker's server, from the step on that the server does not have.

    Errors:
        NoLoginError, OSError, ValueError: as for `Tracker.resend`.
    """
    session = _without_secrets(tracker).resend(_without_secrets(facts))
    mirror = Mirrors([(tracker, session)])
    for row in rows:
        mirror.log(row)
    mirror.finish(summary=summary, status=str(summary.get("status") or RunStatus.failed))
    return session


def send_comparison(tracker: Tracker, comparison: ComparisonFacts) -> TrackerSession:
    """Send a grid's comparison to the tracker's server.

    Errors:
        NoLoginError, OSError, ValueError: as for `send`.
    """
    session = _without_secrets(tracker).resend(_without_secrets(comparison.facts))
    _log_comparison(Mirrors([(tracker, session)]), comparison)
    return session


def _log_comparison(mirrors: Mirrors, comparison: ComparisonFacts) -> None:
    mirrors.log_comparison(comparison.tables, comparison.report)
    mirrors.finish(summary=comparison.summary, status=RunStatus.finished)


def _without_secrets(facts: T) -> T:
    """Return a copy of a dataclass whose texts have no secrets."""
    dataclass: Any = facts
    values = {f.name: redact(getattr(facts, f.name)) for f in fields(dataclass)}
    return cast(T, replace(dataclass, **values))


def _warn(tracker: Tracker, error: Exception) -> None:
    line = f"nocap: tracker={tracker.kind}: {NO_MIRROR}{line_of(error)}"
    print(line, file=sys.stderr, flush=True)
