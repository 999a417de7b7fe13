"""What came out of a study that was carried out, as its result."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean

import msgspec

from nocap.config.compose import Composed
from nocap.config.hardware import Fact
from nocap.judge.claim import Claim
from nocap.launch.lengths import others_of
from nocap.sessions.figures import PACE, DecodingFigures, Figures, LengthFigures, StepFigures
from nocap.store.identity import git_state
from nocap.store.runs import Record, dig
from nocap.study.conduct import Done
from nocap.study.evidence import Evidence, bound, measurements, verdict_of
from nocap.study.plan import StudyPlan
from nocap.study.result import JudgedClaim, StudyResult, compared_with
from nocap.study.schema import ArmFacts, FinalLosses, Shape, Speed


def collect(done: Done, *, hardware: Mapping[str, Fact], command: str) -> StudyResult:
    """Return everything that a report shows. No name of a machine is in it."""
    plan = done.part
    study = plan.study
    git = git_state()
    commit = None
    if git is not None:
        commit = f"{git['commit']}{'+' if git['diff_sha256'] else ''}"
    return StudyResult(
        study=study,
        scale=plan.scale,
        date=time.strftime("%Y-%m-%d"),
        command=command,
        commit=commit,
        hardware={key: value for key, value in hardware.items() if key != "host"},
        seeds=study.seeds[: max(len(claim.seeds) for claim in study.claims)],
        claims=[_claim(claim, plan, done) for claim in study.claims],
        measurements={claim.id: measurements(claim, study, done.evidence) for claim in study.claims},
        arms=[_arm(name, plan, done) for name in study.arms],
        trials=done.trials,
    )


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


# --- a claim ------------------------------------------------------------------------------------------------


def _claim(claim: Claim, plan: StudyPlan, done: Done) -> JudgedClaim:
    study = plan.study
    return JudgedClaim(
        claim=claim,
        against=compared_with(claim, study),
        verdict=verdict_of(claim, study, plan.scale, done.evidence),
        margins=[guard.margin(plan.scale) for guard in claim.guards],
        noise=plan.at.noise,
        bound=bound(claim, study, done.evidence),
        stands=done.stands[claim.id],
        where=_where(claim, plan),
        lengths=_lengths(claim, plan),
        damaged=done.evidence.damaged,
    )


def _lengths(claim: Claim, plan: StudyPlan) -> list[int] | None:
    """List the baseline's steps from the shortest, of a claim about the time at equal loss."""
    if not claim.at_equal_loss:
        return None
    steps = plan.train[plan.study.against(claim)].run.trainer.steps
    return sorted([steps, *others_of(steps, asked=claim.id)])


def _where(claim: Claim, plan: StudyPlan) -> dict[str, list[Shape]]:
    """Return the shapes that a verdict rests on, of what is timed and of what is trained: of the claim's arm,
    and of the one that it is compared with where that is another."""
    kinds = {metric.made_by for metric in claim.metrics}
    sides = plan.study.sides(claim)
    where = dict[str, list[Shape]]()
    if kinds - {"train"}:
        timed = [shape(plan.bench[name]) for name in sides]
        if "lengths" in kinds:
            timed = [replace(timed[0], layers=1, T=plan.at.curve, batch_tokens=None)]
        elif "decoding" in kinds:
            timed = [replace(each, batch_tokens=None) for each in timed]
        where["timed"] = _distinct(timed)
    if "train" in kinds:
        where["trained"] = _distinct([shape(plan.train[name]) for name in sides])
    return where


def _distinct(shapes: list[Shape]) -> list[Shape]:
    some = list[Shape]()
    for each in shapes:
        if each not in some:
            some.append(each)
    return some


# --- an arm: the fairness columns ---------------------------------------------------------------------------


def _arm(name: str, plan: StudyPlan, done: Done) -> ArmFacts:
    study = plan.study
    evidence = done.evidence
    runs = [evidence.runs[name, seed] for seed in study.seeds if (name, seed) in evidence.runs]
    # a diverged one has its last
    ends = [run.val_loss for run in runs if run.status == "finished" and run.val_loss is not None]
    trials = [trial for trial in done.trials if trial.arm == name]
    picked = [trial.words for trial in trials if trial.picked]
    counted = _counted(runs, name, evidence)
    return ArmFacts(
        arm=name,
        words=[*study.arms[name], *plan.at.own.get(name, [])],
        tuned=picked[0] if picked else [],
        n_trials=len(trials),
        params=counted.params,
        flops_per_token=counted.flops_per_token,
        flops_basis=counted.flops_basis,
        kernel=counted.kernel,
        tokens=runs[0].number("tokens") if runs else None,
        val_loss=FinalLosses(mean=fmean(ends), all=ends) if ends else None,
        diverged=[run.seed for run in runs if run.status == "diverged"],
        pace=_speed(evidence.steps_of_arm(PACE, name)),
        bench=_speed(evidence.steps_of_arm("bench", name)),
        runs=[run.identity for run in runs],
    )


def _counted(runs: Sequence[Record], name: str, evidence: Evidence) -> StepFigures:
    """Return what is counted of an arm: of the one that is trained, else of the one that is timed."""
    places = [PACE, "curve", "decoding"] if runs else [PACE, "bench", "curve", "decoding"]
    found = StepFigures()
    for place in places:
        rows = evidence.of_arm(place, name)
        if rows:
            found = _step_figures(rows[0][1])
            break
    if not runs:
        return found
    trained = runs[0]
    return msgspec.structs.replace(
        found,
        params=found.params or dig(trained.summary, "params", "total"),
        flops_per_token=found.flops_per_token or trained.number("flops_per_token"),
        flops_basis=found.flops_basis or dig(trained.summary, "flops_basis"),
    )


def _step_figures(row: Figures) -> StepFigures:
    """Return what is counted of a step, whatever was timed."""
    if isinstance(row, StepFigures):
        return row
    assert isinstance(row, LengthFigures | DecodingFigures), "no other place has an arm's counts"
    return StepFigures(params=row.params, kernel=row.kernel)


def _speed(rows: Sequence[StepFigures]) -> Speed | None:
    if not rows:
        return None
    return Speed(
        memory_mib=rows[0].peak_mib,
        tokens_per_s=[row.tokens_per_s for row in rows],
        step_ms=[row.step_ms for row in rows],
    )
