"""The interval of what a seed repeats: a textbook's. It is shown, and it decides.

One arm against a baseline: the paired t-interval (Student 1908), or Welch's (1947) where seeds are
not shared. Several arms: one interval for all of them together. The variance of a difference is the
baseline's noise, counted once, and the arms' noise, pooled; its degrees of freedom are
Satterthwaite's (1946); Bonferroni shares the error. No arm's interval is narrower than its own, as
it would stand alone. The k-th look at more seeds errs in 5%/k². What a clock measures has another
interval: `judge.cautious_interval`. scipy is imported where it is used: it takes a second to load.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
BySeed = Mapping[int, float]
# the half width of a mean of so many pairs with this standard deviation, at this look
Width = Callable[[float, int, int], float]

# fewer give no interval: at two, a t-interval reaches 12.7 standard errors to each side
LEAST_PAIRS = 3
CONFIDENCE = 0.95
ERROR = 0.05  # of all arms of a table together, to both sides
ROUNDING = 1e-6  # relative: what lies closer is no difference
MOST_ANALYSES = 6
# How surely the advised pairs decide. Higher than `power.POWER`, which says what a plan can show:
# here somebody trains that many runs for one answer.
POWER = 0.9
BATCH = 4  # fresh pairs of a program's proposal, which show the gain by themselves
BATCHES = 4  # of them, until it is accepted
PAIRS = "pairs (Student)"
SAMPLES = "unpaired (Welch)"
ALL_PAIRS = "pairs, all arms together"
ALL_SAMPLES = "unpaired, all arms together"


class Position(Enum):
    """Where an interval lies to two ends."""

    below = "below both ends"
    within = "between them, or on one"
    above = "above both ends"
    across = "on both sides of an end: nothing is decided"


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """A gain, difference or ratio with its interval; endless below three pairs."""

    mid: float
    low: float
    high: float
    n: int  # pairs; of two samples the smaller number
    sd: float = math.nan  # of the pairs
    method: str = ""
    freedom: float = math.nan  # of the t that its half width has
    arms: int = 1  # that share its error

    @property
    def half_width(self) -> float:
        return (self.high - self.low) / 2

    def position(self, low: float, high: float, *, tie: float | None = None) -> Position:
        """Return where the interval lies to two ends. Equal but for `tie`, by default rounding, is
        within."""
        if tie is None:
            tie = self._rounding()
        if self.high < low - tie:
            return Position.below
        if self.low > high + tie:
            return Position.above
        if self.low >= low - tie and self.high <= high + tie:
            return Position.within
        return Position.across

    def _rounding(self) -> float:
        if not math.isfinite(self.mid):
            return ROUNDING
        return ROUNDING * max(1.0, abs(self.mid))

    def exp(self) -> Estimate:
        """Return the ratio whose logarithm this is: of geometric means."""
        return replace(self, mid=_exp(self.mid), low=_exp(self.low), high=_exp(self.high))


def _exp(x: float) -> float:
    """Return e to the x; endless where a number cannot hold it. Of a NaN, endless too."""
    return math.exp(x) if x < 700 else math.inf


def logarithms(values: BySeed) -> dict[int, float]:
    """Return the logarithm of each seed's value."""
    return {seed: math.log(value) for seed, value in values.items()}


def finite(x: float) -> float | None:
    """Return a number that JSON has; `None` in place of what is endless or no number."""
    return x if math.isfinite(x) else None


def subtract(a: Sequence[float], b: Sequence[float]) -> list[float]:
    """Return the differences of two rows."""
    return [x - y for x, y in zip(a, b, strict=True)]


def quantile(df: float, tail: float) -> float:
    """Return the quantile of Student's t above which the share `tail` lies."""
    from scipy import special

    return -float(special.stdtrit(df, tail))


def confidence(look: int) -> float:
    """Return the level of the interval at this look."""
    return 1 - ERROR / look**2


def tail(look: int, arms: int = 1) -> float:
    """Return how rarely the truth may lie beyond one end, at this look at this many arms."""
    return ERROR / 2 / look**2 / arms


