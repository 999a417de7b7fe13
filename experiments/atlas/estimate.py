"""The atlas's own intervals: t-intervals with a noise that its arms share (Smyth 2004), and their sums and quotients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special

CAP = 8.0  # degrees of freedom of the shared noise: other arms are not this one
SAME = 0.01  # of the shared spread: three pairs that lie closer compute the same but for rounding


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A mean with its 95% interval."""

    mid: float
    low: float
    high: float

    @property
    def half_width(self) -> float:
        return (self.high - self.low) / 2

    def plus(self, other: Estimate) -> Estimate:
        """The sum of two that are independent: half-widths add in squares."""
        return around(self.mid + other.mid, math.hypot(self.half_width, other.half_width))

    def over(self, other: Estimate) -> Estimate:
        """The quotient of two that are independent, by the delta method."""
        mid = self.mid / other.mid
        return around(mid, math.hypot(self.half_width, mid * other.half_width) / abs(other.mid))

    def exp(self) -> Estimate:
        """From the log scale to the ratio: geometric means."""
        return Estimate(mid=math.exp(self.mid), low=math.exp(self.low), high=math.exp(self.high))


@dataclass(frozen=True, kw_only=True)
class Noise:
    """The standard deviation of one pair, pooled over arms, and its degrees of freedom."""

    sd: float
    df: int


def around(mid: float, half: float) -> Estimate:
    return Estimate(mid=mid, low=mid - half, high=mid + half)


def pooled(groups: Sequence[Sequence[float]]) -> Noise:
    """Within groups of two values or more."""
    df = sum(len(group) - 1 for group in groups)
    squares = sum(float(np.var(group, ddof=1)) * (len(group) - 1) for group in groups)
    return Noise(sd=math.sqrt(squares / df), df=df)


def interval(values: Sequence[float], noise: Noise | None = None) -> Estimate:
    """Student's t, of at least two values; of one with a noise, which joins theirs and is the least that they can have."""
    n = len(values)
    mid, variance, df = float(np.mean(values)), float(np.var(values, ddof=1)) if n > 1 else 0.0, float(n - 1)
    if noise is not None and not (n >= 3 and variance < (SAME * noise.sd) ** 2):
        known = min(float(noise.df), CAP)
        variance = max((known * noise.sd**2 + df * variance) / (known + df), noise.sd**2)
        df += known
    return around(mid, -float(special.stdtrit(df, 0.025)) * math.sqrt(variance / n))
