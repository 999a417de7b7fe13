"""A study's result at one scale on one machine: its claims with their verdicts, and what these rest
on. `result_maker` makes it of what was measured, `result_writer` writes it, `result_reader` reads
it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from nocap.config.hardware import Fact
from nocap.judge.cautious_interval import Declared
from nocap.judge.claim import Claim
from nocap.judge.claim_gains import Missing
from nocap.judge.gain import Gain
from nocap.judge.verdict import Verdict
from nocap.store.measurement import Measurement, Per
from nocap.study.arm_facts import ArmFacts, Shape, TuningTrial
from nocap.study.spec import Study
from nocap.study.standing import Standing


@dataclass(frozen=True, kw_only=True, slots=True)
class ClaimResult:
    """A claim with its verdict."""

    claim: Claim
    against: str | None  # the arm that it is compared with; None: it is about a value
    verdict: Verdict
    margins: list[float]  # of the guards, at this scale
    noise: Mapping[str, Declared]  # of each metric, as it was declared
    bound: float | None  # what arithmetic allows
    standing: Standing
    where: Mapping[str, list[Shape]]  # timed or trained → the shapes of its sides that differ
    lengths: list[int] | None  # the baseline's steps, of a claim about the time at equal loss
    damaged: frozenset[tuple[str, int]]  # (arm, seed) of runs whose record was changed

    @classmethod
    def of(
        cls,
        claim: Claim,
        study: Study,
        scale: str,
        *,
        verdict: Verdict,
        bound: float | None,
        standing: Standing,
        where: Mapping[str, list[Shape]],
        lengths: list[int] | None,
        damaged: frozenset[tuple[str, int]],
    ) -> ClaimResult:
        """Return a claim with its verdict at a scale, and what its study says of it there."""
        return cls(
            claim=claim,
            against=study.compared_with(claim),
            verdict=verdict,
            margins=[guard.margin(scale) for guard in claim.guards],
            noise=study.scales[scale].noise,
            bound=bound,
            standing=standing,
            where=where,
            lengths=lengths,
            damaged=damaged,
        )

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
    # why the arms cannot be composed here, so that hashes are the stored ones
    hash_problem: str = ""

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