def around(
    mid: float,
    half: float,
    *,
    n: int,
    method: str,
    sd: float = math.nan,
    freedom: float = math.nan,
    arms: int = 1,
) -> Estimate:
    """Return the estimate that reaches so far to both sides."""
    low = mid - half
    high = mid + half
    return Estimate(
        mid=mid, low=low, high=high, n=n, sd=sd, method=method, freedom=freedom, arms=arms
    )


# --- one arm --------------------------------------------------------------------------------------


def half_width(sd: float, n: int, look: int = 1) -> float:
    """Return how far Student's interval of a mean of `n` pairs reaches to each side."""
    return quantile(n - 1, tail(look)) * sd / math.sqrt(n)


def of_pairs(values: Sequence[float], *, look: int = 1, beside: Sequence[float] = ()) -> Estimate:
    """Return the mean of pairs with Student's interval. `beside`: repeats of another kind, such as
    rounds of a clock. Their mean is added, and so is its variance."""
    sample = np.asarray(values, dtype=np.float64)
    mid = float(sample.mean())
    n = len(sample)
    if n < LEAST_PAIRS:
        return around(mid, math.inf, n=n, method="too few pairs")
    if beside:
        return _with_beside(sample, np.asarray(beside, dtype=np.float64), look=look)
    sd = float(sample.std(ddof=1))
    half = half_width(sd, n, look)
    return around(mid, half, n=n, sd=sd, method=PAIRS, freedom=n - 1)


def _with_beside(sample: Array, beside: Array, *, look: int) -> Estimate:
    mid = float(sample.mean() + beside.mean())
    n = len(sample)
    if len(beside) < LEAST_PAIRS:
        return around(mid, math.inf, n=n, method="too few rounds")
    parts = [Part.of_mean(sample), Part.of_mean(beside)]
    half = _width(parts, tail(look))
    sd = float(sample.std(ddof=1))
    return around(mid, half, n=n, sd=sd, method=PAIRS, freedom=_freedom(parts))


def of_samples(a: Sequence[float], b: Sequence[float], *, look: int = 1) -> Estimate:
    """Return mean(a) − mean(b) of samples that share no seeds, with Welch's interval."""
    return welch(a, b, beyond=tail(look), method=SAMPLES)


def welch(
    a: Sequence[float], b: Sequence[float], *, beyond: float, method: str, bias: float = 0.0
) -> Estimate:
    """Return mean(a) − mean(b), where the truth lies `beyond` one end so rarely. `bias` widens both
    sides."""
    x = np.asarray(a, dtype=np.float64)
    y = np.asarray(b, dtype=np.float64)
    mid = float(x.mean() - y.mean())
    n = min(len(x), len(y))
    if n < LEAST_PAIRS:
        return around(mid, math.inf, n=n, method="too few runs")
    parts = [Part.of_mean(x), Part.of_mean(y)]
    half = _width(parts, beyond) + bias
    return around(mid, half, n=n, method=method, freedom=_freedom(parts))


# --- several arms ---------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """A part of a difference's variance, and how well it is known."""

    variance: float
    freedom: float

    @classmethod
    def of_mean(cls, sample: Array) -> Part:
        """Return the part that a sample's mean has."""
        n = len(sample)
        return cls(variance=float(sample.var(ddof=1)) / n, freedom=n - 1)


def _width(parts: Sequence[Part], beyond: float) -> float:
    """Return how far an interval reaches whose variance is the sum of these parts (Satterthwaite
    1946)."""
    variance = sum(part.variance for part in parts)
    if not variance:
        return 0.0  # equal differences in all seeds
    return quantile(_freedom(parts), beyond) * math.sqrt(variance)


def _freedom(parts: Sequence[Part]) -> float:
    """Return Satterthwaite's degrees of freedom; none are known where there is no variance."""
    variance = sum(part.variance for part in parts)
    if not variance:
        return math.nan
    doubt = sum(part.variance**2 / part.freedom for part in parts)
    return variance**2 / doubt


