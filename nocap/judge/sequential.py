"""Looks at a study while it grows, at a level that holds over all of them.

A look spends part of alpha, nearly none early and most at the end, as O'Brien & Fleming's bounds (1979) do; the spending function is Lan &
DeMets's (1983). The nominal level of a look is the p-value that decides there. It follows from the looks before it: the statistics of two
looks at n and N pairs correlate by √(n/N). Stopping for another reason only lowers the error, so that each bound is computed alone.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np

from nocap.judge.stats import Array

POINTS = 1201  # of the grid that a density is integrated on: levels are exact to about 1e-6


def spent(alpha: float, share: float) -> float:
    """How much of a one-sided alpha is spent when this share of all pairs is there: 2 - 2·Φ(z / √share), z the quantile of 1 - alpha/2."""
    from scipy import special

    return float(2 * special.ndtr(special.ndtri(alpha / 2) / math.sqrt(share)))


@cache
def levels(counts: tuple[int, ...], alpha: float) -> tuple[float, ...]:
    """The one-sided nominal level of each look, at so many pairs: the chance of ever reaching it, without an effect, is alpha.

    By recursion over the density of the sum of those that have not crossed (Armitage, McPherson & Rowe 1969), and a bisection a look.
    """
    from scipy import special

    if len(counts) == 1:
        return (alpha,)
    shares = [n / counts[-1] for n in counts]
    found, used, grid, mass = [], 0.0, np.zeros(1), np.ones(1)  # the sum of nothing is 0
    before = 0.0
    for share in shares:
        step = math.sqrt(share - before)  # the sum's standard deviation since the last look
        wanted, target = spent(alpha, share), spent(alpha, share) - used

        def crossing(z: float, *, step: float = step, share: float = share, grid: Array = grid, mass: Array = mass) -> float:
            return float(mass @ special.ndtr((grid - z * math.sqrt(share)) / step))

        low, high = 0.0, 40.0
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if crossing(middle) > target else (low, middle)
        found.append(float(special.ndtr(-high)))
        edge = high * math.sqrt(share)
        points = np.linspace(-8 * math.sqrt(share), edge, POINTS)
        density = np.exp(-(((points[:, None] - grid) / step) ** 2) / 2) @ mass / (step * math.sqrt(2 * math.pi))
        grid, mass = points, density * _simpson(points)
        before, used = share, wanted
    return tuple(found)


def _simpson(points: Array) -> Array:
    weights = np.ones(len(points))
    weights[1:-1:2], weights[2:-1:2] = 4, 2
    return weights * (points[1] - points[0]) / 3
