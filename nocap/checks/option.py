"""The option as the command line sees it: it composes, and what is wrong with its keys is refused in a line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields
from enum import Enum
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

from nocap import outside
from nocap.checks.trial import FailedError, Found, Trial, one_line
from nocap.config import registry
from nocap.config.option import Option


def find(folder: Path) -> list[Found]:
    """The options that the folder adds, which is in use.

    Errors:
        ValueError: it adds none, or one of its files cannot be imported.
    """
    found = []
    for group in registry.groups():
        place = folder / outside.place(group)
        yamls = sorted(place.glob("*.yaml"))
        found += [Found(folder=folder, group=group, name=path.stem, yaml=path) for path in yamls]
        chosen = set(re.findall(rf"/schema/{group}/(\w+)", "\n".join(path.read_text() for path in yamls)))
        for file in outside.files():
            if file.path.parent == place:
                kinds = {kind for kind, cls in registry.options(group).items() if cls.__module__ == file.module}
                if not kinds & chosen:
                    found.append(Found(folder=folder, group=group, name=file.name, yaml=None))
    if not found:
        rule = f"hold an option: GROUP/NAME.yaml, with GROUP one of {', '.join(map(outside.place, registry.groups()))}"
        raise ValueError(f"{folder} must {rule}")
    return found


def composes(trial: Trial) -> str:
    found = trial.found
    if found.yaml is None:
        kind = f"defaults: [/schema/{found.group}/KIND@_here_]"
        raise FailedError(f"no yaml chooses {outside.place(found.group)}/{found.name}.py: it needs a {found.name}.yaml with {kind}")
    option = chosen(trial)
    shown = [f"{f.name}={_plain(getattr(option, f.name))}" for f in fields(option) if not f.name.startswith("_")]
    return one_line(", ".join(shown), most=120)


def refuses(trial: Trial) -> str:
    """Each key with a value of another type, and a key that is none, written over a schema and past it."""
    place = f"ideas.{next(iter(trial.run.ideas))}" if trial.found.group == "ideas" else trial.found.group
    place = f"hydra.{place}" if place == "launcher" else place
    wrong = [f"{place}.{key}={value}" for key, value in _wrong_values(type(chosen(trial)))]
    for word in (f"{place}.no_such_key=1", f"+{place}.no_such_key=1", *wrong):
        try:
            chosen(trial, word)
        except ValueError as error:
            if "\n" in str(error):
                raise FailedError(f"{word} is refused in several lines: {one_line(error)}") from error
        else:
            raise FailedError(f"{word} is not refused")
    return f"a key that is none, and {len(wrong)} keys of another type"


def chosen(trial: Trial, *more: str) -> Option:
    """The option, composed."""
    if trial.found.group != "launcher":
        run = trial.compose(*more) if more else trial.run
        return next(iter(run.ideas.values())) if trial.found.group == "ideas" else getattr(run, trial.found.group)
    return _launcher(trial, *more)


def _launcher(trial: Trial, *more: str) -> Option:
    """It is no part of a run: Hydra makes it of its own part of the config."""
    from hydra import compose, initialize_config_dir
    from omegaconf import OmegaConf

    from nocap.config.compose import register
    from nocap.config.errors import CONFIG_ERRORS, explain
    from nocap.config.paths import conf_dir

    register()
    try:
        with initialize_config_dir(str(conf_dir()), version_base="1.3"):
            keys: Any = OmegaConf.to_container(compose("train", trial.words(*more), return_hydra_config=True).hydra.launcher, resolve=True)
    except CONFIG_ERRORS as error:
        raise ValueError(explain(error)) from error
    kind, target = keys.get("kind"), keys.pop("_target_", None)
    if kind not in registry.options("launcher"):
        raise FailedError(f"it makes {target}, which is no launcher option: defaults must be [/schema/launcher/KIND@_here_]")
    try:
        return registry.options("launcher")[kind](**keys)
    except TypeError as error:  # a key that the option has not, as Hydra's + writes it
        raise ValueError(one_line(error)) from error


def _wrong_values(option: type[Option]) -> Iterator[tuple[str, str]]:
    hints = get_type_hints(option)
    for f in fields(option):
        if f.name == "kind" or f.name.startswith("_"):
            continue
        if (value := _another_type(hints[f.name])) is not None:
            yield f.name, value


def _another_type(hint: Any) -> str | None:
    """A value that this type does not take; None: it takes any."""
    args = [arg for arg in get_args(hint) if arg is not NoneType]
    if get_origin(hint) in (list, dict, tuple):
        return "no_container"
    if args:
        return _another_type(args[0]) if len(args) == 1 else None
    if hint is str:
        return "[1,2]"
    if hint in (bool, int, float) or (isinstance(hint, type) and issubclass(hint, Enum)):
        return "no_such_value"
    return None


def _plain(value: object) -> object:
    return value.name if isinstance(value, Enum) else value
