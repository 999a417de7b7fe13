"""Bad input as one line on stderr, and how a command ends after it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from nocap.config.keys import EXIT_CODES as EXIT_CODES
from nocap.config.keys import is_fault
from nocap.config.outward import guarded

LONGEST = 1000  # characters of a line: a value in it may be a book


class EndedError(Exception):
    """A command ends with a line and this exit code."""

    code = EXIT_CODES["failed"]


class FailedError(EndedError):
    """A run, session or command failed that all else depends on."""


class StoppedError(EndedError):
    """A request to stop, as by Ctrl-C: what ended is kept, and the same command goes on."""

    code = EXIT_CODES["preempted"]


def refuse(message: object) -> NoReturn:
    """Print it on stderr and leave with exit code 2."""
    for line in str(message).splitlines():
        shown = line.encode(errors="backslashreplace").decode()
        print(f"nocap: {shown if len(shown) <= LONGEST else f'{shown[:LONGEST]}…'}", file=sys.stderr)
    raise SystemExit(EXIT_CODES["refused"])


@contextmanager
def refusals() -> Iterator[None]:
    """Bad input inside the block becomes one line on stderr and exit code 2. What is printed there is `guarded`.

    A full or broken disk, or a reader of stdout that has gone (`… | head`), is no bad input: exit code 1, the first with a line.
    """
    with guarded():
        try:
            yield
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the interpreter flushes it once more at its end
            raise SystemExit(EXIT_CODES["failed"]) from None
        except (ValueError, OSError, EndedError) as error:
            if is_fault(error) or isinstance(error, EndedError) or (isinstance(error, OSError) and error.filename is None):
                print(f"nocap: {error}", file=sys.stderr)
                raise SystemExit(getattr(error, "code", EXIT_CODES["failed"])) from error
            if isinstance(error, OSError):
                refuse(f"{error.filename} must be a place that can be read or written, got {error.strerror}")
            refuse(error)
