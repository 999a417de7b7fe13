"""Claims, their verdicts and the seeds they need: against scipy's tests, the planning table, and cases worked out by hand."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from scipy import stats as scipy_stats

from nocap.config.errors import explain
from nocap.judge import stats
from nocap.judge.claim import Claim, Guard, Mechanism
from nocap.judge.margin import Direction
from nocap.judge.noise import Prior
from nocap.judge.power import plan
from nocap.judge.verdict import Judge, Reason, Word
from nocap.store.measurement import METRICS, Ending, Measurement, Per, Scale
from nocap.study import __main__ as study_command
from tests.conftest import Door

Values = Sequence[float | None]
SPEED = {
    "id": "gqa",
    "statement": "4 key/value heads train 20 to 30% faster at a validation loss within 0.01",
    "source": "note 000",
    "arm": "gqa",
    "metric": "tokens_per_s",
    "scale": Scale.ratio,
    "expected": [1.2, 1.3],
    "mechanism": Mechanism(bound=1.08, formula="7.1% fewer FLOPs: 1 / (1 - 0.071)"),
    "seeds": [1, 2, 3],
}
LOSS_GUARD = Guard(metric="val_loss", scale=Scale.difference, margins={"cpu": 0.01, "gpu": 0.005})
NO_BOUND = Mechanism(bound=None, formula="none")
LOSS: dict[str, Any] = {"metric": "val_loss", "scale": Scale.difference, "expected": [0.0, None], "mechanism": NO_BOUND}


def claim(**changed: Any) -> Claim:
    return Claim(**{**SPEED, **changed})


def measured(arm: str, metric: str, values: Values, *, censored: float | None = None) -> list[Measurement]:
    """One arm's, with the seeds 1, 2, …: null diverged, and `censored` is the value of a run that never reached its target."""

    def ending(value: float | None) -> Ending:
        return Ending.diverged if value is None else Ending.censored if value == censored else Ending.measured

    values = list(values)
    return [Measurement(arm=arm, repeat=i, metric=METRICS[metric], value=v, ending=ending(v)) for i, v in enumerate(values, start=1)]


def judge(
    made: Claim,
    *metrics: tuple[str, Values, Values],
    without: Sequence[tuple[str, int]] = (),
    at: str = "cpu",
    noise: Mapping[str, Prior] | None = None,
    lacking: Sequence[str] = (),
    **how: Any,
) -> Judge:
    """A judge of made measurements: metric, values of gqa, values of the baseline. `without`: (arm, seed) that are missing."""
    found = [m for name, *sides in metrics for arm, of in zip(("gqa", "mha"), sides, strict=True) for m in measured(arm, name, of, **how)]
    there = [m for m in found if (m.arm, m.repeat) not in without]
    return Judge(made, there, against="mha", at=at, noise=noise, lacking=lacking)


def speeds(gains: Values, base: Values | None = None, **how: Any) -> tuple[str, Values, Values]:
    return "tokens_per_s", [None if gain is None else 100 * gain for gain in gains], base or [100.0] * len(gains)


def seeded(n: int, **changed: Any) -> Claim:
    return claim(seeds=list(range(1, n + 1)), **changed)


# --- metrics -----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("metric", "scale", "gain", "words"),
    [
        ("tokens_per_s", Scale.ratio, 1.074, "7.4% faster"),
        ("tokens_per_s", Scale.ratio, 0.9, "10.0% slower"),
        ("step_ms", Scale.ratio, 1.25, "20.0% less time"),  # the time itself, as claims about it have it
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
        ("share", Scale.value, 0.358, "0.358"),
    ],
)
def test_a_gain_in_words(metric: str, scale: Scale, gain: float, words: str):
    assert METRICS[metric].describe(gain, scale) == words


