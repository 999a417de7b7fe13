"""Curves in a terminal, as plain text: one mark for each."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from nocap.config.outgoing_text import visible
from nocap.report.axis import decades, round_numbers
from nocap.report.terminal import plain, prose, terminal_width

MARKS = "•+×○▲□◆※"
BAND = "·"
NARROWEST = 20  # columns of a frame
APART = 10  # columns from one number of an axis to the next, at least


class DrawnCurve(NamedTuple):
    label: str
    x: Sequence[float]  # ascending
    y: Sequence[float]
    low: Sequence[float]  # the edges of the band around it: y itself where it has none
    high: Sequence[float]


def drawn(
    curves: Sequence[DrawnCurve],
    *,
    x: str,
    y: str,
    log: str = "",
    width: int | None = None,
    height: int = 18,
) -> str:
    """Return the curves in one frame, `x` and `y` the names of its axes. `log`: which are
    logarithmic, "", "x", "y" or "xy". `width`: of the frame; without it the drawing is as wide as
    the terminal. Between two points a curve is straight in the frame. Where curves meet, the one is
    drawn that is seen least."""
    scaled = [_scaled(curve, log) for curve in curves]
    xs = np.concatenate([of_x for of_x, *_ in scaled])
    ys = np.concatenate([np.concatenate(of_y) for _, *of_y in scaled])
    levels = _ticks(ys.min(), ys.max(), most=height // 3, log="y" in log)
    wide = max(map(len, levels.values()))
    if width is None:
        width = max(NARROWEST, terminal_width() - wide - 2)
    frame = _Frame(
        left=xs.min(), right=xs.max(), low=ys.min(), high=ys.max(), width=width, height=height
    )
    rows = frame.filled(scaled)
    numbers = {int(frame.rows(level)): text for level, text in levels.items()}
    lines = [f"{numbers.get(row, ''):>{wide}} ┤{text}" for row, text in enumerate(rows)]
    places = _ticks(frame.left, frame.right, most=width // APART, log="x" in log)
    ticks = {int(frame.columns(place)): text for place, text in places.items()}
    axis, below = _axis(ticks, width)
    foot = [f"{'':{wide}} └{axis}", f"{'':{wide}}  {below}"]
    key = list[str]()
    for mark, curve in zip(MARKS, curves, strict=False):
        key.append(prose(f"{mark} {visible(curve.label)}"))
    return plain("\n".join([f"{y} over {x}", *lines, *foot, *key]))


def _scaled(curve: DrawnCurve, log: str) -> list[Any]:
    """Return a curve's columns as places: logarithms where the axis is logarithmic."""
    _, *columns = curve
    places = list[Any]()
    for axis, column in zip("xyyy", columns, strict=True):
        place = np.array(column)
        if axis in log:
            place = np.log10(place)
        places.append(place)
    return places


@dataclass(frozen=True, kw_only=True, slots=True)
class _Frame:
    """Where points lie: columns from the left, rows from the top."""

    left: float
    right: float
    low: float
    high: float
    width: int
    height: int

    def columns(self, at: Any) -> Any:
        share = (at - self.left) / (self.right - self.left or 1.0)
        return np.rint(share * (self.width - 1)).astype(int)

    def rows(self, at: Any) -> Any:
        share = (self.high - at) / (self.high - self.low or 1.0)
        return np.rint(share * (self.height - 1)).astype(int)

    def filled(self, curves: Sequence[Sequence[Any]]) -> list[str]:
        """Return the rows with the curves, above their bands."""
        cells = [[" "] * self.width for _ in range(self.height)]
        for of_x, _, low, high in curves:
            for row, column in self._passed(of_x, high, low):
                cells[row][column] = BAND
        meeting = defaultdict[tuple[int, int], list[str]](list)
        for mark, (of_x, of_y, *_) in zip(MARKS, curves, strict=False):
            for place in {*self._passed(of_x, of_y, of_y)}:
                meeting[place].append(mark)
        seen = Counter(marks[0] for marks in meeting.values() if len(marks) == 1)
        for column, row in sorted((column, row) for row, column in meeting):
            marks = meeting[row, column]
            mark = min(marks, key=lambda mark: seen[mark])
            cells[row][column] = mark
            if len(marks) > 1:
                seen[mark] += 1
        return ["".join(row).rstrip() for row in cells]

    def _passed(self, of_x: Any, upper: Any, lower: Any) -> Iterator[tuple[int, int]]:
        """Yield the cells between two edges: no column is passed over, and no point."""
        at = np.concatenate([np.linspace(of_x[0], of_x[-1], self.width), of_x])
        tops = self.rows(np.interp(at, of_x, upper))
        bottoms = self.rows(np.interp(at, of_x, lower))
        for column, top, bottom in zip(self.columns(at).tolist(), tops, bottoms, strict=True):
            for row in range(top, bottom + 1):
                yield row, column


def _ticks(low: float, high: float, *, most: int, log: bool) -> dict[float, str]:
    """Return where round numbers lie from `low` to `high`, and how they are written. `log`: both
    are logarithms, and so are the places."""
    if log:
        low = 10**low
        high = 10**high
        for digits in ((1, 2, 5), (1,)):
            inside = decades(low, high, digits)
            if 2 <= len(inside) <= most:
                return dict(zip(map(math.log10, inside), _written(inside), strict=True))
    values = _even(low, high, most)
    places = list(map(math.log10, values)) if log else values
    return dict(zip(places, _written(values), strict=True))


def _even(low: float, high: float, most: int) -> list[float]:
    """Return round numbers; where no two lie there, the ends."""
    if low == high:
        return [low]
    inside = round_numbers(low, high, max(most, 1))
    if len(inside) > 1:
        return inside
    return [low, high]


def _written(values: Sequence[float]) -> list[str]:
    """Write them with as many decimals as the longest has."""
    texts = [f"{value:.8g}" for value in values]
    if any("e" in text for text in texts):
        return texts
    decimals = max(len(text.partition(".")[2]) for text in texts)
    return [f"{value:.{decimals}f}" for value in values]


def _axis(ticks: Mapping[int, str], width: int) -> tuple[str, str]:
    """Return the line under the frame and the numbers under that, where they have room."""
    line = ["─"] * width
    below = ""
    for column, text in ticks.items():
        start = max(0, min(column - len(text) // 2, width - len(text)))
        if not below or start > len(below) + 1:
            line[column] = "┬"
            below = below.ljust(start) + text
    return "".join(line), below
