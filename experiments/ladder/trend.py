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
        distance = x - self.x
        share = 1 / self.n + distance**2 / self.spread
        return self._estimate(self.mid + self.rise * distance, share)

    def _estimate(self, mid: float, share: float) -> Estimate:
        reach = quantile(self.n - 2, (1 - CONFIDENCE) / 2)
        half = reach * self.sd * share**0.5
        low = mid - half
        high = mid + half
        return Estimate(mid=mid, low=low, high=high, n=self.n, sd=self.sd, method="least squares")


def trend(points: Sequence[tuple[float, Sequence[float]]]) -> Trend:
    """`points`: x of each size, and the gains of its pairs. At least three sizes, and a size with
    two pairs.

    Whether the line is straight is the F test of the lack of fit (Fisher 1922).
    """
    from scipy import special

    places = list[float]()
    values = list[float]()
    noise = 0.0  # of the pairs around the mean of their size
    for place, gains in points:
        places += [place] * len(gains)
        values += gains
        around_mean = np.array(gains) - np.mean(gains)
        noise += float((around_mean**2).sum())
    x = np.array(places, dtype=np.float64)
    y = np.array(values, dtype=np.float64)
    n = len(x)
    distances = x - x.mean()
    spread = float((distances**2).sum())
    rise = float((distances * y).sum()) / spread
    around_line = y - y.mean() - rise * distances
    residual = float((around_line**2).sum())
    df_of_fit = len(points) - 2
    df_of_noise = n - len(points)
    ratio = np.inf
    if noise:
        ratio = (residual - noise) / df_of_fit / (noise / df_of_noise)
    p = float(special.fdtrc(df_of_fit, df_of_noise, max(ratio, 0.0)))
    return Trend(
        mid=float(y.mean()),
        rise=rise,
        x=float(x.mean()),
        spread=spread,
        sd=(residual / (n - 2)) ** 0.5,
        n=n,
        straight=residual <= 1e-18 or p >= CROOKED,
    )
