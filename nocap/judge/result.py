"""A comparison as JSON has it, for programs, pages and trackers. These types are its schema, and `result_of`
alone fills them.

Losses are nats per token, times seconds of training and data wait (`train_s`) or ms, memory MiB. Intervals
are those that decide: of losses for all arms together (`judge.losses`), of times and memory the cautious one
(`judge.cautious`). Nothing of it was registered.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import msgspec

from nocap.config.hardware import Fact
from nocap.judge.arms import Arm
from nocap.judge.compare import ComparedArm, Comparison
from nocap.judge.equal_loss import STEPS, TimeAtEqualLoss
from nocap.judge.factors import Factor, Factors, Interaction, Level
from nocap.judge.findings import Finding, Findings
from nocap.judge.interval import LEAST_PAIRS, Estimate, confidence
from nocap.judge.losses import Difference
from nocap.judge.measured import ArmMean
from nocap.judge.pace import PACE
from nocap.judge.time_to_target import Reach
from nocap.store.metrics import METRICS, Better, Ending, Measurement, Per
from nocap.store.record import SCHEMA_VERSION
from nocap.store.runs import Curve, Record, measurements
from nocap.store.timing import Timing


class Schema(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An object of JSON."""


class IntervalJson(Schema, frozen=True, kw_only=True):
    """A difference or a ratio with its interval. An endless end is null, and so is what is not known."""

    mean: float | None
    low: float | None
    high: float | None
    sd: float | None  # of the pairs
    n: int  # pairs; of two samples the smaller number
    method: str


class DifferenceJson(IntervalJson, frozen=True, kw_only=True):
    """An arm's or a level's loss less the baseline's, with its word."""

    outcome: str
    verdict: str  # the outcome with its reason


class TimeAtEqualLossJson(Schema, frozen=True, kw_only=True):
    """The time that an arm takes for its loss over the time that the baseline takes for that loss."""

    ratio: IntervalJson | None
    refused: str | None  # why there is none
    outcome: str
    seeds_to_show: int | None  # that would show a ratio as far from 1; null: it is shown, or too many


class MeasuredJson(Schema, frozen=True, kw_only=True):
    """An arm's mean over runs of one machine, and its ratio to the baseline's."""

    mean: float | None
    ratio: IntervalJson | None
    refused: str | None  # why it is not compared


class ReachJson(Schema, frozen=True, kw_only=True):
    """Steps or training seconds to the target loss."""

    median: float | None  # over the seeds; null: beyond the budget
    reached: int
    n: int
    budget: float | None
    ratio: IntervalJson | None  # to the baseline's, where every run of both arms got there
    refused: str | None


class ArmJson(Schema, frozen=True, kw_only=True):
    """An arm beside the baseline, or beside the arm before it."""

    arm: str  # id
    label: str
    against: str | None  # id; null: it is the baseline
    changes: dict[str, object]  # config keys in which it differs from that, with its own values
    n: int
    seeds: list[int]  # that the row is over
    diverged: list[int]  # seeds
    val_loss: float | None
    val_bpb: float | None
    difference: DifferenceJson | None
    token_us: MeasuredJson
    tokens_per_s: MeasuredJson
    step_ms: MeasuredJson
    model_mib: MeasuredJson
    train_s: MeasuredJson
    equal_loss: TimeAtEqualLossJson | None  # null: it is the baseline, or that has no other lengths
    params: dict[str, int | float | None]
    flops_per_token: int | float | None
    flops_basis: str | None
    tokens: int | None
    steps: int | None
    kernel: dict[str, str | None]
    hardware: list[str]  # fingerprints
    to_target: dict[str, ReachJson] | None  # by what is counted: steps, train_s
    clock_s: dict[str, float]
    runs: list[str]  # identities


class CurveJson(Schema, frozen=True, kw_only=True):
    """The validations of a run, column by column."""

    step: list[int]
    tokens: list[int | None]
    train_s: list[float | None]  # training, waits for data and a teacher's training up to that step
    val_loss: list[float]
    val_bpb: list[float | None]


