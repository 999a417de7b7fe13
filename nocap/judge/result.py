"""A comparison as `judge.schema` has it. `result_of` alone fills those types."""

from __future__ import annotations

import math
from dataclasses import replace

import msgspec

from nocap.judge.arms import Arm
from nocap.judge.compared import ComparedArm, Comparison
from nocap.judge.equal_loss import STEPS, TimeAtEqualLoss
from nocap.judge.factors import Factor, Factors, Interaction, Level
from nocap.judge.findings import Finding, Findings
from nocap.judge.interval import LEAST_PAIRS, Estimate, confidence
from nocap.judge.losses import Difference
from nocap.judge.measured import ArmMean
from nocap.judge.pace import PACE
from nocap.judge.schema import (
    ArmJson,
    DifferenceJson,
    FactorJson,
    FactorsJson,
    FindingJson,
    FindingsJson,
    InteractionJson,
    IntervalJson,
    LengthJson,
    LevelJson,
    MeasuredJson,
    MeasurementJson,
    NextJson,
    NotComparedJson,
    ReachJson,
    Result,
    RunJson,
    TimeAtEqualLossJson,
    TimingJson,
)
from nocap.judge.time_to_target import Reach
from nocap.store.metrics import Measurement
from nocap.store.record import SCHEMA_VERSION
from nocap.store.runs import Record, measurements
from nocap.store.timing import Timing


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


def _measured(measured: ArmMean) -> MeasuredJson:
    return MeasuredJson(mean=measured.mean, ratio=_interval(measured.estimate), refused=measured.refused)


def _reach(reach: Reach) -> ReachJson:
    return ReachJson(
        median=reach.median,
        reached=reach.reached,
        n=reach.n,
        budget=reach.budget,
        ratio=_interval(reach.ratio),
        refused=reach.refused,
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
        curve=run.curve,
        clock_s=run.summary["clock_s"],
        hardware=dict(run.hardware),
        imported=dict(run.imported) or None,
    )


def _measurements(comparison: Comparison) -> list[MeasurementJson]:
    """List what the runs measured, each with the arm that it is of here."""
    rows = list[MeasurementJson]()
    for run, arm in comparison.runs:
        for each in measurements(run):
            rows.append(measurement_json(replace(each, arm=arm.id)))
    return rows


def measurement_json(measurement: Measurement) -> MeasurementJson:
    """Return a measurement as JSON has it."""
    return MeasurementJson(
        arm=measurement.arm,
        repeat=measurement.repeat,
        metric=measurement.metric.name,
        unit=measurement.metric.unit,
        better=measurement.metric.better,
        part=measurement.part or msgspec.UNSET,
        why=measurement.why or msgspec.UNSET,
        value=measurement.value,
        ending=measurement.ending,
        per=measurement.per,
        where=measurement.where,
        when=measurement.when,
    )


def _length(arm: Arm) -> LengthJson:
    return LengthJson(arm=arm.id, steps=arm.config[STEPS], runs=[run.identity for run in arm.runs])


def _timing(timing: Timing | None) -> TimingJson | None:
    if timing is None:
        return None
    return TimingJson(
        started=timing.started,
        machine=timing.machine,
        machine_name=timing.machine_name,
        clock=timing.clock,
        rounds=timing.rounds,
        seconds_per_token={arm: list(row) for arm, row in timing.seconds.items()},
        left_out=dict(timing.left_out),
    )


# --- by factor, and what was found --------------------------------------------------------------------------


def _factors(factors: Factors | None) -> FactorsJson | None:
    if factors is None:
        return None
    return FactorsJson(
        seeds=list(factors.seeds),
        factors=[_factor(factor) for factor in factors.factors],
        interactions=[_interaction(each) for each in factors.interactions],
    )


def _factor(factor: Factor) -> FactorJson:
    return FactorJson(
        key=factor.key,
        baseline=factor.baseline,
        over=dict(factor.over),
        levels=[_level(level) for level in factor.levels],
    )


def _level(level: Level) -> LevelJson:
    return LevelJson(
        level=level.name,
        difference=_difference(level.difference),
        speed=_interval(level.speed),
        equal_loss=_equal_loss(level.equal_loss),
    )


def _interaction(interaction: Interaction) -> InteractionJson:
    ends = msgspec.structs.asdict(interval_json(interaction.estimate))
    return InteractionJson(**ends, arm=interaction.arm, keys=list(interaction.keys), shown=interaction.shown)


def _findings(findings: Findings) -> FindingsJson:
    following = None
    if findings.next is not None:
        following = NextJson(key=findings.next.key, values=list(findings.next.values))
    return FindingsJson(found=[_finding(finding) for finding in findings.found], next=following)


def _finding(finding: Finding) -> FindingJson:
    return FindingJson(
        name=finding.name,
        over=dict(finding.over),
        difference=_difference(finding.difference),
        seeds_to_show=finding.seeds,
        equal_loss=_equal_loss(finding.equal_loss),
    )
