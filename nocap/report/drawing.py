"""Curves in a terminal, as plain text: one mark for each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from nocap.config.outward import visible

MARKS = "•+×○▲□◆※"
BAND = "·"


class DrawnCurve(NamedTuple):
    label: str
    x: Sequence[float]  # ascending
    y: Sequence[float]
    low: Sequence[float]  # the edges of the band around it: y itself where it has none
    high: Sequence[float]


def drawn(
    curves: Sequence[DrawnCurve], *, x: str, y: str, log: str = "", width: int = 72, height: int = 18
) -> str:
    """The curves in one frame, `x` and `y` the names of its axes. `log`: which are logarithmic, "", "x", "y"
    or "xy". Between two points a curve is straight in the frame."""
    scaled = [
        [
            np.log10(coordinates) if axis in log else np.array(coordinates)
            for axis, coordinates in zip("xyyy", curve[1:], strict=True)
        ]
        for curve in curves
    ]
    xs, ys = (
        np.concatenate([coordinates[0] for coordinates in scaled]),
        np.concatenate([line for coordinates in scaled for line in coordinates[1:]]),
    )
    left, right, low, high = xs.min(), xs.max(), ys.min(), ys.max()
    cells = [[" "] * width for _ in range(height)]
    lines = [(mark, of_x, of_y, of_y) for mark, (of_x, of_y, *_) in zip(MARKS, scaled, strict=False)]
    for mark, of_x, *edges in [
        *((BAND, of_x, of_high, of_low) for of_x, _, of_low, of_high in scaled),
        *lines,
    ]:
        # no column is passed over, and no point
        at = np.concatenate([np.linspace(of_x[0], of_x[-1], width), of_x])
        columns = np.rint((at - left) / (right - left or 1.0) * (width - 1)).astype(int)
        rows = [
            np.rint((high - np.interp(at, of_x, edge)) / (high - low or 1.0) * (height - 1)).astype(int)
            for edge in edges
        ]
        for column, top, bottom in zip(columns, *rows, strict=True):
            for row in cells[top : bottom + 1]:
                row[column] = mark
    levels, ends = (np.linspace(*to) for to in ((high, low, height), (left, right, 2)))
    levels, ends = 10**levels if "y" in log else levels, 10**ends if "x" in log else ends
    numbers = [
        f"{level:.4g}" if row % 4 == 0 or row == height - 1 else "" for row, level in enumerate(levels)
    ]
    wide = max(map(len, numbers))
    frame = [f"{number:>{wide}} ┤{''.join(row).rstrip()}" for number, row in zip(numbers, cells, strict=True)]
    foot = f"{'':{wide}} └{'─' * width}\n{'':{wide}}  {ends[0]:<{width - 12}.4g}{ends[1]:>12.4g}"
    key = [f"{mark} {visible(curve.label)}" for mark, curve in zip(MARKS, curves, strict=False)]
    return "\n".join([f"{y} over {x}", *frame, foot, *key])
