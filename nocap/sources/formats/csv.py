"""Tables of text: a line of names, then a row a line, with commas, semicolons or tabs between the cells."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from nocap.config.keys import require
from nocap.sources.formats import Row, lines

PATTERN = "*.csv *.tsv"


def read(path: Path, *, cut: bool = True) -> Iterator[Row]:
    """`cut`: whoever wrote it may have been stopped in a line."""
    texts = _whole(path) if cut else (text for _, text in lines(path))
    first = next(texts, "")
    rows = csv.reader(chain([first], texts), delimiter=max(",;\t", key=first.count), strict=True)
    try:
        names = [name.strip() for name in next(rows, [])]
        twice = [name for name, often in Counter(names).items() if name and often > 1]
        require(not twice, "line 1", "name a column once", ", ".join(twice))
        for cells in filter(None, rows):
            require(
                len(cells) == len(names),
                f"line {rows.line_num}",
                f"have {len(names)} cells, as the first line has",
                len(cells),
            )
            yield {
                **{name: cell.strip() for name, cell in zip(names, cells, strict=True)},
                "line": rows.line_num,
            }
    except csv.Error as error:
        raise ValueError(f"line {rows.line_num} must be a line of a table ({error})") from None


def _whole(path: Path) -> Iterator[str]:
    for number, text in lines(path):
        require(
            text.endswith("\n"),
            f"line {number}",
            "end with a newline: without one a number may be cut",
            repr(text[-60:]),
        )
        yield text
