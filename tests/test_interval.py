"""The intervals: against scipy and closed forms, and how often it errs, by
`experiments/verdict_trust/simulated.py`."""

from __future__ import annotations

import importlib
import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from nocap.judge import cautious_interval, interval
from nocap.judge.cautious_interval import Declared, between, half_width, pooled
from nocap.judge.comparison_json import interval_json
from nocap.judge.interval import of_arms, of_arms_apart, of_pairs, of_samples, of_steps
from tests.conftest import REPO

sys.path.append(str(REPO / "experiments" / "verdict_trust"))
simulated = importlib.import_module("simulated")

# Student's sleep data (1908): extra hours of sleep of ten patients under two drugs.
DRUG_1 = [0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0]
DRUG_2 = [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4]
SLEEP = np.subtract(DRUG_1, DRUG_2)
KNOWN = Declared(sd=1.2, df=20, source="made")


# --- of what a seed repeats: a textbook's ---------------------------------------------------------


@pytest.mark.parametrize("look", [1, 2, 3])
def test_pairs_have_students_interval(look: int):
    estimate = of_pairs(SLEEP, look=look)
    exact = stats.ttest_rel(DRUG_1, DRUG_2).confidence_interval(1 - 0.05 / look**2)
    assert estimate.mid == pytest.approx(-1.58)
    assert estimate.low == pytest.approx(exact.low, abs=1e-9)
    assert estimate.high == pytest.approx(exact.high, abs=1e-9)
    assert estimate.n == 10
    deviation = SLEEP.std(ddof=1)
    assert estimate.sd == pytest.approx(deviation)
    assert estimate.method == "pairs (Student)"


@pytest.mark.parametrize("look", [1, 2])
def test_two_samples_are_welchs(look: int):
    estimate = of_samples(DRUG_1, DRUG_2[:7], look=look)
    test = stats.ttest_ind(DRUG_1, DRUG_2[:7], equal_var=False)
    exact = test.confidence_interval(1 - 0.05 / look**2)
    assert estimate.low == pytest.approx(exact.low, abs=1e-9)
    assert estimate.high == pytest.approx(exact.high, abs=1e-9)
    assert estimate.n == 7
    assert estimate.method == "unpaired (Welch)"


def of_a_mixed_model(values: np.ndarray, *, look: int = 1) -> list[tuple[float, float]]:
    """Low and high ends by mean squares of arms × seeds: that between seeds has the baseline's
    noise and the arms' once, that within has the arms' alone (Satterthwaite 1946)."""
    arms, n = values.shape
    means = values.mean(axis=1)
    between_seeds = values.mean(axis=0).var(ddof=1)
    centred = values - values.mean(axis=0)
    residual = centred - means[:, None] + values.mean()
    squares = (residual**2).sum()
    freedoms = (arms - 1) * (n - 1)
    within = squares / freedoms * (arms - 1) / arms
    variance = between_seeds + within
    of_seeds = between_seeds**2 / (n - 1)
    freedoms = (arms - 1) * (n - 1)
    freedom = variance**2 / (of_seeds + within**2 / freedoms)
    quantile = stats.t.isf(0.025 / arms / look**2, freedom)
    half = quantile * math.sqrt(variance / n)
    quantile = stats.t.isf(0.025 / look**2, n - 1)
    own = quantile * stats.sem(values, axis=1)
    halves = np.maximum(half, own)
    return [(mean - reach, mean + reach) for mean, reach in zip(means, halves, strict=True)]


@pytest.mark.parametrize(("n", "look"), [(3, 1), (4, 1), (6, 2), (12, 3)])
def test_arms_share_the_baselines_noise_and_the_error(n: int, look: int):
    rng = np.random.default_rng(n)
    noise = rng.normal(size=(5, n))
    values = noise - 2 * rng.normal(size=n)
    values[3] *= 9  # whose own interval is wider than that of all
    estimates = of_arms(values.tolist(), look=look)
    for estimate, (low, high) in zip(estimates, of_a_mixed_model(values, look=look), strict=True):
        assert estimate.low == pytest.approx(low, abs=1e-9)
        assert estimate.high == pytest.approx(high, abs=1e-9)
        assert estimate.method == "pairs, all arms together"
    pairs = of_pairs(values[3], look=look)
    assert estimates[3].half_width == pytest.approx(pairs.half_width)
    expected = [of_pairs(values[0], look=look)]
    assert of_arms(values[:1].tolist(), look=look) == expected