# --- claims ------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"expected": [1.3, 1.2]}, "claim gqa: expected must hold something: low below high, got [1.3, 1.2]"),
        ({"expected": [1.2, 1.2]}, "hold something"),
        ({"expected": [None, None]}, "one of them may be null, got [None, None]"),
        ({"expected": [1.2]}, "be [low, high]"),
        ({"expected": [0.0, 1.2]}, "be above 0 for a ratio"),
        ({"expected": [1.2, math.inf]}, "be finite numbers or null"),
        ({"expected": [1.2, None], "two_sided": True}, "two_sided must have both ends stated"),
        ({"seeds": [1, 2]}, "seeds must be at least 3: fewer pairs have no verdict, got 2"),
        ({"seeds": [1, 2, 2]}, "seeds must differ"),
        ({"alpha": 0.0}, "alpha must be above 0 and below 0.5, got 0.0"),
        ({"alpha": math.nan}, "alpha must be"),
        ({"looks": 2}, "looks must be numbers of pairs, from at least 3 up to all 3, as in [3, 6], got 2"),  # the form of old studies
        ({"looks": [2, 3]}, "looks must be numbers of pairs, from at least 3"),
        ({"looks": [3, 4]}, "looks must be numbers of pairs, from at least 3 up to all 3"),
        ({"looks": [3, 3]}, "looks must be numbers of pairs"),
        ({"looks": [3.0]}, "looks must be numbers of pairs"),
        (
            {"expected": [None, 1.2]},
            "expected must have a low end: [1, null] states faster, and [null, 1] with direction: worse ",
        ),
        (
            {"direction": Direction.worse},
            "direction must be better for a value, and where expected begins at no change or above",
        ),
        (
            {**LOSS, "slack": {"cpu": -0.1}},
            "slack.cpu must be a finite number of at least 0 for a difference, or a share",
        ),
        ({**LOSS, "slack": {"cpu": "5%"}}, "slack.cpu must be a finite number of at least 0"),
        ({**LOSS, "slack": {"cpu": "0% of steps"}}, "slack.cpu must be a finite number of at least 0"),
        ({**LOSS, "metric": "val_bpb", "slack": {"cpu": "5% of steps"}}, "be a number where it is not about a difference of val_loss"),
        ({"metric": "train_s"}, "claim gqa: metric must be one of val_loss, val_bpb, steps_to_target, "),  # no instrument of a claim
        ({"metric": "share"}, "scale must be value for share, got ratio"),
        ({"metric": "time_to_target_s"}, "target must be a loss above 0, or baseline, for a claim about time or steps to target"),
        ({"target": 3.4}, "and null for others, got 3.4"),
        ({"statement": " "}, "statement must be given"),
        ({"guards": [LOSS_GUARD, LOSS_GUARD]}, "guards must each have a metric of their own"),
        ({"mechanism": Mechanism(bound=0.0, formula="x")}, "mechanism.bound must be above 0 for a ratio"),
    ],
)
def test_invalid_claims(changed: dict[str, Any], reason: str):
    with pytest.raises(ValueError) as refused:
        claim(**changed)
    assert reason in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("guard", "reason"),
    [
        ({"margins": {}}, "guard val_loss.margins must name a scale of the study"),
        (
            {"margins": {"cpu": -0.1}},
            "margins.cpu must be a finite number of at least 0 for a difference, or a share",
        ),
        ({"margins": {"cpu": 0.9}, "scale": Scale.ratio}, "at least 1 for a ratio"),
        ({"margins": {"cpu": "5% of steps"}, "scale": Scale.ratio}, "margins.cpu must be a number where it is not about a difference"),
        ({"scale": Scale.value}, "scale must be ratio or difference"),
        ({"metric": "exponent"}, "can be better or worse"),
        ({"metric": "train_s"}, "guard metric must be one of .*, got train_s"),
    ],
)
def test_invalid_guards(guard: dict[str, Any], reason: str):
    with pytest.raises(ValueError, match=reason):
        Guard(**{"metric": "val_loss", "scale": Scale.difference, "margins": {"cpu": 0.01}, **guard})


YAML = """
id: gqa
statement: 4 key/value heads train 20 to 30% faster at a validation loss within 0.01
source: note 000
arm: gqa
metric: tokens_per_s
scale: ratio
expected: [1.2, null]
guards: [{metric: val_loss, scale: difference, margins: {cpu: 0.01}}]
mechanism: {bound: 1.08, formula: fewer FLOPs}
seeds: [1, 2, 3]
"""


def test_a_claim_is_read_from_yaml_and_checked():
    def read(text: str) -> Claim:
        found = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(Claim), OmegaConf.create(text)))
        assert isinstance(found, Claim)
        return found

    def with_line(line: str) -> str:
        key = line.split(":")[0]
        return "\n".join([*(other for other in YAML.splitlines() if not other.startswith(f"{key}:")), line])

    found = read(YAML)
    assert (found.metric, found.expected, found.guards[0].margin("cpu")) == ("tokens_per_s", [1.2, None], 0.01)
    for line, reason in (("metric: speed", "speed"), ("alpha: often", "often"), ("surprise: 1", "surprise"), ("seeds: [1]", "at least 3")):
        with pytest.raises((OmegaConfBaseException, ValueError)) as refused:
            read(with_line(line))
        assert reason in explain(refused.value)
        assert "\n" not in explain(refused.value)


