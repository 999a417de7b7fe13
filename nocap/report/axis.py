"""An axis with round ticks, for pictures on a page and in a terminal."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from nocap.display import MINUS

MARGIN = 0.04  # of the axis, at each end
MOST_TICKS = 5
MOST_DECADES = 9  # ticks at 1, 2 and 5 times powers of ten; more are the powers alone
FAR = 4  # times the median of the ends: what reaches further has an arrow, where far ends are cut
DECADES = 1.3  # from here on (in powers of ten, all above 0) an axis is logarithmic
ROUNDING = 1e-9  # of a step


@dataclass(frozen=True, kw_only=True)
class Axis:
    """From `low` to `high`, which are no ticks."""

    low: float
    high: float
    logarithmic: bool
    ticks: list[float]

    def x(self, value: float) -> float:
        """Return how far along the axis a value lies, in percent; beyond an end at that end."""
        inside = min(max(value, self.low), self.high)
        if self.logarithmic:
            return 100 * math.log(inside / self.low) / math.log(self.high / self.low)
        return 100 * (inside - self.low) / (self.high - self.low)


def axis(
    values: Iterable[float],
    *,
    ratio: bool = False,
    cut: bool = False,
    zero: bool = False,
    most: int = MOST_TICKS,
) -> Axis:
    """Return one that holds them all with a margin; of ratios logarithmic, with 1 on it. `zero`:
    with 0. `cut`: with 0, and without the few that run far out, which would press the others into
    one point. `most`: ticks."""
    covered = list(values)
    if ratio:
        covered.append(1.0)
    if zero:
        covered.append(0.0)
    if cut:
        covered = [0.0, *_near(covered)]
    low = min(covered)
    high = max(covered)
    logarithmic = low > 0 and (ratio or _is_wide(low, high))
    if logarithmic:
        margin = max((high / low) ** MARGIN, 1.01)
        low /= margin
        high *= margin
    else:
        margin = MARGIN * (high - low) or abs(high) * MARGIN or 1.0
        low -= margin
        high += margin
    ticks = round_numbers(low, high, most)
    if logarithmic and _is_wide(low, high):
        ticks = decades(low, high, (1, 2, 5))
        if len(ticks) > MOST_DECADES:
            ticks = decades(low, high, (1,))
    if ratio:
        ticks = sorted({*ticks, 1.0})
    return Axis(low=low, high=high, logarithmic=logarithmic, ticks=ticks)


def _near(values: Sequence[float]) -> list[float]:
    """Return those that lie within a few times the median of all."""
    sizes = sorted(map(abs, values))
    most = FAR * sizes[len(sizes) // 2]
    return [x for x in values if abs(x) <= most]


def _is_wide(low: float, high: float) -> bool:
    """Say whether numbers above 0 lie so far apart that only their powers of ten tell."""
    return math.log10(high / low) > DECADES


def round_numbers(low: float, high: float, most: int) -> list[float]:
    """Return the multiples of 1, 2 or 5 times a power of ten, so far apart that `most` steps reach
    from `low` to `high`."""
    apart = (high - low) / most
    power = 10.0 ** math.floor(math.log10(apart))
    least = apart * (1 - ROUNDING)
    step = next(size * power for size in (1, 2, 5, 10) if size * power >= least)
    digits = max(0, 1 - math.floor(math.log10(step)))
    first = math.ceil(low / step - ROUNDING)
    last = math.floor(high / step + ROUNDING)
    return [round(i * step, digits) for i in range(first, last + 1)]


def decades(low: float, high: float, digits: Sequence[int]) -> list[float]:
    """Return the products of these digits and powers of ten from `low` to `high`."""
    first = math.floor(math.log10(low))
    last = math.ceil(math.log10(high))
    products = list[float]()
    for power in range(first, last + 1):
        products += [digit * 10.0**power for digit in digits]
    return [x for x in products if low * (1 - ROUNDING) <= x <= high * (1 + ROUNDING)]


def number(x: float) -> str:
    return f"{x:g}".replace("-", MINUS)
