"""A grid read by factor. Where the arms are a full crossing of two keys or more, a level of a key
is compared with the baseline's level over all levels of the other keys: seed by seed the mean over
these, then the interval of all levels together, once for each key.

An interaction is what an arm ends at beyond the sum of its single changes, with one interval for
all interactions of the grid. Where one is shown, and the level's effect changes its sign with the
other key, the level's word is that it depends on that key. The levels are fixed: a word speaks of
the mean over those that were run.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from statistics import fmean

from nocap.judge import cautious_interval
from nocap.judge.arm_labels import short_keys
from nocap.judge.arms import ABSENT, Arm, chosen, command_keys, setting, swept_keys
from nocap.judge.confounders import confounders, is_noisy
from nocap.judge.differences import Difference, Differences, DifferenceWord, difference
from nocap.judge.equal_loss import EqualLoss, Logarithms, TimeAtEqualLoss, judge_rows, mean_of
from nocap.judge.interval import ROUNDING, Estimate, of_arms
from nocap.judge.pace import TOKEN_US, Paces, less
from nocap.store.metrics import METRICS, Kind

JOINT = "+"  # between keys that vary together
Point = tuple[str, ...]  # of an arm in the crossing: a level of each factor


@dataclass(frozen=True, kw_only=True, slots=True)
class Level:
    """A level of a key against the baseline's, over all levels of the other keys."""

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


# --- a crossing -----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Crossing:
    """Arms that have every combination of the levels of some keys, each once."""

    keys: Sequence[str]
    base: Point
    arms: Mapping[Point, Arm]
    overrides: Sequence[Mapping[str, str]]  # of each key: level → what sets it, as Factor has it

    def levels(self, axis: int) -> list[str]:
        """List the levels of a key, the baseline's first."""
        every = dict.fromkeys([self.base[axis], *(point[axis] for point in self.arms)])
        return list(every)

    def others(self, axis: int, level: str) -> list[tuple[Point, Point]]:
        """List each point with this level, and the point that differs from it in having the
        baseline's."""
        with_level = [point for point in self.arms if point[axis] == level]
        return [(point, self.single(point, axis, self.base)) for point in with_level]

    def single(self, point: Point, axis: int, source: Point) -> Point:
        """Return the point that has one level from another one."""
        return (*point[:axis], source[axis], *point[axis + 1 :])


def crossing(arms: Sequence[Arm], base: Arm) -> Crossing | None:
    """Return the full crossing that these arms are, of two keys or more; `None`: they are none."""
    columns = _columns(arms)
    if columns is None:
        return None
    groups = _independent(columns)
    points = [_point(i, groups, columns) for i in range(len(arms))]
    levels = [len(set(column)) for column in zip(*points, strict=True)]
    is_full = len(set(points)) == len(arms) and math.prod(levels) == len(arms)
    if len(groups) < 2 or not is_full:
        return None
    by_point = dict(zip(points, arms, strict=True))
    base_point = points[[arm.id for arm in arms].index(base.id)]
    return Crossing(
        keys=[JOINT.join(group) for group in groups],
        base=base_point,
        arms=by_point,
        overrides=[_overrides(group, columns, arms) for group in groups],
    )


def _columns(arms: Sequence[Arm]) -> dict[str, list[str]] | None:
    """Return what tells the arms apart, as a column of levels for each key: the options and the
    keys that somebody gave, or, where these do not tell all apart, every key that differs. `None`:
    they differ in code or data."""
    differing = swept_keys(arm.config for arm in arms)
    in_commands = command_keys(arms)
    columns = _options(arms) | _settings(arms, [key for key in differing if key in in_commands])
    if _tell_apart(columns, len(arms)):
        return columns
    columns = _settings(arms, differing)
    if _tell_apart(columns, len(arms)):
        return columns
    return None


def _options(arms: Sequence[Arm]) -> dict[str, list[str]]:
    """Return a column of options for each group in which the arms differ."""
    groups: dict[str, None] = {}
    for arm in arms:
        groups |= dict.fromkeys(arm.all[0].manifest["options"])
    columns = dict[str, list[str]]()
    for group in groups:
        column = [str(chosen(arm, group)) for arm in arms]
        if len(set(column)) > 1:
            columns[group] = column
    return columns


def _overrides(
    group: Sequence[str], columns: Mapping[str, Sequence[str]], arms: Sequence[Arm]
) -> dict[str, str]:
    """Return what sets each level of keys that vary together, by whole keys; of a key alone
    nothing."""
    if len(group) == 1:
        return {}
    whole = _whole_keys(arms)
    overrides = dict[str, str]()
    for i in range(len(arms)):
        words = list[str]()
        for name in group:
            value = columns[name][i]
            if value != ABSENT:
                words.append(f"{whole.get(name, name)}={value}")
        overrides[_level(group, columns, i)] = " ".join(words)
    return overrides


