"""One table, drawn for a terminal, as Markdown and in HTML. Its columns draw what they hold: a
metric's value, a gain with its interval, a count, a text. Nothing reads a row back."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from nocap.config.outward import redact, visible
from nocap.display import NONE
from nocap.report.terminal import Strip, fitted, is_numeric, prose

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
    keep: bool = False  # on a narrow terminal it is left out last

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
            [column.draw(value) for column, value in zip(self.columns, row, strict=True)]
            for row in self.rows
        ]

    @property
    def right(self) -> list[bool]:
        """Return which columns stand to the right."""
        return [
            is_numeric([cell.text for cell in column]) for column in zip(*self.cells, strict=True)
        ] or [False] * len(self.columns)

    def __str__(self) -> str:
        """Return the table for a terminal, as wide as that is."""
        drawn = self.cells
        strips = list[Strip]()
        for index, column in enumerate(self.columns):
            texts = [_cell(row[index].text) for row in drawn]
            smalls = [_cell(row[index].small) for row in drawn]
            strips.append(
                Strip(head=_cell(column.title), texts=texts, smalls=smalls, keep=column.keep)
            )
        title = [prose(self.title)] if self.title else []
        return "\n".join([*title, *fitted(strips), *map(prose, self.notes)])

    def markdown(self) -> list[str]:
        return markdown(self.head, [list(map(str, row)) for row in self.cells])


def _cell(text: str) -> str:
    """Return a text on one line; a name of a megabyte, which is no name, is cut."""
    shown = visible(redact(text[: 2 * WIDEST]).replace("\n", " ").replace("\t", " "))
    return shown if len(shown) <= WIDEST else f"{shown[:WIDEST]}…"


def tame(text: str) -> str:
    """Return a text in Markdown whose author may be anybody: no tag, no link that runs, no secret,
    no terminal control."""
    shown = visible(redact(text)).replace("<", "&lt;")
    return re.sub(
        r"(\]\(|\]:)(?=\s*(?!https?:|mailto:)[\w+.&#;-]+:)", r"\1#", shown, flags=re.IGNORECASE
    )


def one_line(text: object) -> str:
    """Return a text on one line, which ends no code span."""
    return " ".join(str(text).split()).replace("`", "'")


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table; a bar in a cell would end it."""
    cells = [
        [re.sub(r"\\*\|", r"\\|", redact(str(cell))).replace("\n", " ") for cell in row]
        for row in rows
    ]
    return [f"| {' | '.join(row)} |" for row in (list(head), ["---"] * len(head), *cells)]
