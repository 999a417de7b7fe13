"""A grid read by factor. Where the arms are a full crossing of two keys or more, a level of a key is compared
with the baseline's level over all levels of the other keys: seed by seed the mean over these, then the
interval of all levels together, once for each key.

An interaction is what an arm ends at beyond the sum of its single changes, with one interval for all
interactions of the grid. Where one is shown, and the level's effect changes its sign with the other key, the
level's word is that it depends on that key. The levels are fixed: a word speaks of the mean over those that
were run.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from statistics import fmean

from nocap.judge import cautious
from nocap.judge.arms import Arm, chosen, setting, swept_keys, typed_keys
from nocap.judge.comparable import confounders, is_noisy
from nocap.judge.equal_loss import EqualLoss, Logarithms, TimeAtEqualLoss, judged, mean_of
from nocap.judge.interval import ROUNDING, Estimate, of_arms
from nocap.judge.labels import short_keys
from nocap.judge.losses import Difference, Differences, Outcome, difference
from nocap.judge.pace import PACE, Paces, less
from nocap.store.metrics import METRICS, Kind

Place = tuple[str, ...]  # of an arm in the crossing: a level of each factor


@dataclass(frozen=True, kw_only=True, slots=True)
class Level:
    """A level of a key against the baseline's, over all levels of the other keys."""

    name: str
    difference: Difference
    speed: Estimate | None = None  # the ratio of its time a token; None: not known of each arm
    equal_loss: TimeAtEqualLoss | None = None  # None: the baseline has no other lengths


@dataclass(frozen=True, kw_only=True, slots=True)
class Factor:
    """A key that the grid crosses with others, and its levels but the baseline's."""

    key: str
    baseline: str
    over: Mapping[str, int]  # the other keys → how many levels each has
    levels: Sequence[Level]


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


# --- a crossing ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Crossing:
    """Arms that have every combination of the levels of some keys, each once."""

    keys: Sequence[str]
    base: Place
    arms: Mapping[Place, Arm]

    def levels(self, axis: int) -> list[str]:
        """List the levels of a key, the baseline's first."""
        every = dict.fromkeys([self.base[axis], *(place[axis] for place in self.arms)])
        return list(every)

    def others(self, axis: int, level: str) -> list[tuple[Place, Place]]:
        """List each place with this level, and the place that differs from it in having the baseline's."""
        with_level = [place for place in self.arms if place[axis] == level]
        return [(place, self.single(place, axis, self.base)) for place in with_level]

    def single(self, place: Place, axis: int, source: Place) -> Place:
        """Return the place that has one level from another one."""
        return (*place[:axis], source[axis], *place[axis + 1 :])


def crossing(arms: Sequence[Arm], base: Arm) -> Crossing | None:
    """Return the full crossing that these arms are, of two keys or more; `None`: they are none."""
    columns = _columns(arms)
    if columns is None:
        return None
    groups = _independent(columns)
    keys = ["+".join(group) for group in groups]
    names = {arm.id: tuple(_level(group, columns, i) for group in groups) for i, arm in enumerate(arms)}
    places = {names[arm.id]: arm for arm in arms}
    counts = [len({place[axis] for place in places}) for axis in range(len(groups))]
    if len(groups) < 2 or len(places) != len(arms) or math.prod(counts) != len(arms):
        return None
    return Crossing(keys=keys, base=names[base.id], arms=places)


def _columns(arms: Sequence[Arm]) -> dict[str, list[str]] | None:
    """Return what tells the arms apart, as a column of levels for each key: the options and the keys that
    somebody gave, or, where these do not tell all apart, every key that differs. `None`: they differ in code
    or data."""
    options = {
        group: [str(chosen(arm, group)) for arm in arms]
        for group in dict.fromkeys(group for arm in arms for group in arm.all[0].manifest["options"])
    }
    differing = swept_keys(arm.config for arm in arms)
    typed = [key for key in differing if key in typed_keys(arms)]
    given = _varying(options) | _settings(arms, typed)
    for columns in (given, _settings(arms, differing)):
        if columns and len(set(zip(*columns.values(), strict=True))) == len(arms):
            return columns
    return None


