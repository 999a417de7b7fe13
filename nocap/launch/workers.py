"""The workers of a run, a process for each device, from one start to their end. No torch here."""

from __future__ import annotations

import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from nocap.config.errors import EXIT_CODES
from nocap.config.trainer import Compile, Device
from nocap.display import ending
from nocap.launch import environment
from nocap.launch.fork_server import COMPILER, ForkedProcess, ForkServer
from nocap.launch.heartbeat import HangWatch, Heartbeat
from nocap.launch.leftovers import RANKS
from nocap.launch.plan import Plan
from nocap.launch.signals import shielded_child
from nocap.store.file_writing import to_append
from nocap.store.record_files import TRAIN_LOG, RunStatus

GRACE_S = 10.0  # for the others to say what they lost when one has died
LOOPBACK = "lo" if sys.platform == "linux" else "lo0"


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkersEnd:
    """How the workers of a run have ended, all together."""

    code: int  # the exit code of a killed worker is the signal's number below 0
    failure: str  # that they hung, or the words of the first one that failed; or nothing
    endings: str  # the exit code and the step of those that failed, or of all

    @property
    def reason(self) -> str:
        """Return why the run has no summary."""
        return self.failure or self.endings

    @property
    def is_refused(self) -> bool:
        """Say whether a worker found bad input."""
        return self.code == EXIT_CODES[RunStatus.refused]


