"""Tables of text: a line of names, then a row a line, with commas, semicolons or tabs between the
cells. Where no comma is between them, one in a number is its decimal mark. A row of the same names
begins a piece of a run that was resumed."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from nocap.config.keys import require
from nocap.sources.log_reading import CutError, Row, Sample, lines

PATTERN = "*.csv *.tsv *.csv.gz *.tsv.gz"
GENERAL = True
SURE = True
DECIMAL = re.compile(r"\A([+-]?\d+),(\d+)\Z")  # of a whole cell


def recognises(sample: Sample) -> bool:
    names = names_of(sample)
    rows = [line for line in sample.text.splitlines()[:3] if line.strip()]
    alike = len({row.count(_delimiter(rows[0])) for row in rows[:2]}) == 1
    return (
        len(names) > 1 and alike and all(re.match(r"[A-Za-z_]", name) or not name for name in names)
    )


def names_of(sample: Sample) -> list[str]:
    """List the columns of what may be a table."""
    first = sample.first
    try:
        names = next(csv.reader([first], delimiter=_delimiter(first), strict=True), [])
    except csv.Error:
        return []
    return [name.strip() for name in names]


def _delimiter(first: str) -> str:
    return max(",;\t", key=first.count)


def read(path: Path, *, cut: bool = True) -> Iterator[Row]:
    """Yield the rows. `cut`: whoever wrote the table may have been stopped in a line.

    Errors:
        CutError: the last line is cut, and was left out.
    """
    full_lines = _Lines(path, cut=cut)
    texts = iter(full_lines)
    first = next(texts, "")
    delimiter = _delimiter(first)
    rows = csv.reader(chain([first], texts), delimiter=delimiter, strict=True)
    try:
        names = [name.strip() for name in next(rows, [])]
        twice = [name for name, often in Counter(names).items() if name and often > 1]
        require(not twice, "line 1", "name each column once", ", ".join(twice))
        short = None  # a row with another number of cells, which only the last may be
        for cells in filter(None, rows):
            require(short is None, *(short or ("", "", 0)))
            if len(cells) != len(names):
                short = (
                    f"line {rows.line_num}",
                    f"have {len(names)} cells, as the first line has",
                    len(cells),
                )
                continue
            stripped = [cell.strip() for cell in cells]
            if stripped == names:
                continue
            if delimiter != ",":
                stripped = [DECIMAL.sub(r"\1.\2", x) for x in stripped]
            yield {**dict(zip(names, stripped, strict=True)), "line": rows.line_num}
    except csv.Error as error:
        raise ValueError(f"line {rows.line_num} must be a row of a CSV table ({error})") from None
    if short is not None:
        require(cut and short[2] < len(names), *short)
        raise CutError(
            f"{short[0]} has {short[2]} cells of {len(names)}, so nocap leaves out this line"
        )
    if full_lines.lost:
        raise CutError(
            f"line {full_lines.lost} has no final newline, so nocap leaves out this line"
        )


class _Lines:
    """The lines that are whole: without its newline a number may be cut."""

    def __init__(self, path: Path, *, cut: bool) -> None:
        self.path = path
        self.cut = cut
        self.lost = 0  # the line that has no end

    def __iter__(self) -> Iterator[str]:
        for number, text in lines(self.path):
            if self.cut and not text.endswith("\n"):
                self.lost = number
                return
            yield text