def _settings(arms: Sequence[Arm], keys: Sequence[str]) -> dict[str, list[str]]:
    short = short_keys(keys)
    return {short[key]: [setting(arm.config, key) for arm in arms] for key in keys}


def _varying(columns: Mapping[str, list[str]]) -> dict[str, list[str]]:
    return {key: column for key, column in columns.items() if len(set(column)) > 1}


def _independent(columns: Mapping[str, Sequence[str]]) -> list[list[str]]:
    """Group the keys: those whose levels do not come in every combination vary together, and are one."""
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


def _level(group: Sequence[str], columns: Mapping[str, Sequence[str]], i: int) -> str:
    """Name a level: by its value, or by each of the keys that vary together."""
    if len(group) == 1:
        return columns[group[0]][i]
    return " ".join(f"{key}={columns[key][i]}" for key in group)


# --- judged -------------------------------------------------------------------------------------------------


class _Reader:
    """What a crossing's arms show of one metric, repeat by repeat."""

    def __init__(
        self,
        crossed: Crossing,
        values: Mapping[Place, list[float]],
        metric: str,
        *,
        look: int,
        wide: bool = False,
    ) -> None:
        """`values`: of each arm a value a seed, or a round; of what a clock measures their logarithms."""
        self.crossed = crossed
        self.values = values
        self.metric = metric
        self.look = look
        self.wide = wide  # the cautious interval
        size = max(abs(x) for row in values.values() for x in row)
        self.floor = ROUNDING * size

    def estimates(self, rows: Sequence[Sequence[float]], *, wide: bool) -> list[Estimate]:
        if wide or self.wide:
            return [cautious.of_pairs(row, analysis=self.look, comparisons=len(rows)) for row in rows]
        return of_arms(rows, look=self.look)

    def effects(self, axis: int, level: str) -> list[list[float]]:
        """List a level's effect at each combination of the other keys: its differences, seed by seed."""
        return [
            less(self.values[place], self.values[beside])
            for place, beside in self.crossed.others(axis, level)
        ]

    def levels(self, axis: int) -> dict[str, Estimate]:
        """Return the mean effect of each level of a key but the baseline's, with one interval for all."""
        _, *levels = self.crossed.levels(axis)
        effects = [self.effects(axis, level) for level in levels]
        means = [[fmean(seed) for seed in zip(*rows, strict=True)] for rows in effects]
        return dict(zip(levels, self.estimates(means, wide=self.is_noisy(axis)), strict=True))

    def is_noisy(self, axis: int) -> bool:
        """Say whether a key changes an option whose losses have the cautious interval."""
        if METRICS[self.metric].kind is not Kind.seed:
            return False
        arms = self.crossed.arms
        base = arms[self.crossed.base]
        singles = [self.crossed.single(self.crossed.base, axis, place) for place in arms]
        return any(is_noisy(arms[place], base) for place in singles)

    def interactions(self) -> list[Interaction]:
        """List what each arm that changes several keys ends at beyond the sum of its single changes."""
        changed = {place: self._changed(place) for place in self.crossed.arms}
        several = [place for place, axes in changed.items() if len(axes) > 1]
        wide = any(self.is_noisy(axis) for axis in range(len(self.crossed.keys)))
        estimates = self.estimates([self._beyond(place, changed[place]) for place in several], wide=wide)
        return [
            Interaction(
                arm=self.crossed.arms[place].label,
                keys=[self.crossed.keys[axis] for axis in changed[place]],
                estimate=estimate,
                shown=estimate.place(0.0, 0.0, tie=self.floor) in (-1, 1),
            )
            for place, estimate in zip(several, estimates, strict=True)
        ]

    def _changed(self, place: Place) -> list[int]:
        """List the keys in which a place differs from the baseline, by their number."""
        return [axis for axis, level in enumerate(place) if level != self.crossed.base[axis]]

    def _beyond(self, place: Place, changed: Sequence[int]) -> list[float]:
        """Return an arm's losses less the baseline's, less what each of its changes does alone."""
        base = self.values[self.crossed.base]
        rest = less(self.values[place], base)
        for axis in changed:
            single = self.values[self.crossed.single(self.crossed.base, axis, place)]
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
    """Read a grid by factor; `None`: its arms are no full crossing, or not all of them are in the table with
    seeds that they share. `wide`: with the cautious interval. `worth`: what the baseline's other lengths
    say."""
    whole = len(table.members) == len(arms) - 1 and table.seeds
    crossed = crossing(arms, base) if whole else None
    if crossed is None:
        return None
    losses = {
        place: [arm.values[metric][seed] for seed in table.seeds] for place, arm in crossed.arms.items()
    }
    reader = _Reader(crossed, losses, metric, look=table.look, wide=wide)
    pace = _pace(crossed, base, table, paces)
    interactions = reader.interactions()
    factors = [
        _factor(reader, pace, axis, [each for each in interactions if each.shown], allow)
        for axis in range(len(crossed.keys))
    ]
    if worth is not None:
        factors = [_at_equal_loss(factor, axis, crossed, worth) for axis, factor in enumerate(factors)]
    return Factors(seeds=table.seeds, factors=factors, interactions=interactions)


