"""The differences of a table: which arms are in it, over which seeds, at which look, and the word
for each. Of what a clock measures they are of logarithms, and stand for ratios.

An arm that diverged, that is unfinished, or that has fewer than three seeds leaves the table first,
and has its own estimate. The others are judged together: in pairs over the seeds that all of them
share with the baseline, or as samples where they do not share three.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from nocap.judge.arms import Arm
from nocap.judge.interval import (
    LEAST_PAIRS,
    ROUNDING,
    BySeed,
    Estimate,
    Position,
    logarithms,
    of_arms,
    of_arms_apart,
    of_seeds,
    of_steps,
    shared,
)
from nocap.judge.looks import Looks, looks_at
from nocap.metrics import METRICS, Better, Kind


class DifferenceWord(Enum):
    """The word for a difference between an arm and the baseline."""

    better = "better"
    worse = "worse"
    unclear = "no difference shown"
    depends = "depends"
    undecided = "no verdict"
    diverged = "diverged"
    unfinished = "unfinished"
    confounded = "confounded"

    @property
    def is_shown(self) -> bool:
        """Say whether a difference is shown."""
        return self in (DifferenceWord.better, DifferenceWord.worse)

    @property
    def is_gain(self) -> bool:
        """Say whether it is shown that the arm is better."""
        return self is DifferenceWord.better

    @property
    def is_of_interval(self) -> bool:
        """Say whether the interval alone makes the word."""
        return self.is_shown or self is DifferenceWord.unclear

    @property
    def may_change(self) -> bool:
        """Say whether more repeats of a race may change the word."""
        return self in (DifferenceWord.unclear, DifferenceWord.undecided)


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """How an arm compares with the baseline, and the word for it."""

    # of the metric less the baseline's; whoever races or benches says a ratio or a gain
    estimate: Estimate
    word: DifferenceWord
    reason: str = ""  # why there is no verdict, what confounds it, or on what it depends

    @property
    def word_with_reason(self) -> str:
        """Return the word with its reason."""
        if self.word is DifferenceWord.depends:
            return f"depends on {self.reason}"
        if self.reason:
            return f"{self.word.value} ({self.reason})"
        return self.word.value


def word_of_interval(
    estimate: Estimate, *, better: Better = Better.higher, tie: float = ROUNDING
) -> DifferenceWord:
    """Return what an interval shows of a gain, or of a number of which less is better: better or
    worse where it lies wholly beyond the `tie`."""
    if not math.isfinite(estimate.high):
        return DifferenceWord.undecided
    position = estimate.position(0.0, 0.0, tie=tie)
    if position not in (Position.above, Position.below):
        return DifferenceWord.unclear
    is_above = position is Position.above
    more_is_better = better is Better.higher
    return DifferenceWord.better if is_above == more_is_better else DifferenceWord.worse


def difference(estimate: Estimate, *, metric: str, floor: float = ROUNDING) -> Difference:
    """Return what an interval shows of an arm's number less the baseline's."""
    word = word_of_interval(estimate, better=METRICS[metric].better, tie=floor)
    reason = f"n={estimate.n}" if word is DifferenceWord.undecided else ""
    return Difference(estimate=estimate, word=word, reason=reason)


# --- which arms, which seeds ----------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class ArmPair:
    """An arm and what it is compared with, by their values of one metric."""

    arm: Arm
    base: Arm
    metric: str
    looks: Looks

    @property
    def values(self) -> BySeed:
        return scaled(self.arm, self.metric)

    @property
    def base_values(self) -> BySeed:
        return scaled(self.base, self.metric)

    @property
    def seeds(self) -> list[int]:
        """List the seeds that the two share, where they share enough."""
        return shared(self.values, self.base_values)

    @property
    def floor(self) -> float:
        """Return how far apart rounding alone can put them."""
        values = [*self.values.values(), *self.base_values.values()]
        size = max((abs(value) for value in values), default=0.0)
        return ROUNDING * size

    def differences(self, seeds: Sequence[int]) -> list[float]:
        """Return the arm's values less the baseline's, seed by seed."""
        values = self.values
        base_values = self.base_values
        return [values[seed] - base_values[seed] for seed in seeds]

    def own_difference(self) -> Difference | None:
        """Return why this arm is in no table, with its own estimate; `None`: it is in one."""
        estimate = self._alone()
        if self.arm.diverged or self.base.diverged:
            return Difference(
                estimate=estimate, word=DifferenceWord.diverged, reason=self._diverged()
            )
        reason = self._unfinished()
        if reason:
            return Difference(estimate=estimate, word=DifferenceWord.unfinished, reason=reason)
        if not math.isfinite(estimate.high):
            return Difference(
                estimate=estimate, word=DifferenceWord.undecided, reason=f"n={estimate.n}"
            )
        return None

    def _unfinished(self) -> str:
        """Say how much is there of what commands asked for: of pairs, or of each side where the two
        were asked for too few seeds alike; nothing where all is."""
        pairs = self.looks.seeds
        if len(pairs) >= LEAST_PAIRS or self.seeds:
            finished = pairs & self.values.keys() & self.base_values.keys()
            return f"{len(finished)} of {len(pairs)} pairs" if finished != pairs else ""
        seeds, base_seeds = self.looks.seeds_of
        return _lacking(self.values, seeds) or _lacking(
            self.base_values, base_seeds, f" of {self.base.label}"
        )

    def _alone(self) -> Estimate:
        """Return the estimate of this arm as if there were no other."""
        if not self.values or not self.base_values:
            return Estimate(
                mid=math.nan, low=-math.inf, high=math.inf, n=0, method=f"no {self.metric}"
            )
        return of_seeds(self.values, self.base_values, look=self.looks.count)

    def _diverged(self) -> str:
        if self.arm.diverged:
            return _diverged_of(self.arm)
        return f"{_diverged_of(self.base)} of {self.base.label}"


def _lacking(values: BySeed, seeds: Collection[int], of_whom: str = "") -> str:
    """Say how many of the runs that commands asked for are there; nothing where all are."""
    finished = [seed for seed in seeds if seed in values]
    if len(finished) == len(seeds):
        return ""
    return f"{len(finished)} of {len(seeds)} runs{of_whom}"


def _diverged_of(arm: Arm) -> str:
    diverged = {run.seed for run in arm.diverged}
    seeds = {run.seed for run in arm.all}
    return f"{len(diverged)} of {len(seeds)} seeds"


def scaled(arm: Arm, metric: str) -> BySeed:
    """Return an arm's values; of what a clock measures their logarithms."""
    values = arm.values[metric]
    if METRICS[metric].kind is Kind.clock:
        return logarithms(values)
    return values


