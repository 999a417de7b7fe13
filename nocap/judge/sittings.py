"""Sittings: timings that lie close together. A machine that is slow now is slow for all of them, so that their spread says nothing of
tomorrow's. What repeats a timing is therefore a sitting, apart from the others in time and in process."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from statistics import fmean, variance

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


def dealt(values: Sequence[float], hands: int) -> list[float]:
    """Means of so many hands, the values dealt in turns. Two samples dealt into as many hands as the smaller one has make independent
    pairs, whose spread has the noise of both: seeds' steps and sittings' step times."""
    return [fmean(values[hand::hands]) for hand in range(hands)]


@dataclass(frozen=True, kw_only=True, slots=True)
class Between:
    """The noise of one sitting's mean, in the values' unit, with its degrees of freedom."""

    sd: float
    df: float
    sittings: int


def between_sittings(series: Iterable[Sequence[Sequence[float]]], *, sessions: float = 1) -> Between | None:
    """How much one sitting's mean of so many sessions varies, by random-effects ANOVA of earlier ones (Searle, Casella & McCulloch 1992).

    A series is one quantity, such as an arm's log speed over its baseline's at one shape: its sittings, and of each the sessions. Its own
    mean is taken away. The variance is c·MSB + d·MSW, with Satterthwaite's degrees of freedom. `None`: no series has two sittings.
    """
    kept = [[list(sitting) for sitting in one if sitting] for one in series]
    kept = [one for one in kept if len(one) > 1]
    if not kept:
        return None
    between = within = size = 0.0
    df_between = df_within = 0
    for one in kept:
        counts, means = [len(sitting) for sitting in one], [fmean(sitting) for sitting in one]
        n = sum(counts)
        centre = sum(count * mean for count, mean in zip(counts, means, strict=True)) / n
        between += sum(count * (mean - centre) ** 2 for count, mean in zip(counts, means, strict=True))
        within += sum(variance(sitting) * (len(sitting) - 1) for sitting in one if len(sitting) > 1)
        size += n - sum(count**2 for count in counts) / n
        df_between, df_within = df_between + len(one) - 1, df_within + n - len(one)
    msb, msw, size = between / df_between, within / df_within if df_within else 0.0, size / df_between
    c, d = 1 / size, (1 / sessions - 1 / size) if df_within else 0.0
    if msb < msw:  # no more than sessions differ within one
        c, d = 0.0, 1 / sessions
    found = c * msb + d * msw
    below = (c * msb) ** 2 / df_between + ((d * msw) ** 2 / df_within if df_within else 0.0)
    return Between(sd=math.sqrt(max(found, 0.0)), df=found**2 / below if below else float(df_between), sittings=sum(map(len, kept)))
