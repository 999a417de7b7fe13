"""Keeps credentials out of every file of a record.

A config can pick up a credential that nobody typed there: `${oc.env:HF_TOKEN}` in a data path is resolved like any other value. So every
value of the config is searched for the values of the environment's secret variables.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, get_type_hints

from nocap.config import registry
from nocap.config.trainer import Trainer

SECRET_NAMES = ("KEY", "TOKEN", "SECRET", "PASSWORD", "CREDENTIAL")
SHORTEST = 8  # characters; a shorter value ("true", "3") would match ordinary text


def schema_names() -> set[str]:
    """The kinds of all options, and the members of their enums."""
    options = [option for group in registry.groups() for option in registry.options(group).values()]
    enums = {kind for option in (*options, Trainer) for kind in get_type_hints(option).values() if isinstance(kind, type)}
    offered = {member.name for kind in enums if issubclass(kind, Enum) for member in kind}
    return offered | {kind for group in registry.groups() for kind in registry.options(group)}


def redact(config: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, Any]:
    """A copy of a plain config in which every secret of the environment reads `<redacted:NAME>`.

    A variable is a secret when its name contains one of `SECRET_NAMES`. Keys of the config stay, and so do values that are names of the
    schema (`shuffled`): those are public, and a worker must be able to read them back.
    """
    known = schema_names()
    secrets = {
        value: name
        for name, value in environ.items()
        if len(value) >= SHORTEST and value not in known and any(part in name.upper() for part in SECRET_NAMES)
    }
    # The longest first: a secret that contains another one goes as a whole.
    ordered = sorted(secrets.items(), key=lambda item: -len(item[0]))
    return {key: _clean(value, ordered) for key, value in config.items()}


def _clean(value: Any, secrets: list[tuple[str, str]]) -> Any:
    if isinstance(value, str):
        for secret, name in secrets:
            value = value.replace(secret, f"<redacted:{name}>")
        return value
    if isinstance(value, Mapping):
        return {key: _clean(item, secrets) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_clean(item, secrets) for item in value]
    return value
