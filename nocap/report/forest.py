"""A forest plot as SVG: a line per row with its interval, the stated range behind it and the bound, over one
axis with round ticks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from nocap.config.outward import redact, visible
from nocap.store.formats import MINUS

LABEL, WIDTH, ROW, FOOT = 150, 720, 20, 44  # px: names to the left, the whole, a row, the axis below
RIGHT = 24  # px right of the plot, for half of the last tick's label
NAME = 23  # letters of a name that have room
MOST_TICKS = 8
FAR = 4  # times the median of the ends: what reaches further has an arrow, where far ends are cut
STYLE = """<style>
text{font:12px system-ui,sans-serif;fill:#333}.name{text-anchor:end}
.tick,.axis{text-anchor:middle}.tick{fill:#666}
path{fill:none}.grid{stroke:#e4e8ec}.base{stroke:#7a858f}.bound{stroke:#333;stroke-width:2}
.interval{stroke:#9aa5ae;stroke-width:2}circle{fill:#9aa5ae}.stated{fill:#9aa5ae;opacity:0.2}
.shown .interval,.confirmed .interval{stroke:#0b6e4f}.shown circle,.confirmed circle{fill:#0b6e4f}
.refuted .interval{stroke:#b3401f}.refuted circle{fill:#b3401f}
</style><rect width="100%" height="100%" fill="#fff"/>"""
DECADES = 1.3  # from here on (in powers of ten, all above 0) an axis is logarithmic


@dataclass(frozen=True, kw_only=True)
class ForestRow:
    """A row: null is what is unknown or endless."""

    label: str
    title: str  # for a pointer, and for who cannot see
    look: str  # CSS class
    mid: float
    low: float
    high: float
    stated: tuple[float | None, float | None] = (None, None)
    bound: float | None = None

    @property
    def ends(self) -> list[float]:
        return [
            x
            for x in (self.mid, self.low, self.high, self.bound, *self.stated)
            if x is not None and math.isfinite(x)
        ]


@dataclass(frozen=True, kw_only=True)
class Axis:
    """From `low` to `high`, which are no ticks."""

    low: float
    high: float
    logarithmic: bool
    ticks: list[float]

    def x(self, value: float) -> float:
        """Px from the left; beyond an end at that end."""
        value = min(max(value, self.low), self.high)
        low, high, value = (
            math.log(end) if self.logarithmic else end for end in (self.low, self.high, value)
        )
        return LABEL + (value - low) / (high - low) * (WIDTH - RIGHT - LABEL)


def axis(values: Iterable[float], *, ratio: bool = False, cut: bool = False, zero: bool = False) -> Axis:
    """That holds them all with a margin; of ratios logarithmic, with 1 on it. `zero`: with 0. `cut`: with 0,
    and without the few that run far out, which would press the others into one point."""
    covered = [*values, *([1.0] if ratio else []), *([0.0] if zero else [])]
    if cut:
        far = sorted(map(abs, covered))
        covered = [0.0, *(x for x in covered if abs(x) <= FAR * far[len(far) // 2])]
    low, high = min(covered), max(covered)
    logarithmic = low > 0 and (ratio or math.log10(high / low) > DECADES)
    if logarithmic:
        margin = max((high / low) ** 0.04, 1.01)
        low, high = low / margin, high * margin
    else:
        margin = 0.04 * (high - low) or abs(high) * 0.04 or 1.0
        low, high = low - margin, high + margin
    ticks = _decades(low, high) if logarithmic and math.log10(high / low) > DECADES else _even(low, high)
    return Axis(low=low, high=high, logarithmic=logarithmic, ticks=sorted({*ticks, 1.0}) if ratio else ticks)


def _even(low: float, high: float) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten, as many as there is room for."""
    least = (high - low) / MOST_TICKS
    power = 10.0 ** math.floor(math.log10(least))
    step = next(size * power for size in (1, 2, 5, 10) if size * power >= least)
    digits = max(0, 1 - math.floor(math.log10(step)))
    return [round(i * step, digits) for i in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _decades(low: float, high: float) -> list[float]:
    """1, 2 and 5 times powers of ten; the powers alone where these are too many."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [x for x in (size * 10.0**power for power in powers for size in (1, 2, 5)) if low <= x <= high]
    return (
        ticks
        if len(ticks) <= MOST_TICKS + 4
        else [10.0**power for power in powers if low <= 10.0**power <= high]
    )


def number(x: float) -> str:
    return f"{x:g}".replace("-", MINUS)


def svg(
    lines: Sequence[ForestRow],
    *,
    title: str,
    ratio: bool = False,
    cut: bool = False,
    zero: bool = False,
    tick: Callable[[float], str] = number,
) -> Markup:
    """The picture. `tick` writes a tick's number; no change has a stronger line."""
    scale = axis([end for line in lines for end in line.ends], ratio=ratio, cut=cut, zero=zero)
    below, no_change = ROW * len(lines) + 4, 1.0 if ratio else 0.0
    parts = [f'<path class="base" d="M{LABEL} {below}H{WIDTH - RIGHT}"/>']
    for x in scale.ticks:
        parts.append(
            f'<path class="{"base" if x == no_change else "grid"}" d="M{scale.x(x):.1f} 0V{below}"/>'
        )
        parts.append(f'<text class="tick" x="{scale.x(x):.1f}" y="{below + 14}">{escape(tick(x))}</text>')
    parts += [_row(line, scale, y=ROW * i + ROW / 2) for i, line in enumerate(lines)]
    parts.append(
        f'<text class="axis" x="{(LABEL + WIDTH - RIGHT) / 2:.0f}" '
        f'y="{below + FOOT - 10}">{escape(title)}</text>'
    )
    head = (
        f'<svg class="forest" viewBox="0 0 {WIDTH} {below + FOOT - 4}" role="img" '
        f'aria-label="{escape(title)}">'
    )
    return Markup("\n".join([head, *parts, "</svg>"]))


def file(picture: Markup) -> str:
    """The picture as a file that stands by itself: its style is in it."""
    return str(picture).replace(">", f' xmlns="http://www.w3.org/2000/svg">{STYLE}', 1) + "\n"


def _short(name: str) -> str:
    name = visible(redact(name))
    return name if len(name) <= NAME else f"{name[: NAME - 1]}…"


def _row(line: ForestRow, scale: Axis, *, y: float) -> str:
    """Stated range, bound, interval, middle, name; in this order, so that the measured lies above."""
    left, right = scale.low, scale.high
    parts = []
    if line.stated != (None, None):
        start, end = (
            scale.x(side if side is not None else far)
            for side, far in zip(line.stated, (left, right), strict=True)
        )
        parts.append(
            f'<rect class="stated" x="{start:.1f}" y="{y - 7:.1f}" '
            f'width="{max(end - start, 1.5):.1f}" height="14"/>'
        )
    if line.bound is not None:
        parts.append(f'<path class="bound" d="M{scale.x(line.bound):.1f} {y - 8:.1f}v16"/>')
    low, high = scale.x(line.low), scale.x(line.high)
    if low != high:
        ends = _end(low, y, 5 * (line.low < left)) + _end(high, y, -5 * (line.high > right))
        parts.append(f'<path class="interval" d="M{low:.1f} {y:.1f}H{high:.1f}{ends}"/>')
    if left <= line.mid <= right:
        parts.append(f'<circle cx="{scale.x(line.mid):.1f}" cy="{y:.1f}" r="3.5"/>')
    parts.append(f'<text class="name" x="{LABEL - 10}" y="{y + 4:.1f}">{escape(_short(line.label))}</text>')
    title = f"<title>{escape(visible(redact(line.title)))}</title>"
    return f'<g class="{escape(line.look)}">{title}{"".join(parts)}</g>'


def _end(x: float, y: float, arrow: float) -> str:
    """A stroke across; an arrow where the interval goes on beyond the axis."""
    return f"M{x + arrow:.1f} {y - 4:.1f}L{x:.1f} {y:.1f}L{x + arrow:.1f} {y + 4:.1f}"
