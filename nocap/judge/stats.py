"""Statistics of ablations. scipy is imported where it is used: its distributions take a second to load.

A sample is one number per run: steps within a run are autocorrelated and count as one. There is no bootstrap: at the 3 to 10 seeds
people can afford, its "95%" intervals cover .77 to .89, and the t-interval's cover .95.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations, product
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """A mean, difference or ratio with its two-sided interval, and the p of "it is zero" (of a ratio: "it is one").

    One value has an endless interval and no p.
    """

    mid: float
    low: float
    high: float
    p: float = math.nan
    sd: float = math.nan  # of the values, or of the pairs' differences
    n: int = 0  # values or pairs; of two independent samples the smaller number
    df: float = math.nan  # of the t-test that made the interval
    method: str = ""

    @property
    def half_width(self) -> float:
        return (self.high - self.low) / 2

    def plus(self, other: Estimate) -> Estimate:
        """The sum of two that are independent: half-widths add in squares."""
        return self._around(self.mid + other.mid, math.hypot(self.half_width, other.half_width), other)

    def over(self, other: Estimate) -> Estimate:
        """The quotient of two that are independent, by the delta method."""
        mid = self.mid / other.mid
        return self._around(mid, math.hypot(self.half_width, mid * other.half_width) / abs(other.mid), other)

    def _around(self, mid: float, half: float, other: Estimate) -> Estimate:
        return Estimate(mid=mid, low=mid - half, high=mid + half, n=min(self.n, other.n), method=self.method)

    def exp(self) -> Estimate:
        """From the log scale to the ratio: geometric means."""
        low, high = (math.exp(end) if end < 700 else math.inf for end in (self.low, self.high))
        return replace(self, mid=math.exp(self.mid), low=low, high=high)

    def ends(self) -> dict[str, float]:
        return {"mid": self.mid, "low": self.low, "high": self.high}

    def json(self) -> dict[str, Any]:
        """An endless interval and what is unknown are null."""
        low, high = (self.low, self.high) if math.isfinite(self.high) else (None, None)
        sd, p = (None if math.isnan(value) else value for value in (self.sd, self.p))
        return {"mean": self.mid, "low": low, "high": high, "sd": sd, "p": p, "n": self.n, "method": self.method}


def _sample(values: Sequence[float] | Array) -> Array:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or len(array) < 2:
        raise ValueError(f"a sample must have at least 2 values, got {array.size}")
    if not np.isfinite(array).all():
        raise ValueError("a sample must be finite numbers")
    return array


def _t_interval(mid: float, *, se: float, df: float, confidence: float) -> dict[str, float]:
    """mid, low, high, p and df."""
    from scipy import special

    if se == 0:  # deterministic runs can agree to the last bit
        return {"mid": mid, "low": mid, "high": mid, "p": float(mid == 0)}
    half = float(special.stdtrit(df, (1 + confidence) / 2)) * se
    return {"mid": mid, "low": mid - half, "high": mid + half, "p": 2 * float(special.stdtr(df, -abs(mid / se))), "df": df}


def interval(values: Sequence[float] | Array, *, confidence: float = 0.95, method: str = "t-test") -> Estimate:
    """The mean of at least two values (Student's t)."""
    array = _sample(values)
    n, sd = len(array), float(array.std(ddof=1))
    ends = _t_interval(float(array.mean()), se=sd / math.sqrt(n), df=n - 1, confidence=confidence)
    return Estimate(**ends, sd=sd, n=n, method=method)


def paired(a: Sequence[float], b: Sequence[float], *, confidence: float = 0.95) -> Estimate:
    """mean(a − b), values paired by position: the same seed in both arms."""
    x, y = _sample(a), _sample(b)
    if len(x) != len(y):
        raise ValueError(f"pairs need samples of one length, got {len(x)} and {len(y)}")
    return interval(x - y, confidence=confidence, method="t-test, paired by seed")


def unpaired(a: Sequence[float], b: Sequence[float], *, confidence: float = 0.95) -> Estimate:
    """mean(a) − mean(b) for independent samples of unlike variance (Welch)."""
    x, y = _sample(a), _sample(b)
    parts = [(float(z.var(ddof=1)) / len(z), len(z)) for z in (x, y)]
    variance = sum(part for part, _ in parts)
    df = variance**2 / sum(part**2 / (n - 1) for part, n in parts) if variance else math.nan
    ends = _t_interval(float(x.mean() - y.mean()), se=math.sqrt(variance), df=df, confidence=confidence)
    return Estimate(**ends, n=min(len(x), len(y)), method="Welch's t-test, as the seeds differ")


def signed_rank(values: Sequence[float] | Array, *, confidence: float = 0.95) -> Estimate:
    """The centre of symmetric noise, whatever its tails: the median of all pairs' means, and Wilcoxon's test turned into an interval.

    Exact at any size for independent values (Hodges & Lehmann 1963; Hollander, Wolfe & Chicken, 3.2–3.3). An outlier moves it by one rank.

    Errors:
        ValueError: so few values have no interval at this confidence.
    """
    array = _sample(values)
    outside = _ranks_outside(len(array), confidence)
    if not outside:
        raise ValueError(f"an interval at {confidence:g} needs at least {signed_rank_needs(confidence)} values, got {len(array)}")
    means = np.sort(((array[:, None] + array) / 2)[np.triu_indices(len(array))])
    low, high = float(means[outside - 1]), float(means[-outside])
    return Estimate(mid=float(np.median(means)), low=low, high=high, n=len(array), method="signed ranks")


def signed_rank_needs(confidence: float) -> int:
    """The least number of values with an interval at this confidence: at n values the widest one misses with 2/2ⁿ."""
    return math.ceil(math.log2(2 / (1 - confidence)) - 1e-9)


@cache
def _ranks_outside(n: int, confidence: float) -> int:
    """How many of the pairs' means the interval leaves out at each end: the largest k with P(W < k) ≤ (1 − confidence)/2."""
    chances = np.ones(1)  # of the signed-rank sum W: each rank joins or not, evenly
    for rank in range(1, n + 1):
        chances = (np.pad(chances, (0, rank)) + np.pad(chances, (rank, 0))) / 2
    return int(np.searchsorted(np.cumsum(chances), (1 - confidence) / 2 + 1e-12, side="right"))


def pooled_sd(groups: Sequence[Sequence[float]]) -> float:
    """The standard deviation within groups, each around its own mean."""
    arrays = [_sample(group) for group in groups]
    freedom = sum(len(a) - 1 for a in arrays)
    return math.sqrt(sum(float(a.var(ddof=1)) * (len(a) - 1) for a in arrays) / freedom)


def holm(ps: Sequence[float]) -> list[float]:
    """Holm's step-down adjustment: the chance of any false claim among these comparisons stays below alpha (Holm 1979)."""
    p = np.asarray(ps, dtype=np.float64)
    order = np.argsort(p)
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(1, np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1)))
    return [float(x) for x in adjusted]


