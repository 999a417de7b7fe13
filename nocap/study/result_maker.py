"""Make the result of a study that was carried out."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from statistics import fmean

import msgspec

from nocap.config.compose import Composed
from nocap.config.hardware import Fact
from nocap.judge.claim import Claim
from nocap.launch.baseline_lengths import others_of
from nocap.sessions.figures import DecodingFigures, Figures, LengthFigures, StepFigures
from nocap.sessions.places import BENCH, CURVE, DECODING, PACE, PLACES, TRAIN
from nocap.store.checkout import git_state
from nocap.store.measurement import Measurement
from nocap.store.record import Record, dig
from nocap.store.record_files import RunStatus
from nocap.study.arm_facts import ArmFacts, FinalLosses, Shape, Speed
from nocap.study.bounds import bound
from nocap.study.carry_out import StudyOutcome
from nocap.study.claim_measurements import judge_claim, measurements
from nocap.study.evidence import Evidence
from nocap.study.study_plan import StudyPlan
from nocap.study.study_result import ClaimResult, StudyResult


def result_of(outcome: StudyOutcome, *, hardware: Mapping[str, Fact], command: str) -> StudyResult:
    """Return everything that a report shows. No name of a machine is in it."""
    plan = outcome.plan
    study = plan.study
    claim_results = list[ClaimResult]()
    rows = dict[str, list[Measurement]]()
    for claim in study.claims:
        rows[claim.id] = measurements(claim, study, outcome.evidence)
        claim_results.append(_claim(claim, rows[claim.id], outcome))
    n_seeds = max(len(claim.seeds) for claim in study.claims)
    facts = dict(hardware)
    facts.pop("host", None)
    return StudyResult(
        study=study,
        scale=plan.scale,
        date=time.strftime("%Y-%m-%d"),
        command=command,
        commit=_commit(),
        hardware=facts,
        seeds=study.seeds[:n_seeds],
        claims=claim_results,
        measurements=rows,
        arms=[_arm(name, outcome) for name in study.arms],
        trials=outcome.trials,
    )


def _commit() -> str | None:
    """Return the commit of the code, with a + where files were changed since; `None`: there is no
    git."""
    git = git_state()
    if git is None:
        return None
    mark = "+" if git["diff_sha256"] else ""
    return f"{git['commit']}{mark}"


def shape(arm: Composed) -> Shape:
    """Return the shape of an arm."""
    trainer = arm.run.trainer
    model = arm.run.model
    return Shape(
        layers=model.n_layer,
        width=model.d_model,
        T=[model.seq_len],
        tokenizer=arm.run.tokenizer.name,
        batch_tokens=trainer.batch_tokens,
        precision=trainer.precision.value,
        device=trainer.device.value,
    )


# --- a claim --------------------------------------------------------------------------------------


def _claim(claim: Claim, rows: Sequence[Measurement], outcome: StudyOutcome) -> ClaimResult:
    """Judge a claim by its measurements."""
    plan = outcome.plan
    allowed = bound(claim, plan.study, outcome.evidence)
    return ClaimResult.of(
        claim,
        plan.study,
        plan.scale,
        verdict=judge_claim(claim, rows, plan.study, plan.scale, bound=allowed),
        bound=allowed,
        standing=outcome.standings[claim.id],
        where=_where(claim, plan),
        lengths=_lengths(claim, plan),
        damaged=outcome.evidence.damaged,
    )


def _lengths(claim: Claim, plan: StudyPlan) -> list[int] | None:
    """List the baseline's steps from the shortest, of a claim about the time at equal loss."""
    if not claim.at_equal_loss:
        return None
    base = plan.train[plan.study.against(claim)]
    steps = base.run.trainer.steps
    lengths = [steps, *others_of(steps, requested_by=claim.id)]
    lengths.sort()
    return lengths


def _where(claim: Claim, plan: StudyPlan) -> dict[str, list[Shape]]:
    """Return the shapes that a verdict rests on, of what is timed and of what is trained: of the
    claim's arm, and of the one that it is compared with where that is another."""
    kinds = set[str](metric.made_by for metric in claim.metrics)
    where = dict[str, list[Shape]]()
    if kinds - {TRAIN}:
        where["timed"] = _distinct(_timed_shapes(claim, plan, kinds))
    if TRAIN in kinds:
        arms = plan.study.sides(claim)
        where["trained"] = _distinct([shape(plan.train[arm]) for arm in arms])
    return where


