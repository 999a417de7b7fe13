"""How far the mean of a few gains can be from the truth: the noise of a pair, declared or measured, and what widens it.

Three pairs say little about their own spread. A noise that was declared beforehand, from earlier studies of that scale, joins theirs
(Smyth 2004, "moderated" variances). Without one, a decision needs a wider bound than a t-test's: three pairs of skewed noise are confirmed
falsely in 14 to 23%, not in 5%. Neighbouring sittings of a clock resemble each other, and the arm that is timed first is a little slower:
what a clock measured has wider intervals, and must clear an end by more. `experiments/verdict_trust` counts what is left of errors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nocap.config.keys import require
from nocap.judge.stats import Array, Estimate, least_n, power_of
from nocap.store.measurement import Metric, Scale

CAP = 8.0  # degrees of freedom of a declared noise: other studies are not this one, however many they are
CLOCKED = ("tokens_per_s", "step_ms", "share", "part_ms", "exponent", "decode_tokens_per_s", "decode_ms")  # a sitting is their unit
TIMED = (*CLOCKED, "time_to_target_s")
SHARES = ("share", "exponent")  # of CLOCKED: what is a quotient of times already
CORRELATED = 1.9  # a t-interval of neighbours with a correlation of .5 needs 1.76 to 1.85 times its width, at any n
BIAS = 0.005  # of a speed: between two instances of one arm, the first and a later one
CAUTION = 3.3  # 1 + 3.3/√n times a t-test's bound keeps the level under an exponential's skew, of either sign
SAME = 0.01  # of the declared spread: arms whose pairs lie closer compute the same but for rounding. By chance 1 in 10,000 at 3 pairs do


@dataclass(kw_only=True, slots=True)
class Prior:
    """A declared noise: the standard deviation of one pair's gain, in nats for a loss, of the log ratio for speeds and times."""

    sd: float
    df: float  # how well it is known: as the variance of df + 1 pairs would be; at most CAP of them count
    source: str

    def __post_init__(self) -> None:
        require(0 < self.sd < math.inf, "noise.sd", "be above 0 and finite", self.sd)
        require(self.df > 0, "noise.df", "be above 0", self.df)
        require(bool(self.source.strip()), "noise.source", "say which runs it was measured on", repr(self.source))

    def json(self) -> dict[str, float | str | None]:
        """Endless degrees of freedom are null."""
        return {"sd": self.sd, "df": self.df if math.isfinite(self.df) else None, "source": self.source}


def moderated(variance: Array, df: float, prior: Prior, *, cap: float = CAP) -> tuple[Array, float]:
    """The variance of `df` degrees of freedom with the declared one, and the degrees of freedom of both (Smyth 2004, eq. 5)."""
    d0 = min(prior.df, cap)
    return (d0 * prior.sd**2 + df * variance) / (d0 + df), d0 + df


def fit(variances: Sequence[float], dfs: Sequence[int]) -> tuple[float, float]:
    """Standard deviation and degrees of freedom of the noise that groups share: moments of the log variances (Smyth 2004, section 6.2).
    Groups of variance 0 are left out. Endless degrees of freedom: the groups differ by no more than chance.

    Errors:
        ValueError: fewer than three groups that vary.
    """
    from scipy import optimize, special

    known = [(v, df) for v, df in zip(variances, dfs, strict=True) if v > 0 and df > 0]
    require(len(known) >= 3, "noise", "be fitted to at least 3 groups that vary", len(known))
    v, half = np.array([v for v, _ in known]), np.array([df for _, df in known]) / 2
    centred = np.log(v) - special.digamma(half) + np.log(half)
    excess = float(centred.var(ddof=1) - special.polygamma(1, half).mean())
    if excess <= 0:
        return math.exp(centred.mean() / 2), math.inf
    d0 = 2 * optimize.brentq(lambda y: special.polygamma(1, y) - excess, 1e-8, 1e8)
    return math.exp((centred.mean() + special.digamma(d0 / 2) - math.log(d0 / 2)) / 2), d0


