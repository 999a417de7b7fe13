"""Read a study's result from its file. Only the measurements are taken, and facts that no word
rests on. Claims are those of the study as its file has them now; verdicts follow from the
measurements; labels are those of the study's log."""

from __future__ import annotations

from pathlib import Path

import msgspec

from nocap.config.outgoing_text import redact
from nocap.display import listed
from nocap.judge.claim import Claim, Rule
from nocap.judge.verdict import Verdict
from nocap.store.measurement import Measurement
from nocap.store.record_files import read_json
from nocap.study.claim_measurements import judge_claim
from nocap.study.current_claims import current_claims, sessions_unlike
from nocap.study.log import AnalysisLine, StudyLog
from nocap.study.result_schema import ClaimJson, StudyFile
from nocap.study.spec import Study
from nocap.study.standing import Standing
from nocap.study.study_result import ClaimResult, StudyResult

# keys of a claim that say what is measured
MEASURED_FIELDS = ("arm", "metric", "parts", "of", "scale", "target")


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
            f"{path} must be results that nocap.study wrote, got other content (KeyError: {error})"
        ) from error
    except ValueError as error:
        raise ValueError(
            f"{path} must be results that nocap.study wrote, got other content ({error})"
        ) from error


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
        claim_results = list[ClaimResult]()
        outdated = list[str]()
        for stored in self.file.claims:
            claim = self.current.claims.get(stored.id)
            if claim is None or not _measures_as(stored, claim, self.study.compared_with(claim)):
                outdated.append(stored.id)
            else:
                claim_results.append(self._claim(stored, claim))
        names = [claim_result.claim.id for claim_result in claim_results]
        measurements = {name: self.rows.get(name, []) for name in names}
        file = self.file
        return StudyResult(
            study=self.study,
            scale=file.scale,
            date=file.date,
            command=file.command,
            commit=file.commit,
            hardware=file.hardware,
            seeds=file.seeds,
            claims=claim_results,
            measurements=measurements,
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
        rows = self.rows.get(stored.id, [])
        self.current.check(claim, rows, self.log, scale=scale, machine=self.machine)
        bound = stored.bound
        if claim.mechanism.rule is Rule.given:
            bound = claim.mechanism.bound
        verdict = judge_claim(claim, rows, self.study, scale, bound=bound)
        damaged = {(missing.arm, missing.repeat) for missing in stored.missing if missing.damaged}
        return ClaimResult.of(
            claim,
            self.study,
            scale,
            verdict=verdict,
            bound=bound,
            standing=self._standing(stored, claim, verdict),
            where=stored.where,
            lengths=stored.lengths,
            damaged=frozenset(damaged),
        )

    def _standing(self, stored: ClaimJson, claim: Claim, verdict: Verdict) -> Standing:
        """Return where a claim stands: its label is the log's, of the last analysis on this
        machine."""
        hash = self._hash(stored, claim)
        analyses = self.log.of(AnalysisLine, hash=hash, machine=self.machine)
        labels = list[str]()
        if not analyses:
            labels.append(stored.exploratory or "not in the study's log")
        elif analyses[-1].exploratory:
            labels.append(analyses[-1].exploratory)
        rows = self.rows.get(stored.id, [])
        sessions = sessions_unlike(
            verdict, rows, self.log, scale=self.file.scale, machine=self.machine
        )
        if sessions:
            labels.append(f"the study's log has other figures for {listed(sessions)}")
        label = "; ".join(labels) or None
        return Standing(hash=hash, at=stored.registered, exploratory=label, notes=stored.notes)

    def _hash(self, stored: ClaimJson, claim: Claim) -> str:
        """Return the hash of what the claim asks now; where its arms cannot be composed here, the
        stored one, if it expects what it did."""
        same = stored.expected == claim.expected and stored.two_sided == claim.two_sided
        return self.current.hashes.get(claim.id, stored.hash if same else "")


def _measures_as(stored: ClaimJson, claim: Claim, against: str | None) -> bool:
    """Say whether the measurements of a stored claim are those that a claim of a study needs."""
    same = all(getattr(stored, key) == getattr(claim, key) for key in MEASURED_FIELDS)
    return same and stored.baseline == against
