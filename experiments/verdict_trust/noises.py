"""The noise of a pair's gain that verdicts are tried on: as it was measured here, and worse. Each has mean 0 and variance 1."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from nocap.judge.stats import Array

Kind = Callable[[np.random.Generator, tuple[int, int]], Array]  # of (study, pair); pairs in the order of time

# Beta prime: skew 2 and excess kurtosis 7, as real timings had with a negative sign.
SHAPE = 1.67202847, 16.0
MEAN = SHAPE[0] / (SHAPE[1] - 1)
SD = math.sqrt(SHAPE[0] * (SHAPE[0] + SHAPE[1] - 1) / ((SHAPE[1] - 2) * (SHAPE[1] - 1) ** 2))
SESSIONS = 3  # of a sitting


def normal(rng: np.random.Generator, shape: tuple[int, int]) -> Array:
    return rng.normal(size=shape)


def heavy(rng: np.random.Generator, shape: tuple[int, int]) -> Array:
    """Student's t with three degrees of freedom."""
    return rng.standard_t(3, size=shape) / math.sqrt(3)


def skewed(sign: int) -> Kind:
    def made(rng: np.random.Generator, shape: tuple[int, int]) -> Array:
        return sign * (rng.gamma(SHAPE[0], size=shape) / rng.gamma(SHAPE[1], size=shape) - MEAN) / SD

    return made


def lognormal(sigma: float, sign: int) -> Kind:
    """Of a value, not of its logarithm."""
    mean, sd = math.exp(sigma**2 / 2), math.exp(sigma**2 / 2) * math.sqrt(math.expm1(sigma**2))

    def made(rng: np.random.Generator, shape: tuple[int, int]) -> Array:
        return sign * (np.exp(sigma * rng.normal(size=shape)) - mean) / sd

    return made


def correlated(rho: float) -> Kind:
    """Each resembles the one before: AR(1)."""

    def made(rng: np.random.Generator, shape: tuple[int, int]) -> Array:
        x = rng.normal(size=shape)
        for i in range(1, shape[1]):
            x[:, i] = rho * x[:, i - 1] + math.sqrt(1 - rho**2) * x[:, i]
        return x

    return made


def sittings(rng: np.random.Generator, shape: tuple[int, int]) -> Array:
    """Three sessions each, which share twice their own spread; a sitting counts once, with their mean."""
    sessions = 2 * rng.normal(size=(*shape, 1)) + rng.normal(size=(*shape, SESSIONS))
    return sessions.mean(axis=-1) / math.sqrt(4 + 1 / SESSIONS)


ANY: dict[str, Kind] = {
    "normal": normal,
    "t, 3 df": heavy,
    "skew −2, kurtosis 7": skewed(-1),
    "skew +2, kurtosis 7": skewed(1),
    "lognormal, σ .1": lognormal(0.1, 1),
    "lognormal, σ .1, minus": lognormal(0.1, -1),
}
CLOCK: dict[str, Kind] = {
    **ANY,
    "AR(1), ρ .3": correlated(0.3),
    "AR(1), ρ .5": correlated(0.5),
    "sittings": sittings,
}
# Beyond what was measured (a skew of 6 and an excess kurtosis of 111): shown, and no bar.
BEYOND: dict[str, Kind] = {"lognormal, σ 1": lognormal(1.0, 1), "lognormal, σ 1, minus": lognormal(1.0, -1)}
