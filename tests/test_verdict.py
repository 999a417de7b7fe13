"""Claims and the words that they are given: every branch of the rule, against scipy's quantiles and
cases worked out by hand."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from scipy import stats

from nocap.judge import verdict
from nocap.judge.cautious_interval import Declared
from nocap.judge.claim import Claim, Guard, Mechanism
from nocap.judge.claim_gains import Missing
from nocap.judge.interval import Estimate
from nocap.judge.verdict import ClaimWord, Reason, Verdict
from nocap.metrics import METRICS, Scale
from nocap.report import figures_in_words
from nocap.store.measurement import Ending, Measurement, Per

Values = Sequence[float | None]
NO_BOUND = Mechanism(bound=None, formula="none")
SPEED = {
    "id": "gqa",
    "statement": "4 key/value heads train 20 to 30% faster at a validation loss within 0.01",
    "source": "note 000",
    "arm": "gqa",
    "metric": "tokens_per_s",
    "scale": Scale.ratio,
    "expected": [1.2, 1.3],
    "mechanism": Mechanism(bound=1.28, formula="21.9% fewer FLOPs: 1 / (1 - 0.219)"),
    "seeds": [1, 2, 3],
}
LOSS_GUARD = Guard(metric="val_loss", scale=Scale.difference, margins={"cpu": 0.01, "gpu": 0.005})
LOSS: dict[str, Any] = {
    "metric": "val_loss",
    "scale": Scale.difference,
    "expected": [0.0, None],
    "mechanism": NO_BOUND,
}
SHARE: dict[str, Any] = {
    "metric": "share",
    "parts": ["scores"],
    "scale": Scale.value,
    "mechanism": NO_BOUND,
}
RACE: dict[str, Any] = {"metric": "time_to_target_s", "target": "baseline", "mechanism": NO_BOUND}
QUIET = {"val_loss": Declared(sd=0.01, df=8, source="made")}


def claim(n: int = 3, **changed: Any) -> Claim:
    seeds = list(range(1, n + 1))
    return Claim(**{**SPEED, "seeds": seeds, **changed})


def measured(
    arm: str, metric: str, values: Values, *, per: Per = Per.seed, at_most: float | None = None
) -> list[Measurement]:
    """One arm's, with the seeds 1, 2, …: null diverged, NaN is missing, `at_most` is a value that
    is more than was needed."""

    def ending(value: float | None) -> Ending:
        if value is None:
            return Ending.diverged
        if value == at_most:
            return Ending.at_most
        return Ending.measured

    numbered_seeds = enumerate(values, start=1)
    numbered = [(i, v) for i, v in numbered_seeds if v is None or not math.isnan(v)]
    measurements: list[Measurement] = []
    for i, v in numbered:
        measurements.append(
            Measurement(
                arm=arm, repeat=i, metric=METRICS[metric], value=v, ending=ending(v), per=per
            )
        )
    return measurements


def judge(
    made: Claim,
    *metrics: tuple[str, Values, Values],
    at: str = "cpu",
    noise: Mapping[str, Declared] | None = None,
    **how: Any,
) -> Verdict:
    """The verdict on made measurements: metric, values of gqa, values of the baseline."""
    measurements = []
    for name, *sides in metrics:
        for arm, values in zip(("gqa", "mha"), sides, strict=True):
            measurements.extend(measured(arm, name, values, **how))
    return verdict.judge(made, measurements, against="mha", at=at, noise=noise)


def speeds(gains: Values, base: Values | None = None) -> tuple[str, Values, Values]:
    arm: list[float | None] = []
    for gain in gains:
        arm.append(None if gain is None else 100 * gain)
    return "tokens_per_s", arm, base or [100.0] * len(gains)


def losses(*gains: float) -> tuple[str, Values, Values]:
    return "val_loss", [3.4 - gain for gain in gains], [3.4] * len(gains)


def around(mid: float, spread: float = 0.0001) -> list[float]:
    return [mid - spread, mid, mid + spread]


def shown(judged: Verdict) -> tuple[ClaimWord, Reason | None]:
    return judged.word, judged.reason


def ends(estimate: Estimate) -> tuple[float, float]:
    return estimate.low, estimate.high


def half(values: Any, *, analysis: int = 1) -> float:
    """Of Student's interval, which losses have, by scipy."""
    quantile = stats.t.isf(0.025 / analysis**2, len(values) - 1)
    return float(quantile * stats.sem(values))


