"""What was measured of a claim's arm and of the one that it is compared with, as measurements; and
the claim's verdict by these."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, takewhile
from statistics import fmean

from nocap.judge.arms import Arm
from nocap.judge.claim import AT_EQUAL_LOSS, TO_TARGET, Claim
from nocap.judge.equal_loss import BaselineLengths
from nocap.judge.interval import LEAST_PAIRS, analyses, analysis_of
from nocap.judge.pace import Paces
from nocap.judge.time_to_target import race
from nocap.judge.verdict import Verdict, judge
from nocap.metrics import METRICS, Metric, is_count
from nocap.sessions.figures import Figures, PartFigures, StepFigures
from nocap.sessions.places import PACE, TRAIN, place_of
from nocap.sessions.session_file import SessionFile
from nocap.store.measurement import Ending, Measurement, Per
from nocap.store.record import Record
from nocap.store.record import measurements as of_run
from nocap.store.record_files import RunStatus
from nocap.study.bounds import bound
from nocap.study.evidence import Evidence
from nocap.study.spec import Study

Steps = tuple[float | None, Ending]


def verdict_of(claim: Claim, study: Study, scale: str, evidence: Evidence) -> Verdict:
    """Judge a claim, with its bound as it was computed."""
    rows = measurements(claim, study, evidence)
    return judge_claim(claim, rows, study, scale, bound=bound(claim, study, evidence))


def judge_claim(
    claim: Claim, rows: Sequence[Measurement], study: Study, scale: str, *, bound: float | None
) -> Verdict:
    """Judge a claim of a study by its measurements. `bound`: what arithmetic allows."""
    noise = study.scales[scale].noise
    return judge(claim.bounded(bound), rows, against=study.against(claim), at=scale, noise=noise)


def measurements(claim: Claim, study: Study, evidence: Evidence) -> list[Measurement]:
    """List what was measured of the claim's arm and of the one it is compared with, metric by
    metric. A measurement that is missing is left out."""
    sides = list(dict.fromkeys((claim.arm, study.against(claim))))
    rows = list[Measurement]()
    for metric in claim.metrics:
        rows += _of_metric(claim, metric, sides, study, evidence)
    return sorted(rows, key=lambda row: sides.index(row.arm))


def _of_metric(
    claim: Claim, metric: Metric, sides: Sequence[str], study: Study, evidence: Evidence
) -> list[Measurement]:
    if metric.made_by != TRAIN:
        return _timed(claim, metric, sides, evidence, place=place_of(metric))
    if metric.name == AT_EQUAL_LOSS:
        return times_at_equal_loss(claim, study, evidence)
    if metric.name in TO_TARGET:
        steps = steps_to_target(claim, study, evidence)
        if metric.name == "steps_to_target":
            return steps
        return _times(claim, metric, sides, steps, evidence)
    return _trained(claim, metric, sides, evidence)


def _trained(
    claim: Claim, metric: Metric, sides: Sequence[str], evidence: Evidence
) -> list[Measurement]:
    """List what the runs of the claim's seeds measured."""
    rows = list[Measurement]()
    for arm in sides:
        for seed in claim.seeds:
            run = evidence.runs.get((arm, seed))
            measured = of_run(run) if run is not None else []
            rows += [replace(row, arm=arm) for row in measured if row.metric is metric]
    return rows


def _timed(
    claim: Claim, metric: Metric, sides: Sequence[str], evidence: Evidence, *, place: str
) -> list[Measurement]:
    """List what is timed, one a session that has both arms; a count once, if all sessions agree on
    it."""
    values = {arm: _values(claim, metric, evidence.of_arm(place, arm)) for arm in sides}
    on_cuda = any(session.on_cuda for session, _ in chain(*values.values()))
    if is_count(metric, on_cuda=on_cuda) and all(_agree(pairs) for pairs in values.values()):
        return _counts(metric, values)
    numbers = [{session.number for session, _ in pairs} for pairs in values.values() if pairs]
    paired = sorted(set[int].intersection(*numbers)) if numbers else []
    rows = list[Measurement]()
    for arm, pairs in values.items():
        for session, value in pairs:
            if session.number in paired:
                repeat = paired.index(session.number) + 1
                rows.append(_of_session(arm, metric, session, value, repeat=repeat))
    return rows


def _counts(
    metric: Metric, values: Mapping[str, Sequence[tuple[SessionFile, float]]]
) -> list[Measurement]:
    """List a count of each arm, as its first session has it."""
    rows = list[Measurement]()
    for arm, pairs in values.items():
        if pairs:
            session, value = pairs[0]
            rows.append(_of_session(arm, metric, session, value, repeat=1, per=Per.exact))
    return rows


def _values(
    claim: Claim, metric: Metric, of_arm: Sequence[tuple[SessionFile, Figures]]
) -> list[tuple[SessionFile, float]]:
    """List the sessions that have a value of a metric, each with it."""
    values = list[tuple[SessionFile, float]]()
    for session, row in of_arm:
        value = _value(row, claim, metric)
        if value is not None:
            values.append((session, value))
    return values


