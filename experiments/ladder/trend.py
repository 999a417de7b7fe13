"""A line through pairs at several sizes: what size does to a gain, and whether a line says it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nocap.judge.interval import CONFIDENCE, Estimate, quantile

LEAST_SIZES = 3
CROOKED = 0.05  # how often sizes on a line are said not to be


@dataclass(frozen=True, kw_only=True)
class Trend:
    """Least squares over all pairs, whose noise is taken as equal at all sizes."""

    mid: float  # of the gain, at the mean of x
    rise: float  # of the gain for 1 of x
    x: float  # the mean
    spread: float  # of x: the sum of squares around the mean
    sd: float  # of the pairs around the line
    n: int  # pairs
    straight: bool  # False: the sizes' means lie further from the line than the pairs' noise allows

    def slope(self, by: float = 1.0) -> Estimate:
        """What so much more of x adds to the gain, with its interval."""
        return self._estimate(self.rise * by, by**2 / self.spread)

    def at(self, x: float) -> Estimate:
        """The mean gain there."""
        return self._estimate(
            self.mid + self.rise * (x - self.x), 1 / self.n + (x - self.x) ** 2 / self.spread
        )

    def _estimate(self, mid: float, share: float) -> Estimate:
        half = quantile(self.n - 2, (1 - CONFIDENCE) / 2) * self.sd * share**0.5
        return Estimate(
            mid=mid, low=mid - half, high=mid + half, n=self.n, sd=self.sd, method="least squares"
        )


def trend(points: Sequence[tuple[float, Sequence[float]]]) -> Trend:
    """`points`: x of each size, and the gains of its pairs. At least three sizes, and a size with
    two pairs.

    Whether the line is straight is the F test of the lack of fit (Fisher 1922).
    """
    from scipy import special

    x = np.array([at for at, gains in points for _ in gains], dtype=np.float64)
    y = np.array([gain for _, gains in points for gain in gains], dtype=np.float64)
    spread = float(((x - x.mean()) ** 2).sum())
    rise = float(((x - x.mean()) * y).sum()) / spread
    residual = float(((y - y.mean() - rise * (x - x.mean())) ** 2).sum())
    noise = sum(float(((np.array(gains) - np.mean(gains)) ** 2).sum()) for _, gains in points)
    freedom = len(points) - 2, len(x) - len(points)
    ratio = (residual - noise) / freedom[0] / (noise / freedom[1]) if noise else np.inf
    straight = residual <= 1e-18 or float(special.fdtrc(*freedom, max(ratio, 0.0))) >= CROOKED
    return Trend(
        mid=float(y.mean()),
        rise=rise,
        x=float(x.mean()),
        spread=spread,
        sd=(residual / (len(x) - 2)) ** 0.5,
        n=len(x),
        straight=straight,
    )