def wide(values: Any, *, bias: float = 0.0) -> float:
    """Of the cautious interval, which clocks have, by scipy."""
    n = len(values)
    quantile = stats.t.isf(0.05, n - 1)
    caution = 1 + 3.3 / math.sqrt(n)
    return float(caution * quantile * stats.sem(values) + bias)


CONFIRMED, EXCEEDED, REFUTED, INCONCLUSIVE = ClaimWord


# --- metrics --------------------------------------------------------------------------------------


GAINS_IN_WORDS = [
    ("tokens_per_s", Scale.ratio, 1.074, "7.4% faster"),
    ("tokens_per_s", Scale.ratio, 0.9, "10.0% slower"),
    # the time itself, as claims about it have it
    ("step_ms", Scale.ratio, 1.25, "20.0% less time"),
    ("tokens_per_s", Scale.ratio, 3.0, "3.00× as fast"),
    ("memory_mib", Scale.ratio, 0.4, "2.50× the memory"),
    ("step_ms", Scale.ratio, 0.8, "25.0% more time"),
    ("memory_mib", Scale.ratio, 1.25, "20.0% less memory"),
    ("memory_mib", Scale.ratio, 0.8, "25.0% more memory"),
    ("time_to_target_s", Scale.ratio, 1.31, "31.0% faster to the target"),
    ("steps_to_target", Scale.ratio, 2.0, "50.0% fewer steps"),
    ("val_loss", Scale.difference, 0.0098, "lower loss by 0.0098"),
    ("val_loss", Scale.difference, -0.03, "higher loss by 0.0300"),
    ("tokens_per_s", Scale.difference, -2.0, "slower by 2.0000"),
    ("step_ms", Scale.difference, 2.0, "less time by 2.0000"),
    ("share", Scale.value, 0.358, "35.8%"),
]


@pytest.mark.parametrize(("metric", "scale", "gain", "words"), GAINS_IN_WORDS)
def test_a_gain_in_words(metric: str, scale: Scale, gain: float, words: str):
    assert figures_in_words.gain(gain, METRICS[metric], scale) == words


# --- refused --------------------------------------------------------------------------------------


def guard(**changed: Any) -> Guard:
    return Guard(
        **{"metric": "val_loss", "scale": Scale.difference, "margins": {"cpu": 0.01}, **changed}
    )


def noise(**changed: Any) -> Declared:
    return Declared(**{"sd": 1.0, "df": 8, "source": "made", **changed})


def measurement(value: float | None, ending: Ending) -> Measurement:
    return Measurement(arm="a", repeat=1, metric=METRICS["val_loss"], value=value, ending=ending)


FINITE = "a measurement of val_loss must be a finite number, or null if the run diverged"


REFUSED = [
    (
        claim,
        {"expected": [1.3, 1.2]},
        "claim gqa: expected must have low below high, got",
    ),
    (claim, {"expected": [1.2, 1.2]}, "have low below high"),
    (claim, {"expected": [None, None]}, "one of them may be null, got [None, None]"),
    (claim, {"expected": [1.2]}, "be [low, high]"),
    (claim, {"expected": [0.0, 1.2]}, "be above 0 for a ratio"),
    (claim, {"expected": [1.2, math.inf]}, "be finite numbers or null"),
    (
        claim,
        {"expected": [1.2, None], "two_sided": True},
        "two_sided must be false, because only one end is stated",
    ),
    (
        claim,
        {"seeds": [1, 2]},
        "seeds must hold at least 3 seeds, because nocap gives no verdict with fewer, got 2",
    ),
    (claim, {"seeds": [1, 2, 2]}, "seeds must differ"),
    (
        claim,
        {"expected": [None, 1.2]},
        "expected must have a low end; an end below 1, or below 0 of a difference, means worse",
    ),
    # no instrument of a claim
    (
        claim,
        {"metric": "train_s"},
        "claim gqa: metric must be one of val_loss, val_bpb, steps_to_target",
    ),
    (claim, {"metric": "share"}, "scale must be value for share, got ratio"),
    (
        claim,
        {"metric": "time_to_target_s"},
        "target must be baseline for a claim about time or steps",
    ),
    (claim, {"target": "baseline"}, "and null for other claims, got baseline"),
    (claim, {"statement": " "}, "statement must not be empty"),
    (claim, {"guards": [LOSS_GUARD, LOSS_GUARD]}, "guards must name each metric once"),
    (
        claim,
        {"mechanism": Mechanism(bound=0.0, formula="x")},
        "mechanism.bound must be above 0 for a",
    ),
    (guard, {"margins": {}}, "guard val_loss.margins must name a scale of the study"),
    (
        guard,
        {"margins": {"cpu": -0.1}},
        "margins.cpu must be a finite number of at least 0 for a diff",
    ),
    (guard, {"margins": {"cpu": 0.9}, "scale": Scale.ratio}, "at least 1 for a ratio"),
    (guard, {"scale": Scale.value}, "scale must be ratio or difference"),
    (guard, {"metric": "exponent"}, "can be better or worse"),
    (guard, {"metric": "train_s"}, "guard metric must be one of "),
    (noise, {"sd": 0.0}, "noise.sd must be above 0 and finite, got 0.0"),
    (noise, {"df": math.nan}, "noise.df must be above 0, got nan"),
    (
        noise,
        {"source": " "},
        "noise.source must name the runs from which the noise was computed, got ' '",
    ),
    (measurement, {"value": math.nan, "ending": Ending.measured}, FINITE),
    (measurement, {"value": None, "ending": Ending.measured}, FINITE),
    (measurement, {"value": 1.0, "ending": Ending.diverged}, FINITE),
]


