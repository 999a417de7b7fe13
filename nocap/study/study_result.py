"""A study's result at one scale on one machine: its claims with their verdicts, and what these rest
on.

`to_json` writes it, `read_result` reads it. Of a file only the measurements are taken, and facts
that no word rests on. Claims are those of the study as its file has them now; verdicts follow from
the measurements; labels are those of the study's log.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import structs

from nocap.config.hardware import Fact
from nocap.config.outward import redact
from nocap.display import listed
from nocap.judge.cautious_interval import Declared
from nocap.judge.claim import Claim, Rule
from nocap.judge.claim_gains import Missing
from nocap.judge.comparison_json import measurement_json
from nocap.judge.gain import Gain
from nocap.judge.verdict import Verdict, judge
from nocap.store.metrics import Ending, Measurement, Per, Scale
from nocap.store.record_files import SCHEMA_VERSION, read_json, write_json
from nocap.study.current_claims import current_claims, sessions_unlike
from nocap.study.log import AnalysisLine, StudyLog
from nocap.study.registration import Provenance
from nocap.study.spec import Study
from nocap.study.study_schema import (
    ArmFacts,
    ClaimJson,
    GainJson,
    GuardJson,
    IntervalJson,
    MissingJson,
    NextSessions,
    NoiseJson,
    RowJson,
    Shape,
    StudyAnswer,
    StudyFile,
    TuningTrial,
)

KIND: Literal["study"] = "study"
MEASURED_FIELDS = (
    "arm",
    "metric",
    "parts",
    "of",
    "scale",
    "target",
)  # keys of a claim that say what is measured


@dataclass(frozen=True, kw_only=True, slots=True)
class ClaimResult:
    """A claim with its verdict."""

    claim: Claim
    against: str | None  # the arm that it is compared with; None: it is about a value
    verdict: Verdict
    margins: list[float]  # of the guards, at this scale
    noise: Mapping[str, Declared]  # of each metric, as it was declared
    bound: float | None  # what arithmetic allows
    provenance: Provenance
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
    claims: list[ClaimResult]
    measurements: Mapping[str, list[Measurement]]  # claim → its rows
    arms: list[ArmFacts]
    trials: list[TuningTrial]
    outdated: list[str] = field(default_factory=list)  # claims that the study asks otherwise now
    hash_problem: str = (
        ""  # why the arms cannot be composed here, so that hashes are the stored ones
    )

    @property
    def limitations(self) -> str:
        """Return what the verdicts cannot be about; empty: the scale is the claims' own."""
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
        return any(claim_result.verdict.missing for claim_result in self.claims)


# --- written --------------------------------------------------------------------------------------


def file_of(result: StudyResult) -> StudyFile:
    """Return a result as its file has it."""
    study = result.study
    claims = [_claim_json(claim_result, scale=result.scale) for claim_result in result.claims]
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


def _claim_json(claim_result: ClaimResult, *, scale: str) -> ClaimJson:
    """Return a claim with all of its verdict."""
    claim = claim_result.claim
    mechanism = claim.mechanism
    verdict = claim_result.verdict
    provenance = claim_result.provenance
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
        guards=_guards_json(claim_result, scale),
        beyond_bound=verdict.beyond_bound,
        missing=_missing_json(claim_result),
        at_most=verdict.endings[Ending.at_most],
        diverged=verdict.endings[Ending.diverged],
        refused=verdict.refused,
        more=verdict.more(),
        hash=provenance.hash,
        registered=provenance.at,
        exploratory=provenance.exploratory,
        notes=provenance.notes,
        where=dict(claim_result.where),
        lengths=claim_result.lengths,
        **structs.asdict(gain),
    )


def _guards_json(claim_result: ClaimResult, scale: str) -> list[GuardJson]:
    """List the guards of a claim, with what was measured of each."""
    guards = list[GuardJson]()
    for guard, gain in zip(claim_result.claim.guards, claim_result.verdict.guards, strict=True):
        fields = structs.asdict(_gain_json(gain, claim_result))
        margin = guard.margin(scale)
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


# --- read -----------------------------------------------------------------------------------------


def read_result(path: Path, study: Study, log: StudyLog) -> StudyResult | None:
    """Return what a file's measurements say of the claims that the study asks now; `None`: it is of
    a scale that the study has no more.

    Errors:
        ValueError: a file that nocap did not write, or a measurement that the study's log has
            otherwise.
    """
    plain = redact(read_json(path) or {})
    try:
        file = msgspec.convert(plain, StudyFile)
        if file.scale not in study.scales:
            return None
        return _ResultReader(file, study, log).result()
    except KeyError as error:
        raise ValueError(
            f"{path} must be results that nocap.study wrote, got KeyError: {error}"
        ) from error
    except ValueError as error:
        raise ValueError(f"{path} must be results that nocap.study wrote, got {error}") from error


