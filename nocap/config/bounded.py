"""Reading text that anybody may have written, in plain types: regular files only, and nothing in it is executed."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any, NoReturn

import yaml

DEPTH = 64  # of lists and mappings inside each other
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_bytes(path: Path) -> bytes:
    """A file's bytes. A pipe or a device is not waited for.

    Errors:
        OSError: it is not there, or cannot be read.
        ValueError: it is no regular file.
    """
    if path.is_dir():
        raise ValueError(f"{path} must be a regular file")
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError(f"{path} must be a regular file")
        return file.read()


def read_text(path: Path) -> str:
    """The same as UTF-8 text.

    Errors:
        OSError, ValueError: as for `read_bytes`; ValueError too for other bytes than UTF-8.
    """
    content = read_bytes(path)
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} must be UTF-8 text, got byte 0x{content[error.start]:02x} at {error.start}") from None


def parse_json(text: str) -> Any:
    """
    Errors:
        ValueError: it is no JSON, or has a number that is not finite.
    """
    try:
        return json.loads(text, parse_constant=_infinite)
    except RecursionError:
        raise ValueError("lists and objects must not be so deep") from None


def _infinite(text: str) -> NoReturn:
    raise ValueError(f"numbers must be finite, got {text}")


def parse_yaml(text: str) -> Any:
    """
    Errors:
        ValueError: it is no YAML, gives a key twice, or holds itself.
    """
    depth = 0
    try:
        for event in yaml.parse(text, Loader=_Loader):  # what is too deep ends the process in the library's C
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > DEPTH:
                raise ValueError(f"lists and mappings must be at most {DEPTH} deep")
        _check_nodes(yaml.compose(text, Loader=_Loader), {})
        return yaml.load(text, Loader=_Loader)  # a safe one
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a date that is none, too
        raise ValueError(" ".join(str(error).split())) from None


def _check_nodes(node: yaml.Node | None, closed: dict[int, bool]) -> None:
    """Refuse a key that a mapping has twice, where a loader takes the last one in silence, and what holds itself."""
    if node is None or isinstance(node, yaml.ScalarNode) or closed.get(id(node)):
        return
    if id(node) in closed:
        raise ValueError(f"what line {node.start_mark.line + 1} starts must not hold itself")
    closed[id(node)] = False
    if isinstance(node, yaml.MappingNode):
        names = [name.value for name, _ in node.value if isinstance(name, yaml.ScalarNode)]
        if repeated := [name for i, name in enumerate(names) if name in names[:i]]:
            raise ValueError(f"{repeated[0]} must be given once, got it again at or after line {node.start_mark.line + 1}")
    for child in node.value:
        for part in child if isinstance(child, tuple) else (child,):
            _check_nodes(part, closed)
    closed[id(node)] = True
