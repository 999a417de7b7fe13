"""All that the runs and sessions of a study measured at one scale, and which of them a claim rests
on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from nocap.config.compose import Composed
from nocap.judge.claim import Claim
from nocap.judge.equal_loss import SHARES
from nocap.sessions.figures import Figures, PartFigures, StepFigures
from nocap.sessions.places import PACE, PARTS, TRAIN, place_of
from nocap.sessions.session_file import SessionFile
from nocap.store.record import Record
from nocap.study.spec import Study


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """All that was measured at one scale. A run or session that is not there is left out."""

    runs: Mapping[tuple[str, int], Record] = field(default_factory=dict)  # (arm, seed)
    # (arm, seed) → steps → the run of so many
    shorter: Mapping[tuple[str, int], Mapping[int, Record]] = field(default_factory=dict)
    # (baseline, seed) → steps → the run of so many, for the time at equal loss
    other_lengths: Mapping[tuple[str, int], Mapping[int, Record]] = field(default_factory=dict)
    # place → files, in order of their numbers
    sessions: Mapping[str, Sequence[SessionFile]] = field(default_factory=dict)
    # place → arm → as it was composed, shorter ones too
    arms: Mapping[str, Mapping[str, Sequence[Composed]]] = field(default_factory=dict)
    # (arm, seed) of runs whose record was changed
    damaged: frozenset[tuple[str, int]] = frozenset()

    def of_arm(self, place: str, arm: str) -> list[tuple[SessionFile, Figures]]:
        """Return the sessions of a place that have the arm, each with what it measured of it."""
        sessions = self.sessions.get(place, ())
        return [(session, session.figures[arm]) for session in sessions if arm in session.figures]

    def steps_of_arm(self, place: str, arm: str) -> list[StepFigures]:
        """List what the sessions of a place timed of an arm's steps."""
        rows = [row for _, row in self.of_arm(place, arm)]
        return [row for row in rows if isinstance(row, StepFigures)]

    def parts_of_arm(self, arm: str) -> list[PartFigures]:
        """List the profiles of an arm's step."""
        rows = [row for _, row in self.of_arm(PARTS, arm)]
        return [row for row in rows if isinstance(row, PartFigures)]

    def has_shorter(self, arm: str, seed: int) -> bool:
        """Say whether all shorter runs of an arm are there: one that is missing might have been the
        one."""
        composed = self.arms.get(TRAIN, {}).get(arm, ())
        runs = self.shorter.get((arm, seed), {})
        return all(short.run.trainer.steps in runs for short in composed[1:])

    def has_other_lengths(self, arm: str, seed: int) -> bool:
        """Say whether a baseline's other lengths are there."""
        return len(self.other_lengths.get((arm, seed), {})) == len(SHARES)

    def used(self, claim: Claim, study: Study) -> Iterator[Used]:
        """Yield each run and session that a claim rests on."""
        sides = study.sides(claim)
        if TRAIN in places(claim):
            yield from self._used_runs(claim, sides)
        if claim.at_equal_loss:
            base = study.against(claim)
            for seed in claim.seeds:
                yield from _of_other_lengths(base, seed, self.other_lengths)
        for place in sorted(places(claim)):
            for arm in sides:
                for session, _ in self.of_arm(place, arm):
                    yield Used(f"{place} session {session.number}", arm, session.started)

    def _used_runs(self, claim: Claim, sides: Sequence[str]) -> Iterator[Used]:
        """Yield the runs of a claim's arms with its seeds, and of a race the shorter ones."""
        for (arm, seed), run in self.runs.items():
            if arm not in sides or seed not in claim.seeds:
                continue
            yield Used(f"{arm}, seed {seed}", arm, run.started)
            if claim.races:
                yield from _of_other_lengths(arm, seed, self.shorter)


class Used(NamedTuple):
    """A run or a session that a claim rests on."""

    name: str
    arm: str
    started: str


def _of_other_lengths(
    arm: str, seed: int, runs: Mapping[tuple[str, int], Mapping[int, Record]]
) -> Iterator[Used]:
    """Yield an arm's runs of other lengths with a seed."""
    for steps, run in runs.get((arm, seed), {}).items():
        yield Used(f"{arm}, seed {seed}, {steps} steps", arm, run.started)


def places(claim: Claim) -> set[str]:
    """Return where a claim's measurements come from: `train` for the runs, and the places of the
    sessions."""
    found = set[str]()
    for metric in claim.metrics:
        found.add(place_of(metric))
        if metric.name == "time_to_target_s":
            found.add(PACE)
    return found
