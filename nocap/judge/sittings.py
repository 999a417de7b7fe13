"""Sittings: timings that lie close together. A machine that is slow now is slow for all of them, so that their spread says nothing of
tomorrow's. What repeats a timing is therefore a sitting, apart from the others in time and in process."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

APART_MIN = 5.0  # between the end of a sitting and the start of the next, unless a study says otherwise

Span = tuple[datetime, datetime]  # a session's start and end


def sittings(spans: Sequence[Span], *, apart_min: float) -> list[int]:
    """Each session's sitting, numbered from 1 in the order of time: a session belongs to the one before where less lies between them."""
    number, ended, found = 0, None, [0] * len(spans)
    for i in sorted(range(len(spans)), key=lambda i: spans[i]):
        began, end = spans[i]
        if ended is None or began - ended >= timedelta(minutes=apart_min):
            number += 1
        ended = end if ended is None else max(ended, end)
        found[i] = number
    return found