def test_arms_that_share_no_seeds_have_one_variance_and_the_baseline_its_own():
    rng = np.random.default_rng(3)
    base = rng.normal(size=4)
    arms = [rng.normal(size=n) for n in (3, 3, 5)]
    freedom = sum(len(arm) - 1 for arm in arms)
    squares = sum(arm.var(ddof=1) * (len(arm) - 1) for arm in arms)
    pooled = squares / freedom
    own = base.var(ddof=1) / 4
    estimates = of_arms_apart(base, arms)
    for estimate, arm in zip(estimates, arms, strict=True):
        part = pooled / len(arm)
        own_part = own**2 / 3
        df = (own + part) ** 2 / (own_part + part**2 / freedom)
        quantile = stats.t.isf(0.025 / 3, df)
        half = quantile * math.sqrt(own + part)
        welch = stats.ttest_ind(arm, base, equal_var=False).confidence_interval()
        expected = arm.mean() - base.mean()
        assert estimate.mid == pytest.approx(expected)
        width = (welch.high - welch.low) / 2
        assert estimate.half_width == pytest.approx(max(half, width), abs=1e-9)
        assert estimate.method == "unpaired, all arms together"
    assert of_arms_apart(base, arms[:1]) == [of_samples(arms[0], base)]


def test_steps_from_group_to_group_have_one_variance():
    rng = np.random.default_rng(4)
    groups = {name: rng.normal(size=n) for name, n in zip("abcd", (3, 3, 5, 4), strict=True)}
    freedom = sum(len(group) - 1 for group in groups.values())
    squares = sum(group.var(ddof=1) * (len(group) - 1) for group in groups.values())
    pooled = squares / freedom
    steps = [("a", "b"), ("b", "c"), ("c", "d")]
    for estimate, (before, after) in zip(of_steps(groups, steps), steps, strict=True):
        x = groups[after]
        y = groups[before]
        quantile = stats.t.isf(0.025 / 3, freedom)
        variance = pooled / len(x) + pooled / len(y)
        half = quantile * math.sqrt(variance)
        welch = stats.ttest_ind(x, y, equal_var=False).confidence_interval()
        width = (welch.high - welch.low) / 2
        expected = max(half, width)
        assert estimate.half_width == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("arms", [1, 2, 5, 8])
@pytest.mark.parametrize("baseline", [1.0, 10.0])
def test_a_table_without_an_effect_has_a_word_in_five_of_a_hundred(arms: int, baseline: float):
    """With the baseline's noise as large as the arms', and ten times as large."""
    rng = np.random.default_rng(arms)
    words = 0
    for _ in range(800):
        noise = rng.normal(size=(arms, 4))
        values = noise - baseline * rng.normal(size=4)
        estimates = of_arms(values.tolist())
        words += any(each.low > 0 or each.high < 0 for each in estimates)
    assert words / 800 <= 0.065


def test_steps_without_an_effect_err_in_five_of_a_hundred():
    rng = np.random.default_rng(0)
    words = 0
    for _ in range(300):
        groups = {str(i): rng.normal(size=3) for i in range(28)}
        steps = [(str(i), str(i + 1)) for i in range(27)]
        words += any(each.low > 0 or each.high < 0 for each in of_steps(groups, steps))
    assert words / 300 <= 0.055


def test_fewer_than_three_have_no_interval():
    cases = (
        of_pairs([1.0, 1.1]),
        of_samples(DRUG_1, [0.5, 0.6]),
        of_arms([[1.0, 1.1], [1.0, 1.2]])[0],
        of_arms_apart(DRUG_1, [[0.5, 0.6], DRUG_2])[0],
        cautious_interval.of_pairs([1.0, 1.1]),
        cautious_interval.of_samples(DRUG_1, [0.5, 0.6]),
    )
    for estimate in cases:
        assert estimate.low == -math.inf
        assert estimate.high == math.inf
        assert estimate.n == 2
        assert interval_json(estimate).low is None
        assert interval_json(estimate).high is None
        assert interval_json(estimate).sd is None
    assert of_pairs([1.0, 1.1]).mid == pytest.approx(1.05)


def test_runs_that_agree_to_the_last_bit_have_no_width():
    pairs = cautious_interval.of_pairs([0.5] * 3, declared=KNOWN)
    cases = (
        of_pairs([0.5] * 3),
        of_samples([0.5] * 3, [0.0] * 4),
        *of_arms([[0.5] * 3] * 2),
        *of_arms_apart([0.0] * 3, [[0.5] * 3] * 2),
        cautious_interval.of_pairs([0.5] * 3),
        cautious_interval.of_samples([0.5] * 3, [0.0] * 4),
        pairs,  # nor has a noise that was declared
    )
    for estimate in cases:
        assert estimate.mid == 0.5
        assert estimate.low == 0.5
        assert estimate.high == 0.5


