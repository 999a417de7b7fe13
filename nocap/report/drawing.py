"""Curves in a terminal, as plain text: one mark for each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nocap.config.outward import visible

MARKS = "•+×○▲□◆※"
Curve = tuple[str, Sequence[float], Sequence[float]]  # a label, x in ascending order, y


def drawn(curves: Sequence[Curve], *, x: str, y: str, width: int = 72, height: int = 18) -> str:
    """The curves in one frame, `x` and `y` the names of its axes. Between two points a curve is straight."""
    xs, ys = [at for _, of_x, _ in curves for at in of_x], [at for _, _, of_y in curves for at in of_y]
    left, right, low, high = min(xs), max(xs), min(ys), max(ys)
    cells = [[" "] * width for _ in range(height)]
    for mark, (_, of_x, of_y) in zip(MARKS, curves, strict=False):
        at = np.concatenate([np.linspace(of_x[0], of_x[-1], width), of_x])  # no column is passed over, and no point
        columns = np.rint((at - left) / (right - left or 1.0) * (width - 1)).astype(int)
        rows = np.rint((high - np.interp(at, of_x, of_y)) / (high - low or 1.0) * (height - 1)).astype(int)
        for row, column in zip(rows, columns, strict=True):
            cells[row][column] = mark
    numbers = [f"{high - (high - low) * row / (height - 1):.4g}" if row % 4 == 0 or row == height - 1 else "" for row in range(height)]
    wide = max(map(len, numbers))
    lines = [f"{number:>{wide}} ┤{''.join(row).rstrip()}" for number, row in zip(numbers, cells, strict=True)]
    foot = f"{'':{wide}} └{'─' * width}\n{'':{wide}}  {left:<{width - 12}.4g}{right:>12.4g}"
    key = [f"{mark} {visible(label)}" for mark, (label, _, _) in zip(MARKS, curves, strict=False)]
    return "\n".join([f"{y} over {x}", *lines, foot, *key])
