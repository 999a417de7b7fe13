"""A study's arms as runs: composed once an arm and a place, and checked to be a fair comparison. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from omegaconf import DictConfig, open_dict

from nocap import outside
from nocap.config.compose import CONFIG_ERRORS, explain, parse, register, to_plain
from nocap.config.keys import require
from nocap.config.paths import conf_dir
from nocap.config.registry import keys_that_count
from nocap.config.run import Run
from nocap.study.spec import ENGINES, At, Study

Choices = dict[str, str | None]
ENGINE = "engine="  # a word of a study, not of a config

# What two arms must share for their losses to mean the same: their data, and every key that says so.
SAME = ("data", *keys_that_count("losses"))


@dataclass(frozen=True, kw_only=True, slots=True)
class Composed:
    """An arm at one place of a scale."""

    words: list[str]
    run: Run
    choices: Choices


def composed(words: Sequence[str]) -> Composed:
    """From words to a checked run, and which options they chose.

    Errors:
        ValueError: as for `nocap.config.compose.compose`.
    """
    run, choices = _composed(tuple(words), outside.state())
    return Composed(words=list(words), run=run, choices=choices)


@cache
def _composed(words: tuple[str, ...], state: str) -> tuple[Run, Choices]:
    register()
    try:
        with initialize_config_dir(str(conf_dir()), version_base="1.3"):
            cfg = hydra_compose("train", list(words), return_hydra_config=True)
        assert isinstance(cfg, DictConfig)
        choices = dict(cfg.hydra.runtime.choices)
        with open_dict(cfg):
            del cfg["hydra"]
        return parse(cfg), choices
    except CONFIG_ERRORS as error:
        raise ValueError(explain(error)) from error


def with_seed(arm: Composed, seed: int) -> Composed:
    return Composed(words=[*arm.words, f"seed={seed}"], run=replace(arm.run, seed=seed), choices=arm.choices)


def words_of(study: Study, at: At, arm: str, place: Sequence[str], more: Sequence[str] = ()) -> list[str]:
    """The study's words, the scale's, the place's (`train` or `bench`), the arm's own, and what tuning found."""
    own = [word for word in (*study.arms[arm], *at.own.get(arm, ())) if not word.startswith(ENGINE)]
    return [*study.words, *at.words, *place, *own, *more]


def engine_of(study: Study, at: At, arm: str) -> str:
    """How an arm decodes: its word engine=…, or with a cache.

    Errors:
        ValueError: no such engine.
    """
    named = [word.removeprefix(ENGINE) for word in (*study.arms[arm], *at.own.get(arm, ())) if word.startswith(ENGINE)]
    engine = named[-1] if named else "cache"
    require(engine in ENGINES, f"arm {arm}: engine", f"be one of {'; '.join(ENGINES)}", engine)
    return engine


def all_composed(
    study: Study, at: At, arms: Sequence[str], place: Sequence[str], *, tuned: dict[str, list[str]] | None = None
) -> dict[str, Composed]:
    """Arm → its composition.

    Errors:
        ValueError: an arm does not compose; the arm is named.
    """
    found = {}
    for arm in arms:
        try:
            found[arm] = composed(words_of(study, at, arm, place, (tuned or {}).get(arm, ())))
        except ValueError as error:
            raise ValueError(f"arm {arm}: {error}") from error
    return found


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
            require(
                a == b,
                f"arm {name}: {key}",
                f"be the baseline's ({baseline}: {_short(b, a)}), or losses mean different things",
                _short(a, b),
            )


def _dig(tree: Any, key: str) -> Any:
    for part in key.split("."):
        tree = tree.get(part)
    return tree


def _short(value: Any, other: Any) -> Any:
    """Of two objects the keys that differ."""
    if not isinstance(value, dict) or not isinstance(other, dict):
        return value
    return ", ".join(f"{key}={value[key]}" for key in value if value.get(key) != other.get(key))