@pytest.mark.parametrize(("make", "changed", "reason"), REFUSED)
def test_what_makes_no_claim_is_refused(make: Any, changed: dict[str, Any], reason: str):
    with pytest.raises(ValueError) as refused:
        make(**changed)
    assert reason in str(refused.value)
    assert "\n" not in str(refused.value)


# --- words ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("metric", "two_sided"), [("tokens_per_s", False), ("step_ms", True)])
def test_the_interval_is_scipys_and_decides(metric: str, two_sided: bool):
    rng = np.random.default_rng(5)
    outcomes = set()
    made = claim(metric=metric, two_sided=two_sided, guards=[LOSS_GUARD])
    for _ in range(80):
        gain = rng.normal(rng.uniform(0.1, 0.35), 0.004, 3)
        middle = rng.choice([0.02, -0.01, -0.05])
        better = rng.normal(middle, 0.002, 3)
        base = rng.uniform(90, 110, 3)
        loss = rng.normal(3.4, 0.05, 3)
        arm = base * np.exp(gain if metric == "tokens_per_s" else -gain)
        judged = judge(made, (metric, arm, base), ("val_loss", loss - better, loss))
        low = gain.mean() - wide(gain, bias=0.005)
        high = gain.mean() + wide(gain, bias=0.005)
        interval = judged.primary.interval()
        assert ends(interval) == pytest.approx((low, high))
        least = better.mean() - half(better)
        most = better.mean() + half(better)
        assert ends(judged.guards[0].interval()) == pytest.approx((least, most))
        expected: tuple[ClaimWord, Reason | None] = (INCONCLUSIVE, Reason.undecided)
        if most < -0.01:
            expected = REFUTED, Reason.guard
        elif high < math.log(1.2):
            expected = REFUTED, Reason.below
        elif low > math.log(1.3) and two_sided:
            expected = REFUTED, Reason.above
        elif least >= -0.01 and low > math.log(1.3):
            expected = EXCEEDED, None
        elif least >= -0.01 and low >= math.log(1.2) and high <= math.log(1.3):
            expected = CONFIRMED, None
        assert shown(judged) == expected
        assert judged.failed == ["val_loss"] * bool(most < -0.01)
        outcomes.add(expected)
    assert outcomes == {
        (CONFIRMED, None),
        (REFUTED, Reason.above) if two_sided else (EXCEEDED, None),
        *((REFUTED, reason) for reason in (Reason.below, Reason.guard)),
        (INCONCLUSIVE, Reason.undecided),
    }


IN = around(1.25)
OVER = around(1.4)
UNDER = around(1.1)
SPLIT = around(1.3)
FINE = [0.0, 0.001, -0.001]
BAD = [-0.02, -0.021, -0.019]
UNSURE = [-0.01, -0.011, -0.009]


