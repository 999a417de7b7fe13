"""The local record of a run: the truth that trackers mirror and comparisons read."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nocap.config.keys import require
from nocap.store.files import write_file

SCHEMA_VERSION = 1

Row = dict[str, Any]


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    write_file(path, (json.dumps({"schema_version": SCHEMA_VERSION, **content}, indent=2, allow_nan=False) + "\n").encode())


def check_writable(key: str, path: Path) -> None:
    """Refuse a file that cannot be written before the measurement that it is for.

    Errors:
        ValueError: it cannot.
    """
    there = next(part for part in (path.absolute(), *path.absolute().parents) if part.exists())
    ok = os.access(there, os.W_OK) and there.is_dir() != (there == path.absolute())
    require(ok, key, "be a file that can be written", path)


@contextmanager
def writing(key: str, path: Path) -> Iterator[None]:
    """Create the folder of a file that is written inside the block, and print the file's name afterwards.

    Errors:
        ValueError: it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise ValueError(f"{key} must be a file that can be written, got {path} ({error.strerror})") from error
    print(f"written: {path}")


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in the file; `None` where there is no file.

    Errors:
        ValueError: the file is there and holds no JSON object.
    """
    try:
        content = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} must hold a JSON object, got {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} must hold a JSON object, got {type(content).__name__}")
    return content


class Metrics:
    """`metrics.jsonl`: one object a logged step, each step once."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def rows(self) -> list[Row]:
        """All whole rows. A kill can tear the last line; it is left out."""
        if not self.path.exists():
            return []
        rows = []
        lines = self.path.read_text().splitlines()
        for number, line in enumerate(lines, start=1):
            try:
                rows.append(json.loads(line))
            except ValueError as error:
                if number < len(lines):
                    raise ValueError(f"{self.path}:{number} must be a JSON object, got {line[:80]!r}") from error
        return rows

    def cut_back(self, step: int) -> list[Row]:
        """Keep the rows before `step`, those that a checkpoint of `step` includes, and return them."""
        kept = [row for row in self.rows() if row["step"] < step]
        write_file(self.path, "".join(_line(row) for row in kept).encode())
        return kept

    def append(self, row: Row) -> None:
        """Add a row.

        Errors:
            OSError: the disk does not take it; a part of the line may be there, which a reader leaves out.
        """
        try:
            with self.path.open("a") as file:
                file.write(_line(row))
        except OSError as error:
            raise OSError(f"the row of step {row['step']} cannot be written: {error}; training stopped there") from error

    def sync(self) -> None:
        """Rows so far survive a power cut."""
        if self.path.exists():
            with self.path.open("a") as file:
                os.fsync(file.fileno())


def _line(row: Row) -> str:
    return json.dumps(row, allow_nan=False) + "\n"
