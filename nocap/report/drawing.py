"""Curves in a terminal, as plain text: one mark for each."""

from __future__ import annotations

from collections.abc import Sequence

from nocap.config.outward import visible

MARKS = "•+×○▲□◆※"
Curve = tuple[str, Sequence[float], Sequence[float]]  # a label, x in ascending order, y


def drawn(curves: Sequence[Curve], *, x: str, y: str, width: int = 72, height: int = 18) -> str:
    """The curves in one frame, `x` and `y` the names of its axes. Between two points a curve is straight."""
    xs, ys = [at for _, of_x, _ in curves for at in of_x], [at for _, _, of_y in curves for at in of_y]
    left, right, low, high = min(xs), max(xs), min(ys), max(ys)
    cells = [[" "] * width for _ in range(height)]
    for mark, (_, of_x, of_y) in zip(MARKS, curves, strict=False):
        for at, value in zip(of_x, of_y, strict=True):  # also where no column's x lies within the curve
            column, share = round((at - left) / (right - left or 1.0) * (width - 1)), (value - low) / (high - low or 1.0)
            cells[round((1 - share) * (height - 1))][column] = mark
        for column in range(width if right > left else 0):
            at = left + (right - left) * column / (width - 1)
            if of_x[0] <= at <= of_x[-1]:
                share = (_between(at, of_x, of_y) - low) / (high - low or 1.0)
                cells[round((1 - share) * (height - 1))][column] = mark
    numbers = [f"{high - (high - low) * row / (height - 1):.4g}" if row % 4 == 0 or row == height - 1 else "" for row in range(height)]
    wide = max(map(len, numbers))
    rows = [f"{number:>{wide}} ┤{''.join(row).rstrip()}" for number, row in zip(numbers, cells, strict=True)]
    foot = f"{'':{wide}} └{'─' * width}\n{'':{wide}}  {left:<{width - 12}.4g}{right:>12.4g}"
    key = [f"{mark} {visible(label)}" for mark, (label, _, _) in zip(MARKS, curves, strict=False)]
    return "\n".join([f"{y} over {x}", *rows, foot, *key])


def _between(at: float, xs: Sequence[float], ys: Sequence[float]) -> float:
    """Linear between the two points around `at`, which is within them."""
    after = next(i for i, x in enumerate(xs) if x >= at)
    if xs[after] == at or after == 0:
        return ys[after]
    share = (at - xs[after - 1]) / (xs[after] - xs[after - 1])
    return ys[after - 1] + share * (ys[after] - ys[after - 1])