# --- verdicts ----------------------------------------------------------------------------------------------------------------------


WIDER = 1 + 3.3 / math.sqrt(4)  # of a bound that decides, at four pairs whose noise was not declared


def p_above(values: Any, end: float, *, bias: float = 0.0) -> float:
    """Of "the mean is no higher", after taking the bias off."""
    t = (np.mean(values) - bias - end) / (WIDER * scipy_stats.sem(values))
    return float(scipy_stats.t.sf(t, len(values) - 1))


def reference(claim: Claim, gain: Any, worse: Any, margin: float) -> Word:
    """The rule of the verdict by scipy's t: `gain` is the logarithm of a speed, which may be 0.5% off, `worse` the guard's."""
    low, high = (math.log(end) for end in claim.expected if end is not None)
    each = claim.alpha / 2
    if p_above(-gain, -low, bias=0.005) < each / 2 or p_above(worse, margin) < each:
        return Word.refuted
    if claim.two_sided and p_above(gain, high, bias=0.005) < each / 2:
        return Word.refuted
    ok = p_above(gain, low, bias=0.005) < claim.alpha and p_above(-worse, -margin) < claim.alpha
    ok = ok and (not claim.two_sided or p_above(-gain, -high, bias=0.005) < claim.alpha)
    return Word.confirmed if ok else Word.inconclusive


@pytest.mark.parametrize("two_sided", [False, True])
@pytest.mark.parametrize("metric", ["tokens_per_s", "step_ms"])
def test_verdicts_are_scipys_tests(metric: str, two_sided: bool):
    rng, seen = np.random.default_rng(5), set()
    made = seeded(4, metric=metric, two_sided=two_sided, guards=[LOSS_GUARD])
    for _ in range(120):
        gain, worse = rng.normal(rng.uniform(0.1, 0.4), 0.008, 4), rng.normal(rng.choice([0.0, 0.01, 0.02]), 0.002, 4)
        base, loss = rng.uniform(90, 110, 4), rng.normal(3.4, 0.05, 4)
        arm = base * np.exp(gain if metric == "tokens_per_s" else -gain)
        found = judge(made, (metric, arm, base), ("val_loss", loss + worse, loss)).verdict()
        assert found.word is reference(made, gain, worse, 0.01)
        assert found.interval is not None
        assert found.interval.mid == pytest.approx(math.exp(gain.mean()))
        half = 1.9 * scipy_stats.sem(gain) * scipy_stats.t.ppf(0.975, 3) + 0.005  # sittings resemble their neighbours
        assert (found.interval.low, found.interval.high) == pytest.approx((math.exp(gain.mean() - half), math.exp(gain.mean() + half)))
        seen.add((found.word, found.reason))
    assert {word for word, _ in seen} == set(Word) - {Word.equivalent}  # which needs a slack
    assert {Reason.below, Reason.guard} <= {reason for _, reason in seen}
    assert ((Word.refuted, Reason.exceeded) in seen) == two_sided


def test_how_much_worse_a_guard_is_has_scipys_interval():
    mine, base = np.array([3.41, 3.43, 3.42, 3.46]), np.array([3.40, 3.41, 3.43, 3.44])
    judging = judge(seeded(4, guards=[LOSS_GUARD]), ("val_loss", mine, base))
    for scale, gap, back in ((Scale.difference, mine - base, float), (Scale.ratio, np.log(mine / base), math.exp)):
        worse = judging.worse(METRICS["val_loss"], scale)
        expected = scipy_stats.ttest_1samp(gap, 0).confidence_interval(0.95)
        assert worse is not None
        assert (worse.mid, worse.low, worse.high) == pytest.approx((back(gap.mean()), back(expected.low), back(expected.high)))
    assert judge(claim(), ("val_loss", [3.4, None, 3.4], [3.4] * 3)).worse(METRICS["val_loss"], Scale.difference) is None


def test_above_the_stated_top_is_reported_and_above_the_bound_too():
    found = judge(claim(), speeds([1.50, 1.51, 1.52])).verdict()
    assert (found.word, found.reason, found.exceeded, found.beyond_bound) == (Word.confirmed, None, True, True)
    found = judge(claim(), speeds([1.050, 1.051, 1.052])).verdict()
    assert (found.word, found.reason, found.exceeded, found.beyond_bound) == (Word.refuted, Reason.below, False, False)


