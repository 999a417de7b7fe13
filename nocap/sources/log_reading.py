"""Read logs: a sample of a file, its lines, and what a program printed without colours and bars."""

from __future__ import annotations

import codecs
import gzip
import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import IO, Any

from nocap.config.keys import require

Row = Mapping[str, Any]
LONGEST = 2**22  # bytes of a line
HEAD, TAIL = 2**18, 2**16  # bytes of a sample: a log may begin with the source of its program
GZIP = b"\x1f\x8b"
UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
COLOUR = re.compile(r"\x1b\[[\d;]*[mK]")  # of a terminal: a number may stand between two


class CutError(ValueError):
    """The end of a log is cut, and what stands before it was read."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """What a file begins and ends with."""

    path: Path
    head: bytes
    tail: bytes = b""

    @cached_property
    def text(self) -> str:
        """Return both as text without colours; empty for what is no text."""
        if self.head.startswith(UTF_16):
            return self.head.decode("utf-16", errors="replace")
        if b"\0" in self.head[:1024]:
            return ""
        text = self.head.decode("utf-8-sig", errors="replace")
        if self.tail:
            text = f"{text}\n{self.tail.decode('utf-8', errors='replace')}"
        return COLOUR.sub("", text)

    @cached_property
    def first(self) -> str:
        """Return the file's first line that is not empty."""
        return next((line for line in self.text.splitlines() if line.strip()), "")

    @cached_property
    def lines(self) -> list[str]:
        """Return the lines without blanks around them and progress bars before them."""
        return [_past_bars(line) for line in self.text.split("\n")]

    def has(self, pattern: re.Pattern[str]) -> bool:
        """Say whether a line matches from its beginning, blanks and progress bars aside."""
        return any(map(pattern.match, self.lines))


def sample(path: Path) -> Sample:
    """Read a sample; an empty one of a file whose packing is damaged.

    Errors:
        OSError: it cannot be read.
    """
    with opened(path) as file:
        try:
            head = file.read(HEAD)
        except (EOFError, zlib.error, gzip.BadGzipFile):
            return Sample(path=path, head=b"")
        if len(head) < HEAD or isinstance(file, gzip.GzipFile):
            return Sample(path=path, head=head)
        file.seek(max(HEAD, path.stat().st_size - TAIL))
        return Sample(path=path, head=head, tail=file.read(TAIL))


def opened(path: Path) -> IO[bytes]:
    """Open a file, and unpack it where gzip packed it."""
    file = path.open("rb")
    packed = file.read(len(GZIP)) == GZIP
    file.seek(0)
    if not packed:
        return file
    file.close()
    return gzip.open(path)  # type: ignore[return-value]


def lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the number, from 1, and the text of each line. A file may be packed by gzip, and UTF-16
    by its mark.

    Errors:
        OSError: it cannot be read.
        ValueError: a line that is no UTF-8 text, or is longer than `LONGEST`.
    """
    with opened(path) as file:
        mark = file.read(2)
        file.seek(0)
        if mark in UTF_16:
            yield from _in_utf_16(file)
            return
        for number in count(1):
            raw = file.readline(LONGEST + 1)
            if not raw:
                return
            require(
                len(raw) <= LONGEST, f"line {number}", f"have at most {LONGEST:,} bytes", "more"
            )
            try:
                yield number, raw.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise ValueError(
                    f"line {number} must be UTF-8 text, got byte 0x{raw[error.start]:02x}"
                ) from None


def _in_utf_16(file: IO[bytes]) -> Iterator[tuple[int, str]]:
    reader = codecs.getreader("utf-16")(file)
    for number in count(1):
        try:
            text = reader.readline(LONGEST + 1)
        except UnicodeError as error:
            raise ValueError(
                f"line {number} must be UTF-16 text, as the file's byte order mark says"
            ) from error
        if not text:
            return
        require(
            len(text) <= LONGEST, f"line {number}", f"have at most {LONGEST:,} characters", "more"
        )
        yield number, text.replace("\r\n", "\n")


def printed(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines of what a program printed, without colours and without the progress bars
    before them.

    Errors:
        CutError: the last line has no end, and was left out.
    """
    for number, text in lines(path):
        if not text.endswith("\n"):
            raise CutError(
                f"line {number} has no final newline, so nocap leaves out this line: "
                f"{text.strip()[:60]!r}"
            )
        yield number, _past_bars(COLOUR.sub("", text))


def full_match(
    match: re.Match[str] | None, number: int, line: str, what: str = "validation"
) -> re.Match[str]:
    """Return the match of a line that begins as one that counts.

    Errors:
        ValueError: there is none: the line is damaged.
    """
    require(
        match is not None,
        f"line {number}",
        f"be a complete line of a {what}, because it begins like one",
        repr(line[:80]),
    )
    assert match
    return match


def _past_bars(line: str) -> str:
    """Return what stands after the last return of a terminal's carriage."""
    return line.strip().rpartition("\r")[2].strip()
