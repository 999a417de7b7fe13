"""The differences of a table: which arms are in it, over which seeds, at which look, and the word for each.
Of what a clock measures they are of logarithms, and stand for ratios.

An arm that diverged, that is unfinished, or that has fewer than three seeds leaves the table first, and has
its own estimate. The others are judged together: in pairs over the seeds that all of them share with the
baseline, or as samples where they do not share three.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from nocap.judge.arms import Arm
from nocap.judge.interval import (
    LEAST_PAIRS,
    ROUNDING,
    BySeed,
    Estimate,
    of_arms,
    of_arms_apart,
    of_seeds,
    of_steps,
    shared,
)
from nocap.judge.looks import Looks, looks_at
from nocap.store.metrics import METRICS, Better, Kind


class Outcome(Enum):
    better = "better"
    worse = "worse"
    unclear = "no difference shown"
    depends = "depends"
    undecided = "no verdict"
    diverged = "diverged"
    unfinished = "unfinished"
    confounded = "confounded"


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """How an arm compares with the baseline, and the word for it."""

    estimate: Estimate  # of the metric less the baseline's; whoever races or benches says a ratio or a gain
    outcome: Outcome
    reason: str = ""  # why there is no verdict, what confounds it, or on what it depends

    @property
    def verdict(self) -> str:
        if self.outcome is Outcome.depends:
            return f"depends on {self.reason}"
        return f"{self.outcome.value}{f' ({self.reason})' if self.reason else ''}"


def outcome(estimate: Estimate, *, better: Better = Better.higher, tie: float = ROUNDING) -> Outcome:
    """What an interval shows of a gain, or of a number of which less is better: better or worse where it lies
    wholly beyond the `tie`."""
    if not math.isfinite(estimate.high):
        return Outcome.undecided
    up, down = (Outcome.better, Outcome.worse) if better is Better.higher else (Outcome.worse, Outcome.better)
    return {1: up, -1: down}.get(estimate.place(0.0, 0.0, tie=tie), Outcome.unclear)


def difference(estimate: Estimate, *, metric: str, floor: float = ROUNDING) -> Difference:
    """What an interval shows of an arm's number less the baseline's."""
    decision = outcome(estimate, better=METRICS[metric].better, tie=floor)
    return Difference(
        estimate=estimate, outcome=decision, reason=f"n={estimate.n}" if decision is Outcome.undecided else ""
    )


# --- which arms, which seeds --------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Pair:
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
        """Those that the two share, where they share enough."""
        return shared(self.values, self.base_values)

    @property
    def floor(self) -> float:
        """How far apart rounding alone can put them."""
        sizes = [abs(x) for side in (self.values, self.base_values) for x in side.values()]
        return ROUNDING * max(sizes, default=0.0)

    def left(self) -> Difference | None:
        """Return why this arm is in no table, with its own estimate; `None`: it is in one."""
        estimate = self._alone()
        if self.arm.diverged or self.base.diverged:
            return Difference(estimate=estimate, outcome=Outcome.diverged, reason=self._diverged())
        if reason := self._unfinished():
            return Difference(estimate=estimate, outcome=Outcome.unfinished, reason=reason)
        if not math.isfinite(estimate.high):
            return Difference(estimate=estimate, outcome=Outcome.undecided, reason=f"n={estimate.n}")
        return None

    def _unfinished(self) -> str:
        """Say how much is there of what commands asked for: of pairs, or of each side where the two were
        asked for too few seeds alike; nothing where all is."""
        asked = self.looks.asked
        there = asked & self.values.keys() & self.base_values.keys()
        if len(asked) >= LEAST_PAIRS or self.seeds:
            return f"{len(there)} of {len(asked)} pairs" if len(there) < len(asked) else ""
        for side, values, wanted in zip(
            ("", f" of {self.base.label}"), (self.values, self.base_values), self.looks.asked_of, strict=True
        ):
            if wanted - values.keys():
                return f"{len(wanted & values.keys())} of {len(wanted)} runs{side}"
        return ""

    def _alone(self) -> Estimate:
        """Return the estimate of this arm as if there were no other."""
        if not self.values or not self.base_values:
            return Estimate(mid=math.nan, low=-math.inf, high=math.inf, n=0, method=f"no {self.metric}")
        return of_seeds(self.values, self.base_values, look=self.looks.count)

    def _diverged(self) -> str:
        side = self.arm if self.arm.diverged else self.base
        diverged, seeds = (len({run.seed for run in runs}) for runs in (side.diverged, side.all))
        where = "" if side is self.arm else f" of {self.base.label}"
        return f"{diverged} of {seeds} seeds{where}"


def scaled(arm: Arm, metric: str) -> BySeed:
    """Return an arm's values; of what a clock measures their logarithms."""
    values = arm.values[metric]
    if METRICS[metric].kind is Kind.clock:
        return {seed: math.log(x) for seed, x in values.items()}
    return values


@dataclass(frozen=True, kw_only=True, slots=True)
class Differences:
    """The differences of arms, each with its word."""

    differences: Mapping[str, Difference]  # arm's id → its own
    seeds: list[int]  # that all its rows are over; none: they share too few
    members: frozenset[str]  # ids of the arms that are judged together
    look: int


def together(pairs: Sequence[Pair]) -> Differences:
    """Judge arms together: each against one baseline, or each against the arm before it."""
    left = {pair.arm.id: why for pair in pairs if (why := pair.left()) is not None}
    members = [pair for pair in pairs if pair.arm.id not in left]
    look = max((pair.looks.count for pair in members), default=1)
    seeds = common(members)
    judged = [
        difference(estimate, metric=pair.metric, floor=pair.floor)
        for pair, estimate in zip(members, estimates(members, seeds, look), strict=True)
    ]
    return Differences(
        differences=left | {pair.arm.id: each for pair, each in zip(members, judged, strict=True)},
        seeds=seeds,
        members=frozenset(pair.arm.id for pair in members),
        look=look,
    )


def common(members: Sequence[Pair]) -> list[int]:
    """List the seeds that all sides of these pairs share; none where they are too few for pairs."""
    sides = [set(values) for pair in members for values in (pair.values, pair.base_values)]
    seeds = sorted(set.intersection(*sides)) if sides else []
    return seeds if len(seeds) >= LEAST_PAIRS else []


def estimates(members: Sequence[Pair], seeds: Sequence[int], look: int) -> list[Estimate]:
    """Return the difference of each pair, for all of them together."""
    if not members:
        return []
    if seeds:
        rows = [[pair.values[seed] - pair.base_values[seed] for seed in seeds] for pair in members]
        return of_arms(rows, look=look)
    samples = [[*pair.values.values()] for pair in members]
    bases = {pair.base.id: [*pair.base_values.values()] for pair in members}
    if len(bases) < 2:
        return [each for base in bases.values() for each in of_arms_apart(base, samples, look=look)]
    groups = bases | {pair.arm.id: [*pair.values.values()] for pair in members}
    return of_steps(groups, [(pair.base.id, pair.arm.id) for pair in members], look=look)


def pair_of(arm: Arm, base: Arm, metric: str) -> Pair:
    return Pair(arm=arm, base=base, metric=metric, looks=looks_at(arm, base))