# --- of what a clock measures: the cautious one ---------------------------------------------------


@pytest.mark.parametrize(("n", "standard_deviations"), [(3, 4.90), (4, 3.12), (5, 2.36), (6, 1.93)])
def test_how_wide_the_cautious_one_is_in_standard_deviations(n: int, standard_deviations: float):
    half, used = half_width(np.array([1.0, 2.0]), n)
    assert half == pytest.approx([standard_deviations, 2 * standard_deviations], abs=0.01)
    assert not np.any(used)


@pytest.mark.parametrize(("analysis", "comparisons"), [(1, 1), (2, 1), (1, 6), (3, 5)])
def test_clocks_pairs_have_the_cautious_interval(analysis: int, comparisons: int):
    share = analysis**2 * comparisons
    how = {"analysis": analysis, "comparisons": comparisons}
    sem = stats.sem(SLEEP)
    estimate = cautious_interval.of_pairs(SLEEP, bias=0.1, **how)
    quantile = stats.t.isf(0.05 / share, 9)
    half = (1 + 3.3 / math.sqrt(10)) * quantile * sem + 0.1
    assert estimate.mid == pytest.approx(-1.58)
    assert estimate.low == pytest.approx(-1.58 - half)
    assert estimate.high == pytest.approx(-1.58 + half)
    assert estimate.n == 10
    deviation = SLEEP.std(ddof=1)
    assert estimate.sd == pytest.approx(deviation)
    assert estimate.method == "pairs, cautious"
    narrowed = cautious_interval.of_pairs(SLEEP, declared=KNOWN, **how)
    # 8 of 20 degrees count; and its own spread is wider
    quantile = stats.t.isf(0.005 / share, 8 + 9)
    deviation = SLEEP.std(ddof=1)
    half = quantile * deviation / math.sqrt(10)
    assert narrowed.half_width == pytest.approx(half)
    assert narrowed.method == "pairs, noise declared"
    quantile = stats.t.isf(0.005, 12)
    expected = quantile * 2 / math.sqrt(10)
    declared = Declared(sd=2.0, df=3, source="x")
    pairs = cautious_interval.of_pairs(SLEEP, declared=declared)
    assert pairs.half_width == pytest.approx(expected)


def test_pairs_that_contradict_the_declared_noise_drop_it():
    """An F-test: as wide in at most 5%, as narrow in at most one of 10,000."""
    wide_f = stats.f.ppf(0.95, 9, 8)
    wide = math.sqrt(wide_f) * KNOWN.sd
    narrow_f = stats.f.ppf(1e-4, 9, 8)
    narrow = math.sqrt(narrow_f) * KNOWN.sd
    sds = np.array([narrow * 0.999, narrow * 1.001, wide * 0.999, wide * 1.001])
    half, used = half_width(sds, 10, declared=KNOWN)
    assert used.tolist() == [False, True, True, False]
    own, _ = half_width(sds, 10)
    assert half[[0, 3]] == pytest.approx(own[[0, 3]])
    # never narrower than what was declared
    quantile = stats.t.isf(0.005, 17)
    expected = quantile * KNOWN.sd / math.sqrt(10)
    assert half[1] == pytest.approx(expected)


def test_two_sides_are_paired_where_they_share_seeds():
    a = dict(enumerate(DRUG_1))
    b = dict(enumerate(DRUG_2))
    apart = {seed + 100: x for seed, x in b.items()}

    def shown(a: dict[int, float], b: dict[int, float]) -> tuple[Any, ...]:
        estimate = between(a, b)
        return estimate and (estimate.mid, estimate.low, estimate.high, estimate.n, estimate.method)

    pairs = cautious_interval.of_pairs(SLEEP)
    samples = cautious_interval.of_samples(DRUG_1, DRUG_2)
    expected = (pairs.mid, pairs.low, pairs.high, 10, "pairs, cautious")
    assert shown(a, b) == expected
    shown_apart = shown(a, apart)
    assert shown_apart == (samples.mid, samples.low, samples.high, 10, "unpaired (Welch at 99.5%)")
    three = {**{seed: b[seed] for seed in range(3)}, **apart}
    two = {**{seed: b[seed] for seed in range(2)}, **apart}
    # those that both have; the others count no more
    assert shown(a, three)[3:] == (
        3,
        "pairs, cautious",
    )
    assert shown(a, two)[3:] == (10, "unpaired (Welch at 99.5%)")
    one_pair = {0: 1.0}
    assert shown(one_pair, {0: 2.0})[3:] == (1, "too few pairs")
    assert shown({}, b) is None