def _agree(pairs: Sequence[tuple[SessionFile, float]]) -> bool:
    return len({value for _, value in pairs}) <= 1


def _of_session(
    arm: str,
    metric: Metric,
    session: SessionFile,
    value: float,
    *,
    repeat: int,
    per: Per = Per.session,
) -> Measurement:
    return Measurement(
        arm=arm,
        repeat=repeat,
        metric=metric,
        value=value,
        where=session.machine,
        when=session.started,
        per=per,
    )


def _value(row: Figures, claim: Claim, metric: Metric) -> float | None:
    if isinstance(row, PartFigures):
        return _of_parts(row, claim, metric)
    if isinstance(row, StepFigures) and metric.name == "memory_mib":
        return row.peak_mib
    value = getattr(row, metric.name)
    if value is None:
        return None
    return float(value)


def _of_parts(row: PartFigures, claim: Claim, metric: Metric) -> float:
    """Return what the parts of a claim have of a metric."""
    sources: Mapping[str, Mapping[str, float | None]] = {
        "part_mib": row.mib,
        "held_mib": row.memory_mib,
        "part_params": row.params,
    }
    source = sources.get(metric.name, row.ms)
    spent = float(sum(source.get(part) or 0 for part in claim.parts))
    if metric.name != "share":
        return spent
    whole_ms = row.step_ms
    if claim.of:
        whole_ms = sum(row.ms.get(part, 0.0) for part in claim.of)
    return spent / whole_ms


# --- steps and time to a loss ---------------------------------------------------------------------


def _times(
    claim: Claim,
    metric: Metric,
    sides: Sequence[str],
    steps: Sequence[Measurement],
    evidence: Evidence,
) -> list[Measurement]:
    """Return times to the target: steps are seeds', the time of a step is a session's.

    Both are dealt in turns into as many groups as there are of the fewer. Their means make
    independent pairs, whose spread has the noise of both.
    """
    step_ms = _timed(claim, METRICS["step_ms"], sides, evidence, place=PACE)
    paces = {arm: [row for row in step_ms if row.arm == arm] for arm in sides}
    groups = min(len(claim.seeds), *map(len, paces.values()))
    rows = list[Measurement]()
    for arm, pace in paces.items():
        ends = [row for row in steps if row.arm == arm]
        if len(ends) < len(claim.seeds):
            continue
        for group in range(groups):
            row = _time_of(ends[group::groups], pace[group::groups])
            rows.append(replace(row, repeat=group + 1, metric=metric))
    return rows


def _time_of(ends: Sequence[Measurement], pace: Sequence[Measurement]) -> Measurement:
    """Return the seconds that a group's steps take at its time of a step, with the worst ending."""
    ending = max((row.ending for row in ends), key=[*Ending].index)
    if ending is Ending.diverged:
        return replace(pace[0], value=None, ending=ending)
    ms = math.exp(_log_mean(ends) + _log_mean(pace))
    return replace(pace[0], value=ms / 1e3, ending=ending)


def _log_mean(some: Iterable[Measurement]) -> float:
    logs = [math.log(row.value) for row in some if row.value]
    return fmean(logs)


def steps_to_target(claim: Claim, study: Study, evidence: Evidence) -> list[Measurement]:
    """Return the steps to the loss that both arms' schedules end at."""
    base = study.against(claim)
    sides = (claim.arm, base)
    runs = evidence.runs
    ends: dict[tuple[str, int], Steps] = {}
    seeds = list[int]()  # that race
    for seed in claim.seeds:
        pair = [runs.get((arm, seed)) for arm in sides]
        statuses = [run.status for run in pair if run is not None]
        if len(statuses) < len(sides):
            continue
        if RunStatus.diverged in statuses:
            ends[claim.arm, seed] = LOST
            ends[base, seed] = _end_without_race(runs[base, seed])
        elif all(evidence.has_shorter(arm, seed) for arm in sides):
            seeds.append(seed)
    if seeds:
        finishes = race(*(_curve(arm, seeds, evidence) for arm in sides))
        for arm, finish in zip(sides, finishes, strict=True):
            for seed, steps in zip(seeds, finish.steps, strict=True):
                ends[arm, seed] = (steps, finish.ending)
    rows = list[Measurement]()
    for arm in sides:
        for seed in claim.seeds:
            if (arm, seed) in ends:
                rows.append(_steps(arm, runs[arm, seed], ends[arm, seed]))
    return rows


LOST: Steps = (None, Ending.diverged)


def _end_without_race(base: Record) -> Steps:
    """Return the steps of a baseline whose rival diverged: all that it had, unless it diverged
    too."""
    if base.status == RunStatus.diverged:
        return LOST
    return float(steps_of(base)), Ending.measured


def _steps(arm: str, run: Record, end: Steps) -> Measurement:
    value, ending = end
    return Measurement(
        arm=arm,
        repeat=run.seed,
        metric=METRICS["steps_to_target"],
        value=value,
        ending=ending,
        where=run.machine.fingerprint,
        when=run.started,
    )


