"""`nocap.judge.stats` against textbooks, scipy and brute force."""

import math

import numpy as np
import pytest
from scipy import stats as scipy_stats

from nocap.judge import estimates, stats
from nocap.training.step import bits_per_byte

# Student's sleep data (1908): extra hours of sleep of ten patients under two drugs.
DRUG_1 = [0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0]
DRUG_2 = [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4]
SLEEP = [a - b for a, b in zip(DRUG_1, DRUG_2, strict=True)]

# Freireich's leukaemia trial (1963): weeks in remission under 6-MP (None at the end: censored) and under placebo.
MP6 = [6, 6, 6, 6, 7, 9, 10, 10, 11, 13, 16, 17, 19, 20, 22, 23, 25, 32, 32, 34, 35]
RELAPSED = [bool(int(x)) for x in "111010100110001100000"]
PLACEBO = [1, 1, 2, 2, 3, 4, 4, 5, 5, 8, 8, 8, 8, 11, 11, 12, 12, 15, 17, 22, 23]

# Montgomery, Design and Analysis of Experiments: filtration rate, 2⁴ in standard order.
FILTRATION = [45, 71, 48, 65, 68, 60, 80, 65, 43, 100, 45, 104, 75, 86, 70, 96]
TWO_TO_THE_FOUR = [[i >> factor & 1 for factor in range(4)] for i in range(16)]


def test_the_mean_of_a_sample():
    found = stats.interval([1.0, 2.0, 3.0, 4.0, 5.0])
    assert (found.mid, found.n, found.sd) == (3.0, 5, pytest.approx(math.sqrt(2.5)))
    assert found.high - 3 == pytest.approx(2.776445 * math.sqrt(2.5 / 5))


def test_pairs():
    found = stats.paired(DRUG_1, DRUG_2)
    assert (found.n, found.p) == (10, pytest.approx(0.002833, abs=1e-6))
    assert (found.low, found.high) == (pytest.approx(-2.4599, abs=1e-4), pytest.approx(-0.7001, abs=1e-4))


def test_independent_samples():
    found = stats.unpaired(DRUG_1, DRUG_2)
    assert found.p == pytest.approx(0.07939, abs=1e-5)
    exact = scipy_stats.ttest_ind(DRUG_1, DRUG_2, equal_var=False).confidence_interval()
    assert (found.low, found.high) == (pytest.approx(exact.low, rel=1e-12), pytest.approx(exact.high, rel=1e-12))


# Hollander & Wolfe: Hamilton's depression scale of nine patients before and after a tranquilliser.
BEFORE = [1.83, 0.50, 1.62, 2.48, 1.68, 1.88, 1.55, 3.06, 1.30]
AFTER = [0.878, 0.647, 0.598, 2.05, 1.06, 1.29, 1.06, 3.14, 1.29]


def test_signed_ranks():
    found = stats.signed_rank([a - b for a, b in zip(BEFORE, AFTER, strict=True)])
    assert (found.mid, found.low, found.high) == (pytest.approx(0.46), pytest.approx(0.010), pytest.approx(0.786))


@pytest.mark.parametrize("n", [6, 9, 15, 40])
@pytest.mark.parametrize("confidence", [0.95, 0.99])
def test_signed_ranks_turn_wilcoxons_test_around(n: int, confidence: float):
    sample = np.random.default_rng(n).standard_t(2, n)
    if n < stats.signed_rank_needs(confidence):
        with pytest.raises(ValueError, match=r"an interval at 0\.99 needs at least 8 values, got 6"):
            stats.signed_rank(sample, confidence=confidence)
        return
    found, alpha = stats.signed_rank(sample, confidence=confidence), 1 - confidence
    for edge, inward in ((found.low, 1), (found.high, -1)):
        inside, outside = (scipy_stats.wilcoxon(sample - edge - side * inward * 1e-9, method="exact").pvalue for side in (1, -1))
        assert outside <= alpha < inside


def test_signed_ranks_cover_under_heavy_tails():
    rng = np.random.default_rng(3)
    found = [stats.signed_rank(rng.standard_t(1, 12), confidence=0.95) for _ in range(2000)]
    assert np.mean([f.low <= 0 <= f.high for f in found]) == pytest.approx(0.958, abs=0.015)  # exact: 1 - 2·P(W ≤ 13)
    assert np.median([f.half_width for f in found]) < 3  # Cauchy: a mean of twelve has no variance at all


def test_ratios_are_geometric():
    found = estimates.ratio(dict(enumerate([1.22, 1.25, 1.19, 1.28, 1.24])), dict.fromkeys(range(5), 1.0))
    assert (found.mid, found.low, found.high) == tuple(pytest.approx(x, abs=1e-5) for x in (1.23563, 1.19454, 1.27815))


def test_a_ratio_and_its_inverse_agree():
    a, b = dict(enumerate([10.0, 11.0, 12.5])), dict(enumerate([8.0, 9.0, 9.5, 8.5]))
    there, back = estimates.ratio(a, b), estimates.ratio(b, a)
    assert there.mid == pytest.approx(1 / back.mid)
    assert (there.low, there.p) == (pytest.approx(1 / back.high), pytest.approx(back.p))


