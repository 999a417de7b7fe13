"""The door: plain values as a checked dataclass, a `Run` most of all, and back. No Hydra here: a
worker starts without it."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterable, Mapping
from enum import Enum
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, Union, cast, get_args, get_origin, get_type_hints

import yaml
from omegaconf import DictConfig, OmegaConf, flag_override

from nocap import outside
from nocap.config.explain import one_line_errors
from nocap.config.keys import require
from nocap.config.run import Run
from nocap.config.trainer import Trainer
from nocap.config.untrusted_files import parse_yaml, read_text


def dataclass_from(schema: Any, plain: Mapping[str, Any], place: str = "") -> Any:
    """Return a dataclass, checked, of plain values. `place`: of the keys, where a message names
    them.

    Errors:
        ValueError: a wrong or missing key, type or value.
    """
    check_types(schema, plain, place)
    with one_line_errors(place):
        return OmegaConf.to_object(OmegaConf.unsafe_merge(_structured(schema), plain))


def _structured(schema: type) -> DictConfig:
    """Return a dataclass as OmegaConf's node, with what it has by default."""
    return copy.deepcopy(_structured_cached(schema))


@cache  # a copy takes a fifth of the time
def _structured_cached(schema: type) -> DictConfig:
    return OmegaConf.structured(schema)


# --- types ----------------------------------------------------------------------------------------

TRUTHS = ("true", "false", "yes", "no", "on", "off", "y", "n", "1", "0")


@cache
def types_of(schema: type) -> dict[str, tuple[Any, ...]]:
    """List the types that each key of a dataclass may have: two for `str | None`, a text and a list
    of texts for a key that may be either."""
    hints = get_type_hints(schema)
    types = dict[str, tuple[Any, ...]]()
    for f in dataclasses.fields(schema):
        hint = hints[f.name]
        types[f.name] = (hint,)
        if get_origin(hint) in (Union, UnionType):
            types[f.name] = get_args(hint)
        if f.metadata.get("text"):
            types[f.name] = (str, list[str])
    return types


def check_types(schema: type, plain: Mapping[str, Any], place: str = "") -> None:
    """Refuse what OmegaConf would turn into another type in silence: a number for a text, as yaml
    reads `3.10`, and a number for a truth value.

    Errors:
        ValueError: the first such key.
    """
    for name, types in types_of(schema).items():
        if name in plain:
            check_type(types, plain[name], f"{place}{name}")


def check_type(types: tuple[Any, ...], value: Any, name: str) -> None:
    """Refuse one key's value as `check_types` does.

    Errors:
        ValueError: it is of another type.
    """
    lists = [kind for kind in types if get_origin(kind) is list]
    if lists and isinstance(value, list):
        for i, item in enumerate(value):
            check_type(get_args(lists[0]), item, f"{name}[{i}]")
    elif str in types and isinstance(value, list):
        raise ValueError(
            f"{name} must be one text and not a list (quotes turn [a,b] into a text), got {value}"
        )
    elif str in types and isinstance(value, int | float):
        raise ValueError(
            f"{name} must be text (put quotes around a text that looks like a number), got {value}"
        )
    elif bool in types and isinstance(value, int | float | str) and "${" not in str(value):
        require(str(value).lower() in TRUTHS, name, "be true or false", repr(value))


# --- a run ----------------------------------------------------------------------------------------


def run_tree(plain: Any) -> DictConfig:
    """Return the tree of a `Run` with each part in the class that its `kind` names, which adds what
    it has by default. Interpolations stay.

    Errors:
        ValueError, OmegaConfBaseException: a wrong kind, key or type.
    """
    require(isinstance(plain, dict), "a config", "hold keys and values", plain)
    check_types(Run, plain)
    trainer = plain.get("trainer")
    if isinstance(trainer, dict):
        check_types(Trainer, trainer, "trainer.")
    parts = dict[str, Any]()
    for f in dataclasses.fields(Run):
        if f.name in outside.groups() and f.name != "ideas":
            parts[f.name] = _option(f.name, f.name, plain.get(f.name))
    ideas: Any = plain.get("ideas")
    are_ideas = isinstance(ideas, dict) and all(isinstance(idea, dict) for idea in ideas.values())
    rule = "be chosen by name, as in ideas=[NAME] (NAME's yaml begins with '# @package ideas.NAME')"
    require(are_ideas, "ideas", rule, ideas)
    for name, idea in ideas.items():
        # an experiment may give keys of one that the command leaves out
        rule = f"be chosen, as in ideas=[{name}], because some of its keys are set"
        require("kind" in idea, f"ideas.{name}", rule, idea)
    parts["ideas"] = {name: _option("ideas", f"ideas.{name}", idea) for name, idea in ideas.items()}
    config = _structured(Run)
    with flag_override(config, "no_deepcopy_set_nodes", True):
        for name, part in parts.items():
            config[name] = part
    return cast(DictConfig, OmegaConf.unsafe_merge(config, plain))


def _option(group: str, place: str, plain: Any) -> Any:
    schema = outside.option(group, place, plain)
    check_types(schema, plain, f"{place}.")
    return _structured(schema)


def load(path: Path) -> Run:
    """Return the `Run` in a record's `config.yaml`.

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
    """Return the `Run` in its plain form. `rule`: what the file must be that holds it.

    Errors:
        ValueError: it is no config of this version.
    """
    try:
        refuse_interpolations(plain)
        with one_line_errors():
            return cast(Run, OmegaConf.to_object(run_tree(plain)))
    except ValueError as error:
        raise ValueError(f"{rule}: {error}") from error


def refuse_interpolations(plain: Any) -> None:
    """Refuse interpolations in a record, which holds values: `${oc.env:…}` in a record from
    elsewhere would read this machine's environment."""
    is_plain = not isinstance(plain, str) or "${" not in plain
    require(is_plain, "values", "hold no interpolation", f"the interpolation {plain}")
    items: Iterable[Any] = ()
    if isinstance(plain, dict):
        items = plain.values()
    elif isinstance(plain, list):
        items = plain
    for item in items:
        refuse_interpolations(item)


def to_plain(run: Run) -> dict[str, Any]:
    """Return the run as plain JSON types: what `config.yaml`, the identity and the trackers see."""
    return cast(dict[str, Any], _plain(dataclasses.asdict(run)))


def _plain(value: Any) -> Any:
    """Return a value as JSON has it, also where an option's key holds a list or a mapping of
    names."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Enum):
        return value.name
    return value


def dump(plain: Mapping[str, Any]) -> str:
    """Return a run's plain form as the text of its `config.yaml`."""
    return yaml.safe_dump(dict(plain), sort_keys=False, allow_unicode=True)
