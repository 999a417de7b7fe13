"""The door: a tree of plain values as a checked `Run`, and back. No Hydra here: a worker starts without it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any, cast

import yaml
from omegaconf import DictConfig, OmegaConf

from nocap import outside
from nocap.config.bounded import parse_yaml, read_text
from nocap.config.errors import CONFIG_ERRORS, explain
from nocap.config.keys import require
from nocap.config.run import Run


def to_plain(run: Run) -> dict[str, Any]:
    """The run as plain JSON types: what `config.yaml`, the identity and the trackers see."""
    return {f.name: _plain(getattr(run, f.name)) for f in dataclasses.fields(run)}


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value.name if isinstance(value, Enum) else value


def dump(plain: Mapping[str, Any]) -> str:
    return yaml.safe_dump(dict(plain), sort_keys=False, allow_unicode=True)


def typed(plain: Any) -> DictConfig:
    """The tree of a `Run` with each part in the class that its `kind` names, which adds what it has by default. Interpolations stay.

    Errors:
        ValueError, OmegaConfBaseException: a wrong kind, key or type.
    """
    require(isinstance(plain, dict), "a config", "hold keys and values", plain)
    parts: dict[str, Any] = {
        f.name: option(f.name, f.name, plain.get(f.name))
        for f in dataclasses.fields(Run)
        if f.name in outside.groups() and f.name != "ideas"
    }
    ideas = plain.get("ideas")
    ok = isinstance(ideas, dict) and all(isinstance(one, dict) for one in ideas.values())
    require(ok, "ideas", "be chosen by name, as in ideas=[NAME]; an idea's yaml begins with '# @package ideas.NAME'", ideas)
    parts["ideas"] = {name: option("ideas", f"ideas.{name}", one) for name, one in cast(Any, ideas).items()}
    return cast(DictConfig, OmegaConf.unsafe_merge(OmegaConf.structured(Run), parts, plain))


def option(group: str, place: str, plain: Any) -> DictConfig:
    """The class of a group's option, which the `kind` of its plain form names.

    Errors:
        ValueError: there is none.
    """
    return cast(DictConfig, OmegaConf.structured(outside.option(group, place, plain)))


def load(path: Path) -> Run:
    """The `Run` in a record's `config.yaml`.

    Errors:
        ValueError: the file is no config of this version.
    """
    rule = f"{path} must be a run's config.yaml"
    try:
        plain = parse_yaml(read_text(path))
    except (OSError, ValueError) as error:
        raise ValueError(f"{rule}: {error}") from error
    return from_plain(plain, rule)


def from_plain(plain: Any, rule: str) -> Run:
    """The `Run` in its plain form. `rule`: what the file must be that holds it.

    Errors:
        ValueError: it is no config of this version.
    """
    try:
        refuse_interpolations(plain)
        return cast(Run, OmegaConf.to_object(typed(plain)))
    except (ValueError, *CONFIG_ERRORS) as error:
        raise ValueError(f"{rule}: {explain(error)}") from error


def refuse_interpolations(plain: Any) -> None:
    """A record holds values. `${oc.env:…}` in a record from elsewhere would read this machine's environment."""
    require(not isinstance(plain, str) or "${" not in plain, "values", "be plain", f"the interpolation {plain}")
    for item in plain.values() if isinstance(plain, dict) else plain if isinstance(plain, list) else ():
        refuse_interpolations(item)
