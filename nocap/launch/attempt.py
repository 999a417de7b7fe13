"""A planned run brought to its end: its lease, its worker, restarts of a lost worker, its summary.
No torch here."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Any

from nocap.config.errors import EXIT_CODES
from nocap.launch.executor import GOES_ON
from nocap.launch.first_screen import headline, nothing_to_train
from nocap.launch.fork_server import ForkServer
from nocap.launch.leftovers import leftovers, surplus_checkpoints
from nocap.launch.plan import Plan
from nocap.launch.record_head import write_record_head
from nocap.launch.run_result import RunResult
from nocap.launch.run_table import table
from nocap.launch.signals import stop_handler
from nocap.launch.workers import Workers, WorkersEnd
from nocap.store import lease
from nocap.store.file_writing import append_text, delete
from nocap.store.record_files import ENDED, SUMMARY, TRAIN_LOG, RunStatus, read_json
from nocap.training.summary import cut_short

WAIT_S = 0.03  # between looks at whether a worker has ended


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


def clean_if_ended(plan: Plan) -> RunResult | None:
    """Clean the folder of a run that some process has brought to its end, and return how it ended;
    None: it has not. The folder of a damaged run stays as it is."""
    end = plan.end()
    if end.summary is not None:
        clean(plan)
    return end.result()


def run_and_report(plan: Plan, *, started: float, wait_s: float = 0.0) -> int:
    """Bring a run to its end, report it on stdout, and return the command's exit code.

    Errors:
        ValueError: as for `bring_to_end`.
    """
    result = bring_to_end(
        plan, started=started, wait_s=wait_s, log=lambda line: print(line, flush=True)
    )
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
    from nocap.launch.upload import send_run

    try:
        session = send_run(plan.run_dir, plan.run.tracker)
        print(f"tracker: {session.url_or_hint}", flush=True)
    except (OSError, ValueError) as error:
        print(f"nocap: not sent: {error}", file=sys.stderr, flush=True)


def bring_to_end(
    plan: Plan,
    *,
    started: float,
    log: Callable[[str], None],
    wait_s: float = 0.0,
    to_log: bool = False,
) -> RunResult:
    """Train the run, unless it has come to its end already. `started` is a `time.monotonic()`. With
    `to_log`, output goes to `train.log`.

    A request to stop is passed on to the worker. Main thread only. The status is `refused` where
    the worker found bad input.

    Errors:
        ValueError: another process is training it, and still is after `wait_s` seconds.
    """
    summary = plan.end().believe()
    if summary is not None:
        clean(plan)
        return RunResult.of(summary)
    with hold(plan, wait_s=wait_s) as run_lease:
        summary = plan.end().believe()
        if summary is not None:  # its holder has brought it to its end
            return RunResult.of(summary)
        log(headline(plan))
        attempt = Attempt(plan, run_lease, to_log=to_log)
        signals = list[int]()

        def stop(number: int) -> None:
            signals.append(number)
            attempt.stop()

        with stop_handler(stop):
            attempt.start_workers(started)
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
        to_log: bool = False,
        units: Sequence[str] = (),
        server: ForkServer | None = None,
    ) -> None:
        """Prepare an attempt, whose output goes to `train.log` only with `to_log`. `units`:
        GPUs as CUDA_VISIBLE_DEVICES names them, or numbers of CPU cores, that it has to itself;
        none: all of the machine. `server`: forks the workers of such a run; without one each is a
        fresh process."""
        self.plan = plan
        self.units = units
        self.over = False
        self.refused = False
        self._lease = run_lease
        self._to_log = to_log
        self._server = server if to_log else None
        self._stopping = False
        self._restarts = 0
        self._workers: Workers | None = None  # not yet started

    def start_workers(self, started: float) -> None:
        """Write the head of the record, and start the workers. `started` is a
        `time.monotonic()`."""
        stage = self._lease.stage()
        write_record_head(self.plan, stage)
        self._workers = Workers(
            self.plan,
            stage,
            started=started,
            to_log=self._to_log,
            units=self.units,
            server=self._server,
        )
        if self._stopping:  # the request came before these workers were there
            self._workers.send(signal.SIGTERM)

    def poll(self) -> RunResult | None:
        """Return how the run ended, once its workers have ended for good. Then its lease is given
        back.

        Errors:
            OSError, ValueError: its record cannot be read, or its workers cannot be started again.
        """
        workers = self._workers
        assert workers is not None
        codes = workers.codes()
        if None in codes:
            self._watch(workers, codes)
            return None
        self.over = True
        with ExitStack() as undo:
            undo.enter_context(self._lease)
            end = workers.end([code for code in codes if code is not None], stopping=self._stopping)
            self.refused = end.is_refused
            summary = self._read_or_write_summary(workers, end)
            # whether a worker was killed before the run's end: the record decides, not the code
            # alone
            was_killed = end.code < 0 and summary["status"] == RunStatus.failed
            limit = self.plan.run.trainer.max_restarts
            may_restart = not self._stopping and not self._lease.lost and self._restarts < limit
            if was_killed and may_restart:
                self._restarts += 1
                self._log(f"starting again from the last checkpoint ({self._restarts} of {limit})")
                self.start_workers(time.monotonic())
                self.over = False
                undo.pop_all()
                return None
            if summary["status"] in ENDED and not self._lease.lost:
                with suppress(OSError):  # another look at the run tries it again
                    delete(surplus_checkpoints(self.plan))
        result = RunResult.of(summary, trained=True)
        return replace(result, taken_over=self._lease.lost)

    def _watch(self, workers: Workers, codes: Sequence[int | None]) -> None:
        """Kill workers that hang, that have lost one of them, or that train what another process
        trains now. `codes`: of those that have ended."""
        if self._lease.lost:
            workers.send(signal.SIGKILL)
        else:
            workers.kill_if_hung()
        if any(codes):
            workers.end_others(codes)

    def wait(self) -> RunResult:
        """Wait for the run's end, and return it."""
        while True:
            result = self.poll()
            if result is not None:
                return result
            time.sleep(WAIT_S)

    def stop(self) -> None:
        """Ask the workers, once, to save and stop."""
        if self._stopping:
            return
        self._stopping = True
        if self._workers is not None:
            self._workers.send(signal.SIGTERM)

    def _read_or_write_summary(self, workers: Workers, end: WorkersEnd) -> dict[str, Any]:
        """Read the ended run's summary, or write one with the reason where there is none. A run
        that was stopped in its start-up lost nothing."""
        has_lease = self._lease.beat()
        if has_lease:
            summary = read_json(self.plan.run_dir / SUMMARY)
            if summary is not None:
                return summary
        error = end.reason
        if not has_lease:
            error = lease.loss_line(self._lease.claim)
        status = RunStatus.preempted
        if end.failure or not self._stopping:
            status = RunStatus.failed
            self._log(error)
        return cut_short(
            self.plan.run,
            self.plan.run_dir,
            status=status,
            attempt_s=time.monotonic() - workers.started,
            error=error,
            stage=workers.stage,
        )

    def _log(self, text: str) -> None:
        """Print a line on stderr, or in the log of a run whose output goes there."""
        log = self.plan.run_dir / TRAIN_LOG
        if self._to_log:
            with suppress(OSError):  # a full disk: the summary has it, or will not be there
                append_text(log, f"{text}\n")
            return
        line = f"nocap: {text}"
        if not self.refused:
            line = f"{line}; see {log}"
        print(line, file=sys.stderr, flush=True)
