"""Statistics of ablations: what scipy has is scipy's, imported where it is used because it takes a second to load.

A sample is one number per run: steps within a run are autocorrelated and count as one. There is no bootstrap: at the 3 to 10 seeds
people can afford, its "95%" intervals cover .77 to .89, and the t-interval's cover .95.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import combinations, product
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """A mean or a difference with its two-sided t-interval, and the p of "it is zero"; a ratio, and "it is one"."""

    mean: float
    low: float
    high: float
    t: float
    df: float
    p: float

    def exp(self) -> Estimate:
        """From the log scale to the ratio: geometric means."""
        return Estimate(mean=math.exp(self.mean), low=math.exp(self.low), high=math.exp(self.high), t=self.t, df=self.df, p=self.p)


@dataclass(frozen=True, kw_only=True, slots=True)
class Interval:
    """A centre and its two-sided interval."""

    mid: float
    low: float
    high: float

    @property
    def half_width(self) -> float:
        return (self.high - self.low) / 2


def _sample(values: Sequence[float] | Array, *, least: int = 2) -> Array:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or len(array) < least:
        raise ValueError(f"a sample must have at least {least} values, got {array.size}")
    if not np.isfinite(array).all():
        raise ValueError("a sample must be finite numbers")
    return array


def _logs(values: Sequence[float] | Array) -> Array:
    array = _sample(values)
    if (array <= 0).any():
        raise ValueError(f"a ratio needs values above 0, got {array.min():g}")
    return np.log(array)


@contextmanager
def _equal_values_allowed() -> Iterator[None]:
    """Deterministic runs can agree to the last bit; scipy warns that a variance of zero is imprecise, and divides by it."""
    with warnings.catch_warnings(), np.errstate(divide="ignore", invalid="ignore"):
        warnings.simplefilter("ignore", RuntimeWarning)
        yield


def _estimate(mean: float, result: Any, *, confidence: float) -> Estimate:
    interval, t, p = result.confidence_interval(confidence), float(result.statistic), float(result.pvalue)
    low, high = float(interval.low), float(interval.high)
    if math.isnan(t) or math.isinf(t):  # no variance at all
        low = high = mean
        t, p = (0.0, 1.0) if mean == 0 else (math.copysign(math.inf, mean), 0.0)
    return Estimate(mean=mean, low=low, high=high, t=t, df=float(result.df), p=p)


# --- means and differences ---------------------------------------------------------------------------------------------------------


def interval(values: Sequence[float] | Array, *, confidence: float = 0.95) -> Estimate:
    """The mean of at least two values (`ttest_1samp`)."""
    from scipy import stats

    array = _sample(values)
    with _equal_values_allowed():
        return _estimate(float(array.mean()), stats.ttest_1samp(array, 0.0), confidence=confidence)


def paired(a: Sequence[float], b: Sequence[float], *, confidence: float = 0.95) -> Estimate:
    """mean(a − b), values paired by position: the same seed in both arms (`ttest_rel`)."""
    from scipy import stats

    x, y = _sample(a), _sample(b)
    if len(x) != len(y):
        raise ValueError(f"pairs need samples of one length, got {len(x)} and {len(y)}")
    with _equal_values_allowed():
        return _estimate(float((x - y).mean()), stats.ttest_rel(x, y), confidence=confidence)


def unpaired(a: Sequence[float] | Array, b: Sequence[float] | Array, *, confidence: float = 0.95) -> Estimate:
    """mean(a) − mean(b) for independent samples of unlike variance (Welch: `ttest_ind`)."""
    from scipy import stats

    x, y = _sample(a), _sample(b)
    with _equal_values_allowed():
        return _estimate(float(x.mean() - y.mean()), stats.ttest_ind(x, y, equal_var=False), confidence=confidence)


def lower_bound(values: Sequence[float] | Array, *, alpha: float) -> float:
    """One-sided: the mean lies below it with a chance of alpha (the lower end of the t-interval at 1 - 2·alpha)."""
    from scipy import special

    array = _sample(values)
    n = len(array)
    return float(array.mean() + special.stdtrit(n - 1, alpha) * array.std(ddof=1) / math.sqrt(n))


def ratio(ratios: Sequence[float] | Array, *, confidence: float = 0.95) -> Estimate:
    """The geometric mean of ratios, one per pair, with an interval made on the log scale."""
    return interval(_logs(ratios), confidence=confidence).exp()


def ratio_unpaired(a: Sequence[float], b: Sequence[float], *, confidence: float = 0.95) -> Estimate:
    """The ratio of geometric means of two independent samples (Welch on the logarithms)."""
    return unpaired(_logs(a), _logs(b), confidence=confidence).exp()


def signed_rank(values: Sequence[float] | Array, *, confidence: float = 0.95) -> Interval:
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
    return Interval(mid=float(np.median(means)), low=float(means[outside - 1]), high=float(means[-outside]))


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


def noninferior(differences: Sequence[float], *, margin: float) -> float:
    """p of "the mean difference is `margin` or more": below alpha, not worse by the margin (one-sided `ttest_1samp`)."""
    from scipy import stats

    return float(stats.ttest_1samp(_sample(differences), margin, alternative="less").pvalue)


def tost(differences: Sequence[float], *, low: float, high: float) -> tuple[float, float]:
    """p of "at most `low`" and of "at least `high`": both below alpha, equivalent (two one-sided tests, Schuirmann 1987)."""
    from scipy import stats

    above = float(stats.ttest_1samp(_sample(differences), low, alternative="greater").pvalue)
    return above, noninferior(differences, margin=high)


def signflip(differences: Sequence[float]) -> float:
    """Exact two-sided p from flipping the signs of the differences. Below six it cannot reach .05 (2/2ⁿ), so it refuses."""
    from scipy import stats

    sample = _sample(differences, least=6)
    result = stats.permutation_test((sample,), np.mean, permutation_type="samples", n_resamples=np.inf, vectorized=True)
    return float(result.pvalue)


def pooled_sd(groups: Sequence[Sequence[float]]) -> float:
    """The standard deviation within groups, each around its own mean."""
    arrays = [_sample(group) for group in groups]
    freedom = sum(len(a) - 1 for a in arrays)
    return math.sqrt(sum(float(a.var(ddof=1)) * (len(a) - 1) for a in arrays) / freedom)


def moderated(values: Sequence[float], *, prior_sd: float, prior_df: float, confidence: float = 0.95) -> Estimate:
    """A mean whose variance borrows from a declared source of noise: (d₀s₀² + νs²)/(d₀ + ν) (Smyth 2004).

    Fair only where the source (same recipe, scale and validation tokens) was declared before the runs.
    """
    from scipy import stats

    array = _sample(values)
    nu = len(array) - 1
    variance = (prior_df * prior_sd**2 + nu * float(array.var(ddof=1))) / (prior_df + nu)
    mean, se, df = float(array.mean()), math.sqrt(variance / len(array)), prior_df + nu
    half, t = float(stats.t.ppf((1 + confidence) / 2, df)) * se, mean / se
    return Estimate(mean=mean, low=mean - half, high=mean + half, t=t, df=df, p=float(2 * stats.t.sf(abs(t), df)))


# --- several comparisons, and how many seeds ---------------------------------------------------------------------------------------


def holm(ps: Sequence[float]) -> list[float]:
    """Holm's step-down adjustment: the chance of any false claim among these comparisons stays below alpha (Holm 1979)."""
    p = np.asarray(ps, dtype=np.float64)
    order = np.argsort(p)
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(1, np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1)))
    return [float(x) for x in adjusted]


