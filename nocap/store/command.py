"""What every command does: it reads its words, calls what does the work, answers as JSON, and ends with an
exit code."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

from nocap import outside
from nocap.config.errors import refusals
from nocap.config.keys import require
from nocap.config.outward import redact
from nocap.config.paths import STDOUT
from nocap.store.files import write_file
from nocap.store.record import SCHEMA_VERSION, write_json
from nocap.store.runs import OUTPUTS

STREAMS = ("/dev", "/dev/fd", "/proc/self/fd")  # what is there is no file, though stdout may lead to one


def command(
    parser: argparse.ArgumentParser,
    call: Callable[[argparse.Namespace], int],
    argv: Sequence[str] | None = None,
    *,
    answer: str = "",
    lines: bool = False,
) -> int:
    """Carry a command out: `call` gets what was typed, with `options.answer` for --json, and returns the exit
    code.

    `answer`: what --json writes; without it there is no such flag. `lines`: see `answering`.
    """
    outside.document(parser, answer=answer)
    options = parser.parse_intermixed_args(outside.arguments(argv))

    with refusals(), answering(options.json if answer else None, lines=lines) as options.answer:
        return call(options)


def add_outputs(parser: argparse.ArgumentParser) -> None:
    """--output-dir, of a command that names runs."""
    parser.add_argument(
        "--output-dir",
        type=Path,
        default=OUTPUTS,
        metavar="DIR",
        help=f"where the runs are (default: {OUTPUTS})",
    )


def add_allow_code(parser: argparse.ArgumentParser) -> None:
    """--allow-code, of a command that builds a run's model."""
    parser.add_argument(
        "--allow-code",
        action="store_true",
        help="run the copy of its options that the record of the run holds",
    )


def check_writable(key: str, path: Path | None) -> None:
    """Refuse a file that cannot be written before the measurement that it is for; `-` too, which only --json
    takes for stdout. None: nobody asks for one.

    Errors:
        ValueError: it cannot.
    """
    if path is not None:
        require(path != STDOUT, key, "be a file, not -", path)
        there = next(part for part in (path.absolute(), *path.absolute().parents) if part.exists())
        right = there.is_file() if there == path.absolute() else there.is_dir()
        require(
            right and os.access(there, os.W_OK) and str(path.parent) not in STREAMS,
            key,
            "be a file that can be written",
            path,
        )


@contextmanager
def writing(key: str, path: Path) -> Iterator[Path]:
    """Where to write, inside the block, a file that a person named; its folder is created, and its name
    printed afterwards. A link to a file is followed.

    Errors:
        ValueError: it cannot be written.
    """
    check_writable(key, path)
    try:
        path = path.resolve() if path.is_symlink() else path
        path.parent.mkdir(parents=True, exist_ok=True)
        yield path
    except OSError as error:
        raise ValueError(
            f"{key} must be a file that can be written, got {path} ({error.strerror})"
        ) from error
    print(f"written: {path}")


@contextmanager
def answering(path: Path | None, *, lines: bool = False) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """A command's --json, for the block's answer. On stdout that is a line, and all that the block prints
    goes to stderr; a file is written at the block's end. None: nobody asks for it. `lines`: there may be
    several answers, and a file has a line for each, too.

    Errors:
        ValueError: the file cannot be written. That is known before the block begins.
    """
    out, answers = sys.stdout, list[Mapping[str, Any]]()

    def line(content: Mapping[str, Any]) -> str:
        return json.dumps(redact({"schema_version": SCHEMA_VERSION, **content}), allow_nan=False) + "\n"

    require(
        path is None or "=" not in path.name, "--json", "be a file, or - before what is no file's name", path
    )
    check_writable("--json", None if path == STDOUT else path)
    with redirect_stdout(sys.stderr if path == STDOUT else out):
        yield (
            answers.append
            if path != STDOUT
            else lambda content: print(line(content), end="", file=out, flush=True)
        )
    if path not in (None, STDOUT) and (answers or lines):
        with writing("--json", path) as place:
            if lines:
                write_file(place, "".join(map(line, answers)).encode())
            else:
                write_json(place, answers[0])
