"""Write a study's result: as its file has it, and as the command answers."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import structs

from nocap.judge.cautious_interval import Declared
from nocap.judge.comparison_json import measurement_json
from nocap.judge.gain import Gain
from nocap.store.measurement import Ending
from nocap.store.record_files import SCHEMA_VERSION, write_json
from nocap.study.result_schema import (
    ClaimJson,
    GainJson,
    GuardJson,
    IntervalJson,
    MissingJson,
    NextSessions,
    NoiseJson,
    RowJson,
    StudyAnswer,
    StudyFile,
)
from nocap.study.study_result import ClaimResult, StudyResult

KIND: Literal["study"] = "study"


def file_of(result: StudyResult) -> StudyFile:
    """Return a result as its file has it."""
    study = result.study
    claims = [_claim_json(claim_result) for claim_result in result.claims]
    rows = list[RowJson]()
    for claim, measurements in result.measurements.items():
        for measurement in measurements:
            fields = structs.asdict(measurement_json(measurement))
            rows.append(RowJson(claim=claim, **fields))
    return StudyFile(
        schema_version=SCHEMA_VERSION,
        kind=KIND,
        study=study.name,
        scale=result.scale,
        question=study.question,
        date=result.date,
        command=result.command,
        commit=result.commit,
        hardware=dict(result.hardware),
        limitations=result.limitations,
        baseline=study.baseline,
        seeds=result.seeds,
        claims=claims,
        measurements=rows,
        arms=result.arms,
        trials=result.trials,
    )


def to_json(result: StudyResult) -> dict[str, object]:
    """Return a result as its file has it, in JSON's types."""
    return dict(msgspec.to_builtins(file_of(result)))


def answer(result: StudyResult, following: NextSessions | None) -> dict[str, object]:
    """Return what the command answers: a result, and what a program runs next."""
    fields = structs.asdict(file_of(result))
    return dict(msgspec.to_builtins(StudyAnswer(**fields, next=following)))


def write_result(result: StudyResult, folder: Path) -> Path:
    """Write a result into its study's folder; return its path."""
    path = folder / f"results.{result.scale}.{result.machine}.json"
    write_json(path, to_json(result))
    return path


def _claim_json(claim_result: ClaimResult) -> ClaimJson:
    """Return a claim with all of its verdict."""
    claim = claim_result.claim
    mechanism = claim.mechanism
    verdict = claim_result.verdict
    standing = claim_result.standing
    reason = None
    if verdict.reason is not None:
        reason = verdict.reason.value
    gain = _gain_json(verdict.primary, claim_result)
    return ClaimJson(
        id=claim.id,
        statement=claim.statement,
        source=claim.source,
        arm=claim.arm,
        baseline=claim_result.against,
        metric=claim.metric,
        parts=claim.parts,
        of=claim.of,
        scale=claim.scale,
        expected=claim.expected,
        threshold=claim.threshold.value,
        two_sided=claim.two_sided,
        target=claim.target,
        bound=claim_result.bound,
        bound_rule=mechanism.rule.value,
        bound_formula=mechanism.formula,
        word=claim_result.word,
        reason=reason,
        failed=verdict.failed,
        guards=_guards_json(claim_result),
        beyond_bound=verdict.beyond_bound,
        missing=_missing_json(claim_result),
        at_most=verdict.endings[Ending.at_most],
        diverged=verdict.endings[Ending.diverged],
        refused=verdict.refused,
        more=verdict.more(),
        hash=standing.hash,
        registered=standing.at,
        exploratory=standing.exploratory,
        notes=standing.notes,
        where=dict(claim_result.where),
        lengths=claim_result.lengths,
        **structs.asdict(gain),
    )


def _guards_json(claim_result: ClaimResult) -> list[GuardJson]:
    """List the guards of a claim, with what was measured of each."""
    guards = list[GuardJson]()
    gains = claim_result.verdict.guards
    margins = claim_result.margins
    for guard, gain, margin in zip(claim_result.claim.guards, gains, margins, strict=True):
        fields = structs.asdict(_gain_json(gain, claim_result))
        guards.append(GuardJson(metric=guard.metric, scale=guard.scale, margin=margin, **fields))
    return guards


def _missing_json(claim_result: ClaimResult) -> list[MissingJson]:
    """List the measurements that a claim lacks."""
    rows = list[MissingJson]()
    for missing in claim_result.verdict.missing:
        is_damaged = claim_result.is_damaged(missing)
        rows.append(MissingJson(**asdict(missing), damaged=is_damaged))
    return rows


def _gain_json(gain: Gain, claim_result: ClaimResult) -> GainJson:
    """Return what was measured of a metric."""
    noise = None
    declared = claim_result.declared(gain)
    if declared is not None:
        noise = _noise_json(declared)
    measured = None
    least = None
    shown = gain.shown()
    if shown is not None and math.isfinite(shown.mid):
        measured = IntervalJson(mid=shown.mid, low=shown.low, high=shown.high)
    elif shown is not None and math.isfinite(gain.interval().low):
        least = shown.low
    return GainJson(
        n=len(gain.least),
        per=gain.per.value,
        analysis=gain.analysis,
        noise=noise,
        measured=measured,
        least=least,
    )


def _noise_json(declared: Declared) -> NoiseJson:
    df = declared.df if math.isfinite(declared.df) else None
    return NoiseJson(sd=declared.sd, df=df, source=declared.source)
