"""The judge of a race: rows in, a result out. Gains against scipy, words by the rules, what is
refused."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean

import numpy as np
import pytest
from scipy import stats

from nocap.judge.cautious_interval import CLOCK_BIAS
from nocap.judge.differences import DifferenceWord
from nocap.judge.races import NOT_REACHED, Limit, RacedArm, RaceQuestion, RaceRows, judge
from nocap.judge.time_to_target import TargetCrossing
from nocap.judge.verdict import ClaimWord, Reason
from nocap.metrics import METRICS, Better, Kind, MadeBy, Metric
from nocap.store.measurement import Measurement

WALL = METRICS["wall_s"]
STEPS = METRICS["steps_to_target"]
SECONDS = METRICS["time_to_target_s"]


def printed(name: str, better: Better = Better.lower) -> Metric:
    return Metric(
        name=name, title=name, unit="", better=better, kind=Kind.seed, made_by=MadeBy.command
    )


LOSS = printed("loss")
ACCURACY = printed("accuracy", Better.higher)
MEMORY = printed("memory")

Values = Mapping[str, Sequence[float]]  # of each arm, repeat by repeat


def rows(
    values: Mapping[Metric, Values],
    crossings: Mapping[tuple[str, str], list[TargetCrossing]] | None = None,
):
    measurements = []
    for metric, by_arm in values.items():
        for arm, numbers in by_arm.items():
            for seed, number in enumerate(numbers):
                measurements.append(Measurement(arm=arm, repeat=seed, metric=metric, value=number))
    return RaceRows(measurements=measurements, crossings=crossings or {})


def question(repeats: int, **more: object) -> RaceQuestion:
    asked = {"arms": ["base", "idea"], "metrics": [LOSS], "repeats": repeats} | more
    return RaceQuestion(**asked)  # type: ignore[arg-type]


def losses(gain: float, repeats: int) -> Values:
    """Losses that lie `gain` apart, with noise that the seeds share."""
    rng = np.random.default_rng(0)
    base = rng.normal(3.0, 0.1, repeats)
    idea = base - gain + rng.normal(0.0, 0.001, repeats)
    return {"base": base.tolist(), "idea": idea.tolist()}


def only(values: Mapping[Metric, Values], asked: RaceQuestion) -> RacedArm:
    (arm,) = judge(rows(values), asked).arms
    return arm


# --- gains ----------------------------------------------------------------------------------------


def test_a_gain_is_that_of_pairs():
    made = losses(0.05, 3)
    arm = only({LOSS: made}, question(3))
    interval = stats.ttest_rel(made["base"], made["idea"]).confidence_interval(0.95)
    assert arm.word is DifferenceWord.better
    assert arm.is_decided
    assert arm.gain.low == pytest.approx(interval.low)
    assert arm.gain.high == pytest.approx(interval.high)


def test_a_gain_is_that_of_two_samples_where_no_seed_is_shared():
    made = losses(0.05, 3)
    arm = only({LOSS: made}, question(3, paired=False))
    apart = stats.ttest_ind(made["base"], made["idea"], equal_var=False)
    interval = apart.confidence_interval(0.95)

    assert arm.gain.low == pytest.approx(interval.low)
    assert arm.word is DifferenceWord.unclear
    assert not arm.is_decided


def test_more_is_better_where_it_is_said():
    made = losses(0.05, 3)
    word = only({ACCURACY: made}, question(3, metrics=[ACCURACY])).word
    assert word is DifferenceWord.worse


@pytest.mark.parametrize(("there", "analysed"), [(1, 1), (2, 2), (3, 3), (5, 3), (8, 6), (12, 12)])
def test_repeats_are_judged_at_the_analyses_alone(there: int, analysed: int):
    made = losses(0.05, 12)
    beginning = {arm: row[:there] for arm, row in made.items()}
    result = judge(rows({LOSS: beginning}), question(12))
    assert result.n == analysed
    (arm,) = result.arms
    assert arm.gain.n == analysed
    expected = fmean(made["base"][:analysed])
    assert result.baseline["loss"].mean == pytest.approx(expected)
    assert arm.measured["loss"].estimate == arm.gain
    assert (arm.word is DifferenceWord.undecided) == (there < 3)


def test_equal_arms_show_no_difference():
    made = losses(0.0, 3)
    alike = {"base": made["base"], "idea": made["base"]}
    word = only({LOSS: alike}, question(3)).word
    assert word is DifferenceWord.unclear


TIES = [
    # one arm ties in the digits that it prints
    {"base": [3.0, 3.0, 3.0], "idea": [2.0, 2.5, 2.2]},
    {"base": [3.0, 3.0], "idea": [2.0, 2.0]},  # a third repeat decides
]


@pytest.mark.parametrize("made", TIES)
def test_a_tie_does_not_show_that_commands_ignore_their_seed(made: dict[str, list[float]]):
    assert not judge(rows({LOSS: made}), question(3)).ignores_seed


def test_commands_that_ignore_their_seed_count_once():
    made = {"base": [3.0, 3.0, 3.0], "idea": [2.0, 2.0, 2.0]}
    result = judge(rows({LOSS: made}), question(3))
    (arm,) = result.arms
    assert result.ignores_seed
    assert result.n == 1
    assert arm.word is DifferenceWord.undecided
    assert not result.is_decided
    assert arm.measured["loss"].mean == 2.0
    shown = arm.measured["loss"].estimate
    assert shown is not None
    assert math.isinf(shown.high)


# --- words ----------------------------------------------------------------------------------------


STATED_GAINS = [
    ((0.04, 0.06), ClaimWord.confirmed, None),
    ((0.01, 0.02), ClaimWord.exceeded, None),
    ((0.2, math.inf), ClaimWord.refuted, Reason.below),
    ((0.05, 0.0501), ClaimWord.inconclusive, Reason.undecided),
]


@pytest.mark.parametrize(("ends", "word", "reason"), STATED_GAINS)
def test_a_gain_is_judged_against_what_was_stated(
    ends: tuple[float, float], word: ClaimWord, reason: Reason | None
):
    arm = only({LOSS: losses(0.05, 3)}, question(3, expect=ends))
    assert arm.word is word
    assert arm.reason is reason
    assert arm.is_decided == (word is not ClaimWord.inconclusive)


SURE = {"base": [1.0, 1.1, 1.2], "idea": [1.5, 1.6001, 1.7]}  # worse by 0.5
OPEN = {"base": [1.0, 1.1, 1.2], "idea": [1.0, 1.4, 0.9]}  # nobody knows


LIMITS = [
    ({MEMORY: 1.0}, DifferenceWord.better, ""),
    ({MEMORY: 0.1}, DifferenceWord.worse, "memory"),
    ({ACCURACY: 0.1}, DifferenceWord.unclear, "accuracy"),
    # the one that is broken is named, and not the one before it
    ({ACCURACY: 0.1, MEMORY: 0.1}, DifferenceWord.worse, "memory"),
]


@pytest.mark.parametrize(("margins", "word", "guard"), LIMITS)
def test_a_gain_counts_where_each_limit_is_kept(
    margins: dict[Metric, float], word: DifferenceWord, guard: str
):
    values = {LOSS: losses(0.05, 3), MEMORY: SURE, ACCURACY: OPEN}
    limits = [Limit(metric=metric, margin=margin) for metric, margin in margins.items()]
    arm = only(values, question(3, limits=limits))
    assert arm.word is word
    assert arm.guard == guard
    assert arm.reason is (Reason.guard if guard else None)


# --- costs ----------------------------------------------------------------------------------------

WALLS = {"base": [10.0, 11.0, 12.0, 10.5, 11.5, 10.2], "idea": [5.0, 5.6, 5.9, 5.2, 5.7, 5.1]}


def test_times_of_one_session_have_a_ratio_and_no_word():
    made = {LOSS: losses(0.05, 6), WALL: WALLS}
    arm = only(made, question(6, costs=[WALL]))
    assert arm.costs["wall_s"].word is DifferenceWord.undecided
    estimate = arm.costs["wall_s"].estimate
    assert estimate.mid == pytest.approx(2.0, abs=0.1)
    expected = fmean(WALLS["idea"])
    assert arm.measured["wall_s"].mean == pytest.approx(expected)
    assert arm.measured["wall_s"].estimate is None


def test_a_session_is_what_repeats_a_time():
    made = {LOSS: losses(0.05, 6), WALL: WALLS}
    arm = only(made, question(6, costs=[WALL], sessions=3))
    ratios = np.array(WALLS["base"]) / np.array(WALLS["idea"])
    logs = np.log(ratios).reshape(3, 2).mean(axis=1)
    quantile = stats.t.isf(0.05, 2)
    caution = 1 + 3.3 / math.sqrt(3)
    reach = caution * quantile * stats.sem(logs) + CLOCK_BIAS
    cost = arm.costs["wall_s"]
    assert cost.word is DifferenceWord.better
    expected = math.exp(logs.mean() - reach)
    assert cost.estimate.low == pytest.approx(expected)
    assert arm.measured["wall_s"].estimate == cost.estimate


def met(*steps: float) -> list[TargetCrossing]:
    return [TargetCrossing(at=step, before=step - 1, after=step + 1) for step in steps]


def to_target(own: list[TargetCrossing], base: list[TargetCrossing]) -> RacedArm:
    """Judge steps and seconds to a target; a second takes ten steps, the first of them at 0.1 s."""
    crossings = {}
    for arm, steps in (("base", base), ("idea", own)):
        crossings[arm, STEPS.name] = steps
        crossings[arm, SECONDS.name] = met(*((there.at + 1) / 10 for there in steps))
    values: dict[Metric, Values] = {LOSS: losses(0.05, 3)}
    for cost in (SECONDS, STEPS):
        base = [there.at for there in crossings["base", cost.name]]
        idea = [there.at for there in crossings["idea", cost.name]]
        values[cost] = {"base": base, "idea": idea}
    made = RaceRows(measurements=rows(values).measurements, crossings=crossings)
    costs_asked = question(3, costs=[SECONDS, STEPS], sessions=3)
    (arm,) = judge(made, costs_asked).arms
    return arm


def test_steps_to_a_target_are_a_ratio():
    arm = to_target(met(50, 51, 52), met(100, 101, 103))
    ratio = arm.measured[STEPS.name].estimate
    assert ratio is not None
    assert ratio.mid == pytest.approx(2.0, abs=0.05)
    assert arm.costs[STEPS.name].word is DifferenceWord.better


def test_a_run_that_begins_at_the_target_tells_no_ratio():
    """Of its seconds neither, which are above 0."""
    start = TargetCrossing(at=0.0, before=0.0, after=0.0)
    arm = to_target([start, *met(51, 52)], met(100, 101, 103))
    for name in (STEPS.name, SECONDS.name):
        assert arm.costs[name].word is DifferenceWord.undecided
        assert arm.measured[name].refused == NOT_REACHED
