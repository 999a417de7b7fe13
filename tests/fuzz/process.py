"""The doors in this process: their output and exit code, their workers too, under an alarm.
Thousands of cases a minute need that."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import (
    AbstractContextManager,
    contextmanager,
    nullcontext,
    redirect_stderr,
    redirect_stdout,
)
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn
from unittest.mock import patch

import torch

from nocap import outside
from nocap.launch import worker
from nocap.outside import LOADED
from nocap.sessions import worker as session
from nocap.training.job import Job

REPO = Path(__file__).resolve().parents[2]
LIMIT_S = 5.0


class Hang(BaseException):
    """The alarm. No `except Exception` of the program may swallow it."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    code: int
    out: str = ""
    err: str = ""
    value: Any = None  # of a call that returns one
    crash: str | None = None  # an exception that is no exit: type and place
    trace: str = ""
    began: float = 0.0
    hung: bool = False


def answer(call: Callable[[], Any], *, limit_s: float = LIMIT_S) -> Answer:
    """What a door says and how it ends. A number that it returns is its exit code."""
    out = io.TextIOWrapper(io.BytesIO(), "utf-8", errors="strict", write_through=True)
    err = io.TextIOWrapper(io.BytesIO(), "utf-8", errors="backslashreplace", write_through=True)
    code = 0
    value = None
    crash = None
    trace = ""
    hung = False
    began = time.time()
    with redirect_stdout(out), redirect_stderr(err), warnings.catch_warnings(), _alarm(limit_s):
        warnings.simplefilter("always")
        warnings.showwarning = lambda message, *place: print(f"nocap: {message}", file=err)
        try:
            value = call()
            if type(value) is int:
                code = value
        except Hang:
            code = -1
            hung = True
            crash = None
            trace = traceback.format_exc()
        except SystemExit as exit_:
            if isinstance(exit_.code, int):
                code = exit_.code
            else:
                code = int(exit_.code is not None)
        except BaseException as error:
            code = 1
            crash = f"{type(error).__name__} at {_place(error)}"
            trace = traceback.format_exc()
    return Answer(
        code=code,
        out=_said(out),
        err=_said(err),
        value=value,
        crash=crash,
        trace=trace,
        began=began,
        hung=hung,
    )


def _said(stream: io.TextIOWrapper) -> str:
    stream.flush()
    return stream.buffer.getvalue().decode(errors="replace")  # type: ignore[attr-defined]


def _place(error: BaseException) -> str:
    """The program's own last line on the way to an error."""
    frames = []
    for frame in traceback.extract_tb(error.__traceback__):
        if "/nocap/" in frame.filename:
            frames.append(frame)
    if frames:
        return f"{frames[-1].filename.rpartition('/nocap/')[2]}:{frames[-1].name}"
    return "outside"


@contextmanager
def _alarm(limit_s: float) -> Iterator[None]:
    def ring(number: int, frame: object) -> NoReturn:
        raise Hang

    before = signal.signal(signal.SIGALRM, ring)
    # again, where the first one was lost in a finalizer
    signal.setitimer(signal.ITIMER_REAL, limit_s, 0.5)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


# --- a worker without a process -------------------------------------------------------------------


class _Left(BaseException):
    """`leave`, which would end this process."""


class Stop:
    """A request to stop that comes after so many steps."""

    def __init__(self, after: int) -> None:
        self.after = after

    def __call__(self) -> bool:
        self.after -= 1
        return self.after <= 0


def _replaced(job: Job, **parts: Any) -> Job:
    """The job as its worker completes it, with a stop where a test asks for one."""
    if Worker.stop_after is not None:
        parts["stop_asked"] = Stop(Worker.stop_after)
    return replace(job, **parts)


class Worker:
    """In place of `subprocess.Popen` in the launcher: the worker runs here, to its end, when it is
    started."""

    stop_after: int | None = None  # steps
    pid = 0

    def __init__(
        self, command: Sequence[str], *, env: Mapping[str, str], stdout: Any = None, **ignored: Any
    ) -> None:
        quiet: AbstractContextManager[object] = nullcontext()
        errors: AbstractContextManager[object] = nullcontext()
        if stdout is not None:
            quiet = redirect_stdout(io.StringIO())
            errors = redirect_stderr(io.StringIO())
        state = torch.get_rng_state()
        with (
            quiet,
            errors,
            patch.object(sys, "argv", list(command[2:])),
            patch.dict(
                "os.environ",
                {key: env[key] for key in ("NOCAP_PARENT", "NOCAP_STAGE", "NOCAP_STARTED")},
            ),
            patch.object(worker, "leave", _leave),
            patch.object(worker, "die_with_parent", lambda parent: None),
            patch.object(worker, "catch_stops", lambda handler: None),
            patch.object(worker, "replace", _replaced),
            patch.object(
                outside,
                "LOADED",
                {name for name, module in sys.modules.items() if _of_tests(module)} | LOADED,
            ),
        ):
            try:
                worker.main()
            except _Left as left:
                self.code = int(left.args[0])
            finally:
                torch.set_rng_state(state)

    def poll(self) -> int:
        return self.code

    def wait(self, timeout: float | None = None) -> int:
        return self.code

    def send_signal(self, number: int) -> None: ...

    def kill(self) -> None: ...


def _of_tests(module: object) -> bool:
    """Loaded by a test, in whose process a worker is: no option from outside did that."""
    return str(getattr(module, "__file__", "")).startswith(str(REPO))


def _leave(code: int) -> NoReturn:
    raise _Left(code)


class _Ended:
    returncode = 0


def _session(command: Sequence[str], *, input: str, **ignored: object) -> _Ended:
    """A study's measurement, here; of its later seeds, the first one's."""
    result = Path(command[3])
    if earlier := next(result.parent.glob("[!.]*.json"), None):
        content = {**json.loads(earlier.read_text()), **json.loads(input)}
        result.write_text(json.dumps(content))
    else:
        every_session(command, input=input)
    return _Ended()


def every_session(command: Sequence[str], *, input: str, **ignored: object) -> _Ended:
    """Each of a study's measurements, here."""
    with patch.object(sys, "stdin", io.StringIO(input)):
        session.main(Path(command[3]))
    return _Ended()


class Subprocess:
    """The launcher's `subprocess`."""

    Popen = Worker
    DEVNULL = subprocess.DEVNULL
    TimeoutExpired = subprocess.TimeoutExpired


@contextmanager
def workers_here(session: Callable[..., _Ended] = _session) -> Iterator[None]:
    """Inside the block, runs train in this process, and git is not asked: its answer is the same
    each time, and slow."""
    with (
        patch("nocap.launch.workers.subprocess", Subprocess),
        patch("nocap.launch.this_machine.AVAILABLE", False),
        patch("nocap.sessions.session.subprocess", SimpleNamespace(run=session)),
        patch("os.fsync", lambda descriptor: None),  # no power is cut here
        patch("nocap.launch.record_head.git_state", lambda: None),
        patch("nocap.study.result_maker.git_state", lambda: None),
    ):
        yield
