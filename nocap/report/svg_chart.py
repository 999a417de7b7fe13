"""A chart that needs no script: lines or marks over two axes, as SVG. The page's script draws over
it what can be pointed at. Places are shares of the width, so that letters keep their size on any
screen."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from nocap.config.outgoing_text import redact, visible
from nocap.report.axis import Axis, axis, number

MOST_TICKS = 8  # of the height
LETTER = 7  # px: about a letter of a number
HEIGHT, FOOT = 340, 40  # px: the plot, and the axis below it
MOST_POINTS = 60  # points of a line
NAME = 14  # px: a name's line
MOST_NAMES = HEIGHT // NAME
UNIT = 1000  # what a line's own frame is wide and high

DASHES = (
    "",
    "7,4",
    "2,3",
    "9,3,2,3",
    "14,4",
    "14,3,2,3",
)  # SVG's stroke-dasharray; "" is a solid line
# Shapes around 0, for marks and for samples of a style.
SYMBOLS = (
    "M-1 0A1 1 0 1 0 1 0A1 1 0 1 0-1 0Z",
    "M-.9-.9H.9V.9H-.9Z",
    "M0-1.3 1.3 0 0 1.3-1.3 0Z",
    "M0-1.2 1.1.8H-1.1Z",
    "M0 1.2 1.1-.8H-1.1Z",
    "M0-1.2 1.14-.37.7.97H-.7L-1.14-.37Z",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class StillLine:
    """The points of an arm: a line where there are several, a mark where there is one."""

    name: str
    color: str
    dash: str
    symbol: int
    hollow: bool
    points: Sequence[tuple[float, float]]


def known(x: Sequence[float | None], y: Sequence[float | None]) -> list[tuple[float, float]]:
    """Return the points whose places are numbers."""
    found = list[tuple[float, float]]()
    for left, right in zip(x, y, strict=True):
        if left is not None and right is not None and math.isfinite(left + right):
            found.append((left, right))
    return found


def chart(
    lines: Sequence[StillLine],
    *,
    x: str,
    y: str,
    ends: tuple[float, float] | None = None,
    named: bool = False,
) -> Markup | None:
    """Draw the lines; `None` where there is no point. `ends` of the horizontal axis leave out what
    is outside. `named`: a line has its name where it ends, where all names have room."""
    inside = [_within(line, ends) for line in lines]
    every = [point for points in inside for point in points]
    if not every:
        return None
    across = axis([point[0] for point in every])
    up = axis([point[1] for point in every], most=MOST_TICKS)
    gutter = LETTER * max(len(number(tick)) for tick in up.ticks) + 10
    parts = [*_grid(across, up)]
    drawn = list[tuple[StillLine, list[tuple[float, float]]]]()
    for line, points in zip(lines, inside, strict=True):
        places = [(across.x(left), 100 - up.x(right)) for left, right in points]
        if places:
            drawn.append((line, places))
    shifts = _shifts([places[-1][1] for _, places in drawn])
    for (line, places), shift in zip(drawn, shifts, strict=True):
        if len(places) > 1:
            parts.append(_path(line, _thinned(places)))
        else:
            parts.append(_mark(line, places[0], shift))
    for (line, places), shift in zip(drawn, shifts, strict=True):
        if named and shift is not None and len(places) > 1:
            parts.append(_name(line, places[-1], shift))
    title = escape(f"{y} over {x}")
    words = f'<text x="{-gutter}" y="14">{escape(y)}</text>'
    below = f'<text class="tick" x="50%" y="{HEIGHT + FOOT + 16}">{escape(x)}</text>'
    return Markup(
        f'<svg class="still" height="{HEIGHT + FOOT + 24}" role="img" '
        f'aria-label="{title}" style="--gutter:{gutter}px">{words}{below}'
        f'<svg class="frame" y="24" height="{HEIGHT}" overflow="visible">\n'
        + "\n".join(parts)
        + "\n</svg></svg>"
    )


def _within(line: StillLine, ends: tuple[float, float] | None) -> list[tuple[float, float]]:
    if ends is None:
        return list(line.points)
    return [point for point in line.points if ends[0] <= point[0] <= ends[1]]


def _shifts(tops: Sequence[float]) -> list[float | None]:
    """Return how far down each name goes, in px, so that none lies over another; `None`: there are
    more names than have room. `tops`: where they would lie, in percent of the height."""
    if len(tops) > MOST_NAMES:
        return [None] * len(tops)
    order = sorted(range(len(tops)), key=lambda i: tops[i])
    wanted = [tops[i] / 100 * HEIGHT for i in order]
    found = list[float]()
    for y in wanted:
        found.append(max(y, found[-1] + NAME) if found else y)
    low = float(HEIGHT)
    for place in reversed(range(len(found))):
        found[place] = min(found[place], low)
        low = found[place] - NAME
    shifts: list[float | None] = [None] * len(tops)
    for i, y, own in zip(order, found, wanted, strict=True):
        shifts[i] = y - own
    return shifts


def _thinned(places: Sequence[tuple[float, float]]) -> Sequence[tuple[float, float]]:
    """Return so many of the points that a screen shows no difference, the last one too."""
    step = -(-len(places) // MOST_POINTS)
    return [*places[:-1:step], places[-1]]


def _grid(across: Axis, up: Axis) -> list[str]:
    parts = list[str]()
    for value in across.ticks:
        at = f"{across.x(value):.2f}%"
        parts.append(f'<line class="grid" x1="{at}" x2="{at}" y2="100%"/>')
        parts.append(f'<text class="tick" x="{at}" y="{HEIGHT + 16}">{number(value)}</text>')
    for value in up.ticks:
        at = f"{100 - up.x(value):.2f}%"
        parts.append(f'<line class="grid" x2="100%" y1="{at}" y2="{at}"/>')
        parts.append(f'<text class="up" x="-7" y="{at}" dy="4">{number(value)}</text>')
    return parts


def _path(line: StillLine, places: Sequence[tuple[float, float]]) -> str:
    scale = UNIT / 100
    drawn = "L".join(f"{left * scale:.0f} {top * scale:.0f}" for left, top in places)
    dash = f' stroke-dasharray="{line.dash}"' if line.dash else ""
    return (
        f'<svg viewBox="0 0 {UNIT} {UNIT}" preserveAspectRatio="none" overflow="visible">'
        f"<title>{_text(line.name)}</title>"
        f'<path d="M{drawn}" fill="none" vector-effect="non-scaling-stroke" stroke="{line.color}" '
        f'stroke-width="2"{dash}/></svg>'
    )


def _name(line: StillLine, place: tuple[float, float], shift: float) -> str:
    left, top = place
    at = f'x="{left:.2f}%" y="{top:.2f}%" dy="{shift - 5:.0f}"'
    return f'<text class="name" {at} style="--tone:{line.color}">{_text(line.name)}</text>'


def _mark(line: StillLine, place: tuple[float, float], shift: float | None) -> str:
    left, top = place
    fill = "var(--card)" if line.hollow else line.color
    shape = (
        f'<path d="{SYMBOLS[line.symbol]}" fill="{fill}" stroke="{line.color}" transform="scale(6)"'
    )
    beside = 'class="left" x="-10"' if left > 50 else 'x="10"'  # where more room is
    name = ""
    if shift is not None:
        name = f'<text {beside} y="{shift + 4:.0f}">{_text(line.name)}</text>'
    return (
        f'<svg x="{left:.2f}%" y="{top:.2f}%" overflow="visible"><title>{_text(line.name)}</title>'
        f'{shape} stroke-width=".3"/>{name}</svg>'
    )


def _text(name: str) -> str:
    return escape(visible(redact(name)))