def test_each_scale_of_a_study_has_its_margin():
    made, base = claim(guards=[LOSS_GUARD]), [3.400, 3.401, 3.402]
    metrics = speeds([1.25, 1.26, 1.27]), ("val_loss", [x + 0.0075 for x in base], base)
    assert judge(made, *metrics).verdict().word is Word.confirmed
    found = judge(made, *metrics, at="gpu").verdict()
    assert (found.word, found.reason, found.failed) == (Word.refuted, Reason.guard, ["val_loss"])
    with pytest.raises(ValueError, match=r"guard val_loss\.margins must name the scale slurm, got cpu, gpu"):
        judge(made, *metrics, at="slurm").verdict()


def test_a_missing_run_is_named_and_decides_nothing():
    made, metric = seeded(4), speeds([1.25, 1.26, 1.27, 1.28])
    assert judge(made, metric).verdict().word is Word.confirmed
    judging = judge(made, metric, without=[("gqa", 4)])
    found = judging.verdict()
    assert (found.word, found.reason, found.n) == (Word.inconclusive, Reason.missing, 3)
    assert found.missing == ["tokens_per_s of gqa, seed 4"]
    assert found.interval is not None
    assert judging.more() is None
    fewer = judge(made, metric, without=[("gqa", 4), ("mha", 1)]).verdict()
    assert (fewer.word, fewer.n, fewer.interval) == (Word.inconclusive, 2, None)
    assert fewer.missing == ["tokens_per_s of baseline, seed 1", "tokens_per_s of gqa, seed 4"]
    none = judge(claim(guards=[LOSS_GUARD])).verdict()
    assert (none.word, none.n, len(none.missing)) == (Word.inconclusive, 0, 12)


def test_a_diverged_run_counts_as_worst():
    made, arm = seeded(4), [1.25, 1.26, 1.27, None]
    found = judge(made, speeds(arm)).verdict()
    assert (found.word, found.reason, found.n, found.diverged) == (Word.refuted, Reason.below, 4, ["gqa, seed 4"])
    assert found.interval is None
    for gains in ([1.25, 1.26, 1.27, 1.28], arm):  # a baseline that breaks is no gain of the arm's
        found = judge(made, speeds(gains, [None, 100.0, 100.0, 100.0])).verdict()
        assert (found.word, found.reason) == (Word.inconclusive, Reason.undecided)
    losses = ("val_loss", [3.4, None, 3.4], [3.4] * 3)
    found = judge(claim(guards=[LOSS_GUARD]), speeds([1.25, 1.26, 1.27]), losses).verdict()
    assert (found.word, found.reason, found.diverged) == (Word.refuted, Reason.guard, ["gqa, seed 2"])


def test_a_target_never_reached_counts_as_its_budget_or_more():
    made = claim(metric="time_to_target_s", target=3.4, expected=[1.2, None])

    def word(arm: Values, base: Values) -> Word:
        return judge(made, ("time_to_target_s", arm, base), censored=1000.0).verdict().word

    quick, slow, never = (500.0, 505.0, 510.0), (960.0, 965.0, 970.0), (1000.0, 1000.0, 990.0)
    assert word(quick, slow) is Word.confirmed
    assert word(quick, never) is Word.confirmed  # at least 1000/500
    assert word(never, slow) is Word.refuted  # at most 960/1000
    assert word(never, never) is Word.inconclusive  # nobody knows
    assert word((700.0, 1000.0, 705.0), (1000.0, 970.0, 980.0)) is Word.inconclusive
    with pytest.raises(ValueError, match="tokens_per_s must be about a target to be censored"):
        judge(claim(), ("tokens_per_s", [1000.0] * 3, [1.0] * 3), censored=1000.0).verdict()


def test_runs_that_agree_to_the_last_bit():
    counts = "memory_mib", [100.0] * 3, [300.0] * 3  # no clock's: no bias
    assert judge(claim(metric="memory_mib", expected=[3.0, None]), counts).verdict().word is Word.confirmed
    assert judge(claim(metric="memory_mib", expected=[3.001, None]), counts).verdict().word is Word.refuted


