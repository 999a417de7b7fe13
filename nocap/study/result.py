"""A study's result at one scale on one machine: its claims with their verdicts, and what these rest on.

`to_json` writes it, `read` reads it. Of a file only the measurements are taken, and facts that no word rests
on. Claims are those of the study as its file has them now; verdicts follow from the measurements; labels are
those of the study's log.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import msgspec

from nocap.config.hardware import Fact
from nocap.config.outward import redact
from nocap.judge.cautious import Declared
from nocap.judge.claim import Claim, Rule
from nocap.judge.result import measurement_json
from nocap.judge.schema import MeasurementJson
from nocap.judge.verdict import Gain, Missing, Verdict, judge
from nocap.store.formats import listed
from nocap.store.metrics import Measurement, Per, Scale
from nocap.store.record import SCHEMA_VERSION, read_json, write_json
from nocap.study.checked import asked, otherwise
from nocap.study.log import AnalysisLine, StudyLog
from nocap.study.registration import Provenance
from nocap.study.spec import Study

KIND = "study"
MEASURED = ("arm", "metric", "parts", "of", "scale", "target")  # keys of a claim that say what is measured


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """The shape at which a verdict's figures were reached."""

    layers: int
    width: int
    T: list[int]  # sequence lengths: of a curve several, else one
    tokenizer: str | None  # None in an old file
    batch_tokens: int | None  # of a step; None: no step was taken
    precision: str | None  # None in an old file
    device: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Speed:
    """The speed of an arm, a value a session."""

    memory_mib: float | None
    tokens_per_s: list[float | None]
    step_ms: list[float | None]


@dataclass(frozen=True, kw_only=True, slots=True)
class FinalLosses:
    """The losses of the runs that finished."""

    mean: float
    all: list[float]


@dataclass(frozen=True, kw_only=True, slots=True)
class ArmFacts:
    """An arm, as a reader judges its fairness."""

    arm: str
    words: list[str]
    tuned: list[str]  # the overrides that its search picked
    n_trials: int
    params: int | float | None
    flops_per_token: int | float | None
    flops_basis: str | None = None
    kernel: str | None
    tokens: int | float | None
    val_loss: FinalLosses | None
    diverged: list[int]  # seeds
    pace: Speed | None  # at the shape that is trained
    bench: Speed | None  # at the shape that is timed
    runs: list[str]  # identities


@dataclass(frozen=True, kw_only=True, slots=True)
class TuningTrial:
    """An arm's overrides that the search before the study tried."""

    arm: str
    words: list[str]
    seeds: list[int]
    val_loss: float | None  # mean over the seeds; None where one diverged or was not run
    picked: bool


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


# --- a claim and an interval as JSON ------------------------------------------------------------------------


def claim_json(judged: JudgedClaim, *, scale: str) -> dict[str, object]:
    """Return a claim with all of its verdict, as a result's file has it."""
    claim, verdict, stands = judged.claim, judged.verdict, judged.stands
    shapes = {place: [asdict(shape) for shape in some] for place, some in judged.where.items()}
    return {
        "id": claim.id,
        "statement": claim.statement,
        "source": claim.source,
        "arm": claim.arm,
        "baseline": judged.against,
        "metric": claim.metric,
        "parts": claim.parts,
        "of": claim.of,
        "scale": claim.scale.value,
        "expected": claim.expected,
        "threshold": claim.threshold.value,
        "two_sided": claim.two_sided,
        "target": claim.target,
        "bound": judged.bound,
        "bound_rule": claim.mechanism.rule.value,
        "bound_formula": claim.mechanism.formula,
        "word": judged.word,
        "reason": verdict.reason.value if verdict.reason else None,
        "failed": verdict.failed,
        **_gain_json(verdict.primary, judged),
        "guards": [
            {
                "metric": guard.metric,
                "scale": guard.scale.value,
                "margin": guard.margin(scale),
                **_gain_json(gain, judged),
            }
            for guard, gain in zip(claim.guards, verdict.guards, strict=True)
        ],
        "beyond_bound": verdict.beyond_bound,
        "missing": [
            {**asdict(missing), "damaged": judged.is_damaged(missing)} for missing in verdict.missing
        ],
        **verdict.endings,
        "refused": verdict.refused,
        "more": verdict.more(),
        "hash": stands.hash,
        "registered": stands.at,
        "exploratory": stands.exploratory,
        "notes": stands.notes,
        "where": shapes,
        "lengths": judged.lengths,
    }


def _gain_json(gain: Gain, judged: JudgedClaim) -> dict[str, object]:
    """Return what was measured of a metric. `per`: what the n are: seeds, sessions, or one exact count. Of an
    interval without a middle only its lower end is kept, `least`."""
    declared = judged.declared(gain)
    shown = gain.shown()
    measured = None
    least = None
    if shown is not None and math.isfinite(shown.mid):
        measured = {"mid": shown.mid, "low": shown.low, "high": shown.high}
    elif shown is not None and math.isfinite(gain.interval().low):
        least = shown.low
    return {
        "n": len(gain.least),
        "per": gain.per.value,
        "analysis": gain.analysis,
        "noise": declared and declared.json(),
        "measured": measured,
        "least": least,
    }