PLACES = [
    (IN, FINE, CONFIRMED, None),
    (OVER, FINE, EXCEEDED, None),
    (UNDER, FINE, REFUTED, Reason.below),
    (SPLIT, FINE, INCONCLUSIVE, Reason.undecided),
    (IN, UNSURE, INCONCLUSIVE, Reason.undecided),
    (OVER, UNSURE, INCONCLUSIVE, Reason.undecided),
    (UNDER, UNSURE, REFUTED, Reason.below),  # nothing that the guard may show would help it
    *((each, BAD, REFUTED, Reason.guard) for each in (IN, OVER, UNDER, SPLIT)),
]


@pytest.mark.parametrize(("gains", "guard", "word", "reason"), PLACES)
def test_each_place_of_a_claim_beside_each_of_its_guard(
    gains: list[float], guard: list[float], word: ClaimWord, reason: Reason | None
):
    made = claim(guards=[LOSS_GUARD])
    judged = judge(made, speeds(gains), losses(*guard))
    assert judged.word is word
    assert judged.reason is reason


SHARED = {"expected": [0.4, 0.5], **SHARE}
DECODED = {
    "metric": "decode_tokens_per_s",
    "scale": Scale.value,
    "expected": [27.0, 31.0],
    "mechanism": NO_BOUND,
}


VALUES = [
    (SHARED, around(0.6), REFUTED, Reason.above),
    (SHARED, around(0.45), CONFIRMED, None),
    (SHARED, around(0.15), REFUTED, Reason.below),
    (SHARED, [0.3, 0.45, 0.6], INCONCLUSIVE, Reason.undecided),
    (DECODED, around(40.0), EXCEEDED, None),
    (DECODED | {"two_sided": True}, around(40.0), REFUTED, Reason.above),
]


@pytest.mark.parametrize(("about", "values", "word", "reason"), VALUES)
def test_a_value_needs_no_baseline(
    about: dict[str, Any], values: Values, word: ClaimWord, reason: Reason | None
):
    judged = judge(claim(**about), (about["metric"], values, []))
    assert judged.word is word
    assert judged.reason is reason


def test_above_what_arithmetic_allows():
    beyond = [judge(claim(), speeds(gains)).beyond_bound for gains in (OVER, IN, UNDER)]
    assert beyond == [True, False, False]
    assert not judge(claim(), speeds([1.2, 1.4, 1.6])).beyond_bound  # its interval holds the bound
    assert not judge(claim(), speeds([])).beyond_bound
    assert not judge(claim(mechanism=NO_BOUND), speeds(OVER)).beyond_bound


def test_each_scale_of_a_study_has_its_margin():
    made = claim(guards=[LOSS_GUARD])
    metrics = (speeds(IN), losses(-0.0075, -0.0076, -0.0074))
    assert judge(made, *metrics).word is CONFIRMED
    judged = judge(made, *metrics, at="gpu")
    assert judged.word is REFUTED
    assert judged.reason is Reason.guard
    assert judged.failed == ["val_loss"]
    with pytest.raises(
        ValueError, match=r"guard val_loss\.margins must name the scale slurm, got cpu, gpu"
    ):
        judge(made, *metrics, at="slurm")
    guards = [Guard(metric="val_loss", scale=Scale.ratio, margins={"cpu": 1.01})]
    ratio = claim(guards=guards)
    # 1% of 3.4 is 0.034
    words = [judge(ratio, speeds(IN), losses(*around(-x))).word for x in (0.03, 0.04)]
    assert words == [CONFIRMED, REFUTED]


def test_what_agrees_but_for_rounding_is_within():
    """Counts of a profile, which have no clock's bias."""
    made = claim(metric="memory_mib", expected=[3.0, None])
    for factor, word in ((1.0, CONFIRMED), (1 - 5e-7, CONFIRMED), (1 - 5e-6, REFUTED)):
        held = ("memory_mib", [100.0] * 3, [300.0 * factor] * 3)
        assert judge(made, held).word is word
    counted = {
        "metric": "held_mib",
        "parts": ["parameters"],
        "scale": Scale.value,
        "mechanism": NO_BOUND,
    }
    cases = (
        ([None, 1e4], 1e4 + 0.005, CONFIRMED),
        ([None, 1e4], 1e4 + 0.05, REFUTED),
        ([1e4, 2e4], 1e4 - 0.005, CONFIRMED),
    )
    for expected, value, word in cases:
        mib = ("held_mib", [value] * 3, [])
        assert judge(claim(expected=expected, **counted), mib).word is word