def _pace(crossed: Crossing, base: Arm, table: Differences, paces: Paces) -> _Reader | None:
    """Return what the arms' times a token show; `None`: one of them is not known."""
    if not all(paces.known(arm, base, table.seeds) for arm in crossed.arms.values()):
        return None
    logarithms = {place: paces.logarithms(arm, table.seeds) for place, arm in crossed.arms.items()}
    look = table.look if paces.timing is None else 1
    return _Reader(crossed, logarithms, PACE, look=look)


def _at_equal_loss(factor: Factor, axis: int, crossed: Crossing, worth: EqualLoss) -> Factor:
    """Return the factor with each level's time at equal loss: the mean over the levels of the other keys."""
    rows = {place: worth.row(arm) for place, arm in crossed.arms.items()}
    of_levels = {level.name: _mean_effect(rows, crossed.others(axis, level.name)) for level in factor.levels}
    at = judged(of_levels, look=worth.look)
    return replace(factor, levels=[replace(level, equal_loss=at[level.name]) for level in factor.levels])


def _mean_effect(
    rows: Mapping[Place, Logarithms | str], places: Sequence[tuple[Place, Place]]
) -> Logarithms | str:
    """Return the mean over pairs of places of what the first has beyond the second; or why one has none."""
    effects = list[Logarithms]()
    for place, beside in places:
        row = rows[place]
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
    crossed = reader.crossed
    speeds = pace.levels(axis) if pace is not None else {}
    levels = list[Level]()
    for level, estimate in reader.levels(axis).items():
        gap = difference(estimate, metric=reader.metric, floor=reader.floor)
        speed = speeds[level].exp() if level in speeds else None
        levels.append(
            Level(name=level, difference=_word(reader, axis, level, gap, shown, allow), speed=speed)
        )
    over = {key: len(crossed.levels(other)) for other, key in enumerate(crossed.keys) if other != axis}
    return Factor(key=crossed.keys[axis], baseline=crossed.levels(axis)[0], over=over, levels=levels)


def _word(
    reader: _Reader,
    axis: int,
    level: str,
    gap: Difference,
    shown: Sequence[Interaction],
    allow: Collection[str],
) -> Difference:
    """Return the difference; what confounds an arm of the level goes before its word, and so does a key on
    which the sign depends."""
    crossed = reader.crossed
    spoilt = dict.fromkeys(
        what
        for place, beside in crossed.others(axis, level)
        for what in confounders(crossed.arms[place], crossed.arms[beside], allowed=allow)
    )
    if spoilt:
        return replace(gap, outcome=Outcome.confounded, reason=", ".join(spoilt))
    means = [fmean(row) for row in reader.effects(axis, level)]
    labels = {arm.label for place, arm in crossed.arms.items() if place[axis] == level}
    keys = dict.fromkeys(key for each in shown if each.arm in labels for key in each.keys)
    keys.pop(crossed.keys[axis], None)
    if keys and min(means) < 0 < max(means):
        return replace(gap, outcome=Outcome.depends, reason=", ".join(keys))
    return gap
