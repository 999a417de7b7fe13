"""The atlas's own intervals: t-intervals with a noise that its arms share (Smyth 2004), their sums
and quotients, and what of many comparisons is left after a correction."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special

CAP = 8.0  # degrees of freedom of the shared noise: other arms are not this one
SAME = 0.01  # of the shared spread: three pairs that lie closer compute the same but for rounding
ERROR = 0.05  # of an interval, and of all comparisons together after a correction


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A mean with its standard error, and how well that is known: its interval is Student's at
    95%."""

    mid: float
    se: float
    df: float

    @property
    def half_width(self) -> float:
        return quantile(self.df) * self.se

    @property
    def low(self) -> float:
        return self.mid - self.half_width

    @property
    def high(self) -> float:
        return self.mid + self.half_width

    @property
    def p(self) -> float:
        """How often a mean so far from 0 would come of none."""
        return (
            2 * float(special.stdtr(self.df, -abs(self.mid) / self.se))
            if self.se
            else float(self.mid == 0)
        )

    def plus(self, other: Estimate) -> Estimate:
        """The sum of two that are independent."""
        return joined(self.mid + other.mid, (self.se, self.df), (other.se, other.df))

    def over(self, other: Estimate) -> Estimate:
        """The quotient of two that are independent, by the delta method."""
        mid = self.mid / other.mid
        return joined(
            mid, (self.se / abs(other.mid), self.df), (abs(mid / other.mid) * other.se, other.df)
        )

    def exp(self) -> tuple[float, float, float]:
        """From the log scale to the ratio, by geometric means: its middle and its ends."""
        return math.exp(self.mid), math.exp(self.low), math.exp(self.high)


@dataclass(frozen=True, kw_only=True)
class Noise:
    """The standard deviation of one pair, pooled over arms, and its degrees of freedom."""

    sd: float
    df: int


def quantile(df: float) -> float:
    return -float(special.stdtrit(df, ERROR / 2))


def joined(mid: float, *errors: tuple[float, float]) -> Estimate:
    """Of several independent errors, each with its degrees of freedom (Welch and Satterthwaite); it
    is known no better than the best known of them, for much of what they know is of other arms."""
    variance, best = sum(se**2 for se, _ in errors), max(df for _, df in errors)
    fourth = sum(se**4 / df for se, df in errors)
    return Estimate(
        mid=mid, se=math.sqrt(variance), df=min(best, variance**2 / fourth) if fourth else best
    )


def pooled(groups: Sequence[Sequence[float]]) -> Noise:
    """Within groups of two values or more."""
    df = sum(len(group) - 1 for group in groups)
    squares = sum(float(np.var(group, ddof=1)) * (len(group) - 1) for group in groups)
    return Noise(sd=math.sqrt(squares / df), df=df)


def interval(values: Sequence[float], noise: Noise | None = None) -> Estimate:
    """Student's t, of at least two values; of one with a noise, which joins theirs and is the least
    that they can have."""
    n = len(values)
    mid, variance, df = (
        float(np.mean(values)),
        float(np.var(values, ddof=1)) if n > 1 else 0.0,
        float(n - 1),
    )
    if noise is not None and not (n >= 3 and variance < (SAME * noise.sd) ** 2):
        known = min(float(noise.df), CAP)
        variance = max((known * noise.sd**2 + df * variance) / (known + df), noise.sd**2)
        df += known
    return Estimate(mid=mid, se=math.sqrt(variance / n), df=df)


def holm(p_values: Mapping[str, float]) -> set[str]:
    """Whose difference is left at 5% for all p-values together (Holm 1979): not one false among
    them, in 95%."""
    left: set[str] = set()
    for i, (name, p) in enumerate(sorted(p_values.items(), key=lambda each: each[1])):
        if p > ERROR / (len(p_values) - i):
            break
        left.add(name)
    return left


def benjamini_hochberg(p_values: Mapping[str, float]) -> set[str]:
    """Of whose differences 5% are false on average (Benjamini and Hochberg 1995)."""
    ranked = sorted(p_values, key=lambda name: p_values[name])
    last = max(
        (
            i
            for i, name in enumerate(ranked, start=1)
            if p_values[name] <= ERROR * i / len(p_values)
        ),
        default=0,
    )
    return set(ranked[:last])
