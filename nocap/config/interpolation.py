"""How much work a config's interpolations are, before one is resolved: values that repeat each other double with every step."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from omegaconf import DictConfig, OmegaConf

from nocap.config.keys import require

MOST = 200  # values that one value may be made of
RESOLVERS = r"nocap\.\w+|oc\.env|now|hydra"
AS_TYPED = ("hydra.overrides.", "hydra.job.override_dirname")  # Hydra's record of the command line
_CALL = re.compile(r"\$\{\s*([\w.]+)\s*:")
_KEY = re.compile(r"\$\{\s*(hydra:)?\s*(\.*)([^${}:]*?)\s*\}")  # the innermost: a key, with dots before it where it is relative
_MADE = re.compile(r"\$\{[^}:]*\$\{")  # a key that is made of another interpolation


def check_interpolations(config: DictConfig) -> None:
    """
    Errors:
        ValueError: an interpolation by another resolver, of a key that is itself interpolated, or of too many values.
    """
    found = _texts(OmegaConf.to_container(config, resolve=False), "")
    texts = {key: text for key, text in found if not key.startswith(AS_TYPED)}
    needs = {key: list(_needs(key, text)) for key, text in texts.items()}
    costs: dict[str, int] = {}
    for key in texts:
        _cost(key, needs, costs)
        require(costs[key] <= MOST, key, f"be made of at most {MOST} values by its interpolations", texts[key])


def _texts(value: Any, place: str) -> Iterator[tuple[str, str]]:
    """Key → text, of all that hold an interpolation."""
    if isinstance(value, str):
        if "${" in value:
            yield place, value
    elif isinstance(value, dict | list):
        for name, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _texts(item, f"{place}.{name}" if place else str(name))


def _needs(key: str, text: str) -> Iterator[str]:
    """The keys that a text asks for."""
    other = [name for name in _CALL.findall(text) if not re.fullmatch(RESOLVERS, name)]
    rule = "have interpolations of keys, or by oc.env, now and nocap's own resolvers"
    require(not other and not _MADE.search(text), key, rule, text)
    for hydra, dots, name in _KEY.findall(text):
        above = key.split(".")[: -len(dots)] if dots else ["hydra"] if hydra else []
        yield ".".join([*above, re.sub(r"\[(\w+)\]", r".\1", name).lstrip(".")]).rstrip(".")


def _cost(key: str, needs: dict[str, list[str]], costs: dict[str, int]) -> int:
    """How many values are looked up for one; those below a key are its own. One that leads to itself counts once: it is refused later."""
    if key not in costs:
        costs[key] = 1
        below = [name for name in needs if name.startswith(f"{key}.")] if key not in needs else []
        costs[key] = min(MOST + 1, 1 + sum(_cost(name, needs, costs) for name in [*needs.get(key, ()), *below]))
    return costs[key]
