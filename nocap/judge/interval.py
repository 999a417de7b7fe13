"""The one interval of nocap: the page shows it, and it decides.

A pair is a seed or a session of timing, and a sample is one number a pair. The interval is mean ± (1 +
3.3/√n) · t · s/√n, t the quantile of a 90% interval with n − 1 degrees of freedom: a 95% interval that holds
under skew, outliers and correlation as well (a plain t-interval of three skewed pairs errs in 14 to 23%). A
noise that was declared before, or that a grid's other arms show, narrows it, and is dropped where the pairs
contradict it. `experiments/verdict_trust` simulates every cell. scipy is imported where it is used: it takes
a second to load.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nocap.config.keys import require

Array = NDArray[np.float64]
BySeed = Mapping[int, float]

LEAST_PAIRS = 3  # fewer give no interval: at two, a t-interval reaches 12.7 standard errors to each side
CONFIDENCE = 0.95
TAIL = 0.05  # of the t-quantile, at each side; with CAUTION it errs in at most 5% where noise is skewed
CAUTION = 3.3
DECLARED_TAIL = 0.005  # with a declared noise
WELCH_TAIL = 0.0025  # of two samples that share no seeds
CAP = 8.0  # degrees of freedom of a declared noise: other studies are not this one, however many they are
CONTRADICTED = 0.05  # how rarely pairs may be as wide as these, were the declared noise theirs
SAME = 1e-4  # and how rarely as narrow: arms that compute the same but for rounding do not have it
CLOCK_BIAS = 0.005  # of a speed: between two instances of one arm, the first and a later one
ROUNDING = 1e-6  # relative: what lies closer is no difference
MOST_ANALYSES = 6
POWER = 0.9  # of the pairs that would decide
BATCH, BATCHES = 4, 4  # fresh pairs, each batch by itself, of a program's proposal


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """A gain, difference or ratio with its interval; endless below three pairs."""

    mid: float
    low: float
    high: float
    n: int  # pairs; of two samples the smaller number
    sd: float = math.nan  # of the pairs
    method: str = ""

    @property
    def half_width(self) -> float:
        return (self.high - self.low) / 2

    def place(self, low: float, high: float, *, tie: float | None = None) -> int:
        """-1: wholly below these ends, 1: wholly above, 0: within, 2: not decided. Equal but for `tie`, by
        default rounding, is within."""
        if tie is None:
            tie = ROUNDING * max(1.0, abs(self.mid)) if math.isfinite(self.mid) else ROUNDING
        if self.high < low - tie:
            return -1
        if self.low > high + tie:
            return 1
        return 0 if self.low >= low - tie and self.high <= high + tie else 2

    def exp(self) -> Estimate:
        """From the log scale to the ratio: geometric means."""
        mid, low, high = (math.exp(x) if x < 700 else math.inf for x in (self.mid, self.low, self.high))
        return replace(self, mid=mid, low=low, high=high)

    def json(self) -> dict[str, Any]:
        """An endless end and what is unknown are null."""
        numbers = {"mean": self.mid, "low": self.low, "high": self.high, "sd": self.sd}
        return {
            **{key: x if math.isfinite(x) else None for key, x in numbers.items()},
            "n": self.n,
            "method": self.method,
        }


@dataclass(kw_only=True, slots=True)
class Declared:
    """A noise from elsewhere: the standard deviation of one pair's gain, in nats for a loss, of the log ratio
    for speeds and times."""

    sd: float
    df: float  # how well it is known: as the variance of df + 1 pairs would be; at most CAP of them count
    source: str

    def __post_init__(self) -> None:
        require(0 < self.sd < math.inf, "noise.sd", "be above 0 and finite", self.sd)
        require(self.df > 0, "noise.df", "be above 0", self.df)
        require(
            bool(self.source.strip()), "noise.source", "say which runs it was measured on", repr(self.source)
        )

    def json(self) -> dict[str, float | str | None]:
        """Endless degrees of freedom are null."""
        return {"sd": self.sd, "df": self.df if math.isfinite(self.df) else None, "source": self.source}


def pooled(groups: Sequence[Sequence[float]]) -> Declared | None:
    """The noise within groups of pairs, such as a grid's other arms; `None`: they have none."""
    arrays = [np.asarray(group, dtype=np.float64) for group in groups if len(group) > 1]
    freedom = sum(len(array) - 1 for array in arrays)
    squares = sum(float(array.var(ddof=1)) * (len(array) - 1) for array in arrays)
    return Declared(sd=math.sqrt(squares / freedom), df=freedom, source="the other arms") if squares else None