class RunJson(Schema, frozen=True, kw_only=True):
    """A run, with its validation curve."""

    identity: str
    name: str
    arm: str
    label: str
    seed: int
    status: str
    steps: int | None
    tokens: int | None
    val_loss: float | None
    val_bpb: float | None
    tokens_per_s: float | None
    train_s: float | None
    curve: CurveJson
    clock_s: dict[str, float | None]
    hardware: dict[str, Fact]
    imported: dict[str, object] | None  # of a log that another trainer wrote: its format, what named its seed


class MeasurementJson(msgspec.Struct, frozen=True, kw_only=True):
    """A measurement as JSON has it, with its unit and which way is better."""

    arm: str
    repeat: int
    metric: str
    unit: str
    better: Better
    part: str | msgspec.UnsetType = msgspec.UNSET
    why: str | msgspec.UnsetType = msgspec.UNSET
    value: float | None
    ending: Ending
    per: Per
    where: str
    when: str

    @property
    def measurement(self) -> Measurement:
        """Return what it is of."""
        return Measurement(
            arm=self.arm,
            repeat=self.repeat,
            metric=METRICS[self.metric],
            value=self.value,
            ending=self.ending,
            where=self.where,
            when=self.when,
            part="" if self.part is msgspec.UNSET else self.part,
            per=self.per,
            why="" if self.why is msgspec.UNSET else self.why,
        )


class LevelJson(Schema, frozen=True, kw_only=True):
    """A level of a key against the baseline's, over all levels of the other keys."""

    level: str
    difference: DifferenceJson
    speed: IntervalJson | None
    equal_loss: TimeAtEqualLossJson | None


class FactorJson(Schema, frozen=True, kw_only=True):
    """A key that the grid crosses with others."""

    key: str
    baseline: str
    over: dict[str, int]  # the other keys, and how many levels each has
    levels: list[LevelJson]


class InteractionJson(IntervalJson, frozen=True, kw_only=True):
    """What an arm's loss is above the sum of its single changes."""

    arm: str  # label
    keys: list[str]
    shown: bool


class FactorsJson(Schema, frozen=True, kw_only=True):
    """A full crossing of two keys or more, read by factor."""

    seeds: list[int]
    factors: list[FactorJson]
    interactions: list[InteractionJson]


class FindingJson(Schema, frozen=True, kw_only=True):
    """What was found of a level, or of an arm."""

    name: str
    over: dict[str, int]
    difference: DifferenceJson
    seeds_to_show: int | None  # null: it is shown, or more than 96, or not known
    equal_loss: TimeAtEqualLossJson | None


class NextJson(Schema, frozen=True, kw_only=True):
    """What to set in the same command for what is not shown yet."""

    key: str
    values: list[int]


class FindingsJson(Schema, frozen=True, kw_only=True):
    """What was found, by level or by arm: what is shown first, and of that the largest."""

    found: list[FindingJson]
    next: NextJson | None  # null: nothing is open, or the runs are no command's of nocap


class TimingJson(Schema, frozen=True, kw_only=True):
    """The arms timed in turns (--time)."""

    started: str
    machine: str  # fingerprint
    machine_name: str
    clock: str
    rounds: int
    seconds_per_token: dict[str, list[float]]
    left_out: dict[str, str]  # arm's id, and why it was not measured


class LengthJson(Schema, frozen=True, kw_only=True):
    """The baseline at another length, by which a time at equal loss is worked out."""

    arm: str
    steps: int
    runs: list[str]


class NotComparedJson(Schema, frozen=True, kw_only=True):
    """A run that is not finished or cannot be read."""

    name: str
    status: str


class Result(Schema, frozen=True, kw_only=True):
    """A comparison."""

    schema_version: int
    baseline: str  # the arm's id
    confidence: float
    least_seeds: int
    exploratory: bool
    imported: bool  # whether the runs are of logs that another trainer wrote
    target: float | None  # nats per token
    metric: str  # of the verdicts: val_loss, or val_bpb where vocabularies differ or no run has losses
    against: str  # baseline, or previous: each arm is compared with the one before it
    look: int  # how often the arms were looked at with more seeds: the k-th look errs in 5%/k²
    cautious: bool  # whether losses have the cautious interval
    swept: list[str]  # config keys that differ between arms
    findings: FindingsJson
    by_factor: FactorsJson | None  # null: the arms are no full crossing of two keys or more
    timing: TimingJson | None  # that all speeds are of; null: they are the runs' own
    lengths: list[LengthJson]  # of the baseline
    arms: list[ArmJson]  # in the order in which they were asked for
    runs: list[RunJson]
    measurements: list[MeasurementJson]
    problems: list[str]  # lines for people: what was skipped, declared or should be doubted
    not_compared: list[NotComparedJson]


