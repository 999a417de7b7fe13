"""What a comparison found, the surest and largest first, and what to run next.

A full crossing is told by its levels, all else by its arms. What is not shown has the number of seeds that
would show a difference as large as the one that is there. Where four times the seeds would not do, four times
the steps come next: longer runs have larger effects and less noise (`docs/statistics.md`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from nocap.judge.arms import Arm
from nocap.judge.equal_loss import TimeAtEqualLoss
from nocap.judge.factors import Factors
from nocap.judge.interval import ROUNDING, seeds_to_show
from nocap.judge.losses import Difference, Outcome

FIRST_SEEDS = 4  # of a first look: they show three standard deviations of a pair in 97%, three seeds in 74%
MORE = 4  # times the seeds at most; beyond that, times the steps

# The order in which outcomes are told.
ORDER = (
    Outcome.better,
    Outcome.worse,
    Outcome.depends,
    Outcome.unclear,
    Outcome.diverged,
    Outcome.unfinished,
    Outcome.undecided,
    Outcome.confounded,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """What is known of an arm, or of a level of a key."""

    name: str  # the arm's label, or KEY=LEVEL
    difference: Difference
    over: Mapping[str, int] = field(default_factory=dict)  # of a level: other keys → how many levels
    seeds: int | None = None  # that would show a difference as large; None: it is shown, or too small
    equal_loss: TimeAtEqualLoss | None = None

    @property
    def is_open(self) -> bool:
        """Say whether more runs may show something: of the time at equal loss where that is known, else of
        the loss."""
        if self.difference.outcome not in (Outcome.better, Outcome.worse, Outcome.unclear):
            return False
        if self.equal_loss is not None and self.equal_loss.ratio is not None:
            return self.equal_loss.outcome is Outcome.unclear
        return _is_open(self.difference)


@dataclass(frozen=True, kw_only=True, slots=True)
class Next:
    """What to set in the same command, for what is not shown yet."""

    key: str
    values: Sequence[int]

    @property
    def override(self) -> str:
        return f"{self.key}={','.join(map(str, self.values))}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Findings:
    found: Sequence[Finding]
    next: Next | None  # None: all is shown, or these runs are not of a command of nocap's


def by_effect(difference: Difference) -> tuple[bool, float]:
    """Sort the lowest loss first, and last what has no figure."""
    mid = difference.estimate.mid
    return math.isnan(mid), mid


@dataclass(frozen=True, kw_only=True, slots=True)
class JudgedArm:
    """An arm beside what it is compared with."""

    arm: Arm
    difference: Difference
    equal_loss: TimeAtEqualLoss | None


def findings(
    arms: Sequence[JudgedArm],
    factors: Factors | None,
    *,
    look: int,
    base: Arm,
    stepwise: bool = False,
) -> Findings:
    """Return what was found of these arms, each with its difference to the baseline. `stepwise`: each is
    compared with the one before it, and there is no one command that adds to all of them."""
    found = _levels(factors, look) if factors is not None else _arms(arms, look)
    found.sort(key=_rank)
    every = [base, *(each.arm for each in arms)]
    imported = any(run.imported for arm in every for run in arm.all)
    return Findings(found=found, next=None if imported or stepwise else _next(found, every))


def _levels(factors: Factors, look: int) -> list[Finding]:
    return [
        Finding(
            name=f"{factor.key}={level.name}",
            over=factor.over,
            difference=level.difference,
            seeds=_seeds(level.difference, look),
            equal_loss=level.equal_loss,
        )
        for factor in factors.factors
        for level in factor.levels
    ]


def _arms(arms: Sequence[JudgedArm], look: int) -> list[Finding]:
    return [
        Finding(
            name=each.arm.label,
            difference=each.difference,
            seeds=_seeds(each.difference, look),
            equal_loss=each.equal_loss,
        )
        for each in arms
    ]


def _seeds(difference: Difference, look: int) -> int | None:
    unclear = difference.outcome is Outcome.unclear
    return seeds_to_show(difference.estimate, look=look) if unclear else None


def _rank(finding: Finding) -> tuple[bool, int, float]:
    """Put what is shown, of the loss or of the time at equal loss, first, and of each the largest."""
    mid = finding.difference.estimate.mid
    outcomes = [finding.difference.outcome]
    if finding.equal_loss is not None:
        outcomes.append(finding.equal_loss.outcome)
    shown = Outcome.better in outcomes or Outcome.worse in outcomes
    place = ORDER.index(finding.difference.outcome)
    return not shown, place, 0.0 if math.isnan(mid) else -abs(mid)


# --- what to run next ---------------------------------------------------------------------------------------


def _next(found: Sequence[Finding], arms: Sequence[Arm]) -> Next | None:
    """Return the seeds that were asked for, or enough of them for a first look; where all have these, those
    that would show what is not shown, or longer runs."""
    outcomes = {finding.difference.outcome for finding in found}
    seeds = sorted({run.seed for arm in arms for run in arm.all})
    asked = {seed for arm in arms for seed in _asked(arm)}
    if Outcome.unfinished in outcomes:
        return Next(key="seed", values=sorted(asked | {*seeds}))
    if Outcome.undecided in outcomes:
        return Next(key="seed", values=extended(seeds, FIRST_SEEDS))
    unclear = [finding for finding in found if _is_open(finding.difference)]
    enough = [
        finding.seeds
        for finding in unclear
        if finding.seeds is not None and finding.seeds <= MORE * finding.difference.estimate.n
    ]
    if enough:
        return Next(key="seed", values=extended(seeds, max(enough)))
    steps = {run.summary.get("steps") for arm in arms for run in arm.runs}
    length = steps.pop() if unclear and len(steps) == 1 else None
    return Next(key="trainer.steps", values=[MORE * length]) if isinstance(length, int) else None


def _is_open(difference: Difference) -> bool:
    """Say whether a difference is there and not shown. What is equal to rounding, as by two kernels of one
    attention, needs no more runs."""
    return difference.outcome is Outcome.unclear and abs(difference.estimate.mid) > ROUNDING


def _asked(arm: Arm) -> set[int]:
    """List the seeds that commands asked of an arm."""
    attempts = [attempt for run in arm.all for attempt in run.manifest["attempts"]]
    return {seed for attempt in attempts for seed in attempt["asked"]["seeds"] or ()}


def extended(seeds: Sequence[int], size: int) -> list[int]:
    """Return these seeds and the first others, until there are so many."""
    fresh = [seed for seed in range(size + len(seeds)) if seed not in seeds]
    return sorted([*seeds, *fresh[: max(0, size - len(seeds))]])
