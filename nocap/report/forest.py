"""A forest plot as SVG: a line per row with its interval, the stated range behind it and the bound, over one axis with round ticks.

As one picture (`svg`), or as a cell for each row of a table (`cell`) with the axis in its head (`head`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from markupsafe import Markup, escape

LABEL, WIDTH, ROW, FOOT = 150, 720, 20, 44  # px: names to the left, the whole, a row, the axis below
RIGHT = 24  # px right of the plot, for half of the last tick's label
CELL = 220  # px: the width of a table's cell
MOST_TICKS = 8
FAR = 4  # times the median of the ends: what reaches further out of a cell has an arrow
DECADES = 1.3  # from here on (in powers of ten, all above 0) an axis is logarithmic


@dataclass(frozen=True, kw_only=True)
class Line:
    """A row: null is what is unknown or endless."""

    label: str
    title: str  # for a pointer, and for who cannot see
    look: str  # CSS class
    mid: float
    low: float
    high: float
    stated: tuple[float | None, float | None] = (None, None)
    bound: float | None = None


@dataclass(frozen=True, kw_only=True)
class Axis:
    """From `low` to `high`, which are no ticks."""

    low: float
    high: float
    logarithmic: bool
    ticks: list[float]
    left: float = LABEL  # px
    right: float = WIDTH - RIGHT

    def x(self, value: float) -> float:
        """Px from the left; beyond an end at that end."""
        low, high, value = (math.log(end) if self.logarithmic else end for end in (self.low, self.high, self._within(value)))
        return self.left + (value - low) / (high - low) * (self.right - self.left)

    def _within(self, value: float) -> float:
        return min(max(value, self.low), self.high)


def axis(values: Iterable[float], *, ratio: bool = False) -> Axis:
    """That holds them all with a margin; of ratios logarithmic, with 1 on it."""
    found = [x for x in values if math.isfinite(x)] + ([1.0] if ratio else [])
    low, high = min(found), max(found)
    logarithmic = low > 0 and (ratio or math.log10(high / low) > DECADES)
    if logarithmic:
        margin = max((high / low) ** 0.04, 1.01)
        low, high = low / margin, high * margin
        wide = math.log10(high / low) > DECADES
    else:
        margin = 0.04 * (high - low) or abs(high) * 0.04 or 1.0
        low, high, wide = low - margin, high + margin, False
    ticks = _decades(low, high) if wide else _even(low, high, MOST_TICKS)
    return Axis(low=low, high=high, logarithmic=logarithmic, ticks=sorted({*ticks, 1.0}) if ratio else ticks)


def cells_axis(values: Iterable[float]) -> Axis:
    """For the cells of a table: with zero and all values but the few that run far out, which would press the others into one point."""
    far = sorted(abs(x) for x in values if math.isfinite(x))
    usual = far[len(far) // 2] if far else 0.0
    near = [x for x in values if abs(x) <= FAR * usual]
    fitted = axis([0.0, *near])
    return replace(fitted, ticks=_even(fitted.low, fitted.high, 4), left=RIGHT, right=CELL - RIGHT)


def _even(low: float, high: float, most: int) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten, as many as there is room for."""
    least = (high - low) / most
    power = 10.0 ** math.floor(math.log10(least))
    step = next(size * power for size in (1, 2, 5, 10) if size * power >= least)
    first, last = math.ceil(low / step), math.floor(high / step)
    digits = max(0, 1 - math.floor(math.log10(step)))
    return [round(i * step, digits) for i in range(first, last + 1)]


def _decades(low: float, high: float) -> list[float]:
    """1, 2 and 5 times powers of ten; the powers alone where these are too many."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    found = [x for x in (size * 10.0**power for power in powers for size in (1, 2, 5)) if low <= x <= high]
    return found if len(found) <= MOST_TICKS + 4 else [10.0**power for power in powers if low <= 10.0**power <= high]


def svg(lines: Sequence[Line], scale: Axis, *, title: str, tick: Callable[[float], str]) -> Markup:
    """The whole picture. `tick` writes a tick's number."""
    height = ROW * len(lines) + FOOT
    below = ROW * len(lines) + 4
    rows = [_row(line, scale, y=ROW * i + ROW / 2) for i, line in enumerate(lines)]
    name = f'<text class="axis" x="{(LABEL + WIDTH - RIGHT) / 2:.0f}" y="{height - 6}">{escape(title)}</text>'
    base = f'<path class="base" d="M{LABEL} {below}H{WIDTH - RIGHT}"/>'
    return _whole([_grid(scale, below), base, *rows, _numbers(scale, tick, below + 14), name], WIDTH, height, title)


def cell(line: Line, scale: Axis) -> Markup:
    """One row without its name, between the lines of the ticks."""
    zero = f'<path class="base" d="M{scale.x(0):.1f} 0V{ROW}"/>'
    return _whole([_grid(scale, ROW), zero, _row(line, scale, y=ROW / 2)], CELL, ROW, line.title)


def head(scale: Axis, *, tick: Callable[[float], str]) -> Markup:
    """The ticks' numbers, for the head of a column of cells."""
    return _whole([_numbers(scale, tick, ROW - 6)], CELL, ROW, "scale")


def _whole(parts: Sequence[str], width: int, height: int, title: str) -> Markup:
    return Markup(
        "\n".join([f'<svg class="forest" viewBox="0 0 {width} {height}" role="img" aria-label="{escape(title)}">', *parts, "</svg>"])
    )


def _grid(scale: Axis, below: float) -> str:
    return "\n".join(f'<path class="grid" d="M{scale.x(x):.1f} 0V{below}"/>' for x in scale.ticks)


def _numbers(scale: Axis, tick: Callable[[float], str], y: float) -> str:
    return "\n".join(f'<text class="tick" x="{scale.x(x):.1f}" y="{y}">{escape(tick(x))}</text>' for x in scale.ticks)


def _row(line: Line, scale: Axis, *, y: float) -> str:
    """Stated range, bound, interval, middle, name; in this order, so that the measured lies above."""
    left, right = scale.low, scale.high
    parts = []
    if line.stated != (None, None):
        start, end = (scale.x(side if side is not None else far) for side, far in zip(line.stated, (left, right), strict=True))
        parts.append(f'<rect class="stated" x="{start:.1f}" y="{y - 7:.1f}" width="{max(end - start, 1.5):.1f}" height="14"/>')
    if line.bound is not None:
        parts.append(f'<path class="bound" d="M{scale.x(line.bound):.1f} {y - 8:.1f}v16"/>')
    low, high = scale.x(line.low), scale.x(line.high)
    if low != high:
        ends = _end(low, y, 5 * (line.low < left)) + _end(high, y, -5 * (line.high > right))
        parts.append(f'<path class="interval" d="M{low:.1f} {y:.1f}H{high:.1f}{ends}"/>')
    if left <= line.mid <= right:
        parts.append(f'<circle cx="{scale.x(line.mid):.1f}" cy="{y:.1f}" r="3.5"/>')
    parts.append(f'<text class="name" x="{scale.left - 10}" y="{y + 4:.1f}">{escape(line.label)}</text>' if line.label else "")
    return f'<g class="{escape(line.look)}"><title>{escape(line.title)}</title>{"".join(parts)}</g>'


def _end(x: float, y: float, arrow: float) -> str:
    """A stroke across; an arrow where the interval goes on beyond the axis."""
    return f"M{x + arrow:.1f} {y - 4:.1f}L{x:.1f} {y:.1f}L{x + arrow:.1f} {y + 4:.1f}"
