"""A planned run brought to its end: its lease, its worker, restarts of a lost worker, its summary.
No torch here."""

from __future__ import annotations

import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import IO, Any

from nocap.config.keys import EXIT_CODES
from nocap.config.trainer import Compile, Device
from nocap.display import ending
from nocap.launch.executor import GOES_ON
from nocap.launch.first_screen import headline, nothing_to_train
from nocap.launch.fork_server import COMPILER, ForkedProcess, ForkServer
from nocap.launch.heartbeat import Heartbeat
from nocap.launch.leftovers import RANKS, leftovers, surplus_checkpoints
from nocap.launch.plan import Plan
from nocap.launch.record_head import write_record_head
from nocap.launch.run_folder import sound
from nocap.launch.run_result import RunResult
from nocap.launch.run_table import table
from nocap.launch.signals import shielded_child, stop_handler
from nocap.store import lease
from nocap.store.checkpoints import delete
from nocap.store.files import append_text, to_append
from nocap.store.record import ENDED, SUMMARY, RunStatus, read_json
from nocap.training.summary import cut_short

CHECK_S = 0.2  # between checks of the heartbeats
WAIT_S = 0.03  # between looks at whether a worker has ended
GRACE_S = 10.0  # for the others to say what they lost when one has died
LOOPBACK = "lo" if sys.platform == "linux" else "lo0"
# the most that counts between two looks: what is longer was a pause of this process, as Ctrl-Z or
# Slurm's suspend give it
AWAKE_S = 1.0


def hold(plan: Plan, *, wait_s: float = 0.0) -> lease.Lease:
    """Become the one process that trains this run, until the lease is closed.

    Errors:
        HeldError: another process is training it, and still is after `wait_s` seconds.
    """
    plan.run_dir.mkdir(parents=True, exist_ok=True)
    return lease.acquire(plan.run_dir, wait_s=wait_s)


def clean(plan: Plan) -> None:
    """Delete what a kill left of an ended run, and checkpoints that nobody asked for, unless
    another process holds it, or it is another user's."""
    if leftovers(plan) or surplus_checkpoints(plan) or lease.abandoned(plan.run_dir):
        with suppress(lease.HeldError, OSError), hold(plan):
            delete([*leftovers(plan), *surplus_checkpoints(plan)])


def start(plan: Plan, *, started: float, wait_s: float = 0.0) -> int:
    """`train`, reported on stdout. The command's exit code.

    Errors:
        ValueError: as for `train`.
    """
    result = train(plan, started=started, wait_s=wait_s, log=lambda line: print(line, flush=True))
    if not result.trained:
        print(nothing_to_train(plan, result.summary))
        if plan.run.tracker.is_awaited():
            _report_to_tracker(plan)
    print(table(result.summary, run_dir=plan.run_dir), flush=True)
    if result.status is RunStatus.preempted:
        print(GOES_ON, flush=True)
        if signal.SIGUSR2 in result.signals and callable(signal.getsignal(signal.SIGUSR2)):
            # the handler of before, such as submitit's, may now requeue the job
            signal.raise_signal(signal.SIGUSR2)
    return EXIT_CODES[result.status]


def _report_to_tracker(plan: Plan) -> None:
    """Send the record of an ended run to who waits for it. What fails is a line."""
    from nocap.launch.mirror import send_run

    try:
        session = send_run(plan.run_dir, plan.run.tracker)
        print(f"tracker: {session.url_or_hint}", flush=True)
    except (OSError, ValueError) as error:
        print(f"nocap: not sent: {error}", file=sys.stderr, flush=True)


def train(
    plan: Plan,
    *,
    started: float,
    log: Callable[[str], None],
    wait_s: float = 0.0,
    quiet: bool = False,
) -> RunResult:
    """Train the run, unless it has come to its end already. `started` is a `time.monotonic()`. With
    `quiet`, output goes to `train.log`.

    A request to stop is passed on to the worker. Main thread only. The status is `refused` where
    the worker found bad input.

    Errors:
        ValueError: another process is training it, and still is after `wait_s` seconds.
    """
    summary = sound(plan)
    if summary is not None:
        clean(plan)
        return RunResult.of(summary)
    with hold(plan, wait_s=wait_s) as run_lease:
        summary = sound(plan)
        if summary is not None:  # its holder has brought it to its end
            return RunResult.of(summary)
        log(headline(plan))
        attempt = Attempt(plan, run_lease, quiet=quiet)
        signals = list[int]()

        def stop(number: int) -> None:
            signals.append(number)
            attempt.stop()

        with stop_handler(stop):
            attempt.start(started)
            result = attempt.wait()
        if attempt.refused:
            summary = {**result.summary, "status": RunStatus.refused}
            result = replace(result, status=RunStatus.refused, summary=summary)
        return replace(result, signals=tuple(signals))