def test_ratios_are_geometric_and_their_inverse_agrees():
    a = dict(enumerate([1.22, 1.25, 1.19, 1.28, 1.24]))
    b = dict.fromkeys(range(5), 2.0)
    there = between(a, b, log=True, bias=0.005)
    back = between(b, a, log=True, bias=0.005)
    assert there is not None
    assert back is not None
    halves = [x / 2 for x in a.values()]
    expected = cautious_interval.of_pairs(np.log(halves), bias=0.005).exp()
    assert there.mid == pytest.approx(expected.mid)
    assert there.low == pytest.approx(expected.low)
    assert there.high == pytest.approx(expected.high)
    assert there.mid == pytest.approx(1 / back.mid)
    assert there.low == pytest.approx(1 / back.high)
    assert between({0: 0.0, 1: 1.0, 2: 1.0}, b, log=True) is None


def test_noise_is_pooled_within_groups():
    noise = pooled([[1, 2, 3], [10, 14], [7]])
    assert noise is not None
    expected = math.sqrt((2 + 8) / 3)
    assert noise.sd == pytest.approx(expected)
    assert noise.df == 3
    assert pooled([[1.0], []]) is pooled([[2.0, 2.0]]) is pooled([]) is None


def test_analyses_and_what_would_decide():
    assert interval.analyses() == [3, 6, 12, 24, 48, 96]
    analyses = [interval.analysis_of(n) for n in (0, 2, 3, 5, 6, 11, 12, 1000)]
    assert analyses == [0, 0, 1, 1, 2, 2, 3, 6]
    width = interval.half_width
    wanted = []
    for bias in (0.0, 0.2, 0.9):
        wanted.append(interval.pairs_to_decide(1.0, sd=1.0, n=3, width=width, bias=bias))
    assert wanted == [24, 48, None]


# --- calibration ----------------------------------------------------------------------------------


def test_no_cell_is_beyond_its_bar():
    result = simulated.calibrate(4000)
    assert simulated.broken(result, errors=4) == []
    assert len(result["rows"]) == 4 * 10


@pytest.mark.slow
def test_no_cell_is_beyond_its_bar_in_the_tables_that_are_committed(tmp_path: Path):
    """40,000 a cell; the command writes what is committed."""
    text = (simulated.HERE / "README.md").read_text()
    (tmp_path / "README.md").write_text(text)
    assert simulated.main(["--into", str(tmp_path)]) == 0
    for name in ("results.json", "README.md"):
        expected = (simulated.HERE / name).read_text()
        assert (tmp_path / name).read_text() == expected


def test_the_pages_tables_are_of_the_committed_counts():
    result = json.loads((simulated.HERE / "results.json").read_text())
    text = (simulated.HERE / "README.md").read_text()
    assert simulated.tables(result) in text
    assert result["studies"] == simulated.STUDIES
    docs = (REPO / "docs" / "statistics.md").read_text().splitlines()
    shown = []
    for line in docs:
        if line.startswith(("| of losses |", "| of clocks |", "| declared")):
            shown.append(line)
    assert len(shown) >= 4
    lines = simulated.tables(result).splitlines()
    assert {*shown} <= {*lines}


@pytest.mark.parametrize("name", simulated.KINDS)
def test_noises_have_mean_0_and_variance_1(name: str):
    rng = np.random.default_rng(0)
    values = simulated.KINDS[name](rng, (400_000, 3))
    assert values.mean() == pytest.approx(0, abs=0.02)
    assert values.std() == pytest.approx(1, abs=0.05)
    assert stats.skew(values.ravel()) < 0.05 or name == "t, 3 degrees"
    correlation = np.corrcoef(values[:, 0], values[:, 2])
    assert correlation[0, 1] == pytest.approx(0.25 if name == "AR(1) .5" else 0, abs=0.01)


@pytest.mark.parametrize(
    ("caution", "tail"), [(0.0, 0.05), pytest.param(3.3, 0.1, marks=pytest.mark.slow)]
)
def test_a_narrower_interval_breaks_the_bars(
    monkeypatch: pytest.MonkeyPatch, caution: float, tail: float
):
    monkeypatch.setattr(cautious_interval, "CAUTION", caution)
    monkeypatch.setattr(cautious_interval, "TAIL", tail)
    broken = simulated.broken(simulated.calibrate(4000), errors=4)
    assert {line.partition(",")[0] for line in broken} >= {"of clocks"}