def bh(ps: Sequence[float]) -> list[float]:
    """Benjamini–Hochberg's adjustment, for what is labelled a screening only."""
    from scipy import stats

    return [float(x) for x in stats.false_discovery_control(np.asarray(ps, dtype=np.float64))]


def n_required(effect: float, *, power: float, alpha: float = 0.05, pairs: bool, most: int = 100_000) -> int:
    """Runs per arm, or pairs, for a two-sided t-test to see `effect` standard deviations (of the pairs' differences, if pairs).

    Errors:
        ValueError: more than `most`.
    """
    low, high = 2, 2
    while power_of(effect, n=high, alpha=alpha, pairs=pairs) < power:
        low, high = high, 2 * high
        if high > most:
            raise ValueError(f"an effect of {effect:g} standard deviations needs more than {most} runs")
    while low < high:
        middle = (low + high) // 2
        enough = power_of(effect, n=middle, alpha=alpha, pairs=pairs) >= power
        low, high = (low, middle) if enough else (middle + 1, high)
    return high


def power_of(effect: float, *, n: int, alpha: float = 0.05, pairs: bool) -> float:
    """The chance that a two-sided t-test over n runs an arm, or pairs, sees `effect` standard deviations.

    Integrated over the variance: scipy's `nct.cdf` is NaN at small samples and large effects.
    """
    from scipy import integrate, stats

    nu = n - 1 if pairs else 2 * n - 2
    nc = abs(effect) * math.sqrt(n if pairs else n / 2)
    critical = float(stats.t.ppf(1 - alpha / 2, nu))

    def density(v: float) -> float:
        edge = critical * math.sqrt(v / nu)
        return float((stats.norm.cdf(nc - edge) + stats.norm.cdf(-nc - edge)) * stats.chi2.pdf(v, nu))

    middle, spread = float(nu), math.sqrt(2 * nu)
    value, _ = integrate.quad(density, max(0.0, middle - 12 * spread), middle + 12 * spread + 20, limit=200, points=[middle])
    return float(value)


