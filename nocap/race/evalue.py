"""Evidence that may be looked at after every pair, and spent over many proposals, without losing its meaning.

An e-value is a non-negative number whose mean is at most 1 where there is no effect. So it reaches x with a chance of at most 1/x, whenever
one stops to look (Ville's inequality).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

SPREAD = 4.0  # variance of the effects that are expected, in squared standard deviations of a pair's gain


def gain_evidence(gains: Sequence[float], *, sd: float = 0.0, df: float = 0.0, spread: float = SPREAD) -> float:
    """The e-value of "the mean gain is above zero" against "it is not", for normal noise of unknown size.

    The likelihood ratio of a t-test whose effect, in standard deviations, is half-normal with variance `spread` (Rouder et al. 2009, the
    scale-invariant mixture of Lai 1976; the one-sided form is the two-sided one times twice the posterior chance of a gain). `sd` with `df`
    degrees of freedom is noise that was declared before: it counts as so many earlier observations around zero.
    """
    from scipy import special

    n, total, squares = len(gains), math.fsum(gains), math.fsum(x * x for x in gains)
    if n + df < 2 or not math.isfinite(total):
        return 1.0 if n + df < 2 else 0.0
    weight = n + 1 / spread
    known, left = df * sd**2, max(squares - total**2 / weight, 0.0)
    if known + left <= 0:  # every pair equal, as of deterministic twins: no noise, and no model of it
        return 1.0
    log_ratio = (df + n) / 2 * math.log((known + squares) / (known + left)) - math.log1p(n * spread) / 2
    z = total / weight / math.sqrt((known + left) / ((df + n) * weight))
    return 2 * float(special.stdtr(df + n, z)) * math.exp(min(log_ratio, 700.0))


def threshold(number: int, *, accepted: int, alpha: float) -> float:
    """The evidence that proposal `number` (from 1) needs, when `accepted` were accepted before it.

    e-LOND (Xu & Ramdas 2024): the expected share of false ones among the accepted stays below alpha, for evidence of any dependence. Where
    no proposal has an effect, that is the chance of accepting anything. The error level is spent as 1/(k·(k+1)), which sums to 1.
    """
    return number * (number + 1) / (alpha * (accepted + 1))
