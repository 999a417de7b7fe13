"""Keeps credentials out of everything that is written down.

A config can pick up a credential without anybody typing it there: `${oc.env:HF_TOKEN}` in a data path is resolved like any other value.
So the values of the environment's own secrets are what is looked for, wherever they ended up.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, get_type_hints

from nocap.config import registry
from nocap.config.trainer import Trainer

SECRET_WORDS = ("KEY", "TOKEN", "SECRET", "PASSWORD", "CREDENTIAL")
SHORTEST = 8  # characters; a shorter value ("true", "3") would match ordinary text


def schema_words() -> set[str]:
    """The words that options have for what they are and what they offer."""
    options = [option for group in registry.groups() for option in registry.options(group).values()]
    enums = {kind for option in (*options, Trainer) for kind in get_type_hints(option).values() if isinstance(kind, type)}
    offered = {member.name for kind in enums if issubclass(kind, Enum) for member in kind}
    return offered | {kind for group in registry.groups() for kind in registry.options(group)}


def redact(config: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, Any]:
    """A copy of a plain config in which every secret of the environment reads `<redacted:NAME>`.

    A variable is a secret when its name has one of `SECRET_WORDS` in it. Keys of the config are not looked at, nor values that are a word
    of the schema (`shuffled`): everybody knows those, and a worker must be able to read them back.
    """
    known = schema_words()
    secrets = {
        value: name
        for name, value in environ.items()
        if len(value) >= SHORTEST and value not in known and any(word in name.upper() for word in SECRET_WORDS)
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