@dataclass(frozen=True, kw_only=True, slots=True)
class DifferenceTable:
    """The differences of the arms of a comparison, each with its word."""

    by_arm: Mapping[str, Difference]  # by the arm's id
    seeds: list[int]  # that all its rows are over; none: they share too few
    members: frozenset[str]  # ids of the arms that are judged together
    look: int


def judge_together(pairs: Sequence[ArmPair]) -> DifferenceTable:
    """Judge arms together: each against one baseline, or each against the arm before it."""
    members = list[ArmPair]()
    by_arm = dict[str, Difference]()
    for pair in pairs:
        own = pair.own_difference()
        if own is None:
            members.append(pair)
        else:
            by_arm[pair.arm.id] = own
    look = max((pair.looks.count for pair in members), default=1)
    seeds = common_seeds(members)
    for pair, estimate in zip(members, estimates(members, seeds, look), strict=True):
        by_arm[pair.arm.id] = difference(estimate, metric=pair.metric, floor=pair.floor)
    names = frozenset(pair.arm.id for pair in members)
    return DifferenceTable(by_arm=by_arm, seeds=seeds, members=names, look=look)


def common_seeds(members: Sequence[ArmPair]) -> list[int]:
    """List the seeds that all sides of these pairs share; none where they are too few for pairs."""
    if not members:
        return []
    seeds = set(members[0].values)
    for pair in members:
        seeds &= pair.values.keys() & pair.base_values.keys()
    return sorted(seeds) if len(seeds) >= LEAST_PAIRS else []


def estimates(members: Sequence[ArmPair], seeds: Sequence[int], look: int) -> list[Estimate]:
    """Return the difference of each pair, for all of them together."""
    if not members:
        return []
    if seeds:
        return of_arms([pair.differences(seeds) for pair in members], look=look)
    samples = {pair.arm.id: [*pair.values.values()] for pair in members}
    bases = {pair.base.id: [*pair.base_values.values()] for pair in members}
    if len(bases) == 1:
        [base] = bases.values()
        return of_arms_apart(base, [*samples.values()], look=look)
    steps = [(pair.base.id, pair.arm.id) for pair in members]
    return of_steps(bases | samples, steps, look=look)


def pair_of(arm: Arm, base: Arm, metric: str) -> ArmPair:
    """Return a pair with the looks that it had."""
    return ArmPair(arm=arm, base=base, metric=metric, looks=looks_at(arm, base))