def quantile(df: float, tail: float) -> float:
    """Of Student's t: what lies so rarely above."""
    from scipy import special

    return -float(special.stdtrit(df, tail))


def half_width(
    sd: Array, n: int, *, declared: Declared | None = None, analysis: int = 1, comparisons: int = 1
) -> tuple[Array, NDArray[np.bool_]]:
    """Of the mean of `n` pairs with these standard deviations, both of any shape; and whether the declared
    noise was used. `analysis`: how often the pairs were analysed, this time included. `comparisons`: how many
    arms share the error."""
    from scipy import special

    share = analysis**2 * comparisons  # of the error
    own = (1 + CAUTION / math.sqrt(n)) * quantile(n - 1, TAIL / share) * sd / math.sqrt(n)
    if declared is None:
        return own, np.zeros_like(sd, dtype=bool)
    df, ratio = min(declared.df, CAP), (sd / declared.sd) ** 2
    used = (special.fdtrc(n - 1, df, ratio) >= CONTRADICTED) & (special.fdtr(n - 1, df, ratio) >= SAME)
    return np.where(
        used, quantile(df + n - 1, DECLARED_TAIL / share) * np.maximum(sd, declared.sd) / math.sqrt(n), own
    ), used


def of_pairs(
    values: Sequence[float],
    *,
    declared: Declared | None = None,
    bias: float = 0.0,
    analysis: int = 1,
    comparisons: int = 1,
) -> Estimate:
    """The mean of pairs. `bias`: what no number of pairs takes out, in their unit."""
    sample = np.asarray(values, dtype=np.float64)
    mid, n = float(sample.mean()), len(sample)
    if n < LEAST_PAIRS:
        return Estimate(mid=mid, low=-math.inf, high=math.inf, n=n, method="too few pairs")
    sd = sample.std(ddof=1)
    half, used = half_width(sd, n, declared=declared, analysis=analysis, comparisons=comparisons)
    method = "pairs, noise declared" if used else "pairs"
    return Estimate(
        mid=mid, low=mid - float(half) - bias, high=mid + float(half) + bias, n=n, sd=float(sd), method=method
    )


def of_samples(
    a: Sequence[float], b: Sequence[float], *, bias: float = 0.0, comparisons: int = 1
) -> Estimate:
    """mean(a) − mean(b) of samples that share no seeds (Welch 1947), at 99.5%: what keeps 95% where one arm
    is six times as noisy."""
    x, y = (np.asarray(side, dtype=np.float64) for side in (a, b))
    mid, n = float(x.mean() - y.mean()), min(len(x), len(y))
    if n < LEAST_PAIRS:
        return Estimate(mid=mid, low=-math.inf, high=math.inf, n=n, method="too few runs")
    parts = [(float(side.var(ddof=1)) / len(side), len(side) - 1) for side in (x, y)]
    variance = sum(part for part, _ in parts)
    df = variance**2 / sum(part**2 / freedom for part, freedom in parts) if variance else 1.0
    half = quantile(df, WELCH_TAIL / comparisons) * math.sqrt(variance) + bias
    return Estimate(mid=mid, low=mid - half, high=mid + half, n=n, method="unpaired (Welch)")


