"""The exit codes, and how an error ends a command: as one line on stderr, and with its code."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from nocap.config.keys import is_fault
from nocap.config.outgoing_text import guarded

EXIT_CODES = {"finished": 0, "failed": 1, "diverged": 1, "refused": 2, "preempted": 75}
LONGEST = 1000  # characters of a line: a value in it may be a book


class EndedError(Exception):
    """A command ends with a line and this exit code."""

    code = EXIT_CODES["failed"]


class FailedError(EndedError):
    """A run, session or command failed that all else depends on."""


class StoppedError(EndedError):
    """A request to stop, as by Ctrl-C: what ended is kept, and the same command goes on."""

    code = EXIT_CODES["preempted"]


@contextmanager
def refusals() -> Iterator[None]:
    """Bad input inside the block becomes one line on stderr and exit code 2. What is printed there
    is `guarded`.

    A full or broken disk, or a reader of stdout that has gone (`… | head`), is no bad input: exit
    code 1, the first with a line.
    """
    with guarded():
        try:
            yield
        except BrokenPipeError:
            # the interpreter flushes it once more at its end
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise SystemExit(EXIT_CODES["failed"]) from None
        except (ValueError, OSError, EndedError) as error:
            text = str(error)
            code = getattr(error, "code", EXIT_CODES["failed"])
            if _is_input(error):
                code = EXIT_CODES["refused"]
                if isinstance(error, OSError):
                    text = f"{error.filename} cannot be read or written: {error.strerror}"
            for line in text.splitlines():
                if len(line) > LONGEST:
                    line = f"{line[:LONGEST]}…"
                print(f"nocap: {line}", file=sys.stderr)
            raise SystemExit(code) from error


def _is_input(error: Exception) -> bool:
    """Say whether an error is the input's: not the machine's, and about a value or a place."""
    if is_fault(error):
        return False
    return isinstance(error, ValueError) or getattr(error, "filename", None) is not None


def line_of(error: BaseException, *, longest: int = 200) -> str:
    """Return an error of somebody else's code in one line of at most so many characters."""
    return " ".join(str(error).split())[:longest] or type(error).__name__
