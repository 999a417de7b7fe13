"""A forest plot as SVG: a line per row with its interval, the stated range behind it and the bound,
over one axis with round ticks.

Names stand left of the axis. On a page it has no viewBox: places are shares of the width and
letters keep their size; where the screen is narrow and the names are long, the style puts each name
above its line. As a file it scales as a whole.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from nocap.config.outgoing_text import redact, visible
from nocap.report.axis import Axis, axis, number
from nocap.report.short_names import fitted

WIDTH = 720  # px of a file
ROW = 30  # px, half of it a name's where names are above
LINE = 21  # px: of a row, where its line lies
FOOT = 20  # px: the numbers of the axis
WORDS = 20  # px: what it counts
LETTER = 6.8  # px: about a letter of a name
BESIDE = 12  # px between a name and the axis
EDGE = 24  # px right of the axis: half a number has room
SHORT = 110  # px of names beside which a phone has room for an axis
NAME = 40  # letters of a name that have room
FEW = 6  # rows up to which nothing is cut: each of them matters
STYLE = """<style>
text{font:12px system-ui,sans-serif;fill:#333}
.tick,.axis{text-anchor:middle}.tick{fill:#666}.name{text-anchor:end}
path,line{fill:none}.grid{stroke:#e4e8ec}.base{stroke:#7a858f}.bound{stroke:#333;stroke-width:2}
.interval{stroke:#7a858f;stroke-width:2}circle{fill:#fff;stroke:#7a858f;stroke-width:1.6}
.stated{fill:#7a858f;opacity:0.2}
.shown .interval,.confirmed .interval{stroke:#0b6e4f}
.shown circle,.confirmed circle{fill:#0b6e4f;stroke:#0b6e4f}
.refuted .interval{stroke:#b3401f}.refuted circle{fill:#b3401f;stroke:#b3401f}
</style><rect width="100%" height="100%" fill="#fff"/>"""


@dataclass(frozen=True, kw_only=True)
class ForestRow:
    """A row: null is what is unknown or endless."""

    label: str
    title: str  # for a pointer, and for who cannot see
    css_class: str
    mid: float
    low: float
    high: float
    stated: tuple[float | None, float | None] = (None, None)
    bound: float | None = None
    arm: int | None = None  # whose row it is on a page that hides arms

    @property
    def ends(self) -> list[float]:
        every = (self.mid, self.low, self.high, self.bound, *self.stated)
        return [x for x in every if x is not None and math.isfinite(x)]


@dataclass(frozen=True, kw_only=True)
class Forest:
    """A picture, drawn on a page where a template names it."""

    title: str  # what the axis counts
    height: int  # px, without the words of the axis, which a page has below the picture
    gutter: int  # px: the names' room
    content: str

    def _drawn(self, attributes: str, place: str = "", style: str = "") -> str:
        return (
            f'<svg class="forest" {attributes} role="img" aria-label="{escape(self.title)}">{style}'
            f'<svg class="area"{place} overflow="visible">\n{self.content}\n</svg></svg>'
        )

    def __html__(self) -> str:
        size = f'height="{self.height}" style="--gutter:{self.gutter}px"'
        names = " data-names" if self.gutter > SHORT else ""
        return Markup(self._drawn(size + names))

    @property
    def file(self) -> str:
        """Return the picture as a file that stands by itself: its style is in it."""
        height = self.height + WORDS
        size = f'viewBox="0 0 {WIDTH} {height}" xmlns="http://www.w3.org/2000/svg"'
        width = WIDTH - self.gutter - EDGE
        place = f' x="{self.gutter}" width="{width}"'
        return f"{self._drawn(size, place, STYLE)}\n"


# --- the picture ----------------------------------------------------------------------------------


def svg(
    lines: Sequence[ForestRow],
    *,
    title: str,
    ratio: bool = False,
    cut: bool = False,
    zero: bool = False,
    tick: Callable[[float], str] = number,
    beside: Sequence[ForestRow] = (),
) -> Forest:
    """Return the picture. `tick` writes a tick's number; no change has a stronger line. `cut`: of
    many rows, those that run far out end in an arrow. `beside`: rows of other pictures, with which
    its axis and its names' room are the same."""
    every = [*lines, *beside]
    ends = list[float]()
    for line in every:
        ends += line.ends
    scale = axis(ends, ratio=ratio, cut=cut and len(every) > FEW, zero=zero or cut)
    below = ROW * len(lines) + 4
    no_change = 1.0 if ratio else 0.0
    parts = [f'<line class="base" x2="100%" y1="{below}" y2="{below}"/>']
    for x in scale.ticks:
        css_class = "base" if x == no_change else "grid"
        parts.append(_tick(scale.x(x), tick(x), css_class, below))
    names = fitted([_shown(line.label) for line in every], NAME)
    for i, (line, name) in enumerate(zip(lines, names, strict=False)):
        parts.append(_row(line, name, scale, y=ROW * i + LINE))
    shown = _shown(title)
    parts.append(
        f'<text class="axis" x="50%" y="{below + FOOT + WORDS - 8}">{escape(shown)}</text>'
    )
    gutter = round(LETTER * max(map(len, names))) + BESIDE
    return Forest(title=shown, height=below + FOOT, gutter=gutter, content="\n".join(parts))


def _shown(text: str) -> str:
    return visible(redact(text))


def _tick(x: float, text: str, css_class: str, below: int) -> str:
    """Return a line from the top to the axis, and the number below."""
    at = f"{x:.2f}%"
    return (
        f'<line class="{css_class}" x1="{at}" x2="{at}" y2="{below}"/>\n'
        f'<text class="tick" x="{at}" y="{below + 15}">{escape(text)}</text>'
    )


def _row(line: ForestRow, name: str, scale: Axis, *, y: int) -> str:
    """Return stated range, bound, interval, middle, name; in this order, so that the measured lies
    above."""
    parts = [f"<title>{escape(_shown(line.title))}</title>"]
    if line.stated != (None, None):
        parts.append(_stated(line, scale, y))
    if line.bound is not None:
        at = f"{scale.x(line.bound):.2f}%"
        parts.append(f'<line class="bound" x1="{at}" x2="{at}" y1="{y - 8}" y2="{y + 8}"/>')
    low = scale.x(line.low)
    high = scale.x(line.high)
    if low != high:
        parts.append(f'<line class="interval" x1="{low:.2f}%" x2="{high:.2f}%" y1="{y}" y2="{y}"/>')
        parts.append(_end(low, y, 5 * (line.low < scale.low)))
        parts.append(_end(high, y, -5 * (line.high > scale.high)))
    if scale.low <= line.mid <= scale.high:
        parts.append(f'<circle cx="{scale.x(line.mid):.2f}%" cy="{y}" r="4"/>')
    parts.append(f'<text class="name" x="{-BESIDE}" y="{y + 4}">{escape(name)}</text>')
    arm = "" if line.arm is None else f' data-arm="{line.arm}"'
    return f'<g class="{escape(line.css_class)}"{arm}>{"".join(parts)}</g>'


def _stated(line: ForestRow, scale: Axis, y: int) -> str:
    """Shade what was stated, to the end of the axis where it has none."""
    low, high = line.stated
    start = scale.x(scale.low if low is None else low)
    end = scale.x(scale.high if high is None else high)
    width = max(end - start, 0.3)
    place = f'x="{start:.2f}%" y="{y - 7}" width="{width:.2f}%" height="14"'
    return f'<rect class="stated" {place}/>'


def _end(x: float, y: int, arrow: int) -> str:
    """Return a stroke across; an arrow where the interval goes on beyond the axis."""
    stroke = f'<path class="interval" d="M{arrow}-4L0 0L{arrow} 4"/>'
    return f'<svg x="{x:.2f}%" y="{y}" overflow="visible">{stroke}</svg>'
