"""The one set of formats of numbers and lists. What is missing is a dash, never a zero."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import partial

NONE = "–"
MINUS = "−"


GREAT = 1e6  # from here on a number with decimals has a power of ten


def fixed(value: float | None, digits: int) -> str:
    """`1,234.5`, with a true minus; `1.000e30`. Adding 0 takes the minus from a rounded −0."""
    if value is None:
        return NONE
    if digits and GREAT <= abs(value) < math.inf:
        return powers(value)
    return f"{round(value, digits) + 0.0:,.{digits}f}".replace("-", MINUS)


def powers(value: float) -> str:
    """`1.000e30`, for what no column has room for."""
    return f"{value:.3e}".replace("e+", "e").replace("-", MINUS)


loss = partial(fixed, digits=4)
whole = partial(fixed, digits=0)


def percent(share: float | None, digits: int = 1) -> str:
    """`−14.3%` of 0.857 − 1."""
    return NONE if share is None else f"{round(100 * share, digits) + 0.0:+,.{digits}f}%".replace("-", MINUS)


def count(value: float | None) -> str:
    """`114,752`; 124,439,808 as `124.4M`."""
    if value is None or abs(value) < 1e6:
        return whole(value)
    size, unit = next(
        (size, unit) for size, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M")) if abs(value) >= size
    )
    return f"{value / size:.{1 if abs(value) >= 10 * size else 2}f}{unit}"


def three_digits(value: float | None) -> str:
    """Milliseconds or seconds of any size: `1,234`, `61.6`, `0.123`."""
    return fixed(
        value,
        3
        if value is None
        else 0
        if abs(value) >= 100
        else 1
        if abs(value) >= 10
        else 2
        if abs(value) >= 1
        else 3,
    )


BYTES = {"K": 2.0**10, "M": 2.0**20, "G": 2.0**30, "T": 2.0**40}


def size(n: float | None) -> str:
    """`1.2 GiB`."""
    if n is None or n < BYTES["K"]:
        return NONE if n is None else f"{n:.0f} B"
    letter = next(letter for letter in "GMK" if n >= BYTES[letter])
    return f"{n / BYTES[letter]:.1f} {letter}iB"


def duration(seconds: float | None) -> str:
    """`2.3 h`, `4.5 min`, `61.6 s`."""
    if seconds is None or seconds < 120:
        return NONE if seconds is None else f"{seconds:.3g} s"
    return f"{seconds / 3600:.1f} h" if seconds >= 7200 else f"{seconds / 60:.1f} min"


def plural(n: int, noun: str) -> str:
    return f"{n} {noun}{'' if n == 1 else 's'}"


def listed(items: Iterable[str]) -> str:
    """`a, b and c`."""
    *most, last = list(items) or [NONE]
    return f"{', '.join(most)} and {last}" if most else last


def shorten(items: Iterable[str], *, most: int = 4) -> str:
    """`a, b, c and 21 more`."""
    shown = list(items)
    return (
        ", ".join(shown)
        if len(shown) <= most
        else f"{', '.join(shown[: most - 1])} and {len(shown) - most + 1} more"
    )