def test_a_value_needs_no_baseline_and_an_upper_end_alone_is_judged():
    made = claim(metric="share", parts=["scores"], scale=Scale.value, expected=[0.4, 0.5], two_sided=True, mechanism=NO_BOUND)
    words = {Word.confirmed: [0.44, 0.45, 0.46], Word.refuted: [0.14, 0.15, 0.16], Word.inconclusive: [0.3, 0.45, 0.6]}
    for word, values in words.items():
        assert judge(made, ("share", values, [])).verdict().word is word
    made = claim(metric="val_loss", scale=Scale.difference, expected=[None, 0.01], direction=Direction.worse, mechanism=NO_BOUND)
    small, large = (judge(made, ("val_loss", [3.40, 3.41, 3.42], [3.40 + gap, 3.411 + gap, 3.42 + gap])).verdict() for gap in (0.001, 0.05))
    assert (small.word, large.word, large.reason) == (Word.confirmed, Word.refuted, Reason.exceeded)


def test_the_noise_of_a_time_multiplies_and_no_interval_of_it_goes_below_nothing():
    """Sittings of a shared machine differ by factors: the ratio of a time to a constant has the same verdict as the time."""
    times = [2.0, 4.0, 12.0]
    own: dict[str, Any] = {"scale": Scale.value, "expected": [None, 100.0], "mechanism": NO_BOUND}
    value = claim(metric="decode_ms", **own)
    found = judge(value, ("decode_ms", times, [])).verdict()
    ratio = claim(metric="step_ms", expected=[0.01, None], mechanism=NO_BOUND)  # a step of 1 ms over them: at least 1/100
    against = judge(ratio, ("step_ms", times, [1.0] * 3)).verdict()
    assert found.interval is not None
    assert against.interval is not None
    assert 0 < found.interval.low < math.exp(np.log(times).mean()) < found.interval.high
    assert found.interval.mid == pytest.approx(math.exp(np.log(times).mean()))
    log = stats.interval(np.log(times), confidence=0.95)
    assert math.log(found.interval.high / found.interval.mid) >= log.half_width  # a clock's is wider
    assert (found.interval.low, found.interval.high) == pytest.approx((1 / against.interval.high, 1 / against.interval.low), rel=0.02)
    share = claim(metric="share", parts=["scores"], scale=Scale.value, expected=[0.1, 0.9], two_sided=True, mechanism=NO_BOUND)
    plain = judge(share, ("share", [0.2, 0.4, 0.6], [])).verdict().interval
    held = judge(claim(metric="memory_mib", **own), ("memory_mib", [20.0, 40.0, 120.0], [])).verdict().interval
    assert plain is not None
    assert held is not None
    assert (plain.mid, held.mid) == pytest.approx((0.4, 60))
    with pytest.raises(ValueError, match="decode_ms must be above 0 for a value"):
        judge(value, ("decode_ms", [0.0] * 3, [])).verdict()
    with pytest.raises(ValueError, match="expected must be above 0 for a ratio, a speed or a time"):
        claim(metric="decode_ms", scale=Scale.value, expected=[0.0, 100.0], mechanism=NO_BOUND)


def test_a_measurement_is_a_finite_number_unless_it_diverged():
    for value, ending in ((math.nan, Ending.measured), (None, Ending.measured), (1.0, Ending.diverged)):
        with pytest.raises(ValueError, match="a measurement of val_loss must be a finite number, or null where the run diverged"):
            Measurement(arm="a", repeat=1, metric=METRICS["val_loss"], value=value, ending=ending)
    with pytest.raises(ValueError, match="tokens_per_s must be above 0 for a ratio"):
        judge(claim(), speeds([0.0] * 3)).verdict()


def test_how_many_more_seeds_would_decide():
    """Means and spreads by hand: gains of 1 ± 1 (sd 1) against an end at 0.5, half a standard deviation away."""

    def more(expected: list[float | None], **changed: Any) -> int | None:
        made = claim(metric="val_loss", scale=Scale.difference, mechanism=NO_BOUND, expected=expected, **changed)
        judging = judge(made, ("val_loss", [4.0, 3.0, 2.0], [4.0] * 3))
        assert judging.verdict().word is Word.inconclusive
        return (judging.more() or {}).get("seed")

    def wanted(distance: float, alpha: float) -> int:
        """The first n at which a t-test, its bound as wide as an unknown noise needs, has a power of 0.9."""
        power = [stats.power_of(distance / (1 + 3.3 / math.sqrt(n)), n=n, alpha=2 * alpha, pairs=True) for n in range(3, 400)]
        return 3 + next(i for i, p in enumerate(power) if p >= 0.9)

    assert more([0.5, None]) == wanted(0.5, 0.05) - 3
    assert more([1.5, None]) == wanted(0.5, 0.025) - 3  # as far on the other side: a refutation
    assert more([0.5, 1.25], two_sided=True) == wanted(0.25, 0.05) - 3  # both ends must hold: the nearer one decides
    assert more([1.0, None]) is None  # on the end itself no number would