def n_required(effect: float, *, power: float, alpha: float = 0.05, pairs: bool, most: int = 100_000) -> int:
    """Runs per arm, or pairs, for a two-sided t-test to see `effect` standard deviations (of the pairs' differences, if pairs).

    Errors:
        ValueError: more than `most`.
    """
    found = least_n(lambda n: power_of(effect, n=n, alpha=alpha, pairs=pairs) >= power, most=most)
    if found is None:
        raise ValueError(f"an effect of {effect:g} standard deviations needs more than {most} runs")
    return found


def least_n(enough: Callable[[int], bool], *, most: int = 100_000) -> int | None:
    """The least number from 2 on that is enough, where all larger ones are; `None`: not even `most`."""
    low, high = 2, 2
    while not enough(high):
        low, high = high, 2 * high
        if high > most:
            return None
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle + 1, high)
    return high


def power_of(effect: float, *, n: int, alpha: float = 0.05, pairs: bool, known: float = 0.0) -> float:
    """The chance that a two-sided t-test over n runs an arm, or pairs, sees `effect` standard deviations. `known`: degrees of freedom that
    the variance has besides theirs.

    Integrated over the variance: scipy's `nct.cdf` is NaN at small samples and large effects.
    """
    from scipy import integrate, special

    nu = (n - 1 if pairs else 2 * n - 2) + known
    nc = abs(effect) * math.sqrt(n if pairs else n / 2)
    critical = float(special.stdtrit(nu, 1 - alpha / 2))
    norm = nu / 2 * math.log(2) + math.lgamma(nu / 2)

    def density(v: float) -> float:
        edge = critical * math.sqrt(v / nu)
        chi2 = math.exp(special.xlogy(nu / 2 - 1, v) - v / 2 - norm)
        return float(special.ndtr(nc - edge) + special.ndtr(-nc - edge)) * chi2

    middle, spread = float(nu), math.sqrt(2 * nu)
    value, _ = integrate.quad(density, max(0.0, middle - 12 * spread), middle + 12 * spread + 20, limit=200, points=[middle])
    return float(value)


