"""Arms as a full crossing of keys: a grid that has every combination of the levels of two keys or
more, each once. Keys that vary together are one key.

Of `mlp=gelu4x,swiglu attention=flash,gqa` the keys are mlp and attention, and the points of its
four arms ("gelu4x", "flash"), ("gelu4x", "gqa"), ("swiglu", "flash") and ("swiglu", "gqa").
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from nocap.judge.arm_labels import short_keys
from nocap.judge.arms import ABSENT, Arm, chosen, command_keys, setting, swept_keys

JOINT = "+"  # between keys that vary together
Point = tuple[str, ...]  # of an arm: its level of each key


@dataclass(frozen=True, kw_only=True)
class Crossing:
    """Arms that have every combination of the levels of some keys, each once. An `axis` is the
    number of a key."""

    keys: Sequence[str]
    base: Point
    arms: Mapping[Point, Arm]
    # of each key: level → what sets it; empty where the key is one alone
    overrides: Sequence[Mapping[str, str]]

    def levels(self, axis: int) -> list[str]:
        """List the levels of a key, the baseline's first."""
        every = dict.fromkeys([self.base[axis], *(point[axis] for point in self.arms)])
        return list(every)

    def pairs(self, axis: int, level: str) -> list[tuple[Point, Point]]:
        """List each point with this level, and the point that differs from it in having the
        baseline's."""
        with_level = [point for point in self.arms if point[axis] == level]
        return [(point, self.with_level_of(point, axis, self.base)) for point in with_level]

    def with_level_of(self, point: Point, axis: int, source: Point) -> Point:
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
        groups |= dict.fromkeys(arm.all[0].options)
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
