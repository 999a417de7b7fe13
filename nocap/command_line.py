"""Carry out a command: read its words, call its function, answer as JSON, and end with an exit
code."""

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
from nocap.config.outgoing_text import redact
from nocap.config.paths import STDOUT
from nocap.store.file_writing import write_file
from nocap.store.record_files import SCHEMA_VERSION, write_json
from nocap.store.runs import OUTPUTS

STREAMS = (
    "/dev",
    "/dev/fd",
    "/proc/self/fd",
)  # what is there is no file, though stdout may lead to one


def command(
    parser: argparse.ArgumentParser,
    call: Callable[[argparse.Namespace], int],
    argv: Sequence[str] | None = None,
    *,
    answer: str = "",
    lines: bool = False,
) -> int:
    """Carry a command out: `call` gets what was typed, with `options.answer` for --json, and
    returns the exit code.

    `answer`: what --json writes; without it there is no such flag. `lines`: see `answering`.
    """
    outside.document(parser, answer=answer)
    options = parser.parse_intermixed_args(outside.arguments(argv))

    with refusals(), answering(options.json if answer else None, lines=lines) as options.answer:
        return call(options)


def add_outputs(parser: argparse.ArgumentParser) -> None:
    """Add --output-dir to a command that names runs."""
    parser.add_argument(
        "--output-dir",
        type=Path,
        default=OUTPUTS,
        metavar="DIR",
        help=f"folder of the runs (default: {OUTPUTS})",
    )


def add_allow_code(parser: argparse.ArgumentParser) -> None:
    """Add --allow-code to a command that builds a run's model."""
    parser.add_argument(
        "--allow-code",
        action="store_true",
        help="run the code of options that the run's record holds",
    )


def check_writable(key: str, path: Path | None) -> None:
    """Refuse a file that cannot be written before the measurement that it is for; `-` too, which
    only --json takes for stdout. None: nobody asks for one.

    Errors:
        ValueError: it cannot.
    """
    if path is None:
        return
    require(path != STDOUT, key, "be a file, not - (stdout)", path)
    file = path.absolute()
    nearest = next(part for part in (file, *file.parents) if part.exists())
    right = nearest.is_file() if nearest == file else nearest.is_dir()
    can_write = right and os.access(nearest, os.W_OK) and str(path.parent) not in STREAMS
    require(can_write, key, "be a file that can be written", path)


@contextmanager
def writing(key: str, path: Path) -> Iterator[Path]:
    """Yield where to write a file that a person named; its folder is created, and its name printed
    after the block. A link to a file is followed.

    Errors:
        ValueError: it cannot be written.
    """
    check_writable(key, path)
    try:
        if path.is_symlink():
            path = path.resolve()
        path.parent.mkdir(parents=True, exist_ok=True)
        yield path
    except OSError as error:
        reason = f"{key} must be a file that can be written, got {path} ({error.strerror})"
        raise ValueError(reason) from error
    print(f"written: {path}")


@contextmanager
def answering(
    path: Path | None, *, lines: bool = False
) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """Yield the function that takes a command's answer for --json. On stdout the answer is a line,
    and all that the block prints goes to stderr; a file is written at the block's end. None: nobody
    asks for it. `lines`: there may be several answers, and a file has a line for each, too.

    Errors:
        ValueError: the file cannot be written. That is known before the block begins.
    """
    if path == STDOUT:
        out = sys.stdout
        with redirect_stdout(sys.stderr):
            yield lambda content: print(_line(content), end="", file=out, flush=True)
        return
    rule = "be followed by a file (or by - for stdout), not by an override"
    require(path is None or "=" not in path.name, "--json", rule, path)
    check_writable("--json", path)
    answers = list[Mapping[str, Any]]()
    yield answers.append
    if path is None or not (answers or lines):
        return
    with writing("--json", path) as file:
        if lines:
            write_file(file, "".join(map(_line, answers)).encode())
        else:
            write_json(file, answers[0])


def _line(content: Mapping[str, Any]) -> str:
    """Return an answer as a line of JSON, without secrets."""
    answer = redact({"schema_version": SCHEMA_VERSION, **content})
    return json.dumps(answer, allow_nan=False) + "\n"