def alike(values: Sequence[float]) -> bool:
    """Whether repeats are equal to rounding: what made them takes no seed, and more of them would say
    nothing."""
    return len(values) >= 2 and max(values) - min(values) <= ROUNDING * max(map(abs, values))


def shared(a: BySeed, b: BySeed) -> list[int]:
    """The seeds that two sides are compared over: those of both, where these are enough to be pairs or all
    that there is."""
    both = sorted(a.keys() & b.keys())
    return both if len(both) >= LEAST_PAIRS or a.keys() == b.keys() else []


def between(
    a: BySeed,
    b: BySeed,
    *,
    log: bool = False,
    bias: float = 0.0,
    declared: Declared | None = None,
    comparisons: int = 1,
) -> Estimate | None:
    """a minus b, or with `log` a over b by geometric means: pairs where seeds are shared, else two samples.
    `None`: a side has nothing."""
    if not a or not b or (log and min(*a.values(), *b.values()) <= 0):
        return None
    scaled = [{seed: math.log(x) if log else x for seed, x in side.items()} for side in (a, b)]
    if seeds := shared(a, b):
        pairs = [scaled[0][seed] - scaled[1][seed] for seed in seeds]
        estimate = of_pairs(pairs, declared=declared, bias=bias, comparisons=comparisons)
    else:
        estimate = of_samples(
            list(scaled[0].values()), list(scaled[1].values()), bias=bias, comparisons=comparisons
        )
    return estimate.exp() if log else estimate


# --- analyses -----------------------------------------------------------------------------------------------


def analyses() -> list[int]:
    """At how many pairs what was registered is analysed: 3, 6, 12, … and at no other number. Each has a
    stricter level than the one before (the k-th has 1/k² of the first's), so that pairs may be added until
    the answer is safe."""
    return [LEAST_PAIRS * 2**k for k in range(MOST_ANALYSES)]


def analysis_of(n: int) -> int:
    """The last analysis that n pairs allow, from 1; 0: none."""
    return sum(size <= n for size in analyses())


def pairs_to_decide(
    distance: float, *, sd: float, n: int, declared: Declared | None, bias: float
) -> int | None:
    """The least number of pairs at which an analysis after the one of n clears an end at this distance from
    the mean with a power of 0.9, were mean and spread the true ones; `None`: not even the last."""
    for k, size in enumerate(analyses(), start=1):
        half, _ = half_width(np.float64(sd), size, declared=declared, analysis=k)  # type: ignore[arg-type]
        if size > n and float(half) + bias + NormalDist().inv_cdf(POWER) * sd / math.sqrt(size) <= distance:
            return size
    return None


def minimum_detectable(sd: float, n: int, *, declared: Declared | None = None) -> float:
    """The least effect that n pairs with this spread show with a power of 0.9."""
    size = analyses()[max(analysis_of(n), 1) - 1]
    half, _ = half_width(np.float64(sd), size, declared=declared, analysis=max(analysis_of(n), 1))  # type: ignore[arg-type]
    return float(half) + NormalDist().inv_cdf(POWER) * sd / math.sqrt(size)


def batches_above(values: Sequence[float], bar: float) -> bool:
    """Whether every batch of four shows a mean above the bar by itself: the lower end of its plain 95%
    t-interval. Among 200 proposals without an effect one passes four batches in at most 5% of campaigns, also
    where noise is skewed (`experiments/program_loop`). An incomplete batch shows nothing, nor does one with a
    value that is not finite."""
    rows = np.asarray(values[: len(values) // BATCH * BATCH], dtype=np.float64).reshape(-1, BATCH)
    if len(values) % BATCH or not len(rows) or not np.isfinite(rows).all():
        return False
    reach = quantile(BATCH - 1, (1 - CONFIDENCE) / 2) / math.sqrt(BATCH)
    return bool((rows.mean(axis=1) - reach * rows.std(axis=1, ddof=1) > bar).all())
