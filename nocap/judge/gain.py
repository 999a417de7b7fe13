"""A gain in one metric: by how much an arm is better than the one it is compared with, over the
pairs of the last analysis, and its interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from nocap.judge import cautious_interval
from nocap.judge.cautious_interval import Declared
from nocap.judge.interval import (
    LEAST_PAIRS,
    PAIRS,
    Estimate,
    Position,
    Width,
    analysis_of,
    around,
    half_width,
    of_pairs,
    pairs_to_decide,
)
from nocap.metrics import Kind, Metric, Scale, is_log
from nocap.store.measurement import Per


@dataclass(frozen=True, kw_only=True, slots=True)
class Gain:
    """A metric's gain over the pairs of the last analysis, on its scale: what an arm is better
    by."""

    metric: Metric
    scale: Scale
    per: Per
    least: Sequence[float]  # of each pair, a logarithm where its scale has one
    most: Sequence[float]
    ends: tuple[float, float]  # of what was stated, so too
    declared: Declared | None = None
    bias: float = 0.0

    @property
    def analysis(self) -> int:
        """Return the number of the analysis that it is of; 0: there are too few pairs for the
        first."""
        return analysis_of(len(self.least))

    @property
    def enough(self) -> bool:
        """Say whether it has an interval: one count, or the pairs of an analysis."""
        if self.per is Per.exact:
            return bool(self.least)
        return self.analysis > 0

    @property
    def measured(self) -> bool:
        """Say whether each pair's gain is a number, and not only bounded."""
        are_bounds_equal = tuple(self.least) == tuple(self.most)
        return are_bounds_equal and all(map(math.isfinite, self.least))

    def interval(self) -> Estimate:
        """Return its interval, whose middle is not a number where a run diverged, or steps are only
        bounded."""
        if self.per is Per.exact:
            value = self.least[0]
            return Estimate(mid=value, low=value, high=value, n=1, method="counted")
        if self.measured:
            return self._of(self.least)
        low = self._low()
        high = self._high()
        n = len(self.least)
        return Estimate(mid=math.nan, low=low, high=high, n=n, method="pairs, some without an end")

    def shown(self) -> Estimate | None:
        """Return its interval as it is told: a ratio where its scale has one, and of what is a
        ratio to the baseline's by itself, that ratio; `None`: there are too few pairs."""
        if not self.enough:
            return None
        interval = self.interval()
        if self.metric.relative:
            interval = replace(interval, mid=-interval.mid, low=-interval.high, high=-interval.low)
        if is_log(self.metric, self.scale):
            return interval.exp()
        return interval

    def _low(self) -> float:
        """Return the lower end where not all pairs are measured."""
        if -math.inf in self.least:
            return -math.inf
        # bounds that are equal say nothing of the noise
        if len(set(self.least)) == 1:
            return -math.inf
        return self._of(self.least).low

    def _high(self) -> float:
        """Return the upper end where not all pairs are measured."""
        if math.inf in self.most:
            return math.inf
        if -math.inf in self.most:
            return -math.inf  # whatever the others are
        # bounds that are equal say nothing of the noise
        if any(map(math.isnan, self.most)) or len(set(self.most)) == 1:
            return math.inf
        return self._of(self.most).high

    def _of(self, values: Sequence[float]) -> Estimate:
        """Return the interval of these values: Student's where a seed repeats them, else the
        cautious one. A declared noise narrows either."""
        if self.metric.kind is not Kind.seed:
            return cautious_interval.of_pairs(
                values, declared=self.declared, bias=self.bias, analysis=self.analysis
            )
        alone = of_pairs(values, look=self.analysis)
        if self.declared is None or alone.n < LEAST_PAIRS:
            return alone
        half, used = _width(self.metric, self.declared, alone.sd, alone.n, self.analysis)
        method = "pairs, noise declared" if used else PAIRS
        return around(alone.mid, half, n=alone.n, sd=alone.sd, method=method)

    def position(self) -> Position:
        """Return where its interval lies to what was stated, as `Estimate.position` has it."""
        return self.interval().position(*self.ends)

    def more(self) -> int | None:
        """Return how many more pairs would decide, were mean and spread the true ones; None: no
        affordable number, or none can be said."""
        if not self.measured or not self.enough or self.position() is not Position.across:
            return None
        estimate = self.interval()
        n = len(self.least)
        distance = self._distance(estimate.mid)
        width = width_of(self.metric, self.declared)
        pairs = pairs_to_decide(distance, sd=estimate.sd, n=n, width=width, bias=self.bias)
        if pairs is None:
            return None
        return pairs - n

    def _distance(self, mid: float) -> float:
        """Return how far a mean lies from what would decide: the end of the statement that it is
        beyond, or, where it lies within, the nearer end."""
        low, high = self.ends
        if mid < low:
            return abs(mid - low)
        if mid > high:
            return abs(mid - high)
        return min(abs(mid - low), abs(mid - high))


def _width(
    metric: Metric, declared: Declared | None, sd: float, n: int, analysis: int
) -> tuple[float, bool]:
    """Return the half width of so many pairs with this spread; and whether the declared noise made
    it."""
    spread = np.float64(sd)
    if metric.kind is Kind.seed:
        own = np.float64(half_width(sd, n, analysis))
        half, used = cautious_interval.narrowed(
            own, spread, n, declared=declared, share=analysis**2
        )
    else:
        half, used = cautious_interval.half_width(spread, n, declared=declared, analysis=analysis)
    return float(half), bool(used)


def width_of(metric: Metric, declared: Declared | None) -> Width:
    """Return how wide the interval of a gain in this metric is, for any spread, number of pairs and
    look."""

    def width(sd: float, n: int, look: int) -> float:
        half, _ = _width(metric, declared, sd, n, look)
        return half

    return width