def test_what_is_counted_needs_one_value_and_has_no_noise():
    made = claim(metric="kv_bytes", expected=[4.0, None])
    judged = judge(made, ("kv_bytes", [128.0], [512.0]), per=Per.exact)
    assert judged.word == CONFIRMED
    assert judged.n == 1
    assert judged.primary.per == Per.exact
    expected = (math.log(4), math.log(4))
    interval = judged.primary.interval()
    assert ends(interval) == pytest.approx(expected)
    kv_bytes = ("kv_bytes", [128.0, 128.0], [512.0, 512.0])
    assert judge(made, kv_bytes, per=Per.exact).n == 1
    one_byte_more = ("kv_bytes", [129.0], [512.0])
    assert judge(made, one_byte_more, per=Per.exact).word is REFUTED
    alone = judge(made, ("kv_bytes", [128.0], []), per=Per.exact)
    assert alone.word is INCONCLUSIVE
    assert alone.reason is Reason.missing


# --- analyses -------------------------------------------------------------------------------------


def test_pairs_are_analysed_at_three_six_and_twelve_and_at_no_other_number():
    gains = [0.010, 0.011, 0.012, 0.2, -0.2, 0.3, 0.01]
    for n, counted, analysis in ((3, 3, 1), (4, 3, 1), (5, 3, 1), (6, 6, 2), (7, 6, 2)):
        judged = judge(claim(9, **LOSS), losses(*gains[:n]))
        assert judged.n == counted
        assert judged.primary.analysis == analysis
        assert judged.missing == []
        half_width = judged.primary.interval().half_width
        expected = half(gains[:counted], analysis=analysis)
        assert half_width == pytest.approx(expected)
        assert judged.word is (CONFIRMED if n < 6 else INCONCLUSIVE)


def test_pairs_count_in_their_order_and_none_is_passed_over():
    def without(*seeds: int) -> Verdict:
        gains = []
        for seed in range(1, 7):
            gains.append(math.nan if seed in seeds else 0.01 + 0.001 * (seed % 3))
        return judge(claim(6, **LOSS), losses(*gains))

    expected = [(CONFIRMED, n) for n in (6, 3, 3)]
    words = [(without(*lost).word, without(*lost).n) for lost in ((), (6,), (4, 5))]
    assert words == expected
    judged = without(2)  # five pairs are there, and the second is not
    assert judged.word is INCONCLUSIVE
    assert judged.reason is Reason.missing
    assert judged.n == 1
    assert judged.primary.enough is False
    gap = Missing(metric="val_loss", arm="gqa", per="seed", repeat=2)
    assert judged.missing == [gap]
    interval = judged.primary.interval()
    assert not math.isfinite(interval.high)


def test_what_is_missing_is_named_and_decides_nothing():
    made = claim(guards=[LOSS_GUARD])
    none = judge(made)
    assert none.word is INCONCLUSIVE
    assert none.reason is Reason.missing
    assert none.n == 0
    assert none.failed == []
    assert none.more() is None
    expected = [
        ("tokens_per_s", "gqa", 1),
        ("tokens_per_s", "mha", 1),
        ("val_loss", "gqa", 1),
        ("val_loss", "mha", 1),
    ]
    assert [(lack.metric, lack.arm, lack.repeat) for lack in none.missing] == expected
    unguarded = judge(made, speeds(UNDER))  # not even refuted
    assert unguarded.word is INCONCLUSIVE
    assert unguarded.reason is Reason.missing
    assert len(unguarded.missing) == 2
    unheld = judge(claim(), speeds(IN[:2]), per=Per.session)
    assert unheld.n == 2
    lacks = {(lack.per, lack.repeat) for lack in unheld.missing}
    assert lacks == {("session", 3)}
    guard = judge(made, losses(*BAD))
    assert guard.word is INCONCLUSIVE
    assert guard.reason is Reason.missing
    assert guard.failed == ["val_loss"]


# --- runs that did not end as others --------------------------------------------------------------


