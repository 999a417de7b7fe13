"""Tables and prose in a terminal: no line is longer than that is wide, and no word is broken."""

from __future__ import annotations

import io
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from nocap.config.outgoing_text import redact, visible
from nocap.display import NONE

PIPED = 80  # characters of a line where there is neither a terminal nor COLUMNS
GAP = 2  # between columns
PHRASE = 24  # to which a column of words may shrink: no verdict has so many characters
STYLES = {"better": "bold green", "worse": "bold red"}
# what we draw with → the same in ASCII
SIGNS = {"±": "+-", "…": "...", **dict(zip("–−×µ→•○▲□◆※·┤└─┬", "--xu>*o^#%@.|+-+", strict=True))}
# a unit of three letters, or an interval, may follow
_NUMBER = re.compile(r"[<>+−-]? ?\[?[+−-]?\d\S*( (\w{1,3}|[^\w\s].*))?|–")


def terminal_width() -> int:
    """Return COLUMNS, or how wide the terminal is, or 80."""
    return shutil.get_terminal_size((PIPED, 24)).columns


def plain(text: str) -> str:
    """Return the text, with ASCII for the signs that we draw with where stdout's encoding is not
    UTF-8."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    if encoding.lower().startswith("utf"):
        return text
    return "".join(SIGNS.get(sign, sign) for sign in text)


def prose(text: str, *, hang: int = 0) -> str:
    """Return a text in lines that fit, broken between words alone, and not before half an
    interval. `hang`: letters by which all lines but the first are indented."""
    joined = plain(visible(redact(text)).replace(" ± ", "\xa0±\xa0"))
    lines = textwrap.fill(
        joined,
        terminal_width(),
        subsequent_indent=" " * hang,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return lines.replace("\xa0", " ")


def is_numeric(cells: Sequence[str]) -> bool:
    """Say whether a column stands to the right: numbers, perhaps with a unit or an interval, and
    dashes."""
    return any(cell != NONE for cell in cells) and all(_NUMBER.fullmatch(cell) for cell in cells)


@dataclass(frozen=True, kw_only=True, slots=True)
class Strip:
    """A column of texts, each perhaps with a small one after it, or under it where space is
    short."""

    head: str
    texts: Sequence[str]
    smalls: Sequence[str]
    keep: bool  # it is left out last

    @property
    def lines(self) -> list[str]:
        """Return each text with its small one in one line."""
        return [
            f"{text} {small}".rstrip() for text, small in zip(self.texts, self.smalls, strict=True)
        ]

    @property
    def is_numeric(self) -> bool:
        return is_numeric(self.lines)


class Breaks(Enum):
    """What may be broken so that a table fits."""

    nothing = "nothing"  # but between words
    names = "names"  # of rows, between words
    words = "words"
    figures = "figures"  # too, between words


@dataclass(frozen=True, kw_only=True, slots=True)
class _Placed:
    """A column with the space that it takes, the least that it should take, and the least without
    a broken word or a broken small text."""

    head: str
    cells: Sequence[str]
    right: bool
    keep: bool
    width: int
    least: int
    unbroken: int


def fitted(strips: Sequence[Strip]) -> Iterator[str]:
    """Yield a table's lines, columns two spaces apart.

    What is too wide has its small texts on lines of their own, and the columns of words broken
    between words. Then columns are left out from the right, and a line names them. Only then names
    of rows are broken between words, then other words, and last figures.
    """
    in_one_line = [_in_one_line(strip) for strip in strips]
    if _excess(in_one_line) <= 0:
        yield from _drawn(in_one_line, [column.width for column in in_one_line])
        return
    every = [_stacked(strip) for strip in strips]
    for shown, breaks in _choices(every):
        widths = _widths(shown, breaks)
        if widths is not None:
            yield from _drawn(shown, widths)
            break
    out = [column.head for column in every if column not in shown]
    if out:
        enough = (
            terminal_width() + _excess(every) - sum(column.width - column.least for column in every)
        )
        yield prose(
            f"not shown at {terminal_width()} columns: {', '.join(out)} (all: COLUMNS={enough})"
        )


def _in_one_line(strip: Strip) -> _Placed:
    cells = list(map(plain, strip.lines))
    head = plain(strip.head)
    width = _widest([head, *cells])
    right = strip.is_numeric
    return _Placed(
        head=head,
        cells=cells,
        right=right,
        keep=strip.keep,
        width=width,
        least=width,
        unbroken=width,
    )


def _stacked(strip: Strip) -> _Placed:
    """Put small texts under the others; the head may have several lines, and words too."""
    texts = list(map(plain, strip.texts))
    smalls = list(map(plain, strip.smalls))
    cells = [f"{text}\n{small}".rstrip() for text, small in zip(texts, smalls, strict=True)]
    title = plain(strip.head)
    head = _widest(title.split())
    width = max(head, _widest([*texts, *smalls]))
    right = strip.is_numeric
    unbroken = width
    if not right:
        words = [word for text in texts for word in text.split()]
        unbroken = max(head, _widest([*words, *smalls]))
    return _Placed(
        head=title,
        cells=cells,
        right=right,
        keep=strip.keep,
        width=width,
        least=min(width, max(PHRASE, unbroken)),
        unbroken=unbroken,
    )


def _widest(texts: Iterable[str]) -> int:
    from rich.cells import cell_len

    return max(map(cell_len, texts), default=0)


def _excess(columns: Sequence[_Placed]) -> int:
    """Return how many characters the columns are too wide together."""
    return sum(column.width + GAP for column in columns) - GAP - terminal_width()


def _choices(every: Sequence[_Placed]) -> Iterator[tuple[list[_Placed], Breaks]]:
    """Yield which columns are shown, fewer and fewer, and what may be broken. The first one names
    the rows, and stays."""
    names, *others = every
    spare = [column for column in others if not column.keep]
    last = [column for column in others if column.keep]
    if not last:
        last = spare[:1]
        spare = spare[1:]
    for breaks in (Breaks.nothing, Breaks.names, Breaks.words):
        for n in range(len(spare) + 1):
            out = spare[len(spare) - n :]
            yield [names, *(column for column in others if column not in out)], breaks
    for n in range(len(last) + 1):
        yield [names, *last[: len(last) - n]], Breaks.figures


def _widths(columns: Sequence[_Placed], breaks: Breaks) -> list[int] | None:
    """Return how wide the columns are drawn, of those of words the longest made shorter first;
    `None`: there is no room for them."""
    widths = [column.width for column in columns]
    least = [column.least for column in columns]
    if breaks is Breaks.words:
        least = [min(width, PHRASE) for width in widths]
    elif breaks is Breaks.figures:
        least = [min(column.unbroken, PHRASE) for column in columns]
    least[0] = widths[0]
    if breaks is Breaks.names:
        least[0] = columns[0].unbroken
    elif breaks is not Breaks.nothing:
        least[0] = min(columns[0].unbroken, PHRASE)
    excess = _excess(columns)
    for index in sorted(range(len(columns)), key=lambda index: -widths[index]):
        less = max(0, min(excess, widths[index] - least[index]))
        widths[index] -= less
        excess -= less
    return widths if excess <= 0 else None


def _drawn(columns: Sequence[_Placed], widths: Sequence[int]) -> Iterator[str]:
    """Draw by rich's rules for a terminal's styles; where stdout is none there are none."""
    from rich.console import Console  # 0.1 s that a command without a table should not pay
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="")
    for column, width in zip(columns, widths, strict=True):
        justify = "right" if column.right else "left"
        head = Text.assemble((column.head, "bold"))
        drawn.add_column(head, justify=justify, width=width, overflow="fold")  # type: ignore[arg-type]
    for row in zip(*(column.cells for column in columns), strict=True):
        drawn.add_row(*(Text.assemble((cell, _style(cell))) for cell in row))
    terminal = sys.stdout.isatty()
    console = Console(file=io.StringIO(), width=sys.maxsize, height=1, force_terminal=terminal)
    with console.capture() as shown:
        console.print(drawn)
    for line in shown.get().splitlines():
        yield line.rstrip()


def _style(cell: str) -> str:
    """Return how a verdict is drawn, whatever is said after it."""
    word = cell.partition(" (")[0]
    return STYLES.get(word.partition("\n")[0], "")