@dataclass(frozen=True, kw_only=True, slots=True)
class Noise:
    """Of one metric's gains, as logarithms for a ratio. Values have shape (..., n): the mean is over the last axis."""

    prior: Prior | None = None  # in the gains' unit
    clocked: bool = False
    bias: float = 0.0  # that no number of pairs takes out, in the gains' unit

    def enough(self, n: int, least: int) -> bool:
        """Whether n pairs have a spread: a declared noise is one for a single pair."""
        return n >= (1 if self.prior else least)

    def spread(self, values: Array) -> tuple[Array, Array]:
        """Variance of a value and its degrees of freedom, both (...). Never below what was declared: a few skewed values lie close together
        just when their mean is off. Arms that compute the same have no such noise, and their own spread counts."""
        n = values.shape[-1]
        own = values.var(axis=-1, ddof=1) if n > 1 else np.zeros(values.shape[:-1])
        if self.prior is None:
            return own, np.full_like(own, n - 1)
        variance, df = moderated(own, n - 1, self.prior)
        declared = self.prior.sd**2
        same = self._same(own, n)
        return np.where(same, own, np.maximum(variance, declared)), np.where(same, n - 1, df)

    def _same(self, own: Array, n: int) -> Any:
        """Whether arms share even the noise that was declared, (...), from three pairs on."""
        return (n >= 3) & (own < (SAME * self.prior.sd) ** 2) if self.prior else np.zeros_like(own, dtype=bool)

    def error(self, values: Array, *, deciding: bool = False) -> tuple[Array, Array]:
        """Standard error of the mean, (...), as wide as it must be, and its degrees of freedom. A decision is more careful than an
        interval where the noise was not declared."""
        n = values.shape[-1]
        variance, df = self.spread(values)
        return self.wider(n, deciding=deciding) * np.sqrt(variance / n), df

    def wider(self, n: int, *, deciding: bool) -> float:
        careful = 1 + CAUTION / math.sqrt(n) if deciding and self.prior is None else 1.0
        return max(careful, CORRELATED if self.clocked else 1.0)

    def at_least(self, values: Array, alpha: float) -> Array:
        """The one-sided bound that decides: the true mean lies below it with a chance of at most alpha, (...)."""
        from scipy import special

        error, df = self.error(values, deciding=True)
        return values.mean(axis=-1) + special.stdtrit(df, alpha) * error - self.bias  # a quantile below 0, exact for tiny alphas

    def interval(self, values: Array, alpha: float) -> Estimate:
        """Two-sided at 1 - alpha, of values of shape (n,), with the bias to both sides."""
        from scipy import special

        error, df = (float(x) for x in self.error(values))
        mid, half = float(values.mean()), -float(special.stdtrit(df, alpha / 2)) * error + self.bias
        return Estimate(mid=mid, low=mid - half, high=mid + half, n=len(values), method="t-interval")

    def pairs_for(self, distance: float, *, spread: float, alpha: float, power: float) -> int | None:
        """The least number of pairs whose bound at alpha clears an end at this distance from the true mean; `None`: no affordable one."""
        if spread == 0 or distance <= self.bias:
            return None
        df = 0.0 if self.prior is None else min(self.prior.df, CAP)
        effect = (distance - self.bias) / spread

        def enough(n: int) -> bool:
            wide = self.wider(n, deciding=True)
            return power_of(effect / wide, n=n, alpha=2 * alpha, pairs=True, known=df) >= power  # whose other side decides nothing

        return least_n(enough)


def is_log(metric: Metric, scale: Scale) -> bool:
    """Whether gains are logarithms: of ratios, and of speeds and times, whose noise multiplies. No interval of theirs goes below 0."""
    return scale is Scale.ratio or (scale is Scale.value and metric.name in TIMED and metric.name not in SHARES)


def noise_of(metric: Metric, scale: Scale, prior: Prior | None, *, level: float) -> Noise:
    """The noise of a metric's gains on a scale. A declared one is a difference for losses and a log ratio for the rest; `level`, the
    metric's own size in these pairs, translates one into the other. A pair's noise says nothing of one arm's own value."""
    if scale is Scale.value:
        return Noise(clocked=metric.name in CLOCKED)
    declared_as = Scale.difference if metric.made_by == "train" and metric.unit.startswith(("nats", "bits")) else Scale.ratio
    unit = level if scale is Scale.difference else 1 / level
    if prior is not None and scale is not declared_as:
        prior = Prior(sd=prior.sd * unit, df=prior.df, source=prior.source)
    bias = BIAS * (level if scale is Scale.difference else 1) if metric.name in TIMED else 0.0
    return Noise(prior=prior, clocked=metric.name in CLOCKED, bias=bias)
