"""A study's result at one scale on one machine: its claims with their verdicts, and what these rest on.

`to_json` writes it, `read` reads it. Of a file only the measurements are taken, and facts that no word rests
on. Claims are those of the study as its file has them now; verdicts follow from the measurements; labels are
those of the study's log.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import structs

from nocap.config.hardware import Fact
from nocap.config.outward import redact
from nocap.judge.cautious import Declared
from nocap.judge.claim import Claim, Rule
from nocap.judge.result import measurement_json
from nocap.judge.verdict import Gain, Missing, Verdict, judge
from nocap.store.formats import listed
from nocap.store.metrics import Ending, Measurement, Per, Scale
from nocap.store.record import SCHEMA_VERSION, read_json, write_json
from nocap.study.checked import asked, otherwise
from nocap.study.log import AnalysisLine, StudyLog
from nocap.study.registration import Provenance
from nocap.study.schema import (
    ArmFacts,
    ClaimJson,
    GainJson,
    GuardJson,
    IntervalJson,
    MissingJson,
    NoiseJson,
    RowJson,
    Shape,
    StudyFile,
    TuningTrial,
)
from nocap.study.spec import Study

KIND: Literal["study"] = "study"
MEASURED = ("arm", "metric", "parts", "of", "scale", "target")  # keys of a claim that say what is measured


@dataclass(frozen=True, kw_only=True, slots=True)
class JudgedClaim:
    """A claim with its verdict."""

    claim: Claim
    against: str | None  # the arm that it is compared with; None: it is about a value
    verdict: Verdict
    margins: list[float]  # of the guards, at this scale
    noise: Mapping[str, Declared]  # of each metric, as it was declared
    bound: float | None  # what arithmetic allows
    stands: Provenance
    where: Mapping[str, list[Shape]]  # timed or trained → the shapes of its sides that differ
    lengths: list[int] | None  # the baseline's steps, of a claim about the time at equal loss
    damaged: frozenset[tuple[str, int]]  # (arm, seed) of runs whose record was changed

    @property
    def word(self) -> str:
        return self.verdict.word.value

    def is_damaged(self, missing: Missing) -> bool:
        """Say whether a run is missing because its record was changed."""
        return missing.per == Per.seed.value and (missing.arm, missing.repeat) in self.damaged

    def declared(self, gain: Gain) -> Declared | None:
        """Return the declared noise that narrowed a gain's interval."""
        used = gain.enough and gain.interval().method.endswith("declared")
        return self.noise[gain.metric.name] if used else None


@dataclass(frozen=True, kw_only=True, slots=True)
class StudyResult:
    """The claims of a study at one scale on one machine, with what they rest on."""

    study: Study
    scale: str
    date: str
    command: str
    commit: str | None
    hardware: Mapping[str, Fact]
    seeds: list[int]  # that the analyses needed
    claims: list[JudgedClaim]
    measurements: Mapping[str, list[Measurement]]  # claim → its rows
    arms: list[ArmFacts]
    trials: list[TuningTrial]
    outdated: list[str] = field(default_factory=list)  # claims that the study asks otherwise now
    unchecked: str = ""  # why the arms cannot be composed here, so that hashes are the stored ones

    @property
    def limitations(self) -> str:
        return self.study.scales[self.scale].limitations

    @property
    def machine(self) -> str:
        return str(self.hardware["fingerprint"])

    @property
    def machine_name(self) -> str:
        return str(self.hardware["name"])

    @property
    def on_gpu(self) -> bool:
        return self.hardware.get("device", "cpu") != "cpu"

    @property
    def missing(self) -> bool:
        """Say whether a claim lacks a measurement."""
        return any(judged.verdict.missing for judged in self.claims)


# --- written ------------------------------------------------------------------------------------------------


def file_of(result: StudyResult) -> StudyFile:
    """Return a result as its file has it."""
    study = result.study
    rows = list[RowJson]()
    for name, some in result.measurements.items():
        for row in some:
            rows.append(RowJson(claim=name, **structs.asdict(measurement_json(row))))
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
        claims=[_claim_json(judged, scale=result.scale) for judged in result.claims],
        measurements=rows,
        arms=result.arms,
        trials=result.trials,
    )


def to_json(result: StudyResult) -> dict[str, object]:
    """Return a result as its file has it, in JSON's types."""
    return dict(msgspec.to_builtins(file_of(result)))


def write(result: StudyResult, folder: Path) -> Path:
    """Write a result into its study's folder; return its path."""
    path = folder / f"results.{result.scale}.{result.machine}.json"
    write_json(path, to_json(result))
    return path


def _claim_json(judged: JudgedClaim, *, scale: str) -> ClaimJson:
    """Return a claim with all of its verdict."""
    claim = judged.claim
    verdict = judged.verdict
    stands = judged.stands
    guards = list[GuardJson]()
    for guard, gain in zip(claim.guards, verdict.guards, strict=True):
        measured = structs.asdict(_gain_json(gain, judged))
        margin = guard.margin(scale)
        guards.append(GuardJson(metric=guard.metric, scale=guard.scale, margin=margin, **measured))
    missing = list[MissingJson]()
    for each in verdict.missing:
        missing.append(MissingJson(**asdict(each), damaged=judged.is_damaged(each)))
    return ClaimJson(
        id=claim.id,
        statement=claim.statement,
        source=claim.source,
        arm=claim.arm,
        baseline=judged.against,
        metric=claim.metric,
        parts=claim.parts,
        of=claim.of,
        scale=claim.scale,
        expected=claim.expected,
        threshold=claim.threshold.value,
        two_sided=claim.two_sided,
        target=claim.target,
        bound=judged.bound,
        bound_rule=claim.mechanism.rule.value,
        bound_formula=claim.mechanism.formula,
        word=judged.word,
        reason=verdict.reason.value if verdict.reason else None,
        failed=verdict.failed,
        guards=guards,
        beyond_bound=verdict.beyond_bound,
        missing=missing,
        at_most=verdict.endings[Ending.at_most],
        diverged=verdict.endings[Ending.diverged],
        refused=verdict.refused,
        more=verdict.more(),
        hash=stands.hash,
        registered=stands.at,
        exploratory=stands.exploratory,
        notes=stands.notes,
        where=dict(judged.where),
        lengths=judged.lengths,
        **structs.asdict(_gain_json(verdict.primary, judged)),
    )


