"""The cautious interval, of what a clock measures and of a noise that was declared.

A pair is a session of timing, or a run beside another on one machine. The interval is mean ± (1 +
3.3/√n) · t · s/√n, t the quantile of a 90% interval with n − 1 degrees of freedom: a 95% interval
that holds under skew, outliers and correlation as well (a plain t-interval of three skewed pairs
errs in 14 to 23%). A noise that was declared before, or that a grid's other arms show, narrows it,
and is dropped where the pairs contradict it. `experiments/verdict_trust` simulates every cell.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from nocap.config.keys import require
from nocap.judge.interval import (
    LEAST_PAIRS,
    Array,
    BySeed,
    Estimate,
    around,
    logarithms,
    quantile,
    shared,
    welch,
)

Spread = Array | np.float64  # standard deviations of pairs, of any shape

# of the t-quantile, at each side; with CAUTION it errs in at most 5% where noise is skewed
TAIL = 0.05
CAUTION = 3.3
DECLARED_TAIL = 0.005  # with a declared noise
WELCH_TAIL = 0.0025  # of two samples that share no seeds
# degrees of freedom of a declared noise: other studies are not this one, however many they are
CAP = 8.0
CONTRADICTED = 0.05  # how rarely pairs may be as wide as these, were the declared noise theirs
SAME = 1e-4  # and how rarely as narrow: arms that compute the same but for rounding do not have it
CLOCK_BIAS = 0.005  # of a speed: between two instances of one arm, the first and a later one


@dataclass(kw_only=True, slots=True)
class Declared:
    """A noise from elsewhere: the standard deviation of one pair's gain, in nats for a loss, of the
    log ratio for speeds and times."""

    sd: float
    # how well it is known: as the variance of df + 1 pairs would be; at most CAP of them count
    df: float
    source: str

    def __post_init__(self) -> None:
        require(0 < self.sd < math.inf, "noise.sd", "be above 0 and finite", self.sd)
        require(self.df > 0, "noise.df", "be above 0", self.df)
        has_source = bool(self.source.strip())
        require(
            has_source,
            "noise.source",
            "name the runs from which the noise was computed",
            repr(self.source),
        )

    def json(self) -> dict[str, float | str | None]:
        """Return it as JSON has it; endless degrees of freedom are null."""
        df = self.df if math.isfinite(self.df) else None
        return {"sd": self.sd, "df": df, "source": self.source}


def pooled(groups: Sequence[Sequence[float]]) -> Declared | None:
    """Pool the noise within groups of pairs, such as a grid's other arms; `None`: they have
    none."""
    arrays = [np.asarray(group, dtype=np.float64) for group in groups if len(group) > 1]
    freedom = sum(len(array) - 1 for array in arrays)
    squares = sum(float(array.var(ddof=1)) * (len(array) - 1) for array in arrays)
    if not squares:
        return None
    return Declared(sd=math.sqrt(squares / freedom), df=freedom, source="the other arms")


def half_width(
    sd: Spread,
    n: int,
    *,
    declared: Declared | None = None,
    analysis: int = 1,
    comparisons: int = 1,
) -> tuple[Spread, NDArray[np.bool_]]:
    """Return the half width of the mean of `n` pairs with these standard deviations, both of any
    shape; and whether the declared noise was used. `analysis`: how often the pairs were analysed,
    this time included. `comparisons`: how many arms share the error."""
    share = analysis**2 * comparisons
    caution = 1 + CAUTION / math.sqrt(n)
    own = caution * quantile(n - 1, TAIL / share) * sd / math.sqrt(n)
    return narrowed(own, sd, n, declared=declared, share=share)


def narrowed(
    own: Spread, sd: Spread, n: int, *, declared: Declared | None, share: int
) -> tuple[Spread, NDArray[np.bool_]]:
    """Return the half width by the declared noise where the pairs do not contradict it, else their
    own; and where that is. `share`: of the error, one part in so many."""
    from scipy import special

    if declared is None:
        return own, np.zeros_like(sd, dtype=bool)
    freedom = min(declared.df, CAP)
    ratio = (sd / declared.sd) ** 2
    may_be_as_wide = special.fdtrc(n - 1, freedom, ratio) >= CONTRADICTED
    may_be_as_narrow = special.fdtr(n - 1, freedom, ratio) >= SAME
    used = may_be_as_wide & may_be_as_narrow
    larger = np.maximum(sd, declared.sd)
    known = quantile(freedom + n - 1, DECLARED_TAIL / share) * larger / math.sqrt(n)
    return np.where(used, known, own), used


def of_pairs(
    values: Sequence[float],
    *,
    declared: Declared | None = None,
    bias: float = 0.0,
    analysis: int = 1,
    comparisons: int = 1,
) -> Estimate:
    """Return the mean of pairs with the cautious interval. `bias`: what no number of pairs takes
    out, in their unit."""
    sample = np.asarray(values, dtype=np.float64)
    mid = float(sample.mean())
    n = len(sample)
    if n < LEAST_PAIRS:
        return around(mid, math.inf, n=n, method="too few pairs")
    sd = sample.std(ddof=1)
    half, used = half_width(sd, n, declared=declared, analysis=analysis, comparisons=comparisons)
    method = "pairs, noise declared" if used else "pairs, cautious"
    return around(mid, float(half) + bias, n=n, sd=float(sd), method=method)


def of_samples(
    a: Sequence[float], b: Sequence[float], *, bias: float = 0.0, comparisons: int = 1
) -> Estimate:
    """Return mean(a) − mean(b) of samples that share no seeds, at 99.5% (Welch 1947). That keeps
    95% where one arm is six times as noisy."""
    estimate = welch(
        a, b, beyond=WELCH_TAIL / comparisons, method="unpaired (Welch at 99.5%)", bias=bias
    )
    # from which no number of seeds is worked out: this rule is not Student's
    return replace(estimate, freedom=math.nan)


def between(
    a: BySeed,
    b: BySeed,
    *,
    log: bool = False,
    bias: float = 0.0,
    declared: Declared | None = None,
    comparisons: int = 1,
) -> Estimate | None:
    """Return a minus b, or with `log` a over b by geometric means: in pairs where seeds are shared,
    else as two samples. `None`: a side has nothing."""
    if not a or not b:
        return None
    if log:
        if min(*a.values(), *b.values()) <= 0:
            return None
        a = logarithms(a)
        b = logarithms(b)
    seeds = shared(a, b)
    if seeds:
        pairs = [a[seed] - b[seed] for seed in seeds]
        estimate = of_pairs(pairs, declared=declared, bias=bias, comparisons=comparisons)
    else:
        estimate = of_samples([*a.values()], [*b.values()], bias=bias, comparisons=comparisons)
    return estimate.exp() if log else estimate
