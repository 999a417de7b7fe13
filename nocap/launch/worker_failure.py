"""Report how a worker failed: in a line to its parent or to a person, and in the summary of an
attempt that did not come to its end."""

from __future__ import annotations

import os
import sys
import time
import traceback
from contextlib import suppress

from nocap import outside
from nocap.config.keys import InputError
from nocap.config.run import Run
from nocap.config.trainer import Device
from nocap.launch import environment
from nocap.store.file_writing import append_text
from nocap.store.lease import LostError
from nocap.store.record_files import TRAIN_LOG, RunStatus
from nocap.training.job import Job
from nocap.training.memory_limit import ran_out
from nocap.training.summary import cut_short

FAILURE_BYTES = 4000  # of a rank's failure: what goes into a pipe in one piece


def report_failure(job: Job, error: Exception, *, behind: str) -> RunStatus:
    """Write the traceback into the log, a line on stderr or to the parent, and the status into the
    summary. `behind`: the rank that is furthest behind."""
    if job.run.trainer.device is Device.cuda and ran_out(error):
        error = no_room(job.run, error)
    world = job.world
    log = job.run_dir / TRAIN_LOG
    with suppress(OSError):  # a full disk may be what failed
        append_text(log, f"rank {world.rank} failed\n{traceback.format_exc()}")
    refused = isinstance(error, InputError)
    status = RunStatus.refused if refused else RunStatus.failed
    line = _failure_line(error) + _place_outside(error)
    # from a collective, as a rule: which rank did not come?
    if world.size > 1 and isinstance(error, RuntimeError):
        line = f"{line} (the slowest rank: {behind})"
    if world.size > 1 and not refused:  # all ranks refuse for the same reason
        line = f"rank {world.rank}: {line}"
    if tell_parent(status, line):
        return status
    if world.is_main:
        cut_attempt_short(job, RunStatus.failed, line)
    if refused and world.is_main:
        print(f"nocap: {line}", file=sys.stderr)
    if not refused:
        print(f"nocap: {line}; see {log}", file=sys.stderr)
    return status


def no_room(run: Run, error: Exception) -> InputError:
    """Say which micro-batch did not fit, and what to do."""
    cause = str(error).partition("\n")[0]
    rule = (
        f"be smaller, in all arms that you compare, because a step does not fit into memory "
        f"({cause})"
    )
    return InputError(f"trainer.micro_batch must {rule}, got {run.trainer.micro_batch}")


def _failure_line(error: Exception) -> str:
    """Return an error in a line, with its kind where that says more."""
    if isinstance(error, InputError | OSError | LostError):
        return str(error)
    return f"{type(error).__name__}: {error}".splitlines()[0]


def _place_outside(error: Exception) -> str:
    """Return the line of a file from outside that the error came from, if it did."""
    paths = {str(file.path) for file in outside.files()}
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename in paths]
    if not own:
        return ""
    return f" ({own[-1].filename}, line {own[-1].lineno})"


def tell_parent(status: RunStatus, line: str) -> bool:
    """Tell the parent how this rank failed, and say whether it listens. It reports the first
    failure: the others only say that they lost a rank."""
    pipe = os.environ.get(environment.FAILURES)
    if pipe is None:
        return False
    content = f"{status} {line}".encode(errors="replace")
    os.write(int(pipe), content[:FAILURE_BYTES] + b"\0")
    return True


def cut_attempt_short(job: Job, status: RunStatus, error: str) -> None:
    """Write the summary of an attempt that did not come to its end."""
    cut_short(
        job.run,
        job.run_dir,
        status=status,
        attempt_s=time.monotonic() - job.started,
        error=error,
        stage=job.stage,
    )
