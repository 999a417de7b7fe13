"""One table, drawn for a terminal, as Markdown and in HTML. Its columns draw what they hold: a metric's
value, a gain with its interval, a count, a text. Nothing reads a row back."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from nocap.config.outward import redact, visible
from nocap.store.formats import NONE

WIDEST = 1000  # characters of a cell on a terminal


@dataclass(frozen=True, kw_only=True, slots=True)
class TableCell:
    """A value as it is drawn."""

    text: str
    small: str = ""  # beside it: an interval, or how far a cost is from the baseline's

    def __str__(self) -> str:
        return f"{self.text} {self.small}".rstrip()


@dataclass(frozen=True, kw_only=True, slots=True)
class Column:
    """`show` draws a value that is there, as a text or a cell."""

    title: str
    show: Callable[[Any], str | TableCell] = str

    def draw(self, value: Any) -> TableCell:
        drawn = NONE if value is None else self.show(value)
        return drawn if isinstance(drawn, TableCell) else TableCell(text=drawn)


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """Rows of values, one for each column; None is unknown. Names of columns differ."""

    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Any]]
    notes: Sequence[str] = ()

    @property
    def head(self) -> list[str]:
        return [column.title for column in self.columns]

    @property
    def cells(self) -> list[list[TableCell]]:
        return [
            [column.draw(value) for column, value in zip(self.columns, row, strict=True)] for row in self.rows
        ]

    @property
    def right(self) -> list[bool]:
        """Which columns stand to the right."""
        return [is_numeric([cell.text for cell in column]) for column in zip(*self.cells, strict=True)] or [
            False
        ] * len(self.columns)

    def __str__(self) -> str:
        """For a terminal."""
        drawn = aligned(self.head, [list(map(str, row)) for row in self.cells])
        return "\n".join([*([self.title] if self.title else []), drawn, *self.notes])

    def markdown(self) -> list[str]:
        return markdown(self.head, [list(map(str, row)) for row in self.cells])


def aligned(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns two spaces apart, numbers to the right, never wrapped. The head is bold where stdout is a
    terminal."""
    from rich.console import Console  # 0.1 s that a command without a table should not pay
    from rich.table import Table as Drawn
    from rich.text import Text

    drawn = Drawn(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for title, *cells in zip(head, *rows, strict=True):
        drawn.add_column(Text(title), justify="right" if is_numeric(cells) else "left", no_wrap=True)
    for row in rows:
        drawn.add_row(*(Text(_cell(cell)) for cell in row))
    console = Console(file=io.StringIO(), width=sys.maxsize, force_terminal=sys.stdout.isatty())
    with console.capture() as shown:
        console.print(drawn)
    return "\n".join(line.rstrip() for line in shown.get().splitlines())


def _cell(text: str) -> str:
    """On one line; a name of a megabyte, which is no name, is cut."""
    shown = visible(redact(text[: 2 * WIDEST]).replace("\n", " "))
    return shown if len(shown) <= WIDEST else f"{shown[:WIDEST]}…"


# a unit of three letters, or an interval, may follow
_NUMBER = re.compile(r"[<>+−-]? ?\[?[+−-]?\d\S*( (\w{1,3}|[^\w\s].*))?|–")


def is_numeric(cells: Sequence[str]) -> bool:
    """Whether a column stands to the right: numbers, perhaps with a unit or an interval, and dashes."""
    return any(cell != NONE for cell in cells) and all(_NUMBER.fullmatch(cell) for cell in cells)


def tame(text: str) -> str:
    """A text in Markdown whose author may be anybody: no tag, no link that runs, no secret, no terminal
    control."""
    shown = visible(redact(text)).replace("<", "&lt;")
    return re.sub(r"(\]\(|\]:)(?=\s*(?!https?:|mailto:)[\w+.&#;-]+:)", r"\1#", shown, flags=re.IGNORECASE)


def one_line(text: object) -> str:
    """On one line, and no end to a code span."""
    return " ".join(str(text).split()).replace("`", "'")


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table; a bar in a cell would end it."""
    cells = [[re.sub(r"\\*\|", r"\\|", redact(str(cell))).replace("\n", " ") for cell in row] for row in rows]
    return [f"| {' | '.join(row)} |" for row in (list(head), ["---"] * len(head), *cells)]
