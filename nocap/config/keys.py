"""Declare a key of the config, with its limits and what it counts for, and refuse a value that does
not fit."""

from __future__ import annotations

import errno
import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, field, fields, is_dataclass
from typing import Any, TypedDict, Unpack

# What a key may count for → whether it does by default.
COUNTS = {
    "identity": True,  # another value makes another run
    "step": True,  # a training step depends on it, and so does its speed
    "losses": False,  # validation losses are comparable only where it is equal
}


class InputError(ValueError):
    """Bad input that only the worker can find. It is refused there as by the command: exit code
    2."""


def require(ok: bool, key: str, rule: str, value: object) -> None:
    """Refuse a value: `ValueError("trainer.steps must be at least 1, got 0")`."""
    if ok:
        return
    shown = str(value)
    if not shown.isprintable():
        shown = ascii(shown)[1:-1]
    raise ValueError(f"{key} must {rule}, got {shown:.1000}")


# What disk and memory do, and no input: an error of this kind ends with exit code 1, not as bad
# input.
FAULTS = {
    errno.EIO,
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EROFS,
    errno.ENOMEM,
    errno.EMFILE,
    errno.ENFILE,
    errno.ESTALE,
}


def is_fault(error: BaseException | None) -> bool:
    """Say whether the machine failed, or what raised the error did so because it had."""
    while error is not None and not isinstance(error, OSError):
        error = error.__cause__
    return error is not None and error.errno in FAULTS


# The limits that a number's key may declare.
LIMITS: dict[str, tuple[str, Callable[[Any, Any], bool]]] = {
    "ge": ("at least", operator.ge),
    "gt": ("above", operator.gt),
    "le": ("at most", operator.le),
    "lt": ("below", operator.lt),
}
TEXT = 4096  # characters of a string


class KeyFacts(TypedDict, total=False):
    """What a key declares: its limits (`LIMITS`), what it counts for (`COUNTS`), and more.

    Where a field holds an option, a key of `COUNTS` that is False excludes all of the option's keys
    but those that say True themselves, True includes them all, and without either each key decides.
    """

    ge: float
    gt: float
    le: float
    lt: float
    identity: bool
    step: bool
    losses: bool
    help: str
    longest: int  # the most characters of a text
    free: bool  # a text of any characters
    text: bool  # of a field of type Any: a text, or a list of texts
    # the key came after runs were registered; it counts where it is not its default, so that what
    # counted before stays as it was
    added: bool


def key(
    *,
    default: Any = MISSING,
    default_factory: Callable[[], Any] | Any = MISSING,
    **facts: Unpack[KeyFacts],
) -> Any:
    """Return a dataclass field that declares its limits and what it counts for: `devices: int =
    key(ge=1, le=4096, identity=False)`. The comment beside a key, or above it, is its text in
    `--help`."""
    assert facts.keys() <= KeyFacts.__annotations__.keys(), facts
    return field(default=default, default_factory=default_factory, metadata=dict(facts))


def check_keys(place: str, option: Any) -> None:
    """Refuse numbers beyond their key's limits, and text that is not plain. `place` is the option's
    in the config, "" for the top.

    Errors:
        ValueError: the first such key.
    """
    for f in fields(option):
        name = f"{place}.{f.name}".lstrip(".")
        value = getattr(option, f.name)
        if isinstance(value, list):
            for element in value:
                _check_value(name, element, f)
            continue
        # an interpolation can lead anywhere
        is_list = str(f.type).startswith("list")
        require(not is_list, name, "be a list", type(value).__name__)
        _check_value(name, value, f)


def _check_value(name: str, value: Any, f: Any) -> None:
    if isinstance(value, str):
        if not f.metadata.get("free"):
            check_text(name, value, longest=f.metadata.get("longest", TEXT))
    elif isinstance(value, int | float) and not isinstance(value, bool):
        _check_number(name, value, f)


def _check_number(name: str, value: float, f: Any) -> None:
    is_finite = not isinstance(value, float) or math.isfinite(value)
    require(is_finite, name, "be a finite number", value)
    or_null = ", or null" if "None" in str(f.type) else ""
    for limit, (words, holds) in LIMITS.items():
        bound = f.metadata.get(limit)
        if bound is not None:
            require(holds(value, bound), name, f"be {words} {bound}{or_null}", value)


def check_text(name: str, text: str, *, longest: int = TEXT) -> None:
    """Refuse text that is longer than it may be, or that a terminal or a file's name cannot show.

    Errors:
        ValueError: it is one of these.
    """
    require(len(text) <= longest, name, f"have at most {longest:,} characters", f"{len(text):,}")
    require(not _UNSHOWN.search(text), name, "hold no control characters", ascii(text[:200]))


# line ends, turns of direction, half characters
_UNSHOWN = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def counting(
    option: Any, what: str, plain: Mapping[str, Any], *, default: bool | None = None
) -> dict[str, Any]:
    """Return the keys of a dataclass's plain form that count for `what`, nested as they are.
    `default`: whether a key counts that does not say so; None: as in `COUNTS`."""
    if default is None:
        default = COUNTS[what]
    counted: dict[str, Any] = {}
    for f in fields(option):
        value = getattr(option, f.name)
        plain_value = plain[f.name]
        declares: bool | None = f.metadata.get(what)  # None: the key does not say
        counts = default if declares is None else declares
        if declares is not True and is_dataclass(value):
            part = counting(value, what, plain_value, default=counts)
            if part or counts:
                counted[f.name] = part
        elif declares is None and _holds_options(value):
            parts = {}
            for name, part in value.items():
                parts[name] = counting(part, what, plain_value[name], default=counts)
            counted[f.name] = parts
        elif counts:
            is_new_default = f.metadata.get("added") and value == f.default
            if not is_new_default:
                counted[f.name] = plain_value
    return counted


def _holds_options(value: object) -> bool:
    """Say whether a value maps names to options, as that of `ideas` does."""
    return isinstance(value, dict) and all(map(is_dataclass, value.values()))


def flat(tree: Mapping[str, Any], joint: str = ".", prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each value of nested mappings by its full key, as in `attention.n_kv_heads`."""
    for part, value in tree.items():
        name = f"{prefix}{part}"
        if isinstance(value, Mapping):
            yield from flat(value, joint, f"{name}{joint}")
        else:
            yield name, value