def to_json(result: Schema) -> dict[str, Any]:
    """Return a result, or a part of one, in JSON's types."""
    return dict(msgspec.to_builtins(result))


# --- filled -------------------------------------------------------------------------------------------------


def result_of(comparison: Comparison) -> Result:
    """Return what JSON has of a comparison."""
    return Result(
        schema_version=SCHEMA_VERSION,
        baseline=comparison.baseline.arm.id,
        confidence=confidence(comparison.look),
        least_seeds=LEAST_PAIRS,
        exploratory=True,
        imported=bool(comparison.imported),
        target=comparison.target,
        metric=comparison.metric,
        against=comparison.against,
        look=comparison.look,
        cautious=comparison.cautious,
        swept=comparison.swept,
        findings=_findings(comparison.findings),
        by_factor=_factors(comparison.factors),
        timing=_timing(comparison.timing),
        lengths=[_length(arm) for arm in comparison.lengths],
        arms=[_arm(row) for row in comparison.arms],
        runs=[_run(run, arm) for run, arm in comparison.runs],
        measurements=_measurements(comparison),
        problems=comparison.problems,
        not_compared=[NotComparedJson(name=name, status=status) for name, status in comparison.not_compared],
    )


def interval_json(estimate: Estimate) -> IntervalJson:
    """Return an estimate as JSON has it."""
    return IntervalJson(
        mean=_finite(estimate.mid),
        low=_finite(estimate.low),
        high=_finite(estimate.high),
        sd=_finite(estimate.sd),
        n=estimate.n,
        method=estimate.method,
    )


def _finite(x: float) -> float | None:
    return float(x) if math.isfinite(x) else None


def _interval(estimate: Estimate | None) -> IntervalJson | None:
    return None if estimate is None else interval_json(estimate)


def _difference(gap: Difference) -> DifferenceJson:
    ends = msgspec.structs.asdict(interval_json(gap.estimate))
    return DifferenceJson(**ends, outcome=gap.outcome.value, verdict=gap.verdict)


def _equal_loss(at: TimeAtEqualLoss | None) -> TimeAtEqualLossJson | None:
    if at is None:
        return None
    return TimeAtEqualLossJson(
        ratio=_interval(at.ratio),
        refused=at.refused,
        outcome=at.outcome.value,
        seeds_to_show=at.seeds,
    )


def _measured(of: ArmMean) -> MeasuredJson:
    return MeasuredJson(mean=of.mean, ratio=_interval(of.estimate), refused=of.refused)


def _reach(of: Reach) -> ReachJson:
    return ReachJson(
        median=of.median,
        reached=of.reached,
        n=of.n,
        budget=of.budget,
        ratio=_interval(of.ratio),
        refused=of.refused,
    )


def _arm(row: ComparedArm) -> ArmJson:
    arm = row.arm
    to_target = None
    if row.to_target is not None:
        to_target = {axis: _reach(reach) for axis, reach in row.to_target.items()}
    return ArmJson(
        arm=arm.id,
        label=arm.label,
        against=None if row.against is None else row.against.id,
        changes=dict(row.changes),
        n=len(row.seeds),
        seeds=row.seeds,
        diverged=sorted({run.seed for run in arm.diverged}),
        val_loss=row.val_loss,
        val_bpb=row.val_bpb,
        difference=None if row.difference is None else _difference(row.difference),
        token_us=_measured(row.times[PACE]),
        tokens_per_s=_measured(row.times["tokens_per_s"]),
        step_ms=_measured(row.times["step_ms"]),
        model_mib=_measured(row.times["model_mib"]),
        train_s=_measured(row.times["train_s"]),
        equal_loss=_equal_loss(row.equal_loss),
        params=arm.summary("params") or {},
        flops_per_token=arm.summary("flops_per_token"),
        flops_basis=arm.summary("flops_basis"),
        tokens=arm.summary("tokens"),
        steps=arm.summary("steps"),
        kernel=arm.summary("kernel") or {},
        hardware=sorted({run.machine.fingerprint for run in arm.runs}),
        to_target=to_target,
        clock_s=row.clock_s,
        runs=[run.identity for run in arm.all],
    )


