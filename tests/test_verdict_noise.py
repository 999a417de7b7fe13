"""A declared noise, what widens a bound without one, and slack: against Smyth's formulas, scipy, and cases worked out by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import stats as scipy_stats

from nocap.judge.gain import Gain, pairs_wanted
from nocap.judge.noise import BIAS, CAP, Noise, Prior, fit, moderated, noise_of
from nocap.judge.stats import Array, power_of
from nocap.judge.verdict import Reason, Word
from nocap.store.measurement import METRICS, Per, Scale
from tests.test_verdict import LOSS, LOSS_GUARD, claim, judge, seeded, speeds

PRIOR = Prior(sd=0.01, df=8, source="made")


# --- a declared noise ----------------------------------------------------------------------------------------------------------------


def test_moderated_variance_is_the_known_answer():
    values = np.array([0.004, 0.006, 0.005])
    variance, df = moderated(values.var(ddof=1), 2, Prior(sd=0.0018, df=20, source="limma"), cap=math.inf)
    t = values.mean() / math.sqrt(variance / 3)
    assert (t, df) == (pytest.approx(4.970, abs=5e-4), 22)
    assert 2 * scipy_stats.t.sf(t, df) == pytest.approx(5.67e-5, rel=2e-3)
    assert moderated(values.var(ddof=1), 2, Prior(sd=0.0018, df=20, source="limma"))[1] == 2 + CAP


def test_the_noise_that_groups_share_is_found_again():
    rng = np.random.default_rng(0)
    sigma2 = 4 * 6 / rng.chisquare(6, 20_000)  # s0 = 2, d0 = 6
    dfs = rng.integers(2, 5, 20_000)
    sd, df = fit((sigma2 * rng.chisquare(dfs) / dfs).tolist(), dfs.tolist())
    assert (sd, df) == (pytest.approx(2, rel=0.02), pytest.approx(6, rel=0.12))
    alike = fit([0.9, 1.0, 1.1, 1.0], [5, 5, 5, 5])
    assert alike[1] == math.inf  # they differ by less than chance
    assert fit([0.9, 1.0, 1.1, 1.0, 0.0], [5] * 5) == alike
    with pytest.raises(ValueError, match="noise must be fitted to at least 3 groups that vary, got 2"):
        fit([1.0, 2.0, 0.0], [2, 2, 2])


def test_two_groups_of_the_moments_by_hand():
    """z = ln s² - ψ(ν/2) + ln(ν/2); var z - ψ'(ν/2) = ψ'(d0/2), with ψ'(1) = π²/6 at ν = 2."""
    spread = math.sqrt(math.pi**2 / 6 + math.pi**2 / 6)  # ψ'(d0/2) = π²/6: d0 = 2
    sd, df = fit([math.exp(-spread), 1.0, math.exp(spread)], [2, 2, 2])
    assert (sd**2, df) == (pytest.approx(1.0), pytest.approx(2.0))  # ψ(1) - ln 1 of both cancel


def test_a_declared_noise_makes_three_pairs_enough():
    gains = [0.012, 0.018, 0.015]  # sd 0.003
    values = ("val_loss", [3.4 - g for g in gains], [3.4] * 3)
    alone, known = (judge(seeded(3, **LOSS), values, noise=noise).verdict() for noise in ({}, {"val_loss": PRIOR}))
    assert known.interval is not None
    half = 0.01 / math.sqrt(3) * scipy_stats.t.isf(0.025, 10)  # the declared one is larger than the moderated, and is the least
    assert (known.interval.mid, known.interval.half_width) == (pytest.approx(0.015), pytest.approx(half))
    assert (alone.word, known.word) == (Word.confirmed, Word.confirmed)
    loud = ("val_loss", [3.4 - g for g in (0.0, 0.04, 0.02)], [3.4] * 3)  # sd 0.02, twice the declared
    wide = judge(seeded(3, **LOSS), loud, noise={"val_loss": PRIOR}).verdict().interval
    assert wide is not None
    assert wide.half_width == pytest.approx(math.sqrt((8 * 0.01**2 + 2 * 0.02**2) / 10 / 3) * scipy_stats.t.isf(0.025, 10))