def seen(df: float, *, power: float, alpha: float) -> float:
    """The least effect, in its own standard errors, that a two-sided t-test with so many degrees of freedom sees with this power."""
    from scipy import optimize

    def missing(effect: float) -> float:
        return power - power_of(effect, n=1, alpha=alpha, pairs=True, known=df)

    high = 1.0
    while missing(high) > 0:
        high *= 2
    return float(optimize.brentq(missing, 0.0, high))


def crossing(x: Sequence[float], y: Sequence[float], *, target: float, smooth: bool = True) -> float | None:
    """Where a falling curve first reaches `target`, interpolated linearly; `None` where it never does.

    Smoothed, the curve is the running minimum of a three-point median first, so that one lucky validation does not count.
    """
    curve = np.asarray(y, dtype=np.float64)
    if smooth and len(curve):
        wide = np.pad(curve, 1, mode="edge")
        curve = np.minimum.accumulate(np.median(np.stack([wide[:-2], wide[1:-1], wide[2:]]), axis=0))
    reached = np.flatnonzero(curve <= target)
    if not len(reached):
        return None
    i = int(reached[0])
    return float(x[0] if i == 0 else np.interp(target, [curve[i], curve[i - 1]], [x[i], x[i - 1]]))


def _censored(times: Sequence[float], reached: Sequence[bool]) -> Any:
    from scipy import stats

    return stats.CensoredData.right_censored(np.asarray(times, dtype=np.float64), ~np.asarray(reached, dtype=bool))


def median_time(times: Sequence[float], reached: Sequence[bool]) -> float | None:
    """Kaplan and Meier's median; `times` of what never reached the target are its budget. `None`: it is beyond the budget."""
    if all(reached):
        return float(np.median(times))
    from scipy import stats

    curve = stats.ecdf(_censored(times, reached)).sf
    below = np.flatnonzero(curve.probabilities <= 0.5 + 1e-12)
    return float(curve.quantiles[below[0]]) if len(below) else None


def logrank(times: Sequence[float], reached: Sequence[bool], times_b: Sequence[float], reached_b: Sequence[bool]) -> tuple[float, float]:
    """z and two-sided p of "both reach it at one pace" (log-rank test); positive z: the first reaches it sooner than expected.

    NaN where nothing can be said: nobody else was still on the way when one reached it.
    """
    from scipy import stats

    with np.errstate(invalid="ignore", divide="ignore"):
        result = stats.logrank(x=_censored(times, reached), y=_censored(times_b, reached_b))
    return float(result.statistic), float(result.pvalue)


