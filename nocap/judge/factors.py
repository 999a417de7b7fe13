"""A grid read by factor. Where the arms are a full crossing of two keys or more, a level of a key
is compared with the baseline's level over all levels of the other keys: seed by seed the mean over
these, then the interval of all levels together, once for each key.

An interaction is what an arm ends at beyond the sum of its single changes, with one interval for
all interactions of the grid. Where one is shown, and the level's effect changes its sign with the
other key, the level's word is that it depends on that key. The levels are fixed: a word speaks of
the mean over those that were run.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from nocap.judge import cautious_interval
from nocap.judge.arms import Arm
from nocap.judge.confounders import confounders, is_noisy
from nocap.judge.crossing import Crossing, Point, crossing
from nocap.judge.differences import Difference, DifferenceTable, DifferenceWord, difference
from nocap.judge.equal_loss import BaselineLengths, Logarithms, TimeAtEqualLoss, judge_rows, mean_of
from nocap.judge.interval import ROUNDING, Estimate, Position, of_arms, subtract
from nocap.judge.pace import TOKEN_US, Paces
from nocap.metrics import METRICS, Kind


@dataclass(frozen=True, kw_only=True, slots=True)
class Level:
    """A level of a key compared with the baseline's level, over all levels of the other keys."""

    name: str
    difference: Difference
    pairs: Sequence[tuple[Arm, Arm]]  # an arm with the level, and that with the baseline's level
    speed: Estimate | None = None  # the ratio of its time a token; None: not known of each arm
    equal_loss: TimeAtEqualLoss | None = None  # None: the baseline has no other lengths


@dataclass(frozen=True, kw_only=True, slots=True)
class Factor:
    """A key that the grid crosses with others, and its levels but the baseline's."""

    key: str
    baseline: str
    over: Mapping[str, int]  # the other keys → how many levels each has
    levels: Sequence[Level]
    overrides: Mapping[str, str]  # level → what sets it; empty where the key is one alone

    def label(self, level: str) -> str:
        """Return `mlp=swiglu`. A level of keys that vary together names each of them already."""
        return level if self.overrides else f"{self.key}={level}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Interaction:
    """What an arm's loss is above the sum of its single changes."""

    arm: str  # its label
    keys: Sequence[str]  # that it changes
    estimate: Estimate
    shown: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Factors:
    """A grid by factor."""

    seeds: Sequence[int]
    factors: Sequence[Factor]
    interactions: Sequence[Interaction]


def by_factor(
    arms: Sequence[Arm],
    base: Arm,
    table: DifferenceTable,
    *,
    metric: str,
    allow: Collection[str] = (),
    paces: Paces,
    cautious: bool = False,
    lengths: BaselineLengths | None = None,
) -> Factors | None:
    """Read a grid by factor; `None`: its arms are no full crossing, or not all of them are in the
    table with seeds that they share. `cautious`: with the cautious interval. `lengths`: what the
    baseline's other lengths say."""
    has_all_arms = len(table.members) == len(arms) - 1
    if not has_all_arms or not table.seeds:
        return None
    crossed = crossing(arms, base)
    if crossed is None:
        return None
    by_point = dict[Point, list[float]]()
    for point, arm in crossed.arms.items():
        by_point[point] = [arm.values[metric][seed] for seed in table.seeds]
    losses = _Effects(crossed, by_point, metric, look=table.look, cautious=cautious)
    times = _times(crossed, base, table, paces)
    interactions = losses.interactions()
    shown = [interaction for interaction in interactions if interaction.shown]
    factors = list[Factor]()
    for axis in range(len(crossed.keys)):
        factor = _factor(losses, times, axis, shown, allow)
        if lengths is not None:
            factor = _at_equal_loss(factor, axis, crossed, lengths)
        factors.append(factor)
    return Factors(seeds=table.seeds, factors=factors, interactions=interactions)


def _times(crossed: Crossing, base: Arm, table: DifferenceTable, paces: Paces) -> _Effects | None:
    """Return what the arms' times a token show; `None`: one of them is not known."""
    if not all(paces.has_times(arm, base, table.seeds) for arm in crossed.arms.values()):
        return None
    logarithms = {point: paces.logarithms(arm, table.seeds) for point, arm in crossed.arms.items()}
    look = table.look if paces.timing is None else 1
    return _Effects(crossed, logarithms, TOKEN_US, look=look)