def test_adjustments():
    ps = [0.01, 0.04, 0.03, 0.005]
    assert stats.holm(ps) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert stats.holm([]) == []
    assert stats.holm([0.5, 0.9]) == [1.0, 1.0]


def test_pooled_sd():
    assert stats.pooled_sd([[1, 2, 3], [10, 14]]) == pytest.approx(math.sqrt((2 + 8) / 3))


@pytest.mark.parametrize(
    ("effect", "power", "pairs", "n"),
    [(0.5, 0.8, False, 64), (0.5, 0.8, True, 34)]  # Cohen's tables
    # Seeds for 90% power: difference / (σ·√(2·(1 − r))).
    + [(gap / (sd * math.sqrt(2 * (1 - r))), 0.9, True, n) for gap, sd, r, n in [(0.005, 0.0013, 0, 4), (0.002, 0.0019, 0.5, 12)]],
)
def test_how_many_seeds(effect, power, pairs, n):
    assert stats.n_required(effect, power=power, pairs=pairs) == n


def test_power():
    """Of Cohen's numbers: by statsmodels, `TTestIndPower` 0.80146 and `TTestPower` 0.80778."""
    assert stats.power_of(0.5, n=64, pairs=False) == pytest.approx(0.80146, abs=1e-5)
    assert stats.power_of(0.5, n=34, pairs=True) == pytest.approx(0.80778, abs=1e-5)
    assert stats.power_of(0.0, n=5, alpha=0.1, pairs=True) == pytest.approx(0.1)


@pytest.mark.parametrize(("n", "nc"), [(3, 3.0), (6, 2.5), (30, 3.2)])
def test_power_agrees_with_the_noncentral_t(n, nc):
    critical = scipy_stats.t.ppf(0.975, n - 1)
    expected = scipy_stats.nct.sf(critical, n - 1, nc) + scipy_stats.nct.sf(critical, n - 1, -nc)
    assert stats.power_of(nc / math.sqrt(n), n=n, pairs=True) == pytest.approx(expected, abs=1e-7)


def test_power_of_few_pairs_and_a_large_effect():
    """Where scipy's `nct.cdf(-4.3, 2, 14)` is NaN: against 200,000 simulated t-tests."""
    samples = np.random.default_rng(4).normal(14 / math.sqrt(3), 1, (200_000, 3))
    t = samples.mean(axis=1) / samples.std(axis=1, ddof=1) * math.sqrt(3)
    assert stats.power_of(14 / math.sqrt(3), n=3, pairs=True) == pytest.approx(np.mean(np.abs(t) > 4.302653), abs=1e-3)


def test_kaplan_and_meier():
    assert stats.median_time(MP6, RELAPSED) == 23
    assert stats.median_time([1, 2, 3, 4], [True] * 4) == 2.5
    assert stats.median_time([100, 200, 200], [True, False, False]) is None


def test_logrank():
    z, p = stats.logrank(MP6, RELAPSED, PLACEBO, [True] * 21)
    assert (z, z * z) == (pytest.approx(-4.0979, abs=1e-4), pytest.approx(16.793, abs=1e-3))
    assert p == pytest.approx(2 * scipy_stats.norm.sf(4.0979), rel=1e-3)


def test_effects_of_a_factorial():
    found = {effect.levels: effect.estimate for effect in stats.effects(FILTRATION, levels=TWO_TO_THE_FOUR, blocks=[0] * 16)}
    a, c, d = ((i, 1) for i in (0, 2, 3))
    known = {(a,): 21.625, (c,): 9.875, (d,): 14.625, (a, c): -18.125, (a, d): 16.625}
    assert {term: found[term].mid for term in known} == {term: pytest.approx(value) for term, value in known.items()}
    # What the model leaves out is the error: ABC, ABD, ACD, BCD, ABCD in the book's table, each with a sum of squares of 4·effect².
    error = sum(4 * effect**2 for effect in (1.875, 4.125, -1.625, -2.625, 1.375)) / 5
    assert found[(a,)].high - 21.625 == pytest.approx(2.5706 * math.sqrt(error / 4), abs=1e-3)


def test_effects_of_more_levels_and_blocks():
    """Means of cells by hand: 3 × 2, two blocks, no noise but the blocks' shift."""
    cell = {(0, 0): 5.0, (1, 0): 6.0, (2, 0): 9.0, (0, 1): 4.0, (1, 1): 5.0, (2, 1): 6.0}
    observed = [(value + shift, levels, block) for block, shift in (("x", 0.0), ("y", 0.5)) for levels, value in cell.items()]
    found = {
        e.levels: e.estimate
        for e in stats.effects([o[0] for o in observed], levels=[o[1] for o in observed], blocks=[o[2] for o in observed])
    }
    assert found[((0, 1),)].mid == pytest.approx(1.0)
    assert found[((0, 2),)].mid == pytest.approx(3.0)
    assert found[((1, 1),)].mid == pytest.approx((-1 - 1 - 3) / 3)
    assert found[((0, 1), (1, 1))].mid == pytest.approx(0.0)
    assert found[((0, 2), (1, 1))].mid == pytest.approx((2 - 4) / 2)
    assert all(e.low == pytest.approx(e.mid) for e in found.values())  # no noise