# --- the file -----------------------------------------------------------------------------------------------


def to_json(result: StudyResult) -> dict[str, object]:
    """Return a result as its file has it."""
    study = result.study
    rows = list[dict[str, object]]()
    for name, some in result.measurements.items():
        for row in some:
            rows.append({"claim": name, **msgspec.to_builtins(measurement_json(row))})
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": KIND,
        "study": study.name,
        "scale": result.scale,
        "question": study.question,
        "date": result.date,
        "command": result.command,
        "commit": result.commit,
        "hardware": dict(result.hardware),
        "limitations": result.limitations,
        "baseline": study.baseline,
        "seeds": result.seeds,
        "claims": [claim_json(judged, scale=result.scale) for judged in result.claims],
        "measurements": rows,
        "arms": [asdict(arm) for arm in result.arms],
        "trials": [asdict(trial) for trial in result.trials],
    }


def write(result: StudyResult, folder: Path) -> Path:
    """Write a result into its study's folder; return its path."""
    path = folder / f"results.{result.scale}.{result.machine}.json"
    write_json(path, to_json(result))
    return path


@dataclass(frozen=True, kw_only=True, slots=True)
class _Missing:
    arm: str
    repeat: int
    damaged: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class _Claim:
    """What is taken of a stored claim."""

    id: str
    arm: str
    baseline: str | None
    metric: str
    parts: list[str]
    of: list[str]
    scale: Scale
    expected: list[float | None]
    two_sided: bool
    target: str | None = None
    bound: float | None
    hash: str
    registered: str | None
    exploratory: str | None
    notes: list[str]
    where: dict[str, list[Shape]]
    lengths: list[int] | None = None
    missing: list[_Missing] = field(default_factory=list)

    def measures_as(self, claim: Claim, against: str | None) -> bool:
        """Say whether its measurements are those that a claim of a study needs."""
        same = all(getattr(self, key) == getattr(claim, key) for key in MEASURED)
        return same and self.baseline == against

    def expects_as(self, claim: Claim) -> bool:
        return self.expected == claim.expected and self.two_sided == claim.two_sided


class _Row(MeasurementJson, frozen=True, kw_only=True):
    """A stored measurement."""

    claim: str


@dataclass(frozen=True, kw_only=True, slots=True)
class _File:
    """What is taken of a file."""

    scale: str
    date: str
    command: str
    commit: str | None
    hardware: dict[str, Fact]
    seeds: list[int]
    claims: list[_Claim]
    measurements: list[_Row]
    arms: list[ArmFacts]
    trials: list[TuningTrial]


def read(path: Path, study: Study, log: StudyLog) -> StudyResult | None:
    """Return what a file's measurements say of the claims that the study asks now; `None`: the file is of
    something else, or of a scale that the study has no more.

    Errors:
        ValueError: a file that nocap did not write, or a measurement that the study's log has otherwise.
    """
    plain = redact(read_json(path) or {})
    if plain.get("kind") != KIND:
        return None
    try:
        file = msgspec.convert(plain, _File)
        rows: dict[str, list[Measurement]] = {}
        for row in file.measurements:
            rows.setdefault(row.claim, []).append(row.measurement)
        return _judged(file, rows, study, log)
    except (KeyError, ValueError) as error:
        why = f"KeyError: {error}" if isinstance(error, KeyError) else str(error)
        raise ValueError(f"{path} must be results that nocap.study wrote, got {why}") from error


def _judged(
    file: _File, rows: Mapping[str, list[Measurement]], study: Study, log: StudyLog
) -> StudyResult | None:
    """Judge the claims that the study asks as they were asked."""
    if file.scale not in study.scales:
        return None
    now = asked(study, file.scale, {trial.arm: trial.words for trial in file.trials if trial.picked})
    judged = list[JudgedClaim]()
    outdated = list[str]()
    for stored in file.claims:
        claim = now.claims.get(stored.id)
        if claim is None or not stored.measures_as(claim, compared_with(claim, study)):
            outdated.append(stored.id)
            continue
        own = rows.get(stored.id, [])
        now.check(claim, own, log, scale=file.scale)
        asked_now = now.hashes.get(claim.id, stored.hash if stored.expects_as(claim) else "")
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


def compared_with(claim: Claim, study: Study) -> str | None:
    """Return the arm that a claim is compared with; `None`: it is about a value."""
    return None if claim.scale is Scale.value else study.against(claim)


def _claim(
    stored: _Claim,
    claim: Claim,
    rows: Sequence[Measurement],
    study: Study,
    file: _File,
    log: StudyLog,
    hash: str,
) -> JudgedClaim:
    """Judge a claim. `hash`: of what it asks now."""
    at = study.scales[file.scale]
    bound = claim.mechanism.bound if claim.mechanism.rule is Rule.given else stored.bound
    verdict = judge(bounded(claim, bound), rows, against=study.against(claim), at=file.scale, noise=at.noise)
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


def bounded(claim: Claim, bound: float | None) -> Claim:
    """Return a claim whose mechanism allows so much, however that was computed."""
    mechanism = replace(claim.mechanism, rule=Rule.given, parts=[], saved={}, bound=bound)
    return replace(claim, mechanism=mechanism)
