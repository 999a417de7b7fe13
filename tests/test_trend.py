"""The line through pairs at several sizes, against scipy and by its errors."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from nocap.judge.trend import trend

SIZES = [math.log(n) for n in (2e5, 8e5, 2e6)]


def drawn(
    seed: int, *, rise: float = 0.0, bend: float = 0.0, n: int = 4, sd: float = 0.1
) -> list[tuple[float, list[float]]]:
    rng = np.random.default_rng(seed)
    return [
        (x, list(0.4 + rise * (x - SIZES[0]) + bend * (i == 1) + sd * rng.standard_normal(n)))
        for i, x in enumerate(SIZES)
    ]


def test_slope_interval_and_mean_are_those_of_least_squares():
    points = drawn(1, rise=0.1)
    x = [at for at, gains in points for _ in gains]
    y = [gain for _, gains in points for gain in gains]
    fit, far = stats.linregress(x, y), math.log(124e6)
    half = float(stats.t.ppf(0.975, len(x) - 2)) * fit.stderr
    ten = trend(points).slope(math.log(10))
    assert ten.mid == pytest.approx(fit.slope * math.log(10))
    assert (ten.low, ten.high) == pytest.approx(
        ((fit.slope - half) * math.log(10), (fit.slope + half) * math.log(10))
    )
    # the variance of a predicted mean, by the covariance of both coefficients
    _, covariance = np.polyfit(np.array(x) - far, y, 1, cov=True)
    there = trend(points).at(far)
    assert there.mid == pytest.approx(fit.intercept + fit.slope * far)
    assert there.half_width == pytest.approx(stats.t.ppf(0.975, len(x) - 2) * math.sqrt(covariance[1, 1]))


def test_the_lack_of_fit_is_the_f_test_of_two_models():
    for seed in range(20):
        points = drawn(seed, bend=0.1)
        x = np.array([at for at, gains in points for _ in gains])
        y = np.array([gain for _, gains in points for gain in gains])
        line = float(((np.polyval(np.polyfit(x, y, 1), x) - y) ** 2).sum())
        means = sum(float(np.var(gains) * len(gains)) for _, gains in points)
        p = stats.f.sf((line - means) / (means / (len(y) - 3)), 1, len(y) - 3)
        assert trend(points).straight == (p >= 0.05)


def test_errors_of_both_tests_are_a_twentieth():
    made = [trend(drawn(seed)) for seed in range(2000)]
    assert sum(not t.straight for t in made) / 2000 == pytest.approx(0.05, abs=0.015)
    wrong = sum(not t.slope().low <= 0 <= t.slope().high for t in made) / 2000
    assert wrong == pytest.approx(0.05, abs=0.015)


def test_gains_on_a_line_to_rounding_are_straight():
    points = [(x, [0.1 * x, 0.1 * x]) for x in SIZES]
    assert trend(points).straight
    assert trend(points).slope().mid == pytest.approx(0.1)
    assert not trend([(x, [x**2, x**2]) for x in SIZES]).straight
