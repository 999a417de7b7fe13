"""Reading text that anybody may have written: regular files only, with limits on size, depth and what aliases stand for."""

from __future__ import annotations

import json
import math
import os
import re
import stat
from pathlib import Path
from typing import Any

import yaml

YAML_BYTES = 1 << 20  # of a config, a study, an option's yaml
JSON_BYTES = 1 << 28  # of a record
DEPTH = 64  # of lists and objects inside each other
NODES = 100_000  # of a yaml, each alias counted as what it stands for
DIGITS = 40  # of an integer in a JSON or an override

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_bytes(path: Path, limit: int) -> bytes:
    """A file's bytes. A pipe or a device is not waited for.

    Errors:
        OSError: it is not there, or cannot be read.
        ValueError: it is no regular file, or larger than `limit`.
    """
    if path.is_dir():
        raise ValueError(f"{path} must be a regular file")
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError(f"{path} must be a regular file")
        content = file.read(limit + 1)
    if len(content) > limit:
        raise ValueError(f"{path} must be at most {limit:,} bytes")
    return content


def read_text(path: Path, limit: int = YAML_BYTES) -> str:
    """The same as UTF-8 text.

    Errors:
        OSError, ValueError: as for `read_bytes`; ValueError too for other bytes than UTF-8.
    """
    content = read_bytes(path, limit)
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} must be UTF-8 text, got byte 0x{content[error.start]:02x} at {error.start}") from None


# --- JSON ----------------------------------------------------------------------------------------------------------------------------


def parse_json(text: str) -> Any:
    """What the text holds: finite numbers, integers of at most `DIGITS` digits, at most `DEPTH` deep.

    Errors:
        ValueError: it is no JSON, or beyond that.
    """
    finite = _finite if re.search(_HUGE, text) else None  # json's own is three times as fast
    try:
        content = json.loads(text, parse_int=_integer, parse_float=finite, parse_constant=_finite)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    level = _inside([content])
    for _ in range(DEPTH):
        level = _inside([item for one in level for item in (one.values() if isinstance(one, dict) else one)])
    if level:
        raise ValueError(_TOO_DEEP)
    return content


def _inside(items: list[Any]) -> list[Any]:
    return [item for item in items if isinstance(item, dict | list)]


_HUGE = r"[eE]\+?\d{3}|\d{300}"  # in a number that may be beyond floats
_TOO_DEEP = f"lists and objects must be at most {DEPTH} deep"


def _integer(text: str) -> int:
    if len(text) > DIGITS:
        raise ValueError(f"integers must have at most {DIGITS} digits, got {len(text)}")
    return int(text)


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(f"numbers must be finite, got {text}")
    return number


# --- YAML ----------------------------------------------------------------------------------------------------------------------------


def parse_yaml(text: str) -> Any:
    """What the text holds, in plain types. What would take a loader long is refused before it is loaded.

    Errors:
        ValueError: it is no YAML, or beyond the limits.
    """
    sizes, open_, names = dict[str, int](), [0], list[str | None]()  # nodes of each anchor, of each open list or mapping; their anchors
    try:
        for event in yaml.parse(text, Loader=_Loader):
            if isinstance(event, yaml.AliasEvent):
                if event.anchor not in sizes:
                    raise ValueError(f"the alias *{event.anchor} must not stand inside what it names")
                open_[-1] += sizes[event.anchor]
            elif isinstance(event, yaml.CollectionStartEvent):
                open_.append(1)
                names.append(event.anchor)
            elif isinstance(event, yaml.CollectionEndEvent):
                size, name = open_.pop(), names.pop()
                open_[-1] += size
                sizes |= {name: size} if name is not None else {}
            elif isinstance(event, yaml.ScalarEvent):
                open_[-1] += 1
                sizes |= {event.anchor: 1} if event.anchor is not None else {}
            if len(open_) > DEPTH:
                raise ValueError(_TOO_DEEP)
            if sum(open_) > NODES:
                raise ValueError(f"a yaml must hold at most {NODES:,} values, each alias counted as what it stands for")
        _check_repeated(yaml.compose(text, Loader=_Loader), set())
        return yaml.load(text, Loader=_Loader)  # a safe one
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a date that is none, too
        raise ValueError(" ".join(str(error).split())) from None


def _check_repeated(node: yaml.Node | None, checked: set[int]) -> None:
    """Refuse a key that a mapping has twice: a loader takes the last one in silence."""
    if node is None or id(node) in checked or isinstance(node, yaml.ScalarNode):
        return
    checked.add(id(node))
    if isinstance(node, yaml.MappingNode):
        names = [name.value for name, _ in node.value if isinstance(name, yaml.ScalarNode)]
        if repeated := [name for i, name in enumerate(names) if name in names[:i]]:
            raise ValueError(f"{repeated[0]} must be given once, got it again at or after line {node.start_mark.line + 1}")
    for child in node.value:
        for part in child if isinstance(child, tuple) else (child,):
            _check_repeated(part, checked)
