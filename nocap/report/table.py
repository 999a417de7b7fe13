"""One table, drawn for a terminal, as Markdown and in HTML. Its columns draw what they hold: a
metric's value, a gain with its interval, a count, a text. Nothing reads back what is
drawn."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from nocap.config.outgoing_text import redact, visible
from nocap.display import NONE, ONE, Unit, fixed
from nocap.report.terminal import Strip, fitted, is_numeric, prose

WIDEST = 1000  # characters of a cell on a terminal
FAR = 1000  # times: numbers that lie so far apart have no common decimals


@dataclass(frozen=True, kw_only=True, slots=True)
class TableCell:
    """A value as it is drawn."""

    text: str
    small: str = ""  # beside it: an interval, or how far a cost is from the baseline's
    kind: str = ""  # of a verdict: the name of its word, by which a page has its mark

    def __str__(self) -> str:
        return f"{self.text} {self.small}".rstrip()


@dataclass(frozen=True, kw_only=True, slots=True)
class Column:
    """`show` draws a value that is there, as a text or a cell."""

    title: str
    show: Callable[[Any], str | TableCell] = str
    keep: bool = False  # on a narrow terminal it is left out last
    units: Sequence[Unit] = ()  # its numbers have one of these, and equal decimals

    def draw(self, value: Any) -> TableCell:
        if value is None:
            return TableCell(text=NONE)
        drawn = self.show(value)
        return drawn if isinstance(drawn, TableCell) else TableCell(text=drawn)

    def draw_all(self, values: Sequence[Any]) -> list[TableCell]:
        """Draw the values of all rows."""
        cells = [self.draw(value) for value in values]
        if not self.units:
            return cells
        numbers = dict[int, float]()
        for i, value in enumerate(values):
            if isinstance(value, int | float) and math.isfinite(value):
                numbers[i] = value
        texts = [cells[i].text for i in numbers]
        if _are_far_apart(numbers.values()) or any("e" in text for text in texts):
            return cells
        decimals = max(map(_decimals, texts), default=0)
        unit = _unit(self.units, numbers.values())
        for i, number in numbers.items():
            cells[i] = TableCell(text=f"{fixed(number / unit.size, decimals)}{unit.name}")
        return cells


def _decimals(text: str) -> int:
    """Return how many digits a number has after its point; a unit may follow."""
    return sum(map(str.isdigit, text.partition(".")[2]))


def _unit(units: Sequence[Unit], numbers: Iterable[float]) -> Unit:
    """Return what the largest number is counted in, and so all are."""
    largest = max(map(abs, numbers), default=0.0)
    return next(unit for unit in (*units, *ONE) if largest >= unit.least)


def _are_far_apart(numbers: Iterable[float]) -> bool:
    sizes = [abs(number) for number in numbers if number]
    return max(sizes, default=0.0) > FAR * min(sizes, default=0.0)


def as_drawn(cell: TableCell) -> TableCell:
    """Return a cell that is drawn already: what a column of such cells shows."""
    return cell


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """Rows of values, one for each column; None is unknown. Names of columns differ."""

    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Any]]
    notes: Sequence[str] = ()

    @property
    def known(self) -> Table:
        """Return the table without columns that have nothing but dashes."""
        shown = list[int]()
        for i, cells in enumerate(self.by_column):
            if not cells or any(cell.text != NONE for cell in cells):
                shown.append(i)
        columns = [self.columns[i] for i in shown]
        rows = [[row[i] for i in shown] for row in self.rows]
        return replace(self, columns=columns, rows=rows)

    @property
    def head(self) -> list[str]:
        return [column.title for column in self.columns]

    @property
    def by_column(self) -> list[list[TableCell]]:
        """Return the cells of each column, from the top down."""
        drawn = list[list[TableCell]]()
        for i, column in enumerate(self.columns):
            drawn.append(column.draw_all([row[i] for row in self.rows]))
        return drawn

    @property
    def cells(self) -> list[list[TableCell]]:
        return [list(row) for row in zip(*self.by_column, strict=True)]

    @property
    def right(self) -> list[bool]:
        """Return which columns stand to the right."""
        return [is_numeric([cell.text for cell in column]) for column in self.by_column]

    def __str__(self) -> str:
        """Return the table for a terminal, as wide as that is, without columns of dashes."""
        strips = list[Strip]()
        known = self.known
        for column, cells in zip(known.columns, known.by_column, strict=True):
            strip = Strip(
                head=_cell(column.title),
                texts=[_cell(cell.text) for cell in cells],
                smalls=[_cell(cell.small) for cell in cells],
                keep=column.keep,
            )
            strips.append(strip)
        title = [prose(self.title)] if self.title else []
        return "\n".join([*title, *fitted(strips), *map(prose, self.notes)])

    def markdown(self) -> list[str]:
        return markdown(self.head, [list(map(str, row)) for row in self.cells])


def _cell(text: str) -> str:
    """Return a text on one line; a name of a megabyte, which is no name, is cut."""
    flat = redact(text[: 2 * WIDEST]).replace("\n", " ").replace("\t", " ")
    shown = visible(flat)
    return shown if len(shown) <= WIDEST else f"{shown[:WIDEST]}…"


def tame(text: str) -> str:
    """Return a text in Markdown whose author may be anybody: no tag, no link that runs, no secret,
    no terminal control."""
    shown = visible(redact(text)).replace("<", "&lt;")
    runs = r"(\]\(|\]:)(?=\s*(?!https?:|mailto:)[\w+.&#;-]+:)"
    return re.sub(runs, r"\1#", shown, flags=re.IGNORECASE)


def one_line(text: object) -> str:
    """Return a text on one line, which ends no code span."""
    return " ".join(str(text).split()).replace("`", "'")


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table; a bar in a cell would end it."""
    lines = [head, ["---"] * len(head)]
    for row in rows:
        lines.append([_markdown_cell(cell) for cell in row])
    return [f"| {' | '.join(line)} |" for line in lines]


def _markdown_cell(text: str) -> str:
    return re.sub(r"\\*\|", r"\\|", redact(str(text))).replace("\n", " ")