def test_three_pairs_that_lie_close_by_chance_confirm_nothing_without_a_declared_noise():
    """t = 5 with two degrees of freedom: 1.9% one-sided, and skewed noise is there in 8%."""
    gains = 0.005 + 0.001 * np.array([-1.0, 0.0, 1.0]) * math.sqrt(3)
    assert scipy_stats.ttest_1samp(gains, 0).statistic == pytest.approx(5)
    found = judge(seeded(3, **LOSS), ("val_loss", [3.4 - g for g in gains], [3.4] * 3)).verdict()
    assert (found.word, found.reason) == (Word.inconclusive, Reason.undecided)


def test_arms_that_compute_the_same_keep_their_own_spread():
    gains = [2e-5, -1e-5, 0.0]
    found = judge(seeded(3, **LOSS, guards=[]), ("val_loss", [3.4 - g for g in gains], [3.4] * 3), noise={"val_loss": PRIOR}).verdict()
    assert found.interval is not None
    assert found.interval.half_width == pytest.approx(np.std(gains, ddof=1) / math.sqrt(3) * scipy_stats.t.isf(0.025, 2))
    noise, at_edge = Noise(prior=PRIOR), np.array([-1.0, 0.0, 1.0]) * PRIOR.sd / 100
    assert noise.spread(at_edge * 0.999)[1] == 2
    assert noise.spread(at_edge * 1.001)[1] == 10
    assert noise.spread(np.zeros(2))[1] == 9  # two pairs may agree by chance
    assert noise.spread(np.array([[0.0, 0.0, 0.0], [0.0, 0.01, 0.02]]))[1].tolist() == [2, 10]


@pytest.mark.parametrize(
    ("metric", "scale", "sd"),
    [
        ("val_loss", Scale.difference, 0.01),
        ("val_loss", Scale.ratio, 0.01 / 3.4),  # of a logarithm: the difference over the loss
        ("tokens_per_s", Scale.ratio, 0.01),
        ("step_ms", Scale.difference, 0.01 * 3.4),
        ("steps_to_target", Scale.ratio, 0.01),
        ("share", Scale.value, None),  # a pair's noise says nothing of one value
    ],
)
def test_a_declared_noise_is_translated_to_the_claims_scale(metric: str, scale: Scale, sd: float | None):
    prior = noise_of(METRICS[metric], scale, PRIOR, level=3.4).prior
    assert (prior and prior.sd) == (sd if sd is None else pytest.approx(sd))


def test_a_declared_noise_is_named_and_a_single_pair_has_it():
    made = claim(guards=[LOSS_GUARD])
    judging = judge(made, speeds([1.25, 1.26, 1.27]), ("val_loss", [3.4] * 3, [3.4] * 3), noise={"val_loss": PRIOR})
    assert judging.declared("val_loss") == {"sd": 0.01, "df": 8, "source": "made"}
    assert judging.declared("tokens_per_s") is None
    assert Prior(sd=1, df=math.inf, source="x").json()["df"] is None
    one = Noise(prior=PRIOR)
    assert one.enough(1, 3)
    assert not Noise().enough(2, 3)
    assert one.interval(np.array([0.5]), 0.05).half_width == pytest.approx(0.01 * scipy_stats.t.isf(0.025, 8))


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"sd": 0.0}, "noise.sd must be above 0 and finite, got 0.0"),
        ({"df": math.nan}, "noise.df must be above 0, got nan"),
        ({"source": " "}, "noise.source must say which runs it was measured on, got ' '"),
    ],
)
def test_invalid_noises(changed: dict[str, Any], reason: str):
    with pytest.raises(ValueError) as refused:
        Prior(**{"sd": 1.0, "df": 8, "source": "made", **changed})
    assert reason == str(refused.value)


# --- what a clock measures -----------------------------------------------------------------------------------------------------------


