"""Format numbers and lists, everywhere the same. A missing value is a dash, never a zero."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

NONE = "–"
MINUS = "−"


@dataclass(frozen=True, kw_only=True, slots=True)
class Unit:
    """What a column of numbers is counted in, where its largest is at least so great."""

    name: str
    size: float = 1.0
    least: float = 0.0


ONE = (Unit(name=""),)
COUNTS = (
    Unit(name="T", size=1e12, least=1e12),
    Unit(name="B", size=1e9, least=1e9),
    Unit(name="M", size=1e6, least=1e6),
)
DURATIONS = (
    Unit(name=" h", size=3600, least=7200),
    Unit(name=" min", size=60, least=120),
    Unit(name=" s"),
)


GREAT = 1e6  # from here on a number with decimals has a power of ten


def fixed(value: float | None, digits: int) -> str:
    """Return `1,234.5`, with a true minus; of a great number `1.000e30`."""
    if value is None:
        return NONE
    if digits and GREAT <= abs(value) < math.inf:
        return powers(value)
    rounded = round(value, digits) + 0.0  # adding 0 takes the minus from a rounded −0
    return f"{rounded:,.{digits}f}".replace("-", MINUS)


def powers(value: float) -> str:
    """Return `1.000e30`, of a number for which no column has room."""
    return f"{value:.3e}".replace("e+", "e").replace("-", MINUS)


loss = partial(fixed, digits=4)
integer = partial(fixed, digits=0)


def percent(share: float | None, digits: int = 1) -> str:
    """Return `−14.3%` of 0.857 − 1."""
    if share is None:
        return NONE
    rounded = round(100 * share, digits) + 0.0
    return f"{rounded:+,.{digits}f}%".replace("-", MINUS)


def count(value: float | None) -> str:
    """Return `114,752`; of 124,439,808 `124.4M`."""
    if value is None:
        return NONE
    for unit in COUNTS:
        if abs(value) >= unit.least:
            digits = 1 if abs(value) >= 10 * unit.size else 2
            return f"{value / unit.size:.{digits}f}{unit.name}"
    return integer(value)


def three_digits(value: float | None) -> str:
    """Return milliseconds or seconds of any size: `1,234`, `61.6`, `0.123`."""
    if value is None:
        return NONE
    for digits, least in enumerate((100, 10, 1)):
        if abs(value) >= least:
            return fixed(value, digits)
    return fixed(value, 3)


BYTES = {"K": 2.0**10, "M": 2.0**20, "G": 2.0**30, "T": 2.0**40}


def size(n: float | None) -> str:
    """Return `1.2 GiB`."""
    if n is None:
        return NONE
    for letter in "GMK":
        if n >= BYTES[letter]:
            return f"{n / BYTES[letter]:.1f} {letter}iB"
    return f"{n:.0f} B"


def duration(seconds: float | None) -> str:
    """Return `2.3 h`, `4.5 min`, `61.6 s`."""
    if seconds is None:
        return NONE
    if seconds >= 7200:
        return f"{seconds / 3600:.1f} h"
    if seconds >= 120:
        return f"{seconds / 60:.1f} min"
    return f"{seconds:.3g} s"


def plural(n: int, noun: str) -> str:
    """Return `1 run`, `2 runs`."""
    if n == 1:
        return f"{n} {noun}"
    return f"{n} {noun}s"


def listed(items: Iterable[str]) -> str:
    """Return `a, b and c`."""
    *most, last = list(items) or [NONE]
    if not most:
        return last
    return f"{', '.join(most)} and {last}"


def shorten(items: Iterable[str], *, most: int = 4) -> str:
    """Return `a, b, c and 21 more`."""
    texts = list(items)
    if len(texts) <= most:
        return ", ".join(texts)
    first = texts[: most - 1]
    return f"{', '.join(first)} and {len(texts) - len(first)} more"


def time_left(done: int, to_do: int, spent_s: float) -> str:
    """Return how long the rest will take, at the pace so far; nothing before there is one, or after
    the last."""
    if done <= 0 or to_do <= 0:
        return ""
    return f"about {duration(round(spent_s / done * to_do))} left"


def ending(code: int) -> str:
    """Return a process's exit code as `subprocess` gives it, as text."""
    if code < 0:
        return f"signal {-code}"
    return f"exit code {code}"
