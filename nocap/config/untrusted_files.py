"""Reading text that anybody may have written, in plain types: regular files only, and nothing in it
is executed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NoReturn

import yaml

from nocap.config.keys import require

DIGITS = 300  # of an integer: a float holds as many


def read_bytes(path: Path) -> bytes:
    """Return a file's bytes. A pipe or a device is not waited for.

    Errors:
        OSError: it is not there, or cannot be read.
        ValueError: it is no regular file.
    """
    require(
        path.is_file() or not path.exists(),
        str(path),
        "be a regular file",
        "a folder, a pipe or a device",
    )
    return path.read_bytes()


def read_text(path: Path) -> str:
    """Return the same as UTF-8 text.

    Errors:
        OSError, ValueError: as for `read_bytes`; ValueError too for other bytes than UTF-8.
    """
    content = read_bytes(path)
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path} must be UTF-8 text, got byte 0x{content[error.start]:02x} at offset "
            f"{error.start}"
        ) from None


def parse_json(text: str) -> Any:
    """Return what a text of JSON holds.

    Errors:
        ValueError: it is no JSON, or has a number that is not finite, or that no float holds.
    """
    try:
        return json.loads(text, parse_constant=_infinite, parse_int=_integer)
    except RecursionError:
        raise ValueError("lists and objects must not be nested so deeply") from None


def _infinite(text: str) -> NoReturn:
    raise ValueError(f"numbers must be finite, got {text}")


def _integer(text: str) -> int:
    """Read an integer, with which whoever reads it may compute as a float."""
    if len(text) > DIGITS:
        raise ValueError(f"numbers must have at most {DIGITS} digits, got {len(text)}")
    return int(text)


def parse_yaml(text: str) -> Any:
    """Return what a text of YAML holds, in plain types.

    Errors:
        ValueError: it is no YAML, gives a key twice, or holds itself.
    """
    try:
        return yaml.load(text, Loader=_Loader)  # a safe one
    except RecursionError:
        raise ValueError("lists and mappings must not be nested so deeply") from None
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a date that is none, too
        raise ValueError(" ".join(str(error).split())) from None


def read_yaml(path: Path) -> Any:
    """Return what a file of YAML holds, in plain types.

    Errors:
        OSError: it is not there, or cannot be read.
        ValueError: as for `read_text` and `parse_yaml`, with the path.
    """
    text = read_text(path)
    try:
        return parse_yaml(text)
    except ValueError as error:
        raise ValueError(f"{path} cannot be read: {error}") from None


class _Loader(yaml.SafeLoader):
    """A safe one that refuses a key that a mapping has twice, where PyYAML takes the last in
    silence, and what holds itself. In Python: what is too deep for the library's C ends the
    process."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.deep_construct = True  # what holds itself cannot be made

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        names = [name.value for name, _ in node.value]
        for name in {name for name in names if names.count(name) > 1}:
            raise yaml.MarkedYAMLError(
                problem=f"the key {name} must appear only once", problem_mark=node.start_mark
            )
        mapping: dict[Any, Any] = super().construct_mapping(node, deep=True)
        return mapping
