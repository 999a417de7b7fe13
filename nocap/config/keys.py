"""What a key of the config counts for, declared beside it, and how a value is refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, field, fields, is_dataclass
from typing import Any

# What a key may count for → whether it does by default.
COUNTS = {
    "identity": True,  # another value makes another run
    "step": True,  # a training step depends on it, and so does its speed
    "losses": False,  # validation losses are comparable only where it is equal
}


class InputError(ValueError):
    """Bad input that only the worker can find. It is refused there as by the command: exit code 2."""


def require(ok: bool, key: str, rule: str, value: object) -> None:
    """Refuse a value: `ValueError("trainer.steps must be at least 1, got 0")`."""
    if not ok:
        raise ValueError(f"{key} must {rule}, got {value}")


def key(*, default: Any = MISSING, default_factory: Callable[[], Any] | Any = MISSING, **counts: bool) -> Any:
    """A dataclass field that declares what it counts for: `devices: int = key(identity=False)`. `COUNTS` has the defaults.

    For a field that holds an option: False excludes all its keys, True includes them all, and without either each key decides.
    """
    assert counts.keys() <= COUNTS.keys(), counts
    return field(default=default, default_factory=default_factory, metadata=counts)


def counting(option: Any, what: str, plain: Mapping[str, Any]) -> dict[str, Any]:
    """Of a dataclass's plain form, the keys that count for `what`, nested as they are."""
    found: dict[str, Any] = {}
    for f in fields(option):
        value, counts = getattr(option, f.name), f.metadata.get(what)
        nested = _nested(value)
        if counts is False:
            continue
        if nested is None or counts:
            if counts or COUNTS[what]:
                found[f.name] = plain[f.name]
        elif is_dataclass(value):
            found[f.name] = counting(value, what, plain[f.name])
        else:
            found[f.name] = {name: counting(one, what, plain[f.name][name]) for name, one in nested.items()}
    return found


def _nested(value: object) -> Mapping[str, Any] | None:
    """A dataclass, or several by name; None for anything else."""
    if is_dataclass(value):
        return {"": value}
    return value if isinstance(value, dict) and all(is_dataclass(one) for one in value.values()) else None