def of_arms(
    differences: Sequence[Sequence[float]],
    *,
    look: int = 1,
    beside: Sequence[Sequence[float]] = (),
) -> list[Estimate]:
    """Return each arm's mean difference from a baseline with an interval for all arms together,
    from a row of differences an arm, over seeds that all of them share. `beside`: as in `of_pairs`,
    a row an arm."""
    arms = len(differences)
    more = beside or [()] * arms
    alone = [
        of_pairs(row, look=look, beside=own) for row, own in zip(differences, more, strict=True)
    ]
    if arms < 2 or not all(math.isfinite(each.half_width) for each in alone):
        return alone
    parts = _together(differences)
    if beside:
        parts += _together(beside)
    return [_at_least(each, parts, look, arms, method=ALL_PAIRS) for each in alone]


def _together(differences: Sequence[Sequence[float]]) -> list[Part]:
    """Return the parts of the variance of each arm's mean difference.

    The baseline's noise is in every arm's difference alike: it is that of the arms' mean. What is
    left among the arms is their own.
    """
    arms = len(differences)
    n = len(differences[0])
    values = np.asarray(differences, dtype=np.float64)
    noise = values - values.mean(axis=1, keepdims=True)
    together = noise.mean(axis=0)
    freedom = n - 1
    variance = float((together**2).sum()) / freedom / n
    freedom_among = (arms - 1) * freedom
    among = float(((noise - together) ** 2).sum()) / freedom_among
    variance_among = among * (1 - 1 / arms) / n
    return [
        Part(variance=variance, freedom=freedom),
        Part(variance=variance_among, freedom=freedom_among),
    ]


def of_arms_apart(
    base: Sequence[float], arms: Sequence[Sequence[float]], *, look: int = 1
) -> list[Estimate]:
    """Return each arm's difference from a baseline with which it shares no seeds, for all arms
    together: the baseline has its own variance, the arms have one that is pooled."""
    alone = [of_samples(arm, base, look=look) for arm in arms]
    if len(arms) < 2 or min(each.n for each in alone) < LEAST_PAIRS:
        return alone
    of_base = Part.of_mean(np.asarray(base, dtype=np.float64))
    pooled = _pooled(arms)
    estimates = list[Estimate]()
    for arm, own in zip(arms, alone, strict=True):
        parts = [of_base, pooled.of(len(arm))]
        estimates.append(_at_least(own, parts, look, len(arms), method=ALL_SAMPLES))
    return estimates


def of_steps(
    groups: Mapping[str, Sequence[float]], steps: Sequence[tuple[str, str]], *, look: int = 1
) -> list[Estimate]:
    """Return what each step from a group to another one changes, for all steps together; no seeds
    are shared.

    All groups have one variance, for most are a baseline and an arm: were the one before each step
    taken with its own variance, a chain of 27 steps with three seeds would err in 7.6%, and so it
    errs in 3.1%.
    """
    alone = [of_samples(groups[after], groups[before], look=look) for before, after in steps]
    if len(steps) < 2 or min(each.n for each in alone) < LEAST_PAIRS:
        return alone
    pooled = _pooled([*groups.values()])
    estimates = list[Estimate]()
    for (before, after), own in zip(steps, alone, strict=True):
        n = len(groups[after])
        n_before = len(groups[before])
        runs = n * n_before / (n + n_before)  # whose mean is as noisy as the difference of the two
        estimates.append(_at_least(own, [pooled.of(runs)], look, len(steps), method=ALL_SAMPLES))
    return estimates


@dataclass(frozen=True, kw_only=True, slots=True)
class Pooled:
    """The variance of one run, from several groups that are taken as equally noisy."""

    variance: float
    freedom: int

    def of(self, n: float) -> Part:
        """Return the part that a mean of so many runs has."""
        return Part(variance=self.variance / n, freedom=self.freedom)


