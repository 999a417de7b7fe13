"""A study's arms: the overrides of each, composed, and checked to be a fair comparison."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from nocap.config.compose import Composed, as_in, to_plain
from nocap.config.keys import require
from nocap.config.registry import keys_that_count
from nocap.study.spec import ENGINE, ENGINES, At, Study

# What two arms must share for their losses to mean the same: their data, and every key declared so.
SAME = ("data", *keys_that_count("losses"))


def with_seed(arm: Composed, seed: int) -> Composed:
    return replace(arm, overrides=(*arm.overrides, f"seed={seed}"), run=replace(arm.run, seed=seed))


def more(arm: Composed, *overrides: str) -> Composed:
    """The arm with further overrides. A shorter run of it is no reason for another precision or compilation."""
    return as_in(arm, [*arm.overrides, *overrides]) if overrides else arm


def arm_overrides(study: Study, at: At, arm: str, place: Sequence[str]) -> list[str]:
    """The study's, the scale's, the place's (`at.train` or `at.bench`), and the arm's own."""
    own = [word for word in (*study.arms[arm], *at.own.get(arm, ())) if not word.startswith(ENGINE)]
    return [*study.overrides, *at.overrides, *place, *own]


def engine_of(study: Study, at: At, arm: str) -> str:
    """How an arm decodes: its engine=…, or with a cache.

    Errors:
        ValueError: no such engine.
    """
    named = [word.removeprefix(ENGINE) for word in (*study.arms[arm], *at.own.get(arm, ())) if word.startswith(ENGINE)]
    engine = named[-1] if named else "cache"
    require(engine in ENGINES, f"arm {arm}: engine", f"be one of {'; '.join(ENGINES)}", engine)
    return engine


def compose_arms(study: Study, at: At, arms: Sequence[str], place: Sequence[str], trained: Composed | None = None) -> dict[str, Composed]:
    """Arm → its composition, with the baseline's precision and compilation; those that it is `trained` with, where the shape is the same.

    Errors:
        ValueError: an arm does not compose; the arm is named.
    """
    found: dict[str, Composed] = {}
    first: Composed | None = None
    for arm in sorted(arms, key=lambda name: name != study.baseline):
        try:
            found[arm] = as_in(first, arm_overrides(study, at, arm, place))
        except ValueError as error:
            raise ValueError(f"arm {arm}: {error}") from error
        if first is None and trained is not None and trained.run.model == found[arm].run.model:
            found[arm] = as_in(trained, found[arm].overrides)
        first = first or found[arm]
    return {arm: found[arm] for arm in arms}


def check_fair(arms: dict[str, Composed], *, baseline: str) -> None:
    """Refuse arms whose losses would mean different things.

    Errors:
        ValueError: the first key in which an arm's data or validation is not the baseline's.
    """
    theirs = to_plain(arms[baseline].run)
    for name, arm in arms.items():
        mine = to_plain(arm.run)
        for key in SAME:
            a, b = _dig(mine, key), _dig(theirs, key)
            rule = f"be the baseline's ({baseline}: {_short(b, a)}), or losses mean different things"
            require(a == b, f"arm {name}: {key}", rule, _short(a, b))


def _dig(tree: Any, key: str) -> Any:
    for part in key.split("."):
        tree = tree.get(part)
    return tree


def _short(value: Any, other: Any) -> Any:
    """Of two dicts the keys that differ."""
    if not isinstance(value, dict) or not isinstance(other, dict):
        return value
    return ", ".join(f"{key}={value[key]}" for key in value if value.get(key) != other.get(key))