def _whole_keys(arms: Sequence[Arm]) -> dict[str, str]:
    """Map the name of a column of settings to its key."""
    differing = swept_keys(arm.config for arm in arms)
    in_commands = command_keys(arms)
    whole = dict[str, str]()
    for keys in (differing, [key for key in differing if key in in_commands]):
        whole |= {name: key for key, name in short_keys(keys).items()}
    return whole


def _settings(arms: Sequence[Arm], keys: Sequence[str]) -> dict[str, list[str]]:
    """Return a column of values for each of these keys."""
    short = short_keys(keys)
    columns = dict[str, list[str]]()
    for key in keys:
        columns[short[key]] = [setting(arm.config, key) for arm in arms]
    return columns


def _tell_apart(columns: Mapping[str, Sequence[str]], arms: int) -> bool:
    """Say whether no two of so many arms have the same levels in all columns."""
    rows = set(zip(*columns.values(), strict=True))
    return bool(columns) and len(rows) == arms


def _independent(columns: Mapping[str, Sequence[str]]) -> list[list[str]]:
    """Group the keys: those whose levels do not come in every combination vary together, and are
    one."""
    groups = [[key] for key in columns]
    for a, b in combinations(columns, 2):
        pairs = set(zip(columns[a], columns[b], strict=True))
        if len(pairs) < len(set(columns[a])) * len(set(columns[b])):
            first = next(group for group in groups if a in group)
            second = next(group for group in groups if b in group)
            if first is not second:
                first += second
                groups.remove(second)
    return groups


def _point(i: int, groups: Sequence[Sequence[str]], columns: Mapping[str, Sequence[str]]) -> Point:
    """Return the point of the arm with this number: its level in each group of keys."""
    return tuple(_level(group, columns, i) for group in groups)


def _level(group: Sequence[str], columns: Mapping[str, Sequence[str]], i: int) -> str:
    """Name a level: by its value, or by each of the keys that vary together."""
    if len(group) == 1:
        return columns[group[0]][i]
    return " ".join(f"{key}={columns[key][i]}" for key in group)


# --- estimates ------------------------------------------------------------------------------------


class _Reader:
    """What a crossing's arms show of one metric, repeat by repeat."""

    def __init__(
        self,
        crossed: Crossing,
        values: Mapping[Point, list[float]],
        metric: str,
        *,
        look: int,
        wide: bool = False,
    ) -> None:
        """`values`: of each arm a value a seed, or a round; of what a clock measures their
        logarithms."""
        self.crossed = crossed
        self.values = values
        self.metric = metric
        self.look = look
        self.wide = wide  # the cautious interval
        size = max(max(map(abs, row)) for row in values.values())
        self.floor = ROUNDING * size

    def estimates(self, rows: Sequence[Sequence[float]], *, wide: bool) -> list[Estimate]:
        """Return the estimate of each row, for all of them together. `wide`: with the cautious
        interval."""
        if wide or self.wide:
            return [
                cautious_interval.of_pairs(row, analysis=self.look, comparisons=len(rows))
                for row in rows
            ]
        return of_arms(rows, look=self.look)

    def effects(self, axis: int, level: str) -> list[list[float]]:
        """List a level's effect at each combination of the other keys: its differences, seed by
        seed."""
        effects = list[list[float]]()
        for point, beside in self.crossed.others(axis, level):
            effects.append(less(self.values[point], self.values[beside]))
        return effects

    def levels(self, axis: int) -> dict[str, Estimate]:
        """Return the mean effect of each level of a key but the baseline's, with one interval for
        all."""
        _, *levels = self.crossed.levels(axis)
        means = list[list[float]]()
        for level in levels:
            by_seed = zip(*self.effects(axis, level), strict=True)
            means.append([fmean(values) for values in by_seed])
        estimates = self.estimates(means, wide=self.is_noisy(axis))
        return dict(zip(levels, estimates, strict=True))

    def is_noisy(self, axis: int) -> bool:
        """Say whether a key changes an option whose losses have the cautious interval."""
        if METRICS[self.metric].kind is not Kind.seed:
            return False
        arms = self.crossed.arms
        base = arms[self.crossed.base]
        singles = [self.crossed.single(self.crossed.base, axis, point) for point in arms]
        return any(is_noisy(arms[point], base) for point in singles)

    def interactions(self) -> list[Interaction]:
        """List what each arm that changes several keys ends at beyond the sum of its single
        changes."""
        changed = {point: self._changed(point) for point in self.crossed.arms}
        several = [point for point, axes in changed.items() if len(axes) > 1]
        wide = any(self.is_noisy(axis) for axis in range(len(self.crossed.keys)))
        rows = [self._beyond(point, changed[point]) for point in several]
        estimates = self.estimates(rows, wide=wide)
        interactions = list[Interaction]()
        for point, estimate in zip(several, estimates, strict=True):
            label = self.crossed.arms[point].label
            keys = [self.crossed.keys[axis] for axis in changed[point]]
            is_shown = estimate.position(0.0, 0.0, tie=self.floor) in (-1, 1)
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
        rest = less(self.values[point], base)
        for axis in changed:
            single = self.values[self.crossed.single(self.crossed.base, axis, point)]
            rest = less(rest, less(single, base))
        return rest