def _run(run: Record, arm: Arm) -> RunJson:
    return RunJson(
        identity=run.identity,
        name=run.name,
        arm=arm.id,
        label=arm.label,
        seed=run.seed,
        status=run.status,
        steps=run.summary.get("steps"),
        tokens=run.summary.get("tokens"),
        val_loss=run.value("val_loss"),
        val_bpb=run.value("val_bpb"),
        tokens_per_s=run.value("tokens_per_s"),
        train_s=run.value("train_s"),
        curve=curve_json(run.curve),
        clock_s=run.summary["clock_s"],
        hardware=dict(run.hardware),
        imported=dict(run.imported) or None,
    )


def _measurements(of: Comparison) -> list[MeasurementJson]:
    """List what the runs measured, each with the arm that it is of here."""
    rows = list[MeasurementJson]()
    for run, arm in of.runs:
        for each in measurements(run):
            rows.append(measurement_json(replace(each, arm=arm.id)))
    return rows


def measurement_json(of: Measurement) -> MeasurementJson:
    """Return a measurement as JSON has it."""
    return MeasurementJson(
        arm=of.arm,
        repeat=of.repeat,
        metric=of.metric.name,
        unit=of.metric.unit,
        better=of.metric.better,
        part=of.part or msgspec.UNSET,
        why=of.why or msgspec.UNSET,
        value=of.value,
        ending=of.ending,
        per=of.per,
        where=of.where,
        when=of.when,
    )


def curve_json(curve: Curve) -> CurveJson:
    """Return a curve as JSON has it."""
    return CurveJson(
        step=curve.step,
        tokens=curve.tokens,
        train_s=curve.train_s,
        val_loss=curve.val_loss,
        val_bpb=curve.val_bpb,
    )


def _length(arm: Arm) -> LengthJson:
    return LengthJson(arm=arm.id, steps=arm.config[STEPS], runs=[run.identity for run in arm.runs])


def _timing(of: Timing | None) -> TimingJson | None:
    if of is None:
        return None
    return TimingJson(
        started=of.started,
        machine=of.machine,
        machine_name=of.machine_name,
        clock=of.clock,
        rounds=of.rounds,
        seconds_per_token={arm: list(row) for arm, row in of.seconds.items()},
        left_out=dict(of.left_out),
    )


# --- by factor, and what was found --------------------------------------------------------------------------


def _factors(of: Factors | None) -> FactorsJson | None:
    if of is None:
        return None
    return FactorsJson(
        seeds=list(of.seeds),
        factors=[_factor(factor) for factor in of.factors],
        interactions=[_interaction(each) for each in of.interactions],
    )


def _factor(of: Factor) -> FactorJson:
    return FactorJson(
        key=of.key,
        baseline=of.baseline,
        over=dict(of.over),
        levels=[_level(level) for level in of.levels],
    )


def _level(of: Level) -> LevelJson:
    return LevelJson(
        level=of.name,
        difference=_difference(of.difference),
        speed=_interval(of.speed),
        equal_loss=_equal_loss(of.equal_loss),
    )


def _interaction(of: Interaction) -> InteractionJson:
    ends = msgspec.structs.asdict(interval_json(of.estimate))
    return InteractionJson(**ends, arm=of.arm, keys=list(of.keys), shown=of.shown)


def _findings(of: Findings) -> FindingsJson:
    following = None
    if of.next is not None:
        following = NextJson(key=of.next.key, values=list(of.next.values))
    return FindingsJson(found=[_finding(finding) for finding in of.found], next=following)


def _finding(of: Finding) -> FindingJson:
    return FindingJson(
        name=of.name,
        over=dict(of.over),
        difference=_difference(of.difference),
        seeds_to_show=of.seeds,
        equal_loss=_equal_loss(of.equal_loss),
    )