# --- curves ------------------------------------------------------------------------------------------------------------------------


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
    if i == 0:
        return float(x[0])
    return float(np.interp(target, [curve[i], curve[i - 1]], [x[i], x[i - 1]]))


def _censored(times: Sequence[float], reached: Sequence[bool]) -> Any:
    from scipy import stats

    return stats.CensoredData.right_censored(np.asarray(times, dtype=np.float64), ~np.asarray(reached, dtype=bool))


def survival(times: Sequence[float], reached: Sequence[bool]) -> Any:
    """Kaplan and Meier's curve as scipy's object: `.evaluate(t)` is the share that has not reached the target by `t`."""
    from scipy import stats

    return stats.ecdf(_censored(times, reached)).sf


def median_time(times: Sequence[float], reached: Sequence[bool]) -> float | None:
    """Kaplan and Meier's median; `times` of what never reached the target are its budget. `None`: it is beyond the budget."""
    if all(reached):
        return float(np.median(times))
    curve = survival(times, reached)
    below = np.flatnonzero(curve.probabilities <= 0.5 + 1e-12)
    return float(curve.quantiles[below[0]]) if len(below) else None


def logrank(times: Sequence[float], reached: Sequence[bool], times_b: Sequence[float], reached_b: Sequence[bool]) -> tuple[float, float]:
    """z and two-sided p of "both reach it at one pace" (log-rank test); positive z: the first reaches it sooner than expected."""
    from scipy import stats

    result = stats.logrank(x=_censored(times, reached), y=_censored(times_b, reached_b))
    return float(result.statistic), float(result.pvalue)


# --- grids -------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Effect:
    """`levels` are (factor, level) against level 0: one pair is a main effect, two an interaction."""

    levels: tuple[tuple[int, int], ...]
    mean: float
    low: float | None  # None: no degrees of freedom are left for an error
    high: float | None
    p: float | None
    df: int


