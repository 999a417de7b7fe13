"""The option as the command line sees it: it composes, and wrong keys and values are refused in a line."""

from __future__ import annotations

import re
from dataclasses import fields
from enum import Enum
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

from nocap import outside
from nocap.checks.trial import Candidate, Trial, expect, one_line
from nocap.config import registry
from nocap.config.bounded import read_text


def find(folder: Path) -> list[Candidate]:
    """The options that the folder adds, which is in use.

    Errors:
        ValueError: it adds none, or one of its files cannot be imported.
    """
    found = []
    for group in registry.groups():
        place = folder / outside.place(group)
        yamls = sorted(place.glob("*.yaml"))
        found += [Candidate(folder=folder, group=group, name=path.stem, yaml=path) for path in yamls]
        chosen = set(re.findall(r"^kind: (\w+)", "\n".join(read_text(path) for path in yamls), re.MULTILINE))
        for file in outside.files():
            kinds = {kind for kind, cls in registry.options(group).items() if cls.__module__ == file.module}
            if file.path.parent == place and not kinds & chosen:
                found.append(Candidate(folder=folder, group=group, name=file.name, yaml=None))
    if not found:
        groups = ", ".join(map(outside.place, registry.groups()))
        raise ValueError(f"{folder} must hold an option: GROUP/NAME.yaml, with GROUP one of {groups}")
    return found


def composes(trial: Trial) -> str:
    found = trial.candidate
    kind = "kind: KIND"
    expect(found.yaml, f"no yaml chooses {outside.place(found.group)}/{found.name}.py: it needs a {found.name}.yaml with {kind}")
    option = trial.option()
    values = {f.name: getattr(option, f.name) for f in fields(option) if not f.name.startswith("_")}
    return one_line(", ".join(f"{key}={value.name if isinstance(value, Enum) else value}" for key, value in values.items()), most=120)


def refuses(trial: Trial) -> str:
    """Each key with a value of another type, and an unknown key, written over a schema and past it."""
    group = trial.candidate.group
    place = f"ideas.{next(iter(trial.run.ideas))}" if group == "ideas" else {"launcher": "hydra.launcher"}.get(group, group)
    option = type(trial.option())
    types = get_type_hints(option)
    keys = [f.name for f in fields(option) if f.name != "kind" and not f.name.startswith("_")]
    wrong = [f"{place}.{key}={value}" for key in keys if (value := _another_type(types[key])) is not None]
    for override in (f"{place}.no_such_key=1", f"+{place}.no_such_key=1", *wrong):
        line = _refusal(trial, override)
        expect(line, f"{override} is not refused")
        expect("\n" not in line, f"{override} is refused in several lines: {one_line(line)}")
    return f"an unknown key, and {len(wrong)} keys of another type"


def _refusal(trial: Trial, override: str) -> str:
    try:
        trial.option(override)
    except ValueError as error:
        return str(error)
    return ""


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