class Attempt:
    """A run that this process holds: the head of its record, a worker for each device, and in the
    end a summary.

    A worker that dies, or has no heartbeat for `trainer.hang_timeout_s`, is lost, and the others
    with it. The run then starts again from its last checkpoint, `trainer.max_restarts` times. One
    that ends with an error of its own would fail again: it is not started again. Nor is one whose
    lease another process has taken.
    """

    def __init__(
        self,
        plan: Plan,
        run_lease: lease.Lease,
        *,
        quiet: bool = False,
        units: Sequence[str] = (),
        server: ForkServer | None = None,
    ) -> None:
        """Prepare an attempt, whose output goes to `train.log` only where it is `quiet`. `units`:
        GPUs as CUDA_VISIBLE_DEVICES names them, or numbers of CPU cores, that it has to itself;
        none: all of the machine. `server`: forks the workers of a quiet run; without one each is a
        fresh process."""
        self.plan = plan
        self.units = units
        self.over = False
        self.refused = False
        self._lease = run_lease
        self._quiet = quiet
        self._server = server if quiet else None
        self._stopping = False
        self._restarts = 0
        self._workers: list[subprocess.Popen[bytes] | ForkedProcess] = []

    def start(self, started: float) -> None:
        """Write the head of the record, and start the workers. `started` is a
        `time.monotonic()`."""
        devices = self.plan.run.trainer.devices
        self._started = started
        self._checked = started
        self._stage = self._lease.stage()
        write_record_head(self.plan, self._stage)
        self._heartbeat = Heartbeat.create(self.plan.run_dir, ranks=devices)
        self._beats = 0.0
        self._silent_s = 0.0
        # why there is no summary: the first of these that is not empty
        self._hang_reason = ""
        self._worker_reason = ""  # in the words of a worker
        self._endings = ""  # with what the workers ended
        self._failed_at = math.inf
        self._failed = dict[int, int]()  # rank → exit code
        # what the workers say that fail, in their order; it needs no disk, which may be full
        self._reasons, reasons = os.pipe()
        os.set_blocking(self._reasons, False)
        self._workers = []
        try:
            for number in range(devices):
                self._workers.append(self._begin(number, reasons))
        except OSError:  # too few processes or files: those that were started must not go on alone
            self._send(signal.SIGKILL)
            raise
        finally:
            os.close(reasons)
        if self._stopping:  # the request came when the workers of before were already dead
            self._send(signal.SIGTERM)

    def _begin(self, number: int, reasons: int) -> subprocess.Popen[bytes] | ForkedProcess:
        """Start the worker with this number."""
        run_dir = self.plan.run_dir
        env = self._env(number, reasons)
        cores = list[int]()
        if self.plan.run.trainer.device is Device.cpu:
            cores = [int(core) for core in self.units]
        if not self._quiet:
            return self._fresh(env, reasons, cores)
        with to_append(run_dir / "train.log") as log:
            if self._server is None:
                return self._fresh(env, reasons, cores, output=subprocess.DEVNULL, log=log)
            return self._server.start(
                run_dir,
                env=env,
                reasons=reasons,
                log=log.fileno(),
                cores=cores,
                imports=self._imports(),
            )

    def _imports(self) -> tuple[str, ...]:
        """Name what the worker may need beside torch. On a GPU it imports the compiler itself: the
        compiler's import counts the devices, and no process that was forked after that can use
        one."""
        run = self.plan.run
        if run.trainer.compile is Compile.off or run.trainer.device is Device.cuda:
            return run.tracker.imports
        return (*run.tracker.imports, COMPILER)

    def _fresh(
        self,
        env: Mapping[str, str],
        reasons: int,
        cores: Sequence[int],
        *,
        output: int | None = None,
        log: IO[str] | None = None,
    ) -> subprocess.Popen[bytes]:
        """Start a worker that imports what it needs itself. `output`: its stdin and stdout; `log`:
        its stderr; none: as this process's."""
        command = [sys.executable, "-m", "nocap.launch.worker", str(self.plan.run_dir)]
        with shielded_child():
            worker = subprocess.Popen(
                command, env=env, pass_fds=[reasons], stdin=output, stdout=output, stderr=log
            )
        if cores and hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(worker.pid, cores)
        return worker

    def _env(self, number: int, reasons: int) -> dict[str, str]:
        """Return the environment of the worker with this number. `reasons`: where it says why it
        failed. Several workers meet in a file, in a folder that nobody else can enter."""
        t = self.plan.run.trainer
        env = {
            # libgomp's own long spin made a step tenfold slower beside other work (LOG.md)
            "GOMP_SPINCOUNT": "1000",
            **os.environ,
            "NOCAP_PARENT": str(os.getpid()),
            "NOCAP_STAGE": str(self._stage),
            "NOCAP_STARTED": repr(self._started),
            "NOCAP_FAILURES": str(reasons),
            "OMP_NUM_THREADS": str(t.threads),
        }
        env.pop("HYDRA_FULL_ERROR", None)
        if t.device is Device.cuda and self.units:
            env["CUDA_VISIBLE_DEVICES"] = ",".join(self.units)
        if t.devices == 1:
            return env
        folder = self.plan.run_dir / RANKS
        # that of an attempt that was killed is gone: see `leftovers`
        folder.mkdir(mode=0o700, exist_ok=number > 0)
        return env | {
            "RANK": str(number),
            "LOCAL_RANK": str(number),
            "WORLD_SIZE": str(t.devices),
            "LOCAL_WORLD_SIZE": str(t.devices),
            # a rank of the attempt before, if one still dies, writes to another
            "NOCAP_STORE": str(folder / self._stage.name),
            "GLOO_SOCKET_IFNAME": LOOPBACK,  # no other machine may connect
            "NCCL_SOCKET_IFNAME": LOOPBACK,
            # all connections at once: then nobody can make another
            # (`nocap.training.world.close_listeners`)
            "TORCH_GLOO_LAZY_INIT": "0",
        }

    def poll(self) -> RunResult | None:
        """Return how the run ended, once its workers have ended for good. Then its lease is given
        back.

        Errors:
            OSError, ValueError: its record cannot be read, or its workers cannot be started again.
        """
        codes = [worker.poll() for worker in self._workers]
        if None in codes:
            self._check_heartbeat()
            if any(codes):
                self._end_others(codes)
            return None
        self.over = True
        with ExitStack() as undo:
            undo.enter_context(self._lease)
            code = self._exit_code([code for code in codes if code is not None])
            summary = self._summary()  # has the reasons that `_exit_code` found
            # whether a worker was killed before the run's end: the record decides, not the code
            # alone
            was_killed = code < 0 and summary["status"] == RunStatus.failed
            limit = self.plan.run.trainer.max_restarts
            may_restart = not self._stopping and not self._lease.lost and self._restarts < limit
            if was_killed and may_restart:
                self._restarts += 1
                self._log(f"starting again from the last checkpoint ({self._restarts} of {limit})")
                self.start(time.monotonic())
                self.over = False
                undo.pop_all()
                return None
            if summary["status"] in ENDED and not self._lease.lost:
                with suppress(OSError):  # another look at the run tries it again
                    delete(surplus_checkpoints(self.plan))
        result = RunResult.of(summary, trained=True)
        return replace(result, taken_over=self._lease.lost)

    def _end_others(self, codes: Sequence[int | None]) -> None:
        """End the other workers when one has failed. They have a little time to say what they lost;
        then they are killed, which is no failure of theirs."""
        self._failed_at = min(self._failed_at, time.monotonic())
        if time.monotonic() > self._failed_at + GRACE_S:
            self._failed = self._failed or _nonzero(codes)
            self._send(signal.SIGKILL)

    def _exit_code(self, codes: Sequence[int]) -> int:
        """Return one exit code for all workers, and note why they failed: which were killed, or
        the reason of the first one that failed. The others only lost it."""
        shutil.rmtree(self.plan.run_dir / RANKS, ignore_errors=True)
        failed = self._failed or _nonzero(codes)
        killed = {rank: code for rank, code in failed.items() if code < 0}
        status, reason = self._first_reason()
        lost_each_other = self._stopping and len(codes) > 1
        if not killed and not lost_each_other:
            self._worker_reason = reason
        to_name = killed or failed or dict(enumerate(codes))
        self._endings = self._ending_line(to_name, alone=len(codes) == 1)
        if killed:
            code = min(killed.values())
        elif self._worker_reason:
            code = EXIT_CODES[status]
        else:
            code = max(codes)
        self.refused = code == EXIT_CODES[RunStatus.refused]
        return code

    def _first_reason(self) -> tuple[str, str]:
        """Read the status and the reason of the worker that failed first; empty texts where none
        said it."""
        status = ""
        reason = ""
        # a process that a worker started holds the other end, and nobody said anything
        with suppress(BlockingIOError):
            first = os.read(self._reasons, 1 << 16).split(b"\0")[0].decode(errors="replace")
            status, _, reason = first.partition(" ")
        os.close(self._reasons)
        return status, reason

    def _ending_line(self, codes: Mapping[int, int], *, alone: bool) -> str:
        """Say with what each of these ranks ended, and where it was."""
        endings = list[str]()
        for rank, code in codes.items():
            worker = "the worker" if alone else f"rank {rank}"
            endings.append(f"{worker} ended with {ending(code)} {self._heartbeat.where(rank)}")
        line = ", ".join(endings)
        if alone:
            return f"{line} and left no summary"
        return line

    def wait(self) -> RunResult:
        """Wait for the run's end, and return it."""
        while True:
            result = self.poll()
            if result is not None:
                return result
            time.sleep(WAIT_S)

    def stop(self) -> None:
        """Ask the workers, once, to save and stop."""
        if not self._stopping:
            self._stopping = True
            self._send(signal.SIGTERM)

    def _send(self, number: int) -> None:
        for worker in self._workers:
            worker.send_signal(number)

    def _check_heartbeat(self) -> None:
        """Kill workers that hang, or that train what another process trains now."""
        now = time.monotonic()
        since_s = now - self._checked
        if since_s < CHECK_S:
            return
        if self._lease.lost:
            self._send(signal.SIGKILL)
            return
        self._checked = now
        beats = self._heartbeat.count()
        if beats == self._beats:
            self._silent_s += min(since_s, AWAKE_S)
        else:
            self._silent_s = 0.0
        self._beats = beats
        limit_s = self.plan.run.trainer.hang_timeout_s
        if self._silent_s > limit_s:
            self._hang_reason = (
                f"{self._heartbeat.behind()} hung: no heartbeat for {limit_s:g} s "
                f"(trainer.hang_timeout_s)"
            )
            self._send(signal.SIGKILL)

    def _summary(self) -> dict[str, Any]:
        """Read the ended run's summary, or write one with the reason where there is none. A run
        that was stopped in its start-up lost nothing."""
        has_lease = self._lease.beat()
        if has_lease:
            summary = read_json(self.plan.run_dir / SUMMARY)
            if summary is not None:
                return summary
        error = self._hang_reason or self._worker_reason or self._endings
        if not has_lease:
            error = lease.loss_line(self._stage.parent)
        has_failed = bool(self._hang_reason or self._worker_reason)
        status = RunStatus.preempted
        if has_failed or not self._stopping:
            status = RunStatus.failed
            self._log(error)
        return cut_short(
            self.plan.run,
            self.plan.run_dir,
            status=status,
            attempt_s=time.monotonic() - self._started,
            error=error,
            stage=self._stage,
        )

    def _log(self, text: str) -> None:
        """Print a line on stderr, or in the log of a quiet run."""
        log = self.plan.run_dir / "train.log"
        if self._quiet:
            with suppress(OSError):  # a full disk: the summary has it, or will not be there
                append_text(log, f"{text}\n")
            return
        line = f"nocap: {text}"
        if not self.refused:
            line = f"{line}; see {log}"
        print(line, file=sys.stderr, flush=True)


def _nonzero(codes: Sequence[int | None]) -> dict[int, int]:
    """Return rank → exit code of the workers that failed."""
    return {rank: code for rank, code in enumerate(codes) if code}
