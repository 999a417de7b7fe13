"""The sessions that would decide what a study left open: what a program runs next."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from itertools import chain

from nocap.sessions.session_file import SessionFile
from nocap.store.measurement import Per
from nocap.study.carry_out import StudyOutcome
from nocap.study.result_schema import NextSessions
from nocap.study.study_result import StudyResult


def next_sessions(
    result: StudyResult, outcome: StudyOutcome, command: Sequence[str]
) -> NextSessions | None:
    """Return the command that adds the sessions, and what they take here; `None`: sessions decide
    nothing more.

    `command`: of the study, without its number of sessions. A claim that needs more seeds too is
    left open: its study.yaml has them.
    """
    needed = list[int]()
    for claim_result in result.claims:
        more = claim_result.verdict.more() or {}
        if more.keys() == {Per.session.value}:
            needed.append(more[Per.session.value])
    if not needed:
        return None
    more_sessions = max(needed)
    files = [*chain(*outcome.evidence.sessions.values())]
    # an earlier command may have asked for more sessions than this one
    count = max(file.number for file in files) + more_sessions
    minutes = more_sessions * (outcome.plan.at.apart_min + _minutes_of_one(files))
    words = [*command, f"sessions={count}", "--json"]
    return NextSessions(command=words, sessions=count, minutes=round(minutes, 3))


def _minutes_of_one(files: Sequence[SessionFile]) -> float:
    """Return the mean minutes of all that is timed under one number."""
    total_s = 0.0
    for file in files:
        took = datetime.fromisoformat(file.ended) - datetime.fromisoformat(file.started)
        total_s += took.total_seconds()
    numbers = {file.number for file in files}
    return total_s / len(numbers) / 60
