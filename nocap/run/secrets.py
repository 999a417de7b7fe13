"""Keeps credentials out of everything that is written down.

A config can pick up a credential without anybody typing it there: `${oc.env:HF_TOKEN}` in a data path is resolved like any other value.
So the values of the environment's own secrets are what is looked for, wherever they ended up.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any

from nocap import schema

SECRET_WORDS = ("KEY", "TOKEN", "SECRET", "PASSWORD", "CREDENTIAL")
WORDS = {kind for rows in schema.SCHEMAS.values() for kind in rows} | {
    member.name for option in vars(schema).values() if isinstance(option, type) and issubclass(option, Enum) for member in option
}
SHORTEST = 8  # characters; a shorter value ("true", "3") would match ordinary text


def redact(config: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, Any]:
    """A copy of a plain config in which every secret of the environment reads `<redacted:NAME>`.

    A variable is a secret when its name has one of `SECRET_WORDS` in it. Keys of the config are not looked at, nor values that are a word
    of the schema (`shuffled`): everybody knows those, and a worker must be able to read them back.
    """
    secrets = {
        value: name
        for name, value in environ.items()
        if len(value) >= SHORTEST and value not in WORDS and any(word in name.upper() for word in SECRET_WORDS)
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