@dataclass(frozen=True, kw_only=True, slots=True)
class Effect:
    """`levels` are (factor, level) against level 0: one pair is a main effect, two an interaction. Without degrees of freedom for an error
    the interval is endless."""

    levels: tuple[tuple[int, int], ...]
    estimate: Estimate


def effects(y: Sequence[float], *, levels: Sequence[Sequence[int]], blocks: Sequence[object], confidence: float = 0.95) -> list[Effect]:
    """Main effects and two-way interactions of a balanced full factorial with blocks (seeds).

    `levels` has a row per run with each factor's level, 0 being its base. A main effect is the mean difference to the base level over all
    other factors; an interaction is half the difference of the differences: for two levels, the usual ±1 effects (Montgomery). The error
    is what blocks, main effects and two-way interactions leave, higher interactions included.

    Errors:
        ValueError: not every combination of levels has equally many runs.
    """
    design, observed = np.asarray(levels, dtype=int), np.asarray(y, dtype=np.float64)
    sizes = [int(column.max()) + 1 for column in design.T]
    cells = np.array(list(product(*map(range, sizes))))
    members = [np.flatnonzero((design == cell).all(axis=1)) for cell in cells]
    repeats = len(members[0])
    if not repeats or any(len(member) != repeats for member in members):
        raise ValueError("the design must be a full factorial")
    means = np.array([observed[member].mean() for member in members])
    variance, df = _error(observed, design, blocks)
    rounding = 1e-12 * max(1.0, float(np.abs(observed).max()))  # runs can agree to the last bit
    found = []
    for term in _terms(sizes):
        weights = _contrast(term, cells)
        mid, se = float(weights @ means), math.sqrt(variance * float(weights @ weights) / repeats)
        mid, se = (value if abs(value) > rounding else 0.0 for value in (mid, se))
        ends = _t_interval(mid, se=se, df=df, confidence=confidence) if df else {"mid": mid, "low": -math.inf, "high": math.inf}
        found.append(Effect(levels=term, estimate=Estimate(**ends, n=repeats, method="least squares, seeds as blocks")))
    return found


def _error(observed: Array, design: Any, blocks: Sequence[object]) -> tuple[float, int]:
    """The variance that blocks, main effects and two-way interactions leave, and its degrees of freedom."""
    names = list(dict.fromkeys(blocks))
    labels = [np.array([names.index(block) for block in blocks]), *design.T]
    labels += [a * (b.max() + 1) + b for a, b in combinations(design.T, 2)]
    x = np.hstack([label[:, None] == np.unique(label) for label in labels]).astype(np.float64)
    beta, _, rank, _ = np.linalg.lstsq(x, observed, rcond=None)
    residual, df = observed - x @ beta, len(x) - int(rank)
    return (float(residual @ residual) / df if df else 0.0), df


def _terms(sizes: Sequence[int]) -> Iterator[tuple[tuple[int, int], ...]]:
    for degree in (1, 2):
        for factors in combinations(range(len(sizes)), degree):
            yield from (tuple(zip(factors, chosen, strict=True)) for chosen in product(*(range(1, sizes[f]) for f in factors)))


def _contrast(term: tuple[tuple[int, int], ...], cells: Any) -> Array:
    """Weights of the cells' means: +1 shared among a level's cells and −1 among the base's, multiplied, an interaction halved."""
    weights = np.ones(len(cells))
    for factor, level in term:
        size = int(cells[:, factor].max()) + 1
        weights = weights * size * ((cells[:, factor] == level).astype(float) - (cells[:, factor] == 0).astype(float))
    return weights / len(cells) / len(term)


def dominates(a: Sequence[float], b: Sequence[float]) -> bool:
    """`a` is nowhere worse than `b` and somewhere better; smaller is better everywhere."""
    return all(x <= y for x, y in zip(a, b, strict=True)) and any(x < y for x, y in zip(a, b, strict=True))


def pareto(points: Sequence[Sequence[float]]) -> list[bool]:
    """Which points no other dominates."""
    return [not any(dominates(other, point) for other in points) for point in points]