def test_a_speed_must_clear_its_end_by_the_bias_of_an_instance():
    made = claim(expected=[1.0, None])
    gains = [math.exp(x) for x in (0.00499, 0.005, 0.00501)]
    assert judge(made, speeds(gains)).verdict().word is Word.inconclusive
    assert judge(made, speeds([g * math.exp(0.001) for g in gains])).verdict().word is Word.confirmed
    assert judge(made, speeds([1 / g for g in gains])).verdict().word is Word.inconclusive
    assert judge(made, speeds([math.exp(-0.001) / g for g in gains])).verdict().word is Word.refuted
    time = claim(metric="time_to_target_s", target=3.4, expected=[1.0, None])
    assert judge(time, ("time_to_target_s", [100.0] * 3, [100 * g for g in gains])).verdict().word is Word.inconclusive
    assert noise_of(METRICS["step_ms"], Scale.difference, None, level=200).bias == 200 * BIAS
    assert noise_of(METRICS["steps_to_target"], Scale.ratio, None, level=1).bias == 0


@pytest.mark.parametrize(
    ("metric", "prior", "n", "deciding", "wider"),
    [
        ("val_loss", None, 9, False, 1.0),
        ("val_loss", None, 9, True, 2.1),
        ("val_loss", PRIOR, 9, True, 1.0),
        ("tokens_per_s", None, 9, False, 1.9),
        ("tokens_per_s", None, 9, True, 2.1),
        ("tokens_per_s", None, 36, True, 1.9),
        ("tokens_per_s", PRIOR, 9, True, 1.9),
        ("memory_mib", None, 36, True, 1.55),
    ],
)
def test_how_much_wider_than_a_t_test(metric: str, prior: Prior | None, n: int, deciding: bool, wider: float):
    assert noise_of(METRICS[metric], Scale.ratio, prior, level=1).wider(n, deciding=deciding) == pytest.approx(wider)


def sessions(rho: float) -> Callable[[np.random.Generator, tuple[int, int]], Array]:
    """Each resembles the one before."""

    def made(rng: np.random.Generator, shape: tuple[int, int]) -> Array:
        x = rng.normal(size=shape)
        for i in range(1, shape[1]):
            x[:, i] = rho * x[:, i - 1] + math.sqrt(1 - rho**2) * x[:, i]
        return x

    return made


@pytest.mark.parametrize("n", [3, 4, 6])
@pytest.mark.parametrize(
    ("noise", "kind"),
    [
        (Noise(), lambda rng, shape: 1 - rng.exponential(size=shape)),
        (Noise(), lambda rng, shape: rng.exponential(size=shape) - 1),
        (Noise(prior=Prior(sd=1, df=8, source="made")), lambda rng, shape: 1 - rng.exponential(size=shape)),
        (Noise(clocked=True), sessions(0.5)),
        (Noise(clocked=True, prior=Prior(sd=1, df=8, source="made")), sessions(0.5)),
    ],
)
def test_levels_hold_under_the_noise_that_broke_the_t_test(noise: Noise, kind: Callable[..., Array], n: int):
    """A t-test confirms skewed noise in 16% and correlated sessions in 12 to 16%, of no effect."""
    values = kind(np.random.default_rng(1), (40_000, n))
    assert np.mean(noise.at_least(values, 0.05) > 0) < 0.053
    assert np.mean(noise.at_least(-values, 0.025) > 0) < 0.028


# --- margins -------------------------------------------------------------------------------------------------------------------------


def parity(gains: list[float], *, slack: float = 0.05, **changed: Any) -> Any:
    made = seeded(len(gains), **{**LOSS, "slack": {"cpu": slack}, **changed})
    return judge(made, ("val_loss", [3.4 - g for g in gains], [3.4] * len(gains)), noise={"val_loss": PRIOR}).verdict()


def test_slack_does_not_confirm():
    """A5.wide as it was: a gain whose bound lies outside what is stated, and inside with the slack."""
    assert parity([0.009, 0.012, 0.006]).word is Word.equivalent
    assert parity([0.029, 0.032, 0.026]).word is Word.confirmed
    assert parity([-0.009, -0.012, -0.006]).word is Word.equivalent
    assert parity([-0.03, -0.045, -0.06]).word is Word.inconclusive
    assert parity([-0.09, -0.1, -0.11]).reason is Reason.below
    assert parity([-0.03, -0.032, -0.028], slack=0.0).reason is Reason.below  # the same as beyond the slack
    assert parity([0.009, 0.012, 0.006]).reason is None


