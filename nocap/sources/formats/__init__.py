"""Formats of logs that other trainers write: a Python file each, with two names.

    PATTERN     the files of a folder that are such logs: globs with spaces between them, as in "*.jsonl"
    read(path)  yields the rows of one log in order, mappings from names to numbers and texts

Names that count are those of `nocap.sources.rows.KEYS`, in the units there; other names are offered to
`--columns`. `line` is where a row stands, for messages. What is wrong with a log is a ValueError that begins
with its line. A log may be larger than the memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any

from nocap.config.keys import require

Row = Mapping[str, Any]
LONGEST = 2**22  # bytes of a line


def lines(path: Path) -> Iterator[tuple[int, str]]:
    """The number, from 1, and the text of each line.

    Errors:
        OSError: it cannot be read.
        ValueError: a line that is not UTF-8 text, or is longer than `LONGEST`.
    """
    with path.open("rb") as file:
        for number in count(1):
            raw = file.readline(LONGEST + 1)
            if not raw:
                return
            require(len(raw) <= LONGEST, f"line {number}", f"have at most {LONGEST:,} bytes", "more")
            try:
                yield number, raw.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise ValueError(
                    f"line {number} must be UTF-8 text, got byte 0x{raw[error.start]:02x}"
                ) from None
