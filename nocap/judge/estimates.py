"""Means, differences and ratios of two arms, seed by seed. The one place that decides when seeds are paired.

Paired where both arms have the same seeds: it costs nothing and takes out what the seeds share, machine included. Otherwise Welch's
test, on all there is. One seed gives a number without an interval.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean, stdev
from typing import Any

from nocap.judge import stats

CONFIDENCE = 0.95
ALPHA = 0.05
LEAST_SEEDS = 3  # fewer give no verdict: at two, a t-interval reaches 12.7 standard errors to each side

BySeed = Mapping[int, float]


def mean(values: BySeed) -> dict[str, float | None] | None:
    """The mean over seeds with its t-interval and standard deviation; `None` where nothing was measured."""
    numbers = list(values.values())
    if not numbers:
        return None
    if len(numbers) == 1:
        return {"mean": numbers[0], "low": None, "high": None, "sd": None}
    found = stats.interval(numbers, confidence=CONFIDENCE)
    return {"mean": found.mean, "low": found.low, "high": found.high, "sd": stdev(numbers)}


def difference(mine: BySeed, theirs: BySeed) -> dict[str, Any] | None:
    """Mine minus theirs with interval, p and the method's name; `None` where one side has nothing."""
    if not mine or not theirs:
        return None
    if min(len(mine), len(theirs)) < 2:
        pairs = [mine[seed] - theirs[seed] for seed in mine if seed in theirs]
        gap = fmean(pairs) if pairs else fmean(mine.values()) - fmean(theirs.values())
        return {"mean": gap, "low": None, "high": None, "p": None, "method": "one seed"}
    if mine.keys() == theirs.keys():
        found = stats.paired(*_matched(mine, theirs), confidence=CONFIDENCE)
        method = "t-test, paired by seed"
    else:
        found = stats.unpaired(list(mine.values()), list(theirs.values()), confidence=CONFIDENCE)
        method = "Welch's t-test, as the seeds differ"
    return {"mean": found.mean, "low": found.low, "high": found.high, "p": found.p, "method": method}


def ratio(mine: BySeed, theirs: BySeed) -> dict[str, float | None] | None:
    """Mine over theirs, geometric means, with an interval from the log scale; `None` where one side has nothing, or a zero."""
    if not mine or not theirs or min(*mine.values(), *theirs.values()) <= 0:
        return None
    if min(len(mine), len(theirs)) < 2:
        pairs = [mine[seed] / theirs[seed] for seed in mine if seed in theirs]
        quotient = fmean(pairs) if pairs else fmean(mine.values()) / fmean(theirs.values())
        return {"mean": quotient, "low": None, "high": None}
    if mine.keys() == theirs.keys():
        found = stats.ratio([a / b for a, b in zip(*_matched(mine, theirs), strict=True)], confidence=CONFIDENCE)
    else:
        found = stats.ratio_unpaired(list(mine.values()), list(theirs.values()), confidence=CONFIDENCE)
    return {"mean": found.mean, "low": found.low, "high": found.high}


def _matched(mine: BySeed, theirs: BySeed) -> tuple[list[float], list[float]]:
    return [mine[seed] for seed in sorted(mine)], [theirs[seed] for seed in sorted(mine)]