def _at_equal_loss(
    factor: Factor, axis: int, crossed: Crossing, lengths: BaselineLengths
) -> Factor:
    """Return the factor with each level's time at equal loss: the mean over the levels of the other
    keys."""
    rows = {point: lengths.row(arm) for point, arm in crossed.arms.items()}
    effects = {
        level.name: _mean_effect(rows, crossed.pairs(axis, level.name)) for level in factor.levels
    }
    times = judge_rows(effects, look=lengths.look)
    levels = [replace(level, equal_loss=times[level.name]) for level in factor.levels]
    return replace(factor, levels=levels)


def _mean_effect(
    rows: Mapping[Point, Logarithms | str], points: Sequence[tuple[Point, Point]]
) -> Logarithms | str:
    """Return the mean over pairs of points of what the first has beyond the second; or why one has
    none."""
    effects = list[Logarithms]()
    for point, beside in points:
        row = rows[point]
        base = rows[beside]
        if isinstance(row, str):
            return row
        if isinstance(base, str):
            return base
        effects.append(row.minus(base))
    return mean_of(effects)


def _factor(
    losses: _Effects,
    times: _Effects | None,
    axis: int,
    shown: Sequence[Interaction],
    allow: Collection[str],
) -> Factor:
    """Return what a crossing shows of one of its keys. `shown`: the interactions that are."""
    crossed = losses.crossed
    speeds = dict[str, Estimate]()
    if times is not None:
        speeds = times.levels(axis)
    levels = list[Level]()
    for level, estimate in losses.levels(axis).items():
        gap = difference(estimate, metric=losses.metric, floor=losses.floor)
        gap = _confounded_depends_or_same(gap, losses, axis, level, shown, allow)
        speed = speeds[level].exp() if level in speeds else None
        pairs = [(crossed.arms[a], crossed.arms[b]) for a, b in crossed.pairs(axis, level)]
        levels.append(Level(name=level, difference=gap, pairs=pairs, speed=speed))
    over = dict[str, int]()
    for other, key in enumerate(crossed.keys):
        if other != axis:
            over[key] = len(crossed.levels(other))
    return Factor(
        key=crossed.keys[axis],
        baseline=crossed.base[axis],
        over=over,
        levels=levels,
        overrides=crossed.overrides[axis],
    )


def _confounded_depends_or_same(
    gap: Difference,
    losses: _Effects,
    axis: int,
    level: str,
    shown: Sequence[Interaction],
    allow: Collection[str],
) -> Difference:
    """Return a level's difference with the word *confounded* where something confounds an arm of
    the level, else with *depends* where its sign depends on another key, else as it is."""
    reasons = _confounders_of_level(losses.crossed, axis, level, allow)
    if reasons:
        return replace(gap, word=DifferenceWord.confounded, reason=", ".join(reasons))
    keys = _keys_that_decide_the_sign(losses, axis, level, shown)
    if keys:
        return replace(gap, word=DifferenceWord.depends, reason=", ".join(keys))
    return gap


def _confounders_of_level(
    crossed: Crossing, axis: int, level: str, allow: Collection[str]
) -> list[str]:
    """List what confounds the arms that have a level, each beside the arm with the baseline's."""
    reasons: dict[str, None] = {}
    for point, beside in crossed.pairs(axis, level):
        of_pair = confounders(crossed.arms[point], crossed.arms[beside], allowed=allow)
        reasons |= dict.fromkeys(of_pair)
    return list(reasons)


def _keys_that_decide_the_sign(
    losses: _Effects, axis: int, level: str, shown: Sequence[Interaction]
) -> list[str]:
    """List the other keys of the shown interactions that have this level, where it is a gain beside
    some of their levels and a loss beside others; else none."""
    means = [fmean(row) for row in losses.effects(axis, level)]
    if not min(means) < 0 < max(means):
        return []
    crossed = losses.crossed
    labels = {arm.label for point, arm in crossed.arms.items() if point[axis] == level}
    keys: dict[str, None] = {}
    for interaction in shown:
        if interaction.arm in labels:
            keys |= dict.fromkeys(interaction.keys)
    keys.pop(crossed.keys[axis], None)
    return list(keys)


