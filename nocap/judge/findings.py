"""What a comparison found, the surest and largest first, and what to run next.

A full crossing is told by its levels, all else by its arms. What is not shown has the number of
seeds that would show a difference as large as the one that is there. Where four times the seeds
would not do, four times the steps come next: longer runs have larger effects and less noise
(`docs/statistics.md`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from nocap.judge.arms import Arm
from nocap.judge.differences import Difference, DifferenceWord
from nocap.judge.equal_loss import TimeAtEqualLoss
from nocap.judge.factors import Factors
from nocap.judge.interval import ROUNDING, seeds_to_show

# of a first look: they show three standard deviations of a pair in 97%, three seeds in 74%
FIRST_SEEDS = 4
MORE = 4  # times the seeds at most; beyond that, times the steps

# The order in which words are told.
ORDER = (
    DifferenceWord.better,
    DifferenceWord.worse,
    DifferenceWord.depends,
    DifferenceWord.unclear,
    DifferenceWord.diverged,
    DifferenceWord.unfinished,
    DifferenceWord.undecided,
    DifferenceWord.confounded,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """What is known of an arm, or of a level of a key."""

    name: str  # the arm's label, or KEY=LEVEL
    difference: Difference
    # of a level: other keys → how many levels
    over: Mapping[str, int] = field(default_factory=dict)
    # that would show a difference as large; None: it is shown, or too small
    seeds: int | None = None
    equal_loss: TimeAtEqualLoss | None = None

    @property
    def is_open(self) -> bool:
        """Say whether more runs may show something: of the time at equal loss where that is known,
        else of the loss."""
        if not self.difference.word.is_of_interval:
            return False
        if self.equal_loss is not None and self.equal_loss.ratio is not None:
            return self.equal_loss.word is DifferenceWord.unclear
        return _is_open(self.difference)

    @property
    def needs_runs(self) -> bool:
        """Say whether more runs may show something of the loss."""
        unfinished = (DifferenceWord.unfinished, DifferenceWord.undecided)
        return self.difference.word in unfinished or _is_open(self.difference)


@dataclass(frozen=True, kw_only=True, slots=True)
class Next:
    """What to set in the same command, for what is not shown yet. `minutes`: the wall-clock time
    of the runs that are then missing, one after the other, as runs of their arms took until now;
    None: no time is known."""

    key: str
    values: Sequence[int]
    minutes: float | None

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
    """Return what was found of these arms, each with its difference to the baseline. `stepwise`:
    each is compared with the one before it, and there is no one command that adds to all of
    them."""
    found = _levels(factors, look) if factors is not None else _arms(arms, look)
    found.sort(key=_rank)
    every = [base, *(each.arm for each in arms)]
    imported = any(run.imported for arm in every for run in arm.all)
    if imported or stepwise:
        return Findings(found=found, next=None)
    return Findings(found=found, next=_next(found, every))


def _levels(factors: Factors, look: int) -> list[Finding]:
    found = list[Finding]()
    for factor in factors.factors:
        for level in factor.levels:
            finding = Finding(
                name=factor.label(level.name),
                over=factor.over,
                difference=level.difference,
                seeds=_seeds(level.difference, look),
                equal_loss=level.equal_loss,
            )
            found.append(finding)
    return found


def _arms(arms: Sequence[JudgedArm], look: int) -> list[Finding]:
    found = list[Finding]()
    for row in arms:
        finding = Finding(
            name=row.arm.label,
            difference=row.difference,
            seeds=_seeds(row.difference, look),
            equal_loss=row.equal_loss,
        )
        found.append(finding)
    return found


def _seeds(difference: Difference, look: int) -> int | None:
    """Return how many seeds would show a difference; `None`: it is shown, or too small."""
    if difference.word is not DifferenceWord.unclear:
        return None
    return seeds_to_show(difference.estimate, look=look)


def _rank(finding: Finding) -> tuple[bool, int, float]:
    """Put what is shown, of the loss or of the time at equal loss, first, and of each the
    largest."""
    mid = finding.difference.estimate.mid
    words = [finding.difference.word]
    if finding.equal_loss is not None:
        words.append(finding.equal_loss.word)
    is_shown = any(word.is_shown for word in words)
    rank = ORDER.index(finding.difference.word)
    size = 0.0 if math.isnan(mid) else abs(mid)
    return not is_shown, rank, -size


# --- what to run next -----------------------------------------------------------------------------


def _next(found: Sequence[Finding], arms: Sequence[Arm]) -> Next | None:
    """Return the seeds that were asked for, or enough of them for a first look; where all have
    these, those that would show what is not shown, or longer runs."""
    words = {finding.difference.word for finding in found}
    trained = set[int]()
    commanded = set[int]()
    for arm in arms:
        trained |= {run.seed for run in arm.all}
        commanded |= _seeds_of_commands(arm)
    seeds = sorted(trained)
    if DifferenceWord.unfinished in words:
        return _seeds_next(arms, sorted(commanded | trained))
    if DifferenceWord.undecided in words:
        return _seeds_next(arms, extended(seeds, FIRST_SEEDS))
    unclear = [finding for finding in found if _is_open(finding.difference)]
    if not unclear:
        return None
    affordable = [finding.seeds for finding in unclear if _is_affordable(finding)]
    sizes = [size for size in affordable if size is not None]
    if sizes:
        return _seeds_next(arms, extended(seeds, max(sizes)))
    return _longer(arms)


def _is_affordable(finding: Finding) -> bool:
    """Say whether a few times the seeds would show a finding."""
    return finding.seeds is not None and finding.seeds <= MORE * finding.difference.estimate.n


def _seeds_next(arms: Sequence[Arm], seeds: Sequence[int]) -> Next:
    """Return these seeds for all arms."""
    missing = list[int]()
    for arm in arms:
        trained = {run.seed for run in arm.all}
        missing.append(len({*seeds} - trained))
    return Next(key="seed", values=seeds, minutes=_minutes(arms, missing))


def _minutes(arms: Sequence[Arm], counts: Sequence[float]) -> float | None:
    """Return what so many runs of each arm take, by those that are there."""
    total_s = 0.0
    for arm, count in zip(arms, counts, strict=True):
        measured = [run.wall_s for run in arm.all]
        walls_s = [wall_s for wall_s in measured if wall_s is not None]
        if count and not walls_s:
            return None
        if count:
            total_s += count * fmean(walls_s)
    return round(total_s / 60, 3)


def _longer(arms: Sequence[Arm]) -> Next | None:
    """Return more steps for all arms; `None`: they do not have one number of steps."""
    steps = set[object]()
    for arm in arms:
        steps |= {run.steps for run in arm.runs}
    if len(steps) != 1:
        return None
    [length] = steps
    if not isinstance(length, int):
        return None
    counts = [MORE * len({run.seed for run in arm.all}) for arm in arms]
    return Next(key="trainer.steps", values=[MORE * length], minutes=_minutes(arms, counts))


def _is_open(difference: Difference) -> bool:
    """Say whether a difference is there and not shown. What is equal to rounding, as by two kernels
    of one attention, needs no more runs."""
    return difference.word is DifferenceWord.unclear and abs(difference.estimate.mid) > ROUNDING


def _seeds_of_commands(arm: Arm) -> set[int]:
    """List the seeds that commands asked of an arm."""
    seeds = set[int]()
    for run in arm.all:
        for attempt in run.attempts:
            seeds |= {*(attempt["asked"]["seeds"] or ())}
    return seeds


def extended(seeds: Sequence[int], size: int) -> list[int]:
    """Return these seeds and the first others, until there are so many."""
    fresh = [seed for seed in range(size + len(seeds)) if seed not in seeds]
    return sorted([*seeds, *fresh[: max(0, size - len(seeds))]])