def test_seeds_and_sittings_that_would_decide_are_counted_apart():
    """A speed that three sittings show, beside a loss that three seeds do not."""
    guard = Guard(metric="val_loss", scale=Scale.ratio, margins={"cpu": 1.02})
    made = claim(expected=[1.2, None], guards=[guard])
    losses = [*measured("gqa", "val_loss", [3.4, 3.3, 3.5]), *measured("mha", "val_loss", [3.4] * 3)]

    def more(*speed: float) -> dict[str, int] | None:
        timed = [*measured("gqa", "tokens_per_s", speed), *measured("mha", "tokens_per_s", [1.0] * 3)]
        judging = Judge(made, [*(replace(one, per=Per.sitting) for one in timed), *losses], against="mha", at="cpu")
        assert judging.verdict().word is Word.inconclusive
        return judging.more()

    sure, unsure = more(1.4, 1.401, 1.402), more(1.3, 1.4, 1.5)
    assert sure is not None
    assert unsure is not None
    assert sure.keys() == {"seed"}
    assert unsure.keys() == {"seed", "sitting"}
    assert unsure["seed"] == sure["seed"] > 3


# --- seeds of a plan ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("effect", "pairs"), [(0.010, (3, 3, 4)), (0.005, (4, 4, 6)), (0.002, (9, 11, 21)), (0.001, (28, 38, 78))])
def test_seeds_for_ninety_percent(effect: float, pairs: tuple[int, ...]):
    found = [plan(effect=effect, sigma=sigma, scale=Scale.difference, power=0.9) for sigma in (0.0011, 0.0013, 0.0019)]
    assert tuple(p.pairs for p in found) == pairs
    assert all(p.power >= 0.9 for p in found)


def test_a_plan_is_one_line(capsys: pytest.CaptureFixture[str], door: Door):
    assert study_command.main(["--power", "0.9", "--effect", "0.005", "--sigma", "0.0013"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("4 pairs of seeds (8 runs) see a difference of 0.005 through sigma 0.0013 with a power of 0.9")
    assert out.count("\n") == 1
    done = door("study", "--power", "0.9", "--effect", "1%", "--sigma", "0.3%", module="nocap")  # the console script
    assert done.out.startswith("5 pairs of seeds (10 runs) see a ratio of 1%"), done.err  # steps to 3.285 vary by 0.2 to 0.5%: 5 to 8 pairs


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("--power 1 --effect 1 --sigma 1", "--power must be at least 0.5 and below 1, got 1.0"),
        ("--power 0.9 --effect 0 --sigma 1", "--effect must be above 0, got 0.0"),
        ("--power 0.9 --effect 1 --sigma nan", "--sigma must be above 0, got nan"),
        ("--power 0.9 --effect much --sigma 1", "--effect must be a number or a percentage, got much"),
        ("--power 0.9 --effect 2% --sigma 0.1", "--sigma must be a percentage as --effect is, got 0.1"),
        ("--power 0.9 --effect 0.1 --sigma 2%", "--sigma must be in --effect's unit, without %, got 2%"),
        ("--power 0.9 --effect 0.1", "--sigma must be given with --power, and only there, got None"),
        ("--power 0.9 --effect 1e-9 --sigma 1", "needs more than 100000 runs"),
        ("experiments/gqa --effect 1", "--effect must be given with --power, and only there, got 1"),
        (
            "experiments/gqa --power 0.9 --effect 1 --sigma 1",
            "FOLDER must be left out with --board, --noise and --power",
        ),
    ],
)
def test_refusals(words: str, reason: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as left:
        study_command.main(words.split())
    assert left.value.code == 2
    err = capsys.readouterr().err
    assert reason in err
    assert err.count("\n") == 1


def test_a_command_without_arguments_is_refused(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as left:
        study_command.main([])
    assert left.value.code == 2
    assert "a study's folder, or one of --board --noise --power is required" in capsys.readouterr().err
