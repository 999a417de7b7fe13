"""Write and read the rows of a run, `metrics.jsonl`."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path

from nocap.config.outgoing_text import redact
from nocap.config.untrusted_files import parse_json, read_bytes
from nocap.store import lease
from nocap.store.file_writing import open_without_link, write_file
from nocap.store.json_shapes import Json

Row = Json  # of a logged step


def read_rows(content: bytes) -> list[Row]:
    """Return the sound rows of a `metrics.jsonl`: objects of numbers and nulls and of a step. Lines
    that are none are left out: torn, foreign, or not after the row before."""
    rows = list[Row]()
    last = -1
    for line in content.splitlines():
        with suppress(AttributeError, KeyError, ValueError):
            row = parse_json(line.decode())
            has_numbers = _has_numbers(row)
            step = row["step"]
            if has_numbers and type(step) is int and step > last:
                rows.append(row)
                last = step
    return rows


def _has_numbers(row: Row) -> bool:
    """Say whether every value of a row is a number or null; a boolean is none."""
    types = set(map(type, row.values()))
    return types <= {int, float, type(None)}


class RowsFile:
    """Write and read `metrics.jsonl`: one object a logged step, each step once. What this process
    put there it also keeps in memory."""

    def __init__(self, path: Path, *, stage: Path | None = None) -> None:
        """Take the file, and the `stage` of its writer's lease."""
        self.path = path
        self._stage = stage
        self._known: list[bytes] = []

    @property
    def content(self) -> bytes:
        """Return all rows that are to be in the file, as they are there."""
        return b"".join(self._known)

    def rows(self) -> list[Row]:
        """Return all sound rows of the file. A kill can tear the last line; it is left out, as are
        lines that another program put there."""
        return read_rows(self._read())

    def put_back(self, content: bytes, *, source: str) -> list[str]:
        """Make the file hold these rows and no more. Return a line where they were not in it as
        they should be."""
        on_disk = self._read()
        self._known = [content]
        if on_disk != content or self.path.is_symlink():
            write_file(self.path, content, stage=self._stage)
        if on_disk.startswith(content):
            return []
        return [f"{self.path} is damaged; nocap restores its rows from {source}"]

    def append(self, row: Row) -> None:
        """Add a row.

        Errors:
            LostError: another process writes them now.
            OSError: the disk does not take it; a part of the line may be there, which a reader
                leaves out.
        """
        content = json.dumps(redact(row), allow_nan=False).encode() + b"\n"
        lease.check(self._stage)
        try:
            with open(self.path, "ab", opener=open_without_link) as file:
                file.write(content)
        except OSError as error:
            line = (
                f"the row of step {row['step']} cannot be written: {error}; training stopped "
                "at this step"
            )
            raise OSError(line) from error
        self._known.append(content)

    def sync(self) -> None:
        """Make the rows so far survive a power cut."""
        if self.path.exists():
            with self.path.open("a") as file:
                os.fsync(file.fileno())

    def _read(self) -> bytes:
        try:
            return read_bytes(self.path)
        except FileNotFoundError:
            return b""
        except (OSError, ValueError) as error:
            raise ValueError(f"nocap cannot read a run's rows from {self.path}: {error}") from error
