"""The time that an arm takes for the loss that it reaches, beside the time that the baseline would
take for that loss. So a speed and a loss are one number: below 1 is a gain.

The baseline is trained at a shorter and at a longer length too: whole schedules with the same
seeds, warm-up and decay as the same shares, rates unchanged. Between the two, the logarithm of its
loss falls by b for each factor e of steps (a power law). An arm whose logarithm of the loss lies d
beside the baseline's is worth exp(d/b) of the baseline's steps, and its time at equal loss is that
of its training over the baseline's, divided by that worth. It says nothing of other lengths, nor of
the time to the baseline's own loss, which a race finds (`judge.time_to_target`).

The interval is that of losses, on one value a seed by the delta method: with t the logarithm of the
times' ratio and m = d/b of the means, z = t − m − (d − m·b)/b, seed by seed, has t − m as its mean
and the noise of all four losses in it. Where the arms were timed in turns, z has no time in it: the
logarithms of the rounds add their mean and their variance.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean

import numpy as np

from nocap.judge.arms import Arm, changes
from nocap.judge.confounders import confounders
from nocap.judge.differences import DifferenceWord, word_of_interval
from nocap.judge.interval import (
    LEAST_PAIRS,
    Array,
    Estimate,
    Position,
    of_arms,
    of_pairs,
    seeds_to_show,
    subtract,
)
from nocap.judge.pace import Paces

SHARES = (0.7, 1.4)  # of the baseline's steps
STEPS = "trainer.steps"
WIDEST = 0.5  # half width of the slope's interval, of the slope: beyond that it is not known
NO_SLOPE = "how fast the baseline's loss falls with its steps is not known well enough"


@dataclass(frozen=True, kw_only=True, slots=True)
class TimeAtEqualLoss:
    """An arm's or a level's, as a ratio to the baseline's; or why there is none."""

    ratio: Estimate | None = None
    refused: str | None = None
    # that would show a ratio as far from 1; None: it is shown, or too many
    seeds: int | None = None

    @classmethod
    def of(cls, logarithm: Estimate, *, look: int) -> TimeAtEqualLoss:
        seeds = None
        if word_of_interval(logarithm) is DifferenceWord.unclear:
            seeds = seeds_to_show(logarithm, look=look)
        return cls(ratio=logarithm.exp(), seeds=seeds)

    @property
    def word(self) -> DifferenceWord:
        """Say whether the arm takes less time for its loss, or more."""
        if self.ratio is None or self.ratio.low <= 0 or not math.isfinite(self.ratio.high):
            return DifferenceWord.undecided
        position = self.ratio.position(1.0, 1.0)
        if position is Position.below:
            return DifferenceWord.better
        if position is Position.above:
            return DifferenceWord.worse
        return DifferenceWord.unclear


# --- the baseline's lengths -----------------------------------------------------------------------


def is_length(arm: Arm, base: Arm) -> bool:
    """Say whether an arm is the baseline at another length: a whole schedule of other steps, its
    parts the same shares."""
    if STEPS not in arm.config.keys() & base.config.keys():
        return False
    changed = changes(arm, base)
    in_steps = {key for key in changed if key.startswith("schedule.") and key.endswith("_steps")}
    if STEPS not in changed or changed.keys() - {STEPS} - in_steps:
        return False
    share = arm.config[STEPS] / base.config[STEPS]
    parts = [key for key in base.config if key.startswith("schedule.") and key.endswith("_steps")]
    shares_alike = all(abs(arm.config[key] - share * base.config[key]) <= 1 for key in parts)
    return shares_alike and not confounders(arm, base, allowed=("steps",))


def shows_a_length(arm: Arm) -> bool:
    """Say whether all of an arm's runs were asked for only to show another arm at another
    length."""
    return all(run.length_of is not None for run in arm.all)


def lengths_around(base: Arm, arms: Sequence[Arm]) -> tuple[Arm, Arm] | None:
    """Return the baseline's next shorter and next longer length; `None`: one of them is missing."""
    lengths = [arm for arm in arms if arm is not base and arm.runs and is_length(arm, base)]
    lengths.sort(key=lambda arm: arm.config[STEPS])
    shorter = [arm for arm in lengths if arm.config[STEPS] < base.config[STEPS]]
    longer = [arm for arm in lengths if arm.config[STEPS] > base.config[STEPS]]
    return (shorter[-1], longer[0]) if shorter and longer else None


# --- the estimate ---------------------------------------------------------------------------------


def slopes(short: Array, long: Array, *, ratio: float) -> Array:
    """Return how much the logarithm of the loss falls for each factor e of steps, seed by seed.
    `ratio`: of the two lengths."""
    falls: Array = (np.log(long) - np.log(short)) / math.log(ratio)
    return falls


def is_known(slope: Array) -> bool:
    """Say whether the baseline's slope is known well enough, from that of each seed."""
    estimate = of_pairs(slope.tolist())
    return estimate.high < 0 and estimate.half_width <= WIDEST * abs(estimate.mid)