# --- effects --------------------------------------------------------------------------------------


class _Effects:
    """The effects of a crossing's levels in one metric, repeat by repeat. An `axis` is the number
    of a key of the crossing."""

    def __init__(
        self,
        crossed: Crossing,
        values: Mapping[Point, list[float]],
        metric: str,
        *,
        look: int,
        cautious: bool = False,
    ) -> None:
        """`values`: of each arm a value a seed, or a round; of what a clock measures their
        logarithms. `cautious`: all have the cautious interval."""
        self.crossed = crossed
        self.values = values
        self.metric = metric
        self.look = look
        self.cautious = cautious
        size = max(max(map(abs, row)) for row in values.values())
        self.floor = ROUNDING * size

    def estimates(self, rows: Sequence[Sequence[float]], *, cautious: bool) -> list[Estimate]:
        """Return the estimate of each row, for all of them together. `cautious`: with the cautious
        interval."""
        if cautious or self.cautious:
            return [
                cautious_interval.of_pairs(row, analysis=self.look, comparisons=len(rows))
                for row in rows
            ]
        return of_arms(rows, look=self.look)

    def effects(self, axis: int, level: str) -> list[list[float]]:
        """List a level's effect at each combination of the other keys: its differences, seed by
        seed."""
        effects = list[list[float]]()
        for point, beside in self.crossed.pairs(axis, level):
            effects.append(subtract(self.values[point], self.values[beside]))
        return effects

    def levels(self, axis: int) -> dict[str, Estimate]:
        """Return the mean effect of each level of a key but the baseline's, with one interval for
        all."""
        _, *levels = self.crossed.levels(axis)
        means = list[list[float]]()
        for level in levels:
            by_seed = zip(*self.effects(axis, level), strict=True)
            means.append([fmean(values) for values in by_seed])
        estimates = self.estimates(means, cautious=self.is_noisy(axis))
        return dict(zip(levels, estimates, strict=True))

    def is_noisy(self, axis: int) -> bool:
        """Say whether a key changes an option whose losses have the cautious interval."""
        if METRICS[self.metric].kind is not Kind.seed:
            return False
        arms = self.crossed.arms
        base = arms[self.crossed.base]
        singles = [self.crossed.with_level_of(self.crossed.base, axis, point) for point in arms]
        return any(is_noisy(arms[point], base) for point in singles)

    def interactions(self) -> list[Interaction]:
        """List what each arm that changes several keys ends at beyond the sum of its single
        changes."""
        changed = {point: self._changed(point) for point in self.crossed.arms}
        several = [point for point, axes in changed.items() if len(axes) > 1]
        cautious = any(self.is_noisy(axis) for axis in range(len(self.crossed.keys)))
        rows = [self._beyond(point, changed[point]) for point in several]
        estimates = self.estimates(rows, cautious=cautious)
        interactions = list[Interaction]()
        for point, estimate in zip(several, estimates, strict=True):
            label = self.crossed.arms[point].label
            keys = [self.crossed.keys[axis] for axis in changed[point]]
            position = estimate.position(0.0, 0.0, tie=self.floor)
            is_shown = position in (Position.below, Position.above)
            interactions.append(
                Interaction(arm=label, keys=keys, estimate=estimate, shown=is_shown)
            )
        return interactions

    def _changed(self, point: Point) -> list[int]:
        """List the keys in which a point differs from the baseline, by their number."""
        return [axis for axis, level in enumerate(point) if level != self.crossed.base[axis]]

    def _beyond(self, point: Point, changed: Sequence[int]) -> list[float]:
        """Return an arm's losses less the baseline's, less what each of its changes does alone."""
        base = self.values[self.crossed.base]
        rest = subtract(self.values[point], base)
        for axis in changed:
            single = self.values[self.crossed.with_level_of(self.crossed.base, axis, point)]
            rest = subtract(rest, subtract(single, base))
        return rest
