"""A comparison as `judge.comparison_schema` has it. `result_of` alone fills those types."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from nocap.judge.arm_mean import ArmMean
from nocap.judge.arms import Arm
from nocap.judge.comparison import ComparedArm, Comparison
from nocap.judge.comparison_schema import (
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
from nocap.judge.differences import Difference
from nocap.judge.equal_loss import STEPS, TimeAtEqualLoss
from nocap.judge.factors import Factor, Factors, Interaction, Level
from nocap.judge.findings import Finding, Findings
from nocap.judge.interval import LEAST_PAIRS, Estimate, confidence, finite
from nocap.judge.pace import TOKEN_US
from nocap.judge.time_to_target import Reach
from nocap.store.grid_timing import Timing
from nocap.store.measurement import Measurement
from nocap.store.record import Record, measurements
from nocap.store.record_files import SCHEMA_VERSION


def result_of(comparison: Comparison) -> Result:
    """Return what JSON has of a comparison."""
    findings = _findings(comparison.findings)
    factors = _factors(comparison.factors)
    timing = _timing(comparison.timing)
    lengths = [_length(arm) for arm in comparison.lengths]
    arms = [_arm(row) for row in comparison.arms]
    runs = [_run(run, arm) for run, arm in comparison.runs]
    measured = _measurements(comparison)
    not_compared = [
        NotComparedJson(name=name, status=status) for name, status in comparison.not_compared
    ]
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
        findings=findings,
        by_factor=factors,
        timing=timing,
        lengths=lengths,
        arms=arms,
        runs=runs,
        measurements=measured,
        problems=comparison.problems,
        not_compared=not_compared,
    )


# --- intervals ------------------------------------------------------------------------------------


def interval_json(estimate: Estimate) -> IntervalJson:
    """Return an estimate as JSON has it."""
    mean = finite(float(estimate.mid))
    low = finite(float(estimate.low))
    high = finite(float(estimate.high))
    sd = finite(float(estimate.sd))
    return IntervalJson(mean=mean, low=low, high=high, sd=sd, n=estimate.n, method=estimate.method)


def _interval(estimate: Estimate | None) -> IntervalJson | None:
    if estimate is None:
        return None
    return interval_json(estimate)


def _difference(difference: Difference) -> DifferenceJson:
    interval = interval_json(difference.estimate)
    fields = msgspec.structs.asdict(interval)
    return DifferenceJson(
        **fields, outcome=difference.word.value, verdict=difference.word_with_reason
    )


def _equal_loss(at: TimeAtEqualLoss | None) -> TimeAtEqualLossJson | None:
    if at is None:
        return None
    ratio = _interval(at.ratio)
    word = at.word.value
    return TimeAtEqualLossJson(
        ratio=ratio, refused=at.refused, outcome=word, seeds_to_show=at.seeds
    )


def _measured(measured: ArmMean) -> MeasuredJson:
    ratio = _interval(measured.estimate)
    return MeasuredJson(mean=measured.mean, ratio=ratio, refused=measured.refused)


def _reach(reach: Reach) -> ReachJson:
    ratio = _interval(reach.ratio)
    return ReachJson(
        median=reach.median,
        reached=reach.reached,
        n=reach.n,
        budget=reach.budget,
        ratio=ratio,
        refused=reach.refused,
    )


# --- arms and runs --------------------------------------------------------------------------------


def _arm(row: ComparedArm) -> ArmJson:
    arm = row.arm
    against = None
    if row.against is not None:
        against = row.against.id
    difference = None
    if row.difference is not None:
        difference = _difference(row.difference)
    to_target = None
    if row.to_target is not None:
        to_target = {axis: _reach(reach) for axis, reach in row.to_target.items()}
    times = {name: _measured(measured) for name, measured in row.times.items()}
    changes = dict(row.changes)
    diverged = sorted({run.seed for run in arm.diverged})
    equal_loss = _equal_loss(row.equal_loss)
    params = arm.summary("params") or {}
    flops_per_token = arm.summary("flops_per_token")
    flops_basis = arm.summary("flops_basis")
    tokens = arm.summary("tokens")
    steps = arm.summary("steps")
    kernel = arm.summary("kernel") or {}
    hardware = sorted({run.machine.fingerprint for run in arm.runs})
    identities = [run.identity for run in arm.all]
    return ArmJson(
        arm=arm.id,
        label=arm.label,
        against=against,
        changes=changes,
        n=len(row.seeds),
        seeds=row.seeds,
        diverged=diverged,
        val_loss=row.val_loss,
        val_bpb=row.val_bpb,
        difference=difference,
        token_us=times[TOKEN_US],
        tokens_per_s=times["tokens_per_s"],
        step_ms=times["step_ms"],
        model_mib=times["model_mib"],
        train_s=times["train_s"],
        equal_loss=equal_loss,
        params=params,
        flops_per_token=flops_per_token,
        flops_basis=flops_basis,
        tokens=tokens,
        steps=steps,
        kernel=kernel,
        hardware=hardware,
        to_target=to_target,
        clock_s=row.clock_s,
        runs=identities,
        logged=row.logged,
    )


def _run(run: Record, arm: Arm) -> RunJson:
    val_loss = run.value("val_loss")
    val_bpb = run.value("val_bpb")
    tokens_per_s = run.value("tokens_per_s")
    train_s = run.value("train_s")
    hardware = dict(run.hardware)
    imported = dict(run.imported) or None
    return RunJson(
        identity=run.identity,
        name=run.name,
        arm=arm.id,
        label=arm.label,
        seed=run.seed,
        status=run.status,
        steps=run.steps,
        tokens=run.tokens,
        val_loss=val_loss,
        val_bpb=val_bpb,
        tokens_per_s=tokens_per_s,
        train_s=train_s,
        curve=run.curve,
        clock_s=dict(run.clock_s),
        hardware=hardware,
        imported=imported,
    )


def _measurements(comparison: Comparison) -> list[MeasurementJson]:
    """List what the runs measured, each with the arm that it is of here."""
    rows = list[MeasurementJson]()
    for run, arm in comparison.runs:
        for measurement in measurements(run):
            of_arm = replace(measurement, arm=arm.id)
            rows.append(measurement_json(of_arm))
    return rows


def measurement_json(measurement: Measurement) -> MeasurementJson:
    """Return a measurement as JSON has it."""
    metric = measurement.metric
    part = measurement.part or msgspec.UNSET
    why = measurement.why or msgspec.UNSET
    return MeasurementJson(
        arm=measurement.arm,
        repeat=measurement.repeat,
        metric=metric.name,
        unit=metric.unit,
        better=metric.better,
        part=part,
        why=why,
        value=measurement.value,
        ending=measurement.ending,
        per=measurement.per,
        where=measurement.where,
        when=measurement.when,
    )


def _length(arm: Arm) -> LengthJson:
    steps = arm.config[STEPS]
    identities = [run.identity for run in arm.runs]
    return LengthJson(arm=arm.id, steps=steps, runs=identities)


def _timing(timing: Timing | None) -> TimingJson | None:
    if timing is None:
        return None
    seconds = {arm: list(row) for arm, row in timing.seconds.items()}
    left_out = dict(timing.left_out)
    return TimingJson(
        started=timing.started,
        machine=timing.machine,
        machine_name=timing.machine_name,
        clock=timing.clock,
        rounds=timing.rounds,
        seconds_per_token=seconds,
        left_out=left_out,
    )


# --- by factor, and what was found ----------------------------------------------------------------


def _factors(factors: Factors | None) -> FactorsJson | None:
    if factors is None:
        return None
    seeds = list(factors.seeds)
    by_key = [_factor(factor) for factor in factors.factors]
    interactions = [_interaction(interaction) for interaction in factors.interactions]
    return FactorsJson(seeds=seeds, factors=by_key, interactions=interactions)


def _factor(factor: Factor) -> FactorJson:
    over = dict(factor.over)
    levels = [_level(level) for level in factor.levels]
    return FactorJson(key=factor.key, baseline=factor.baseline, over=over, levels=levels)


def _level(level: Level) -> LevelJson:
    difference = _difference(level.difference)
    speed = _interval(level.speed)
    equal_loss = _equal_loss(level.equal_loss)
    return LevelJson(level=level.name, difference=difference, speed=speed, equal_loss=equal_loss)


def _interaction(interaction: Interaction) -> InteractionJson:
    interval = interval_json(interaction.estimate)
    fields = msgspec.structs.asdict(interval)
    keys = list(interaction.keys)
    return InteractionJson(**fields, arm=interaction.arm, keys=keys, shown=interaction.shown)


def _findings(findings: Findings) -> FindingsJson:
    rows = [_finding(finding) for finding in findings.found]
    following = None
    if findings.next is not None:
        values = list(findings.next.values)
        minutes = findings.next.minutes
        following = NextJson(key=findings.next.key, values=values, minutes=minutes)
    return FindingsJson(found=rows, next=following)


def _finding(finding: Finding) -> FindingJson:
    over = dict(finding.over)
    difference = _difference(finding.difference)
    equal_loss = _equal_loss(finding.equal_loss)
    return FindingJson(
        name=finding.name,
        over=over,
        difference=difference,
        seeds_to_show=finding.seeds,
        equal_loss=equal_loss,
    )