def test_a_diverged_run_counts_as_worst_and_a_diverged_baseline_says_nothing():
    judged = judge(claim(), speeds([1.25, 1.26, None]))
    assert judged.word is REFUTED
    assert judged.reason is Reason.below
    assert judged.n == 3
    assert judged.endings[Ending.diverged] == ["gqa, seed 3"]
    interval = judged.primary.interval()
    assert math.isnan(interval.mid)
    # a baseline that breaks is no gain of the arm's
    for gains in (OVER, UNDER, [None, 1.25, 1.25], [1.25, 1.25, None]):
        judged = judge(claim(), speeds(gains, [None, 100.0, 100.0]))
        assert judged.word is INCONCLUSIVE
        assert judged.reason is Reason.undecided
    lost = ("val_loss", [3.4, None, 3.4], [3.4] * 3)
    made = claim(guards=[LOSS_GUARD])
    guard = judge(made, speeds(IN), lost)
    assert guard.word is REFUTED
    assert guard.reason is Reason.guard
    assert guard.endings[Ending.diverged] == ["gqa, seed 2"]
    of_losses = claim(
        metric="val_loss", scale=Scale.value, expected=[None, 3.5], mechanism=NO_BOUND
    )
    value = judge(of_losses, ("val_loss", [3.4, None, 3.4], []))
    # a value has no worst
    assert value.word is INCONCLUSIVE
    assert value.reason is Reason.undecided


def test_a_target_that_the_shortest_schedule_reaches_took_at_most_that():
    def word(arm: Values, base: Values, low: float = 1.2, high: float | None = None) -> ClaimWord:
        judged = judge(
            claim(expected=[low, high], **RACE), ("time_to_target_s", arm, base), at_most=200.0
        )
        expected = 200.0 in (*arm, *base)
        assert bool(judged.endings[Ending.at_most]) == expected
        return judged.word

    early = (200.0, 200.0, 190.0)
    quick = (500.0, 501.0, 502.0)
    slow = (960.0, 961.0, 962.0)
    assert word(quick, slow) is CONFIRMED
    assert word(early, slow) is CONFIRMED  # at least 960/200
    assert word(early, slow, high=9.0) is INCONCLUSIVE  # and perhaps more than nine times
    assert word(early, slow, high=1.5) is EXCEEDED
    assert word(slow, early) is REFUTED  # at most 200/960
    assert word(early, early) is INCONCLUSIVE  # nobody knows
    assert word((200.0, 230.0, 205.0), (200.0, 230.0, 240.0)) is INCONCLUSIVE
    with pytest.raises(ValueError, match="tokens_per_s must have an exact value \\(only a"):
        judge(claim(), ("tokens_per_s", [200.0] * 3, [1.0] * 3), at_most=200.0)
    own = {"scale": Scale.value, "expected": [None, 600.0]}
    times = ("time_to_target_s", early, [])
    raced = claim(**RACE | own)
    assert judge(raced, times, at_most=200.0).word is CONFIRMED
    slow_times = ("time_to_target_s", slow, [])
    raced = claim(**RACE | own)
    assert judge(raced, slow_times, at_most=200.0).word is REFUTED
    own["expected"] = [100.0, 600.0]
    times = ("time_to_target_s", early, [])
    raced = claim(**RACE | own)
    assert judge(raced, times, at_most=200.0).word is INCONCLUSIVE


def test_bounds_that_are_equal_have_no_spread_and_decide_nothing():
    def bounded(arm: Ending, base: Ending, low: float, spread: float) -> Verdict:
        rows = []
        for i in (1, 2, 3):
            for name, value, ending in (("gqa", 300.0 + spread * i, arm), ("mha", 400.0, base)):
                rows.append(
                    Measurement(
                        arm=name,
                        repeat=i,
                        metric=METRICS["steps_to_target"],
                        value=value,
                        ending=ending,
                    )
                )
        made = claim(**{**RACE, "metric": "steps_to_target", "expected": [low, None]})
        return verdict.judge(made, rows, against="mha", at="cpu")

    most = Ending.at_most
    exact = Ending.measured
    for sides in ((most, exact), (exact, most), (most, most)):
        words = {bounded(*sides, low, 0.0).word for low in (0.5, 2.0)}
        assert words == {INCONCLUSIVE}
    # two arms that are one run agree to the last bit
    assert bounded(exact, exact, 1.3, 0.0).word is CONFIRMED
    low_end = bounded(most, exact, 1.2, 0.1)  # at most 300 steps for 400
    assert low_end.word == CONFIRMED
    expected = [f"gqa, seed {i}" for i in (1, 2, 3)]
    assert low_end.endings[Ending.at_most] == expected
    assert bounded(exact, most, 1.5, 0.1).word is REFUTED  # 300 steps for at most 400


