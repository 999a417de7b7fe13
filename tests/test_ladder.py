"""What size does to a speedup: `experiments/ladder`, whose script reads the results of several
scales."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from xml.etree import ElementTree

import numpy as np
import pytest
from scipy import stats

from nocap.judge.gain import Gain
from nocap.judge.verdict import ClaimWord
from nocap.metrics import METRICS, Scale
from nocap.store.measurement import Per
from nocap.study.study_result import StudyResult
from tests.conftest import REPO
from tests.studies import (
    RACE,
    made_arm,
    made_judged,
    made_result,
    made_verdict,
    typed,
)

sys.path.append(str(REPO / "experiments" / "ladder"))
from ladder import ladders, picture, section
from trend import trend


def size(
    scale: str, params: float, speedups: Sequence[float], *, machine: str, ending: str
) -> StudyResult:
    """Results of one size, as far as a ladder reads them."""
    logs = np.log(speedups).tolist()
    if ending == "measured":
        most = logs
    else:
        most = [math.inf] * len(logs)
    verdict = made_verdict(ClaimWord.confirmed, gain(logs, most))
    verdicts = [made_judged(typed(RACE), verdict, against="mha")]
    parameters = [made_arm("mha", params=params), made_arm("mqa", params=2 * params)]
    return made_result(verdicts, parameters, scale=scale, machine=machine)


def gain(least: Sequence[float], most: Sequence[float]) -> Gain:
    """Logarithms of the speedups of pairs."""
    ends = (math.log(1.05), math.inf)
    return Gain(
        metric=METRICS["time_to_target_s"],
        scale=Scale.ratio,
        per=Per.session,
        least=least,
        most=most,
        ends=ends,
    )


def ladder(
    *middles: float, noise: float = 0.01, machine: str = "here", ending: str = "measured"
) -> list[StudyResult]:
    """Sizes of three pairs each, ten times from one to the next. `ending`: of the third and later
    ones."""
    spread = np.exp(np.array([-noise, 0.0, noise]))
    values: list[StudyResult] = []
    for i, middle in enumerate(middles):
        values_of_size = list(middle * spread)
        values.append(
            size(
                f"{10**i}M",
                1e6 * 10**i,
                values_of_size,
                machine=machine,
                ending="measured" if i < 2 else ending,
            )
        )
    return values


LADDERS = [
    (ladder(1.2, 1.44, 1.728), "grows", 1.2),
    (ladder(1.728, 1.44, 1.2), "shrinks", 1 / 1.2),
    (ladder(1.5, 1.52, 1.5), "holds", 1.0),
    (ladder(1.2, 1.44, 1.728, noise=0.5), "cannot be told", 1.2),
    (ladder(1.2, 1.8, 1.2), "cannot be told: not the same from size to size", 1.0),
    (ladder(1.2, 1.44), "cannot be told: fewer than 3 sizes were measured", None),
    (
        ladder(1.2, 1.4, 1.7, ending="at_most"),
        "cannot be told: fewer than 3 sizes were measured",
        None,
    ),
]


@pytest.mark.parametrize(("every", "word", "decade"), LADDERS)
def test_what_size_does_to_a_speedup(every: list[StudyResult], word: str, decade: float | None):
    (rungs,) = ladders(every)
    assert rungs.word == word
    assert (rungs.decade and rungs.decade.mid) == (decade and pytest.approx(decade, rel=0.01))


def test_the_challenges_size_is_told_only_where_the_interval_allows_it():
    (sure,) = ladders(ladder(1.2, 1.44, 1.728, noise=0.01))
    (unsure,) = ladders(ladder(1.2, 1.44, 1.728, noise=0.3))
    expected = 1.2 * 1.2 ** math.log10(124)
    assert sure.far.mid == pytest.approx(expected, rel=1e-6)
    assert sure.far.high < 2 * sure.far.low
    assert unsure.far is None


def test_sizes_are_of_one_machine_and_in_their_order():
    every = [*reversed(ladder(1.2, 1.44, 1.728)), *ladder(1.3, 1.4, machine="there")]
    text = "\n".join(section(every))
    parts = ("### here", "1M: 1.00M", "10M: 10.0M", "100M: 100.0M", "**grows**")
    places = [text.index(part) for part in parts[:4]]
    assert places == sorted(places)
    counts = [text.count(part) for part in (parts[0], parts[4], "### there")]
    assert counts == [1, 1, 1]
    drawn = picture(every)
    assert drawn is not None
    root = ElementTree.fromstring(drawn.file)
    assert len(root.findall("{*}svg/{*}g")) == 6  # five sizes and one fit
    assert picture([]) is None


# --- the line through pairs at several sizes, against scipy and by its errors ---------------------

SIZES = [math.log(n) for n in (2e5, 8e5, 2e6)]


def drawn(
    seed: int, *, rise: float = 0.0, bend: float = 0.0, n: int = 4, sd: float = 0.1
) -> list[tuple[float, list[float]]]:
    rng = np.random.default_rng(seed)
    rows: list[tuple[float, list[float]]] = []
    for i, x in enumerate(SIZES):
        gains = 0.4 + rise * (x - SIZES[0]) + bend * (i == 1)
        rows.append((x, list(gains + sd * rng.standard_normal(n))))
    return rows


def test_slope_interval_and_mean_are_those_of_least_squares():
    points = drawn(1, rise=0.1)
    x = [at for at, gains in points for _ in gains]
    y = [gain for _, gains in points for gain in gains]
    fit = stats.linregress(x, y)
    far = math.log(124e6)
    half = float(stats.t.ppf(0.975, len(x) - 2)) * fit.stderr
    ten = trend(points).slope(math.log(10))
    assert ten.mid == pytest.approx(fit.slope * math.log(10))
    expected = (fit.slope - half) * math.log(10)
    assert ten.low == pytest.approx(expected)
    assert ten.high == pytest.approx((fit.slope + half) * math.log(10))
    # the variance of a predicted mean, by the covariance of both coefficients
    _, covariance = np.polyfit(np.array(x) - far, y, 1, cov=True)
    there = trend(points).at(far)
    assert there.mid == pytest.approx(fit.intercept + fit.slope * far)
    root = math.sqrt(covariance[1, 1])
    assert there.half_width == pytest.approx(stats.t.ppf(0.975, len(x) - 2) * root)


def test_the_lack_of_fit_is_the_f_test_of_two_models():
    for seed in range(20):
        points = drawn(seed, bend=0.1)
        x = np.array([at for at, gains in points for _ in gains])
        y = np.array([gain for _, gains in points for gain in gains])
        fit = np.polyval(np.polyfit(x, y, 1), x)
        line = float(((fit - y) ** 2).sum())
        means = sum(float(np.var(gains) * len(gains)) for _, gains in points)
        freedom = len(y) - 3
        slopes = means / (len(y) - 3)
        p = stats.f.sf((line - means) / slopes, 1, freedom)
        assert trend(points).straight == (p >= 0.05)


def test_errors_of_both_tests_are_a_twentieth():
    made = [trend(drawn(seed)) for seed in range(2000)]
    curved_ones = sum(not t.straight for t in made)
    assert curved_ones / 2000 == pytest.approx(0.05, abs=0.015)
    crossing = sum(not t.slope().low <= 0 <= t.slope().high for t in made)
    wrong = crossing / 2000
    assert wrong == pytest.approx(0.05, abs=0.015)


def test_gains_on_a_line_to_rounding_are_straight():
    points = [(x, [0.1 * x, 0.1 * x]) for x in SIZES]
    assert trend(points).straight
    assert trend(points).slope().mid == pytest.approx(0.1)
    curved = [(x, [x**2, x**2]) for x in SIZES]
    assert not trend(curved).straight