def _pooled(groups: Sequence[Sequence[float]]) -> Pooled:
    freedom = sum(len(group) - 1 for group in groups)
    squares = sum(float(np.var(group, ddof=1)) * (len(group) - 1) for group in groups)
    return Pooled(variance=squares / freedom, freedom=freedom)


def _at_least(
    alone: Estimate, parts: Sequence[Part], look: int, arms: int, *, method: str
) -> Estimate:
    """Return the arm's estimate for all arms together, which is no narrower than its own."""
    half = _width(parts, tail(look, arms))
    if half <= alone.half_width:
        return replace(alone, method=method)
    return around(
        alone.mid, half, n=alone.n, sd=alone.sd, method=method, freedom=_freedom(parts), arms=arms
    )


# --- which seeds ----------------------------------------------------------------------------------


def alike(values: Sequence[float]) -> bool:
    """Say whether repeats are equal to rounding: what made them takes no seed, and more of them
    would say nothing."""
    if len(values) < 2:
        return False
    size = max(abs(value) for value in values)
    return max(values) - min(values) <= ROUNDING * size


def shared(a: BySeed, b: BySeed) -> list[int]:
    """List the seeds that two sides are compared over: those of both, where these are enough to be
    pairs or all that there is."""
    both = sorted(a.keys() & b.keys())
    if len(both) >= LEAST_PAIRS or a.keys() == b.keys():
        return both
    return []


def of_seeds(a: BySeed, b: BySeed, *, look: int = 1) -> Estimate:
    """Return a minus b, in pairs where they share seeds, else as two samples; neither is empty."""
    seeds = shared(a, b)
    if seeds:
        return of_pairs([a[seed] - b[seed] for seed in seeds], look=look)
    return of_samples([*a.values()], [*b.values()], look=look)


# --- analyses -------------------------------------------------------------------------------------


def analyses() -> list[int]:
    """List the numbers of pairs at which what was registered is analysed: 3, 6, 12, … and no other.
    Each has a stricter level than the one before (the k-th has 1/k² of the first's), so that pairs
    may be added until the answer is safe."""
    return [LEAST_PAIRS * 2**k for k in range(MOST_ANALYSES)]


def analysis_of(n: int) -> int:
    """Return the last analysis that n pairs allow, from 1; 0: none."""
    return sum(size <= n for size in analyses())


def pairs_to_decide(
    distance: float,
    *,
    sd: float,
    n: int,
    width: Width,
    bias: float = 0.0,
    sizes: Iterable[tuple[int, int]] | None = None,
) -> int | None:
    """Return the least number of pairs at which an analysis after the one of n clears an end at
    this distance from the mean with a power of 0.9, were mean and spread the true ones; `None`: not
    even the last. `sizes`: looks with how many pairs each has, by default those of what is
    registered."""
    deviations = NormalDist().inv_cdf(POWER)
    for look, size in sizes or enumerate(analyses(), start=1):
        reach = width(sd, size, look) + bias + deviations * sd / math.sqrt(size)
        if size > n and reach <= distance:
            return size
    return None


def seeds_to_show(estimate: Estimate, *, look: int) -> int | None:
    """Return how many seeds would show a difference as large as this one at the look after this
    one; `None`: more than the last analysis has, or its noise is not known."""
    if not math.isfinite(estimate.freedom) or not estimate.half_width:
        return None
    of_one = estimate.half_width / quantile(estimate.freedom, tail(look, estimate.arms))
    share = estimate.freedom / (estimate.n - 1)  # degrees of freedom grow as the seeds do

    def width(sd: float, n: int, at: int) -> float:
        return quantile(share * (n - 1), tail(at, estimate.arms)) * sd / math.sqrt(n)

    distance = abs(estimate.mid)
    sd = of_one * math.sqrt(estimate.n)
    more = range(estimate.n + 1, analyses()[-1] + 1)
    sizes = ((look + 1, size) for size in more)
    return pairs_to_decide(distance, sd=sd, n=estimate.n, width=width, sizes=sizes)