class _ResultReader:
    """What reads a file, by the study and its log as they are now."""

    def __init__(self, file: StudyFile, study: Study, log: StudyLog) -> None:
        self.file = file
        self.study = study
        self.log = log
        self.machine = str(file.hardware["fingerprint"])
        self.rows: dict[str, list[Measurement]] = {}
        for row in file.measurements:
            self.rows.setdefault(row.claim, []).append(row.measurement)
        picked = {trial.arm: trial.words for trial in file.trials if trial.picked}
        self.current = current_claims(study, file.scale, picked)

    def result(self) -> StudyResult:
        """Return the claims that the study asks as they were asked, each with its verdict, and name
        the others."""
        claim_result = list[ClaimResult]()
        outdated = list[str]()
        for stored in self.file.claims:
            claim = self.current.claims.get(stored.id)
            if claim is None or not _measures_as(stored, claim, compared_with(claim, self.study)):
                outdated.append(stored.id)
            else:
                claim_result.append(self._claim(stored, claim))
        file = self.file
        return StudyResult(
            study=self.study,
            scale=file.scale,
            date=file.date,
            command=file.command,
            commit=file.commit,
            hardware=file.hardware,
            seeds=file.seeds,
            claims=claim_result,
            measurements={each.claim.id: self.rows.get(each.claim.id, []) for each in claim_result},
            arms=file.arms,
            trials=file.trials,
            outdated=outdated,
            hash_problem=self.current.problem,
        )

    def _claim(self, stored: ClaimJson, claim: Claim) -> ClaimResult:
        """Judge a claim by its stored measurements.

        Errors:
            ValueError: the study's log has one of them otherwise.
        """
        scale = self.file.scale
        at = self.study.scales[scale]
        rows = self.rows.get(stored.id, [])
        self.current.check(claim, rows, self.log, scale=scale, machine=self.machine)
        bound = stored.bound
        if claim.mechanism.rule is Rule.given:
            bound = claim.mechanism.bound
        verdict = judge(
            claim.bounded(bound), rows, against=self.study.against(claim), at=scale, noise=at.noise
        )
        damaged = {(missing.arm, missing.repeat) for missing in stored.missing if missing.damaged}
        return ClaimResult(
            claim=claim,
            against=compared_with(claim, self.study),
            verdict=verdict,
            margins=[guard.margin(scale) for guard in claim.guards],
            noise=at.noise,
            bound=bound,
            provenance=self._provenance(stored, claim, verdict),
            where=stored.where,
            lengths=stored.lengths,
            damaged=frozenset(damaged),
        )

    def _provenance(self, stored: ClaimJson, claim: Claim, verdict: Verdict) -> Provenance:
        """Return where a claim stands: its label is the log's, of the last analysis on this
        machine."""
        hash = self._hash(stored, claim)
        analyses = self.log.of(AnalysisLine, hash=hash, machine=self.machine)
        labels = list[str]()
        if not analyses:
            labels.append(stored.exploratory or "not in its study's log")
        elif analyses[-1].exploratory:
            labels.append(analyses[-1].exploratory)
        rows = self.rows.get(stored.id, [])
        sessions = sessions_unlike(
            verdict, rows, self.log, scale=self.file.scale, machine=self.machine
        )
        if sessions:
            labels.append(f"its log has other figures of {listed(sessions)}")
        label = "; ".join(labels) or None
        return Provenance(hash=hash, at=stored.registered, exploratory=label, notes=stored.notes)

    def _hash(self, stored: ClaimJson, claim: Claim) -> str:
        """Return the hash of what the claim asks now; where its arms cannot be composed here, the
        stored one, if it expects what it did."""
        same = stored.expected == claim.expected and stored.two_sided == claim.two_sided
        return self.current.hashes.get(claim.id, stored.hash if same else "")


def _measures_as(stored: ClaimJson, claim: Claim, against: str | None) -> bool:
    """Say whether the measurements of a stored claim are those that a claim of a study needs."""
    same = all(getattr(stored, key) == getattr(claim, key) for key in MEASURED_FIELDS)
    return same and stored.baseline == against


def compared_with(claim: Claim, study: Study) -> str | None:
    """Return the arm that a claim is compared with; `None`: it is about a value."""
    return None if claim.scale is Scale.value else study.against(claim)