class Workers:
    """The workers of a run, which are started here."""

    def __init__(
        self,
        plan: Plan,
        stage: Path,
        *,
        started: float,
        to_log: bool,
        units: Sequence[str],
        server: ForkServer | None,
    ) -> None:
        """Start a worker for each device. `started`: a `time.monotonic()`; the others are as for
        `Attempt`.

        Errors:
            OSError: one of them cannot be started. Those that were are killed.
        """
        self.stage = stage
        self.started = started
        self._plan = plan
        self._to_log = to_log
        self._units = units
        self._server = server
        devices = plan.run.trainer.devices
        self._heartbeat = Heartbeat.create(plan.run_dir, ranks=devices)
        limit_s = plan.run.trainer.hang_timeout_s
        self._watch = HangWatch(self._heartbeat, limit_s=limit_s, begin=started)
        self._hang_reason = ""
        self._failed_at = math.inf
        self._failed = dict[int, int]()  # rank → exit code, of those that failed by themselves
        # what the workers say that fail, in their order; it needs no disk, which may be full
        self._failure_pipe, failure_fd = os.pipe()
        os.set_blocking(self._failure_pipe, False)
        self._processes: list[subprocess.Popen[bytes] | ForkedProcess] = []
        try:
            for number in range(devices):
                self._processes.append(self._begin(number, failure_fd))
        except OSError:  # too few processes or files: those that were started must not go on alone
            self.send(signal.SIGKILL)
            raise
        finally:
            os.close(failure_fd)

    def _begin(self, number: int, failure_fd: int) -> subprocess.Popen[bytes] | ForkedProcess:
        """Start the worker with this number."""
        run_dir = self._plan.run_dir
        env = self._env(number, failure_fd)
        cores = list[int]()
        if self._plan.run.trainer.device is Device.cpu:
            cores = [int(core) for core in self._units]
        if not self._to_log:
            return self._fresh(env, failure_fd, cores)
        with to_append(run_dir / TRAIN_LOG) as log:
            if self._server is None:
                return self._fresh(env, failure_fd, cores, output=subprocess.DEVNULL, log=log)
            return self._server.start(
                run_dir,
                env=env,
                failure_fd=failure_fd,
                log=log.fileno(),
                cores=cores,
                imports=self._imports(),
            )

    def _imports(self) -> tuple[str, ...]:
        """Name what the worker may need beside torch. On a GPU it imports the compiler itself: the
        compiler's import counts the devices, and no process that was forked after that can use
        one."""
        run = self._plan.run
        if run.trainer.compile is Compile.off or run.trainer.device is Device.cuda:
            return run.tracker.imports
        return (*run.tracker.imports, COMPILER)

    def _fresh(
        self,
        env: Mapping[str, str],
        failure_fd: int,
        cores: Sequence[int],
        *,
        output: int | None = None,
        log: IO[str] | None = None,
    ) -> subprocess.Popen[bytes]:
        """Start a worker that imports what it needs itself. `output`: its stdin and stdout; `log`:
        its stderr; none: as this process's."""
        command = [sys.executable, "-m", "nocap.launch.worker", str(self._plan.run_dir)]
        with shielded_child():
            worker = subprocess.Popen(
                command, env=env, pass_fds=[failure_fd], stdin=output, stdout=output, stderr=log
            )
        if cores and hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(worker.pid, cores)
        return worker

    def _env(self, number: int, failure_fd: int) -> dict[str, str]:
        """Return the environment of the worker with this number. `failure_fd`: where it says why it
        failed. Several workers meet in a file, in a folder that nobody else can enter."""
        t = self._plan.run.trainer
        env = {
            # libgomp's own long spin made a step tenfold slower beside other work (LOG.md)
            "GOMP_SPINCOUNT": "1000",
            **os.environ,
            environment.PARENT: str(os.getpid()),
            environment.STAGE: str(self.stage),
            environment.STARTED: repr(self.started),
            environment.FAILURES: str(failure_fd),
            "OMP_NUM_THREADS": str(t.threads),
        }
        env.pop("HYDRA_FULL_ERROR", None)
        if t.device is Device.cuda and self._units:
            env["CUDA_VISIBLE_DEVICES"] = ",".join(self._units)
        if t.devices == 1:
            return env
        folder = self._plan.run_dir / RANKS
        # that of an attempt that was killed is gone: see `leftovers`
        folder.mkdir(mode=0o700, exist_ok=number > 0)
        return env | {
            "RANK": str(number),
            "LOCAL_RANK": str(number),
            "WORLD_SIZE": str(t.devices),
            "LOCAL_WORLD_SIZE": str(t.devices),
            # a rank of the attempt before, if one still dies, writes to another
            environment.STORE: str(folder / self.stage.name),
            "GLOO_SOCKET_IFNAME": LOOPBACK,  # no other machine may connect
            "NCCL_SOCKET_IFNAME": LOOPBACK,
            # all connections at once: then nobody can make another
            # (`nocap.training.world.close_listeners`)
            "TORCH_GLOO_LAZY_INIT": "0",
        }

    # --- while they run

    def codes(self) -> list[int | None]:
        """Return the exit code of each rank; None while it runs."""
        return [process.poll() for process in self._processes]

    def send(self, number: int) -> None:
        """Send a signal to all that run."""
        for process in self._processes:
            process.send_signal(number)

    def kill_if_hung(self) -> None:
        """Kill the workers where they have sent no heartbeat for too long."""
        reason = self._watch.look(time.monotonic())
        if reason is not None:
            self._hang_reason = reason
            self.send(signal.SIGKILL)

    def end_others(self, codes: Sequence[int | None]) -> None:
        """End the other workers when one has failed. They have a little time to say what they lost;
        then they are killed, which is no failure of theirs."""
        self._failed_at = min(self._failed_at, time.monotonic())
        if time.monotonic() > self._failed_at + GRACE_S:
            self._failed = self._failed or _nonzero(codes)
            self.send(signal.SIGKILL)

    # --- after their end

    def end(self, codes: Sequence[int], *, stopping: bool) -> WorkersEnd:
        """Return how the workers have ended, with these exit codes, and remove the folder in which
        they met: which were killed, or the reason of the first one that failed. The others only
        lost it. `stopping`: they were asked to stop."""
        shutil.rmtree(self._plan.run_dir / RANKS, ignore_errors=True)
        status, reason = self._first_reason()
        failed = self._failed or _nonzero(codes)
        killed = {rank: code for rank, code in failed.items() if code < 0}
        lost_each_other = stopping and len(codes) > 1
        if killed or lost_each_other:
            reason = ""
        to_name = killed or failed or dict(enumerate(codes))
        endings = self._ending_line(to_name, alone=len(codes) == 1)
        if killed:
            code = min(killed.values())
        elif reason:
            code = EXIT_CODES[status]
        else:
            code = max(codes)
        return WorkersEnd(code=code, failure=self._hang_reason or reason, endings=endings)

    def _first_reason(self) -> tuple[str, str]:
        """Read the status and the reason of the worker that failed first; empty texts where none
        said it."""
        status = ""
        reason = ""
        # a process that a worker started holds the other end, and nobody said anything
        with suppress(BlockingIOError):
            first = os.read(self._failure_pipe, 1 << 16).split(b"\0")[0].decode(errors="replace")
            status, _, reason = first.partition(" ")
        os.close(self._failure_pipe)
        return status, reason

    def _ending_line(self, codes: Mapping[int, int], *, alone: bool) -> str:
        """Say with what each of these ranks ended, and where it was."""
        endings = list[str]()
        for rank, code in codes.items():
            worker = "the worker" if alone else f"rank {rank}"
            endings.append(f"{worker} ended with {ending(code)} {self._heartbeat.where(rank)}")
        line = ", ".join(endings)
        if alone:
            return f"{line} and wrote no summary"
        return line


def _nonzero(codes: Sequence[int | None]) -> dict[int, int]:
    """Return rank → exit code of the workers that failed."""
    return {rank: code for rank, code in enumerate(codes) if code}