def test_a_window_with_slack_is_wide_on_both_sides():
    changed = {"expected": [-0.02, 0.02], "two_sided": True}
    assert parity([0.001, 0.0, -0.001], slack=0.03, **changed).word is Word.confirmed
    for sign in (1, -1):
        assert parity([sign * x for x in (0.019, 0.02, 0.021)], slack=0.03, **changed).word is Word.equivalent
        assert parity([sign * x for x in (0.049, 0.05, 0.051)], slack=0.03, **changed).word is Word.inconclusive
        assert parity([sign * x for x in (0.099, 0.1, 0.101)], slack=0.03, **changed).word is Word.refuted


def test_a_guard_that_fails_leaves_nothing_equivalent():
    made = seeded(3, **{**LOSS, "slack": {"cpu": 0.05}}, guards=[])
    assert judge(made, ("val_loss", [3.4, 3.401, 3.399], [3.4] * 3), noise={"val_loss": PRIOR}).verdict().word is Word.equivalent
    memory = LOSS_GUARD.__class__(metric="memory_mib", scale=Scale.ratio, margins={"cpu": 1.0})
    made = seeded(3, **{**LOSS, "slack": {"cpu": 0.05}}, guards=[memory])
    for used, word in ((100.0, Word.equivalent), (101.0, Word.refuted)):
        values = ("val_loss", [3.4, 3.401, 3.399], [3.4] * 3), ("memory_mib", [used] * 3, [100.0] * 3)
        assert judge(made, *values, noise={"val_loss": PRIOR}).verdict().word is word


def test_a_verdict_waits_for_what_is_lacking():
    found = judge(seeded(3, **LOSS), ("val_loss", [3.3, 3.301, 3.299], [3.4] * 3), lacking=["the exchange rate of mha"]).verdict()
    assert (found.word, found.reason, found.missing) == (Word.inconclusive, Reason.missing, ["the exchange rate of mha"])


# --- how many pairs would decide ---------------------------------------------------------------------------------------------------


def test_pairs_for_a_distance_count_what_was_declared_and_never_less_than_the_bias():
    prior = Prior(sd=1.0, df=8, source="made")
    known, unknown = (noise.pairs_for(2.0, spread=1.0, alpha=0.025, power=0.9) for noise in (Noise(prior=prior), Noise()))
    by_hand = next(n for n in range(2, 100) if power_of(2.0, n=n, alpha=0.05, pairs=True, known=8.0) >= 0.9)
    without = next(n for n in range(2, 100) if power_of(2.0, n=n, alpha=0.05, pairs=True) >= 0.9)
    assert known == by_hand < without
    assert unknown is not None
    assert unknown > without
    assert Noise(bias=0.005).pairs_for(0.004, spread=0.01, alpha=0.025, power=0.9) is None


def test_the_easier_of_two_refutations_is_what_would_decide():
    noise = Noise(prior=Prior(sd=0.1, df=8, source="made"))

    def beyond(mean: float) -> Gain:
        values = [mean - 0.1, mean, mean + 0.1]
        return Gain(least=values, most=values, ends=(0.0, math.inf), wide=(0.0, math.inf), noise=noise)

    def wanted(*gains: Gain) -> int | None:
        return (pairs_wanted(gains, alpha=0.05, level=lambda alpha: alpha) or {}).get(Per.seed)

    near, far = wanted(beyond(-0.05), beyond(1.0)), wanted(beyond(-0.2), beyond(1.0))
    assert near is not None
    assert far is not None
    assert far < near
    both = wanted(beyond(-0.05), beyond(-0.2))
    assert both is not None
    assert both < near


def test_the_harder_of_two_confirmations_is_what_would_decide():
    noise = Noise(prior=Prior(sd=0.1, df=8, source="made"))

    def inside(mean: float) -> Gain:
        values = [mean - 0.1, mean, mean + 0.1]
        return Gain(least=values, most=values, ends=(0.0, math.inf), wide=(0.0, math.inf), noise=noise)

    def wanted(*gains: Gain) -> dict[Per, int]:
        return pairs_wanted(gains, alpha=0.05, level=lambda alpha: alpha) or {}

    hard, easy = inside(0.05), inside(0.2)
    assert wanted(hard) == wanted(hard, easy) == wanted(easy, hard)
    assert wanted(easy)[Per.seed] < wanted(hard)[Per.seed]
