"""How every command and every worker begins and ends as a process."""

from __future__ import annotations

import io
import os
import select
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn

from nocap.config.errors import EXIT_CODES
from nocap.config.outgoing_text import guarded

DEFECT = "nocap: the error above is a bug in nocap, and not a fault of your command"


def run(main: Callable[[], int | None]) -> NoReturn:
    """Run a command as this process, and end it with the exit code that `main` returns.

    A request to stop ends it with a line. An exception that no code foresaw shows its traceback,
    and a line that says whose fault it is.
    """
    open_streams()
    if sys.flags.optimize:
        rule = "be unset or 0, because without assertions Hydra cannot read the command line"
        print(f"nocap: PYTHONOPTIMIZE must {rule}, got {sys.flags.optimize}", file=sys.stderr)
        raise SystemExit(EXIT_CODES["refused"])
    code: Any
    try:
        code = main()
    except SystemExit as ending:
        code = ending.code
    except KeyboardInterrupt:
        print("nocap: stopped; type the same command to start again", file=sys.stderr)
        code = EXIT_CODES["preempted"]
    except Exception:
        with guarded():
            traceback.print_exc()
        print(DEFECT, file=sys.stderr)
        code = EXIT_CODES["failed"]
    _leave_gpu(code or 0)
    raise SystemExit(code)


def _leave_gpu(code: int) -> None:
    """End this process now, with its output, where it has used a GPU. At Python's own end torch,
    its profiler and CUDA's libraries take down what they share in an order of their own: a profile
    ended with a double free (exit code 134) after its answer was written."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return
    with suppress(RuntimeError):  # of a GPU that has failed, which the command has said
        torch.cuda.synchronize()
    with suppress(OSError):  # of a reader that has left, Python tells in its own way
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


# --- streams --------------------------------------------------------------------------------------


def open_streams() -> None:
    """Open /dev/null in place of a standard stream that is closed, as by `>&-`, and have what a
    stream's encoding cannot show, as × in ASCII, escaped.

    The next file to be opened would get a closed stream's number, and what is written there.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            os.dup2(os.open(os.devnull, os.O_RDWR), number)
        if getattr(sys, name) is None:
            stream = io.TextIOWrapper(io.FileIO(number, mode, closefd=False), encoding="utf-8")
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)
    if isinstance(sys.stdout, io.TextIOWrapper):  # stderr does so by itself
        sys.stdout.reconfigure(errors="backslashreplace")


class _Lasting(io.FileIO):
    """A stream that goes quiet when it cannot be written to: its reader left, its terminal was
    closed, its disk is full."""

    def write(self, content: Any, /) -> int:
        try:
            while True:
                n_bytes = super().write(content)
                if n_bytes is not None:
                    return n_bytes
                # somebody made it non-blocking, and it is full
                select.select([], [self], [])
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())
            return len(content)


def outlive_readers() -> None:
    """Go on from now on without a reader of stdout or stderr, as training does."""
    open_streams()
    for number, name in ((1, "stdout"), (2, "stderr")):
        old = getattr(sys, name)
        if old is not getattr(sys, f"__{name}__"):
            continue  # somebody has replaced it
        raw = _Lasting(number, "w", closefd=False)
        stream = io.TextIOWrapper(
            io.BufferedWriter(raw),
            encoding=old.encoding,
            errors=old.errors,
            line_buffering=raw.isatty() or name == "stderr",
        )
        setattr(sys, name, stream)