def effects(y: Sequence[float], *, levels: Sequence[Sequence[int]], blocks: Sequence[object], confidence: float = 0.95) -> list[Effect]:
    """Main effects and two-way interactions of a balanced full factorial, by least squares with blocks (seeds).

    `levels` has a row per run with each factor's level, 0 being its base. A main effect is the mean difference to the base level over all
    other factors; an interaction is half the difference of the differences: for two levels, the usual ±1 effects (Montgomery). The error
    is what blocks, main effects and two-way interactions leave, higher interactions included.
    """
    from scipy import stats

    design = np.asarray(levels, dtype=int)
    sizes = [int(column.max()) + 1 for column in design.T]
    names = list(dict.fromkeys(blocks))
    x = np.array([_row(row, sizes, block=names.index(b), n_blocks=len(names)) for row, b in zip(design, blocks, strict=True)])
    observed = np.asarray(y, dtype=np.float64)
    beta, _, rank, _ = np.linalg.lstsq(x, observed, rcond=None)
    if rank < x.shape[1] or len({tuple(row) for row in design}) != math.prod(sizes):
        raise ValueError("the design must be a full factorial")
    df = len(x) - int(rank)
    residual = observed - x @ beta
    rounding = 1e-12 * max(1.0, float(np.abs(observed).max()))  # below it, lstsq's own noise; runs can agree to the last bit
    variance = float(residual @ residual) / df if df else math.nan
    cells = np.array(list(product(*(range(size) for size in sizes))))
    rows = np.array([_row(cell, sizes, block=None, n_blocks=len(names)) for cell in cells])
    spread = variance * np.linalg.inv(x.T @ x)
    found = []
    for term in _terms(sizes):
        contrast = _contrast(term, cells) @ rows
        mean = estimate if abs(estimate := float(contrast @ beta)) > rounding else 0.0
        if not df:
            found.append(Effect(levels=term, mean=mean, low=None, high=None, p=None, df=0))
            continue
        se = math.sqrt(max(0.0, float(contrast @ spread @ contrast)))
        half = float(stats.t.ppf((1 + confidence) / 2, df)) * se
        p = float(2 * stats.t.sf(abs(mean) / se, df)) if se > rounding else float(mean == 0)
        found.append(Effect(levels=term, mean=mean, low=mean - half, high=mean + half, p=p, df=df))
    return found


def _terms(sizes: Sequence[int]) -> Iterator[tuple[tuple[int, int], ...]]:
    for degree in (1, 2):
        for factors in combinations(range(len(sizes)), degree):
            yield from (tuple(zip(factors, chosen, strict=True)) for chosen in product(*(range(1, sizes[f]) for f in factors)))


def _row(cell: Any, sizes: Sequence[int], *, block: int | None, n_blocks: int) -> Array:
    """A row of the design matrix, sums to zero over each factor's levels; no block means their average."""
    codes = [_code(int(level), size) for level, size in zip(cell, sizes, strict=True)]
    seed = np.zeros(n_blocks - 1) if block is None else _code(block, n_blocks)
    pairs = [np.outer(a, b).ravel() for a, b in combinations(codes, 2)]
    return np.concatenate([np.ones(1), seed, *codes, *pairs])


def _code(level: int, size: int) -> Array:
    return -np.ones(size - 1) if level == 0 else np.eye(size - 1)[level - 1]


def _contrast(term: tuple[tuple[int, int], ...], cells: Any) -> Array:
    """Weights of the cells' means: +1 shared among a level's cells and −1 among the base's, multiplied, an interaction halved."""
    weights = np.ones(len(cells))
    for factor, level in term:
        size = int(cells[:, factor].max()) + 1
        weights = weights * size * ((cells[:, factor] == level).astype(float) - (cells[:, factor] == 0).astype(float))
    return weights / len(cells) / len(term)


# --- several goals -----------------------------------------------------------------------------------------------------------------


def dominates(a: Sequence[float], b: Sequence[float]) -> bool:
    """`a` is nowhere worse than `b` and somewhere better; smaller is better everywhere."""
    return all(x <= y for x, y in zip(a, b, strict=True)) and any(x < y for x, y in zip(a, b, strict=True))


def pareto(points: Sequence[Sequence[float]]) -> list[bool]:
    """Which points nobody dominates."""
    return [not any(dominates(other, point) for other in points) for point in points]