def _gain_json(gain: Gain, judged: JudgedClaim) -> GainJson:
    """Return what was measured of a metric."""
    declared = judged.declared(gain)
    shown = gain.shown()
    measured = None
    least = None
    if shown is not None and math.isfinite(shown.mid):
        measured = IntervalJson(mid=shown.mid, low=shown.low, high=shown.high)
    elif shown is not None and math.isfinite(gain.interval().low):
        least = shown.low
    return GainJson(
        n=len(gain.least),
        per=gain.per.value,
        analysis=gain.analysis,
        noise=_noise_json(declared) if declared else None,
        measured=measured,
        least=least,
    )


def _noise_json(declared: Declared) -> NoiseJson:
    df = declared.df if math.isfinite(declared.df) else None
    return NoiseJson(sd=declared.sd, df=df, source=declared.source)


# --- read ---------------------------------------------------------------------------------------------------


def read(path: Path, study: Study, log: StudyLog) -> StudyResult | None:
    """Return what a file's measurements say of the claims that the study asks now; `None`: it is of a scale
    that the study has no more.

    Errors:
        ValueError: a file that nocap did not write, or a measurement that the study's log has otherwise.
    """
    plain = redact(read_json(path) or {})
    try:
        file = msgspec.convert(plain, StudyFile)
        rows: dict[str, list[Measurement]] = {}
        for row in file.measurements:
            rows.setdefault(row.claim, []).append(row.measurement)
        return _judged(file, rows, study, log)
    except (KeyError, ValueError) as error:
        why = f"KeyError: {error}" if isinstance(error, KeyError) else str(error)
        raise ValueError(f"{path} must be results that nocap.study wrote, got {why}") from error


def _judged(
    file: StudyFile, rows: Mapping[str, list[Measurement]], study: Study, log: StudyLog
) -> StudyResult | None:
    """Judge the claims that the study asks as they were asked."""
    if file.scale not in study.scales:
        return None
    now = asked(study, file.scale, {trial.arm: trial.words for trial in file.trials if trial.picked})
    judged = list[JudgedClaim]()
    outdated = list[str]()
    for stored in file.claims:
        claim = now.claims.get(stored.id)
        if claim is None or not _measures_as(stored, claim, compared_with(claim, study)):
            outdated.append(stored.id)
            continue
        own = rows.get(stored.id, [])
        now.check(claim, own, log, scale=file.scale)
        asked_now = now.hashes.get(claim.id, stored.hash if _expects_as(stored, claim) else "")
        judged.append(_claim(stored, claim, own, study, file, log, asked_now))
    return StudyResult(
        study=study,
        scale=file.scale,
        date=file.date,
        command=file.command,
        commit=file.commit,
        hardware=file.hardware,
        seeds=file.seeds,
        claims=judged,
        measurements={each.claim.id: rows.get(each.claim.id, []) for each in judged},
        arms=file.arms,
        trials=file.trials,
        outdated=outdated,
        unchecked=now.problem,
    )


def _measures_as(stored: ClaimJson, claim: Claim, against: str | None) -> bool:
    """Say whether the measurements of a stored claim are those that a claim of a study needs."""
    same = all(getattr(stored, key) == getattr(claim, key) for key in MEASURED)
    return same and stored.baseline == against


def _expects_as(stored: ClaimJson, claim: Claim) -> bool:
    return stored.expected == claim.expected and stored.two_sided == claim.two_sided


def compared_with(claim: Claim, study: Study) -> str | None:
    """Return the arm that a claim is compared with; `None`: it is about a value."""
    return None if claim.scale is Scale.value else study.against(claim)


def _claim(
    stored: ClaimJson,
    claim: Claim,
    rows: Sequence[Measurement],
    study: Study,
    file: StudyFile,
    log: StudyLog,
    hash: str,
) -> JudgedClaim:
    """Judge a claim. `hash`: of what it asks now."""
    at = study.scales[file.scale]
    bound = claim.mechanism.bound if claim.mechanism.rule is Rule.given else stored.bound
    verdict = judge(claim.bounded(bound), rows, against=study.against(claim), at=file.scale, noise=at.noise)
    said = log.of(AnalysisLine, hash=hash, machine=file.hardware["fingerprint"])
    label: str | None = stored.exploratory or "not in its study's log"
    if said:
        label = said[-1].exploratory or None
    if other := otherwise(verdict, rows, log, scale=file.scale):
        label = "; ".join(filter(None, [label, f"its log has other figures of {listed(other)}"]))
    damaged = {(each.arm, each.repeat) for each in stored.missing if each.damaged}
    return JudgedClaim(
        claim=claim,
        against=compared_with(claim, study),
        verdict=verdict,
        margins=[guard.margin(file.scale) for guard in claim.guards],
        noise=at.noise,
        bound=bound,
        stands=Provenance(hash=hash, at=stored.registered, exploratory=label, notes=stored.notes),
        where=stored.where,
        lengths=stored.lengths,
        damaged=frozenset(damaged),
    )
