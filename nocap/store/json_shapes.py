"""Check what a file of JSON holds against a shape: the type of each value, by its key."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

Json = dict[str, Any]
# a type; [shape], a list of such; {key: shape}, of which any key may be missing or null; {...:
# shape}, whatever its keys
Shape = Any


class Required(dict[Any, Any]):
    """Hold the shape of an object that has all these keys; a null stands for a number only."""


_WORDS = {
    str: "text",
    int: "an integer",
    float: "a finite number",
    bool: "true or false",
    dict: "an object",
    list: "a list",
}


def check_shape(value: object, shape: Shape, path: Path, key: str = "") -> None:
    """Refuse a value of another type than `shape` has, by its key. A null is a value that was not
    measured.

    Errors:
        ValueError: it has another type.
    """
    kind = _kind(shape)
    if value is None:
        return
    if not _is_of(value, kind):
        raise ValueError(f"{path}: {key or 'it'} must be {_WORDS[kind]}, got {str(value)[:80]!r}")
    if isinstance(shape, list):
        elements = cast(list[object], value)
        for number, element in enumerate(elements):
            check_shape(element, shape[0], path, f"{key}[{number}]")
    elif isinstance(shape, dict):
        _check_object(cast(Json, value), shape, path, key)


def _kind(shape: Shape) -> type:
    """Return the type of JSON that a shape is of."""
    if isinstance(shape, type):
        return shape
    if isinstance(shape, dict):
        return dict
    return list


def _is_of(value: object, kind: type) -> bool:
    """Say whether a value is of a type of JSON, whose booleans are no numbers."""
    if isinstance(value, bool):
        return kind is bool
    if kind is float:
        return isinstance(value, int | float)
    return isinstance(value, kind)


def _check_object(value: Json, shape: dict[Any, Shape], path: Path, key: str) -> None:
    """Refuse an object that lacks a key, or has a wrong value.

    Errors:
        ValueError: that.
    """
    if isinstance(shape, Required):
        for name, inner in shape.items():
            is_number = inner in (int, float)
            is_missing = name not in value
            is_null = not is_missing and value[name] is None
            if is_missing or (is_null and not is_number):
                raise ValueError(f"{path}: {key or 'it'} must have {name}")
    for name in value:
        inner = shape.get(name, shape.get(...))
        if inner is not None:
            name_of_key = f"{key}.{name}" if key else str(name)
            check_shape(value[name], inner, path, name_of_key)


def filled(content: Any, shape: Shape) -> Any:
    """Return the same with an empty object or list where one is missing or null: a reader has no
    case for that."""
    if isinstance(shape, list):
        return [filled(item, shape[0]) for item in content or ()]
    if shape is dict:
        return content or {}
    if not isinstance(shape, dict):
        return content
    full = dict(content or {})
    for key, inner in shape.items():
        nests = inner is dict or isinstance(inner, dict | list)
        if key is not ... and nests:
            full[key] = filled(full.get(key), inner)
    return full