# --- scales ---------------------------------------------------------------------------------------


def test_the_noise_of_a_time_multiplies_and_no_interval_of_it_goes_below_nothing():
    times = [2.0, 4.0, 12.0]
    value = claim(metric="decode_ms", scale=Scale.value, expected=[None, 100.0], mechanism=NO_BOUND)
    interval = judge(value, ("decode_ms", times, [])).primary.interval()
    logs = np.log(times)
    # no bias: no second instance
    expected = (logs.mean() - wide(logs), logs.mean() + wide(logs))
    assert ends(interval) == pytest.approx(expected)
    shares = ("share", [0.2, 0.4, 0.6], [])
    plain = judge(claim(expected=[0.1, 0.9], **SHARE), shares).primary.interval()
    assert plain.mid == pytest.approx(0.4)
    with pytest.raises(ValueError, match="decode_ms must be above 0 for a value"):
        judge(value, ("decode_ms", [0.0] * 3, []))
    with pytest.raises(ValueError, match="tokens_per_s must be above 0 for a ratio"):
        judge(claim(), speeds([0.0] * 3))


def test_a_speed_must_clear_its_end_by_the_bias_of_an_instance():
    made = claim(expected=[1.0, None])
    gains = [math.exp(0.005)] * 3
    ratio = math.exp(-1e-4)
    for factor, word in ((ratio, INCONCLUSIVE), (math.exp(1e-4), CONFIRMED)):
        faster = speeds([g * factor for g in gains])
        assert judge(made, faster).word is word
    ratio = math.exp(-1e-4)
    for factor, word in ((ratio, REFUTED), (math.exp(1e-4), INCONCLUSIVE)):
        slower = speeds([factor / g for g in gains])
        assert judge(made, slower).word is word
    step = claim(metric="step_ms", scale=Scale.difference, expected=[1.0, None], mechanism=NO_BOUND)
    step_times = [200.0] * 3
    half_width = judge(step, ("step_ms", step_times, [202.0] * 3)).primary.interval().half_width
    assert half_width == pytest.approx(0.005 * 201)
    # counted, not timed
    steps = claim(metric="steps_to_target", expected=[1.0, None], target="baseline")
    assert judge(steps, ("steps_to_target", [399.0] * 3, [400.0] * 3)).word is CONFIRMED


# --- a declared noise -----------------------------------------------------------------------------


NOISES = [
    ("val_loss", Scale.difference, 0.01),
    ("val_loss", Scale.ratio, 0.01 / 3.4),  # of a logarithm: the difference over the loss
    ("val_bpb", Scale.difference, 0.01),
    ("tokens_per_s", Scale.ratio, 0.01),
    ("step_ms", Scale.difference, 0.01 * 3.4),
    ("steps_to_target", Scale.ratio, 0.01),
    ("share", Scale.value, None),  # a pair's noise says nothing of one value
]


@pytest.mark.parametrize(("metric", "scale", "sd"), NOISES)
def test_a_declared_noise_is_translated_to_the_claims_scale(
    metric: str, scale: Scale, sd: float | None
):
    own = {"share": {"parts": ["scores"]}, "steps_to_target": {"target": "baseline"}}.get(
        metric, {}
    )
    made = claim(metric=metric, scale=scale, expected=[0.5, None], mechanism=NO_BOUND, **own)
    values = (metric, [3.4, 3.39, 3.41], [] if scale is Scale.value else [3.4, 3.41, 3.39])
    declared = Declared(sd=0.01, df=8, source="made")
    primary = judge(made, values, noise={metric: declared}).primary
    assert (primary.declared and primary.declared.sd) == (sd if sd is None else pytest.approx(sd))