def by_factor(
    arms: Sequence[Arm],
    base: Arm,
    table: Differences,
    *,
    metric: str,
    allow: Collection[str] = (),
    paces: Paces,
    wide: bool = False,
    worth: EqualLoss | None = None,
) -> Factors | None:
    """Read a grid by factor; `None`: its arms are no full crossing, or not all of them are in the
    table with seeds that they share. `wide`: with the cautious interval. `worth`: what the
    baseline's other lengths say."""
    has_all_arms = len(table.members) == len(arms) - 1
    if not has_all_arms or not table.seeds:
        return None
    crossed = crossing(arms, base)
    if crossed is None:
        return None
    losses = dict[Point, list[float]]()
    for point, arm in crossed.arms.items():
        losses[point] = [arm.values[metric][seed] for seed in table.seeds]
    reader = _Reader(crossed, losses, metric, look=table.look, wide=wide)
    pace = _pace(crossed, base, table, paces)
    interactions = reader.interactions()
    shown = [interaction for interaction in interactions if interaction.shown]
    factors = list[Factor]()
    for axis in range(len(crossed.keys)):
        factor = _factor(reader, pace, axis, shown, allow)
        if worth is not None:
            factor = _at_equal_loss(factor, axis, crossed, worth)
        factors.append(factor)
    return Factors(seeds=table.seeds, factors=factors, interactions=interactions)


def _pace(crossed: Crossing, base: Arm, table: Differences, paces: Paces) -> _Reader | None:
    """Return what the arms' times a token show; `None`: one of them is not known."""
    if not all(paces.has_times(arm, base, table.seeds) for arm in crossed.arms.values()):
        return None
    logarithms = {point: paces.logarithms(arm, table.seeds) for point, arm in crossed.arms.items()}
    look = table.look if paces.timing is None else 1
    return _Reader(crossed, logarithms, TOKEN_US, look=look)


def _at_equal_loss(factor: Factor, axis: int, crossed: Crossing, worth: EqualLoss) -> Factor:
    """Return the factor with each level's time at equal loss: the mean over the levels of the other
    keys."""
    rows = {point: worth.row(arm) for point, arm in crossed.arms.items()}
    effects = {
        level.name: _mean_effect(rows, crossed.others(axis, level.name)) for level in factor.levels
    }
    times = judge_rows(effects, look=worth.look)
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
        effects.append(row.less(base))
    return mean_of(effects)


def _factor(
    reader: _Reader,
    pace: _Reader | None,
    axis: int,
    shown: Sequence[Interaction],
    allow: Collection[str],
) -> Factor:
    """Return what a crossing shows of one of its keys. `shown`: the interactions that are."""
    crossed = reader.crossed
    speeds = dict[str, Estimate]()
    if pace is not None:
        speeds = pace.levels(axis)
    levels = list[Level]()
    for level, estimate in reader.levels(axis).items():
        gap = difference(estimate, metric=reader.metric, floor=reader.floor)
        word = _word(reader, axis, level, gap, shown, allow)
        speed = speeds[level].exp() if level in speeds else None
        pairs = [(crossed.arms[a], crossed.arms[b]) for a, b in crossed.others(axis, level)]
        levels.append(Level(name=level, difference=word, pairs=pairs, speed=speed))
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


def _word(
    reader: _Reader,
    axis: int,
    level: str,
    gap: Difference,
    shown: Sequence[Interaction],
    allow: Collection[str],
) -> Difference:
    """Return the difference; what confounds an arm of the level goes before its word, and so does a
    key on which the sign depends."""
    crossed = reader.crossed
    reasons: dict[str, None] = {}
    for point, beside in crossed.others(axis, level):
        reasons |= dict.fromkeys(
            confounders(crossed.arms[point], crossed.arms[beside], allowed=allow)
        )
    if reasons:
        return replace(gap, outcome=DifferenceWord.confounded, reason=", ".join(reasons))
    means = [fmean(row) for row in reader.effects(axis, level)]
    labels = {arm.label for point, arm in crossed.arms.items() if point[axis] == level}
    keys: dict[str, None] = {}
    for interaction in shown:
        if interaction.arm in labels:
            keys |= dict.fromkeys(interaction.keys)
    keys.pop(crossed.keys[axis], None)
    if keys and min(means) < 0 < max(means):
        return replace(gap, outcome=DifferenceWord.depends, reason=", ".join(keys))
    return gap