def test_two_levels_agree_with_a_paired_t_test():
    rng = np.random.default_rng(0)
    low, high = rng.normal(3.3, 0.01, 5), rng.normal(3.29, 0.01, 5)
    (found,) = stats.effects([*low, *high], levels=[[0]] * 5 + [[1]] * 5, blocks=[*range(5), *range(5)])
    expected = stats.paired(list(high), list(low))
    found = found.estimate
    assert (found.mid, found.low, found.p) == (pytest.approx(expected.mid), pytest.approx(expected.low), pytest.approx(expected.p))


def test_effects_of_runs_that_agree_to_the_last_bit():
    values = [0.1 + 0.2, 0.3 + 0.1, 0.7, 0.7 + 0.1] * 2
    found = stats.effects(values, levels=[[0, 0], [0, 1], [1, 0], [1, 1]] * 2, blocks=[0] * 4 + [1] * 4)
    assert [(round(e.estimate.mid, 12), e.estimate.p) for e in found] == [(0.4, 0), (0.1, 0), (0, 1)]


def test_a_design_with_a_hole_is_refused():
    with pytest.raises(ValueError, match="full factorial"):
        stats.effects(FILTRATION[:15], levels=TWO_TO_THE_FOUR[:15], blocks=[0] * 15)


@pytest.mark.parametrize(
    ("y", "expected"),
    [
        ([5.0, 4.0, 3.0, 2.0], 150.0),  # between steps 100 and 200
        ([5.0, 4.0, 4.0, 3.6], None),  # never
        ([3.0, 2.0, 2.0, 1.0], 0.0),  # there at the start
        ([5.0, 3.5, 3.0, 2.0], 100.0),  # on a point
        ([5.0, 3.0, 5.0, 2.0], 175.0),  # one lucky validation does not count: the medians are 5, 5, 3, 2
    ],
)
def test_crossing(y, expected):
    assert stats.crossing([0, 100, 200, 300], y, target=3.5) == (None if expected is None else pytest.approx(expected))


def test_a_raw_crossing_takes_the_lucky_point():
    assert stats.crossing([0, 100, 200, 300], [5.0, 3.0, 5.0, 2.0], target=3.5, smooth=False) == pytest.approx(75.0)
    assert stats.crossing([], [], target=3.5) is None


def test_bits_per_byte():
    """A uniform guess over 256 byte tokens: eight bits each. Two bytes a token halve them."""
    assert bits_per_byte(math.log(256), tokens=1000, n_bytes=1000) == pytest.approx(8.0)
    assert bits_per_byte(math.log(256), tokens=1000, n_bytes=2000) == pytest.approx(4.0)


def test_pareto_against_brute_force():
    rng = np.random.default_rng(1)
    for _ in range(20):
        points = rng.integers(0, 5, (12, 3)).tolist()
        expected = [not any(q != p and all(x <= y for x, y in zip(q, p, strict=True)) for q in points) for p in points]
        assert stats.pareto(points) == expected


def test_runs_that_agree_to_the_last_bit():
    same, shifted = stats.paired([1.0, 2.0], [1.0, 2.0]), stats.interval([0.5, 0.5, 0.5])
    assert (same.mid, same.low, same.high, same.p) == (0, 0, 0, 1)
    assert (shifted.mid, shifted.low, shifted.high, shifted.p) == (0.5, 0.5, 0.5, 0)
    assert stats.unpaired([1.0, 1.0], [1.0, 1.0]).p == 1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: stats.interval([1.0]), "at least 2 values, got 1"),
        (lambda: stats.interval([1.0, math.nan]), "finite numbers"),
        (lambda: stats.paired([1.0, 2.0], [1.0, 2.0, 3.0]), "one length, got 2 and 3"),
        (lambda: stats.n_required(1e-5, power=0.9, pairs=True), "more than 100000"),
    ],
)
def test_bad_samples(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_t_intervals_cover_what_they_say():
    """A seeded simulation: of 2,000 intervals over three seeds, 95% hold the truth."""
    rng = np.random.default_rng(2)
    samples = rng.normal(0.005, 0.0015, (2000, 3))
    found = [stats.interval(sample) for sample in samples]
    covered = np.mean([e.low <= 0.005 <= e.high for e in found])
    assert 0.93 < covered < 0.97


def test_sums_and_quotients_of_independent_estimates() -> None:
    """Against the spread of simulated ones."""
    chance = np.random.default_rng(0)
    a, b = stats.Estimate(mid=0.3, low=0.28, high=0.32, n=4), stats.Estimate(mid=0.5, low=0.46, high=0.54, n=3)
    x, y = (chance.normal(one.mid, one.half_width / 1.96, 200_000) for one in (a, b))
    for found, drawn in ((a.plus(b), x + y), (a.over(b), x / y)):
        assert found.mid == pytest.approx(drawn.mean(), rel=0.01)
        assert found.half_width == pytest.approx(1.96 * drawn.std(), rel=0.02)
        assert found.n == 3