def _timed_shapes(claim: Claim, plan: StudyPlan, kinds: Collection[str]) -> list[Shape]:
    """List the shapes at which the arms of a claim are timed. `kinds`: of its metrics."""
    shapes = [shape(plan.bench[arm]) for arm in plan.study.sides(claim)]
    if PLACES[CURVE].kind in kinds:
        return [replace(shapes[0], layers=1, T=plan.at.curve, batch_tokens=None)]
    if PLACES[DECODING].kind in kinds:
        return [replace(one, batch_tokens=None) for one in shapes]
    return shapes


def _distinct(shapes: Sequence[Shape]) -> list[Shape]:
    """Return the shapes in their order, without those that are equal to one before."""
    distinct = list[Shape]()
    for one in shapes:
        if one not in distinct:
            distinct.append(one)
    return distinct


# --- an arm: the fairness columns -----------------------------------------------------------------


def _arm(name: str, outcome: StudyOutcome) -> ArmFacts:
    """Return what a reader needs to judge an arm's fairness."""
    plan = outcome.plan
    study = plan.study
    evidence = outcome.evidence
    runs = list[Record]()
    for seed in study.seeds:
        run = evidence.runs.get((name, seed))
        if run is not None:
            runs.append(run)
    tokens = None
    if runs:
        tokens = runs[0].number("tokens")
    n_trials = 0
    tuned = list[str]()
    for trial in outcome.trials:
        if trial.arm == name:
            n_trials += 1
            if trial.picked:
                tuned = trial.words
    step = _counts(runs, name, evidence)
    return ArmFacts(
        arm=name,
        words=[*study.arms[name], *plan.at.own.get(name, [])],
        tuned=tuned,
        n_trials=n_trials,
        params=step.params,
        flops_per_token=step.flops_per_token,
        flops_basis=step.flops_basis,
        kernel=step.kernel,
        tokens=tokens,
        val_loss=_final_losses(runs),
        diverged=[run.seed for run in runs if run.status == RunStatus.diverged],
        pace=_speed(evidence.steps_of_arm(PACE, name)),
        bench=_speed(evidence.steps_of_arm(BENCH, name)),
        runs=[run.identity for run in runs],
    )


def _final_losses(runs: Sequence[Record]) -> FinalLosses | None:
    """Return the final losses of the runs that finished; `None`: there is none."""
    losses = list[float]()
    for run in runs:
        # a diverged run has its last loss, too
        if run.status == RunStatus.finished and run.val_loss is not None:
            losses.append(run.val_loss)
    if not losses:
        return None
    return FinalLosses(mean=fmean(losses), all=losses)


def _counts(runs: Sequence[Record], name: str, evidence: Evidence) -> StepFigures:
    """Return what is counted of an arm: of the one that is trained, else of the one that is
    timed."""
    if not runs:
        return _counts_of_sessions([PACE, BENCH, CURVE, DECODING], name, evidence)
    step = _counts_of_sessions([PACE, CURVE, DECODING], name, evidence)
    run = runs[0]
    return msgspec.structs.replace(
        step,
        params=step.params or dig(run.summary, "params", "total"),
        flops_per_token=step.flops_per_token or run.number("flops_per_token"),
        flops_basis=step.flops_basis or dig(run.summary, "flops_basis"),
    )


def _counts_of_sessions(places: Sequence[str], name: str, evidence: Evidence) -> StepFigures:
    """Return what the first session of the first of these places counted of an arm; empty where
    none has it."""
    for place in places:
        rows = evidence.of_arm(place, name)
        if rows:
            _, figures = rows[0]
            return _step_figures(figures)
    return StepFigures()


def _step_figures(figures: Figures) -> StepFigures:
    """Return what is counted of a step, whatever was timed."""
    if isinstance(figures, StepFigures):
        return figures
    assert isinstance(figures, LengthFigures | DecodingFigures), (
        "no other place has an arm's counts"
    )
    return StepFigures(params=figures.params, kernel=figures.kernel)


def _speed(rows: Sequence[StepFigures]) -> Speed | None:
    """Return an arm's speed in each session; `None`: there was no session."""
    if not rows:
        return None
    tokens_per_s = [row.tokens_per_s for row in rows]
    step_ms = [row.step_ms for row in rows]
    return Speed(memory_mib=rows[0].peak_mib, tokens_per_s=tokens_per_s, step_ms=step_ms)