def _curve(arm: str, seeds: Sequence[int], evidence: Evidence) -> dict[int, list[float]]:
    """Return final losses by steps, over seeds that all finished. A length at which a seed diverged
    is left out."""
    losses: dict[int, list[float]] = {}
    for seed in seeds:
        shorter = evidence.shorter.get((arm, seed), {})
        for run in (*shorter.values(), evidence.runs[arm, seed]):
            if run.status == RunStatus.finished and run.val_loss is not None:
                losses.setdefault(steps_of(run), []).append(run.val_loss)
    return {n: by_seed for n, by_seed in losses.items() if len(by_seed) == len(seeds)}


def steps_of(run: Record) -> int:
    return int(run.config["trainer.steps"])


# --- time at equal loss ---------------------------------------------------------------------------


def times_at_equal_loss(claim: Claim, study: Study, evidence: Evidence) -> list[Measurement]:
    """Return the arm's time over the baseline's for the loss that the arm reaches, seed by seed,
    and the baseline's, which is 1. They are over the seeds of the last analysis for which all runs
    are there: what a seed tells depends on the others. Without these, what is there tells nothing,
    and what is missing has no row."""
    base = study.against(claim)
    own = [seed for seed in claim.seeds if (claim.arm, seed) in evidence.runs]
    others = list[int]()
    for seed in claim.seeds:
        if (base, seed) in evidence.runs and evidence.has_other_lengths(base, seed):
            others.append(seed)
    complete = {*own}.intersection(others)
    first = list(takewhile(complete.__contains__, claim.seeds))
    number = analysis_of(len(first))
    seeds = claim.seeds
    logs: Mapping[int, float | str] = {}
    if number:
        seeds = first[: analyses()[number - 1]]
        logs = _at_equal_loss(claim.arm, base, seeds, evidence)
    rows = list[Measurement]()
    for seed in seeds:
        if seed in own:
            log_time = logs.get(seed, TOO_FEW)
            rows.append(_of_run(claim.arm, evidence.runs[claim.arm, seed], log_time))
        if seed in others:
            rows.append(_of_run(base, evidence.runs[base, seed], 0.0))
    return rows


TOO_FEW = f"fewer than {LEAST_PAIRS} seeds have all runs"


def _of_run(arm: str, run: Record, log_time: float | str) -> Measurement:
    """Return the measurement of a run. `log_time`: a time's logarithm, or why there is none."""
    row = partial(
        Measurement,
        arm=arm,
        repeat=run.seed,
        metric=METRICS[AT_EQUAL_LOSS],
        where=run.machine.fingerprint,
        when=run.started,
    )
    if run.status == RunStatus.diverged:
        return row(value=None, ending=Ending.diverged)
    if isinstance(log_time, str):
        return row(value=None, ending=Ending.refused, why=log_time)
    return row(value=math.exp(log_time))


def _at_equal_loss(
    arm: str, base: str, seeds: Sequence[int], evidence: Evidence
) -> Mapping[int, float | str]:
    """Return the logarithm of each seed's time at equal loss, or why there is none."""
    lost: dict[int, float | str] = {}
    sound = list[int]()
    for seed in seeds:
        why = _lost(base, seed, evidence)
        if why is not None:
            lost[seed] = why
        elif evidence.runs[arm, seed].status != RunStatus.diverged:
            sound.append(seed)
    if len(sound) < LEAST_PAIRS:
        return dict.fromkeys(seeds, next(iter(lost.values()), TOO_FEW))
    lengths = [evidence.other_lengths[base, seed].values() for seed in sound]
    lengths_of_base = BaselineLengths(
        base=_arm(base, [evidence.runs[base, seed] for seed in sound]),
        short=_arm(base, [min(runs, key=steps_of) for runs in lengths]),
        long=_arm(base, [max(runs, key=steps_of) for runs in lengths]),
        metric="val_loss",
        seeds=sound,
        look=analysis_of(len(seeds)),
        paces=Paces(timing=None),
    )
    row = lengths_of_base.row(_arm(arm, [evidence.runs[arm, seed] for seed in sound]))
    if isinstance(row, str):
        return dict.fromkeys(sound, row) | lost
    return dict(zip(sound, row.by_seed, strict=True)) | lost


def _lost(base: str, seed: int, evidence: Evidence) -> str | None:
    """Say which run of a baseline diverged with a seed; `None`: none did."""
    if evidence.runs[base, seed].status == RunStatus.diverged:
        return f"{base} diverged, seed {seed}"
    for steps, run in evidence.other_lengths[base, seed].items():
        if run.status == RunStatus.diverged:
            return f"{base} diverged, seed {seed}, {steps} steps"
    return None


def _arm(name: str, runs: Sequence[Record]) -> Arm:
    return Arm(id=name, label=name, config=runs[0].config, runs=tuple(runs), diverged=())
