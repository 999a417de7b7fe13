"""Means, differences and ratios of two arms, seed by seed. The one place that decides when seeds are paired.

Paired where both arms have the same seeds: it costs nothing and takes out what the seeds share, machine included. Otherwise Welch's
test, on all there is. One seed gives a number with an endless interval.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import fmean

from nocap.judge import stats
from nocap.judge.stats import Estimate

CONFIDENCE = 0.95
ALPHA = 0.05
POWER = 0.8  # of what seeds that showed nothing would have shown
LEAST_SEEDS = 3  # fewer give no verdict: at two, a t-interval reaches 12.7 standard errors to each side

BySeed = Mapping[int, float]


def mean(values: BySeed) -> Estimate | None:
    """The mean over seeds; `None` where nothing was measured."""
    numbers = list(values.values())
    if len(numbers) > 1:
        return stats.interval(numbers, confidence=CONFIDENCE)
    return _of_one_seed(numbers[0]) if numbers else None


def difference(mine: BySeed, theirs: BySeed) -> Estimate | None:
    """Mine minus theirs; `None` where one side has nothing."""
    if not mine or not theirs:
        return None
    if min(len(mine), len(theirs)) < 2:
        pairs = [mine[seed] - theirs[seed] for seed in mine if seed in theirs]
        return _of_one_seed(fmean(pairs) if pairs else fmean(mine.values()) - fmean(theirs.values()))
    seeds = sorted(mine)
    if mine.keys() == theirs.keys():
        return stats.paired([mine[seed] for seed in seeds], [theirs[seed] for seed in seeds], confidence=CONFIDENCE)
    return stats.unpaired(list(mine.values()), list(theirs.values()), confidence=CONFIDENCE)


def ratio(mine: BySeed, theirs: BySeed) -> Estimate | None:
    """Mine over theirs, geometric means, the interval from the log scale; `None` where one side has nothing, or a zero."""
    if min([*mine.values(), *theirs.values()], default=0) <= 0:
        return None
    logs = difference(*({seed: math.log(value) for seed, value in side.items()} for side in (mine, theirs)))
    return logs and logs.exp()


def visible(found: Estimate, *, among: int) -> float | None:
    """The least difference that these seeds would have shown with 80% power among so many comparisons, by the noise that they measured;
    `None` where they measured none. At the strictest level that Holm's correction asks for."""
    if not found.half_width > 0 or math.isnan(found.df):
        return None
    from scipy import special

    se = found.half_width / float(special.stdtrit(found.df, (1 + CONFIDENCE) / 2))
    return stats.seen(found.df, power=POWER, alpha=ALPHA / among) * se


def _of_one_seed(value: float) -> Estimate:
    return Estimate(mid=value, low=-math.inf, high=math.inf, n=1, method="one seed")