def test_a_declared_noise_narrows_and_is_dropped_where_pairs_contradict_it():
    gains = [0.012, 0.018, 0.015]  # sd 0.003
    alone = judge(claim(**LOSS), losses(*gains), noise={})
    known = judge(claim(**LOSS), losses(*gains), noise=QUIET)
    # a noise of 0.01 is wider than what these three had
    assert alone.word == CONFIRMED
    assert known.word == INCONCLUSIVE
    assert alone.primary.interval().half_width == pytest.approx(half(gains))
    half_width = known.primary.interval().half_width
    quantile = stats.t.isf(0.005, 10)
    expected = quantile * 0.01 / math.sqrt(3)
    assert half_width == pytest.approx(expected)
    assert judge(claim(**LOSS), losses(*(g + 0.01 for g in gains)), noise=QUIET).word is CONFIRMED
    loud = [0.01, 0.03, 0.02]
    words = [judge(claim(**LOSS), losses(*loud), noise=noise).word for noise in ({}, QUIET)]
    assert words == [INCONCLUSIVE, CONFIRMED]
    cases = (
        (0.02, "pairs, noise declared"),
        (0.022, "pairs (Student)"),
        (1.01e-4, "pairs, noise declared"),
        (9.9e-5, "pairs (Student)"),
    )
    for spread, method in cases:
        interval = judge(
            claim(**LOSS), losses(*around(0.1, spread)), noise=QUIET
        ).primary.interval()
        # F of 2 and 8 degrees: 5% above 4.46, one in 10,000 below 1e-4
        assert interval.method == method
        if method == "pairs (Student)":
            assert interval.half_width == pytest.approx(half(around(0.1, spread)))


# --- how many pairs would decide ------------------------------------------------------------------


def test_how_many_more_pairs_would_decide():
    """Gains of 1 ± 1 (sd 1) against an end, to the next analysis whose interval clears it in nine
    cases of ten."""

    def more(expected: list[float | None], **changed: Any) -> int | None:
        changed_claim = claim(**{**LOSS, "expected": expected, **changed})
        judged = judge(changed_claim, losses(0.0, 1.0, 2.0))
        assert judged.word is INCONCLUSIVE
        return (judged.more() or {}).get("seed")

    def wanted(distance: float) -> int:
        k = 2
        n = 6
        while (stats.t.isf(0.025 / k**2, n - 1) + stats.norm.isf(0.1)) / math.sqrt(n) > distance:
            k += 1
            n *= 2
        return n - 3

    counts = [wanted(x) for x in (1.5, 1.0, 0.6)]
    assert counts == [9, 21, 93]
    assert more([0.4, None]) == wanted(0.6)
    assert more([1.6, None]) == wanted(0.6)  # as far on the other side: a refutation
    assert more([0.0, 1.6]) == wanted(0.6)  # both ends must hold: the nearer one decides
    assert more([2.0, 2.5]) == wanted(1.0)  # outside: the end that it is outside of
    assert more([1.0, None]) is None  # on the end itself no number would
    # whose 21 would not do
    bits = Guard(metric="val_bpb", scale=Scale.difference, margins={"cpu": 0.0})
    bits_losses = ("val_bpb", [2.0, 1.0, 0.0], [2.0] * 3)
    both = judge(
        claim(**{**LOSS, "expected": [0.4, None]}, guards=[bits]),
        losses(0.0, 1.0, 2.0),
        bits_losses,
    )
    assert both.more() == {"seed": wanted(0.6)}
    guarded = claim(guards=[LOSS_GUARD])
    worse = losses(-0.01, -0.011, -0.009)
    assert judge(guarded, speeds(IN), worse).more() is None
    assert judge(guarded, speeds(IN), losses(*FINE)).more() is None  # decided


def test_seeds_and_sessions_that_would_decide_are_counted_apart():
    """A speed that sessions do not show, beside a loss that seeds do not."""
    guards = [Guard(metric="val_loss", scale=Scale.ratio, margins={"cpu": 1.02})]
    sides = {"gqa": ((1.3, 1.4, 1.5), (3.4, 3.3, 3.5)), "mha": ([1.0] * 3, [3.4] * 3)}
    rows = []
    for arm, (speed, loss) in sides.items():
        cases = (
            *measured(arm, "tokens_per_s", speed, per=Per.session),
            *measured(arm, "val_loss", loss),
        )
        for row in cases:
            rows.append(row)
    judged = verdict.judge(
        claim(expected=[1.2, None], guards=guards), rows, against="mha", at="cpu"
    )
    assert judged.word is INCONCLUSIVE
    assert (judged.more() or {}).keys() == {"seed", "session"}
