"""One metric's gain over the pairs of a study: its bounds, and how many pairs would decide about it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from nocap.judge.claim import LEAST_PAIRS
from nocap.judge.noise import Noise
from nocap.judge.stats import Estimate
from nocap.store.measurement import Per

POWER = 0.9  # of the seeds that would decide
TIE = 1e-12  # two runs can agree to the last bit, and their mean's rounding must not decide


@dataclass(frozen=True, kw_only=True, slots=True)
class Gain:
    """A metric's gain over the pairs, as a logarithm for a ratio, and the ends it is judged by."""

    least: list[float]  # a pair's gain is at least this much
    most: list[float]
    ends: tuple[float, float]  # as stated
    wide: tuple[float, float]  # and with the slack
    noise: Noise
    per: Per = Per.seed

    @property
    def enough(self) -> bool:
        """Whether the pairs have a spread: a count needs one, a declared noise is one for a single pair."""
        return self.per is Per.exact or self.noise.enough(len(self.least), LEAST_PAIRS)

    @property
    def measured(self) -> bool:
        return self.least == self.most and all(map(math.isfinite, self.least))

    def at_least(self, alpha: float) -> float:
        """One-sided confidence bound of the mean."""
        return -math.inf if -math.inf in self.least else self._bound(self.least, alpha)

    def at_most(self, alpha: float) -> float:
        if math.inf in self.most:
            return math.inf
        return -math.inf if -math.inf in self.most else -self._bound([-x for x in self.most], alpha)

    def _bound(self, values: list[float], alpha: float) -> float:
        if self.per is Per.exact:
            return fmean(values)
        if not self.measured and len(set(values)) == 1:
            return -math.inf  # budgets that are equal have no spread, and say nothing of the noise
        return float(self.noise.at_least(np.array(values), alpha))

    def interval(self, alpha: float) -> Estimate:
        """Two-sided at 1 - alpha; of a count its own value."""
        return point(self.least[0]) if self.per is Per.exact else self.noise.interval(np.array(self.least), alpha)

    def inside(self, alpha: float, *, ends: tuple[float, float]) -> bool:
        """Shown to lie within the ends: each end is a test at alpha, and both must pass."""
        low, high = ends
        return self.at_least(alpha) >= low - TIE and (high == math.inf or self.at_most(alpha) <= high + TIE)

    def below(self, alpha: float) -> bool:
        return self.at_most(alpha) < self.wide[0] - TIE

    def above(self, alpha: float) -> bool:
        return self.wide[1] < math.inf and self.at_least(alpha) > self.wide[1] + TIE

    def needed(self, alpha: float, *, end: int) -> int | None:
        """Pairs for a one-sided test at alpha against an end, were their mean and spread the true ones."""
        if self.per is Per.exact:
            return None
        values = np.array(self.least)
        spread = math.sqrt(float(self.noise.spread(values)[0]))
        return self.noise.pairs_for(abs(float(values.mean()) - self.ends[end]), spread=spread, alpha=alpha, power=POWER)


def point(value: float) -> Estimate:
    """Of a count."""
    return Estimate(mid=value, low=value, high=value, n=1, method="exact")


def pairs_wanted(gains: Sequence[Gain], *, alpha: float, level: Callable[[float], float]) -> dict[Per, int] | None:
    """Pairs of each kind that would decide, with a power of 0.9, were the means and spreads of these the true ones; the primary gain comes
    first. A confirmation needs every test at alpha, a refutation one at its share. `level`: of a test that errs so often over all looks.
    `None`: no affordable number."""
    beyond = [(gain, 0 if mean < gain.ends[0] else 1) for gain in gains if not gain.ends[0] <= (mean := fmean(gain.least)) <= gain.ends[1]]
    if beyond:
        share = alpha / len(gains)
        counts = [(gain.needed(level(share / 2 if gain is gains[0] else share), end=end), gain.per) for gain, end in beyond]
        known = [(n, per) for n, per in counts if n is not None]
        return {per: n for n, per in [min(known, key=lambda one: one[0])]} if known else None
    found: dict[Per, int] = {}
    for gain, end in ((gain, end) for gain in gains for end in (0, 1) if gain.per is not Per.exact and math.isfinite(gain.ends[end])):
        needed = gain.needed(level(alpha), end=end)
        if needed is None:
            return None
        found[gain.per] = max(needed, found.get(gain.per, 0))
    return found