def is_between(arm: Array, short: Array, long: Array) -> bool:
    """Say whether the mean of an arm's losses lies between those of the baseline's ends."""
    return bool(long.mean() <= arm.mean() <= short.mean())


def times(arm: Array, base: Array, slope: Array, pace: Array) -> Array:
    """Return z of each seed, whose mean is the logarithm of the time at equal loss. Losses of the
    arm (…, seeds) and the baseline at its own length, `slope` of `slopes`, both (seeds,); `pace`:
    the logarithm of the times' ratio, as the arm's losses."""
    d = np.log(arm) - np.log(base)
    b = slope.mean()
    worth = d.mean(axis=-1, keepdims=True) / b
    z: Array = pace - worth - (d - worth * slope) / b
    return z


@dataclass(frozen=True, kw_only=True, slots=True)
class Logarithms:
    """Values whose mean is the logarithm of a time at equal loss."""

    by_seed: list[float]
    # what rounds of a timing add; none, where the times are those of the runs
    by_round: list[float]

    def minus(self, other: Logarithms) -> Logarithms:
        """Return what these have beyond others."""
        return Logarithms(
            by_seed=subtract(self.by_seed, other.by_seed),
            by_round=subtract(self.by_round, other.by_round),
        )


def mean_of(rows: Sequence[Logarithms]) -> Logarithms:
    """Return the mean of several, seed by seed and round by round."""
    return Logarithms(
        by_seed=[fmean(seed) for seed in zip(*(row.by_seed for row in rows), strict=True)],
        by_round=[fmean(round_) for round_ in zip(*(row.by_round for row in rows), strict=True)],
    )


@dataclass(frozen=True, kw_only=True)
class BaselineLengths:
    """What the baseline's lengths say of the arms beside it."""

    base: Arm
    short: Arm
    long: Arm
    metric: str  # of the loss
    seeds: Sequence[int]  # over which the arms are compared
    look: int
    paces: Paces

    @property
    def lengths(self) -> list[int]:
        """List the baseline's steps, from the shortest."""
        return [arm.config[STEPS] for arm in (self.short, self.base, self.long)]

    def row(self, arm: Arm) -> Logarithms | str:
        """Return an arm's values; or why it has none."""
        if self.refused is not None:
            return self.refused
        known = self.seeds and set(self.seeds) <= arm.values[self.metric].keys()
        if not known or arm.diverged:
            return "the arm does not have all seeds of the baseline"
        if not self.paces.has_times(arm, self.base, self.seeds):
            return (
                self.paces.refusal(arm, self.base)
                or "the arm's time a token is not known for each seed"
            )
        own = self._losses(arm)
        if not is_between(own, self._losses(self.short), self._losses(self.long)):
            steps = " to ".join(f"{steps:,}" for steps in (self.lengths[0], self.lengths[-1]))
            return f"the arm's loss is outside the range that the baseline reaches in {steps} steps"
        pace = subtract(self._times(arm), self._times(self.base))
        in_turns = self.paces.timing is not None
        z = times(
            own,
            self._losses(self.base),
            self._slopes,
            np.zeros(len(self.seeds)) if in_turns else np.array(pace),
        )
        return Logarithms(by_seed=z.tolist(), by_round=pace if in_turns else [])

    @cached_property
    def refused(self) -> str | None:
        """Say why the baseline's lengths say nothing; `None`: they do."""
        have = [
            set(self.seeds) <= arm.values[self.metric].keys() for arm in (self.short, self.long)
        ]
        if len(self.seeds) < LEAST_PAIRS or not all(have):
            return f"the baseline's other lengths have fewer than {LEAST_PAIRS} seeds of the table"
        return None if is_known(self._slopes) else NO_SLOPE

    @cached_property
    def _slopes(self) -> Array:
        ratio = self.long.config[STEPS] / self.short.config[STEPS]
        return slopes(self._losses(self.short), self._losses(self.long), ratio=ratio)

    def _losses(self, arm: Arm) -> Array:
        return np.array([arm.values[self.metric][seed] for seed in self.seeds])

    def _times(self, arm: Arm) -> list[float]:
        """Return the logarithms of the times of a run's training, but for a term that all have."""
        tokens = math.log(fmean(run.summary["tokens"] for run in arm.runs))
        return [tokens + pace for pace in self.paces.logarithms(arm, self.seeds)]


def judge_rows(rows: Mapping[str, Logarithms | str], *, look: int) -> dict[str, TimeAtEqualLoss]:
    """Return the time at equal loss of each row, with one interval for all of them."""
    known = {name: row for name, row in rows.items() if not isinstance(row, str)}
    every = [*known.values()]
    beside = [row.by_round for row in every if row.by_round]
    estimates = of_arms([row.by_seed for row in every], look=look, beside=beside)
    times_of = dict(zip(known, estimates, strict=True))
    at = {name: TimeAtEqualLoss.of(estimate, look=look) for name, estimate in times_of.items()}
    refused = {
        name: TimeAtEqualLoss(refused=row) for name, row in rows.items() if isinstance(row, str)
    }
    return {name: (at | refused)[name] for name in rows}
