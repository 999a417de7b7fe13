"""A planned run brought to an end: its lock, its worker, started again where one is lost, its summary. This side never imports torch."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import IO, Any

from nocap.config.compose import EXIT_CODES, LOST
from nocap.launch.plan import Plan, headline, nothing_to_train, outcome, write_record_head
from nocap.launch.signals import born_deaf, heard
from nocap.store import lock
from nocap.store.record import read_json
from nocap.training.heartbeat import Heartbeat
from nocap.training.summary import cut_short
from nocap.training.terminal import ending, table

LOOK_S = 0.2  # between looks at the heartbeats


def hold(plan: Plan, *, wait_s: float = 0.0) -> IO[str]:
    """Become the one process that trains this run, until the returned file is closed.

    Errors:
        lock.HeldError: another process is training it, and still is after `wait_s`.
    """
    plan.run_dir.mkdir(parents=True, exist_ok=True)
    return lock.acquire(plan.run_dir / ".lock", wait_s=wait_s)


def start(plan: Plan, *, started: float, wait_s: float = 0.0) -> int:
    """Train the run, or say that it is done; its exit code.

    Errors:
        ValueError: another process is training it, and still is after `wait_s`.
    """
    asked: list[int] = []
    if (summary := outcome(plan)) is None:
        with hold(plan, wait_s=wait_s):
            if (summary := outcome(plan)) is None:  # else its holder has brought it to its end
                code = _train(plan, started, asked)
    if summary is not None:
        print(f"{nothing_to_train(plan, summary)}\n{table(summary, run_dir=plan.run_dir)}", flush=True)
        return EXIT_CODES[summary["status"]]
    if code == EXIT_CODES["preempted"] and signal.SIGUSR2 in asked and callable(signal.getsignal(signal.SIGUSR2)):
        signal.raise_signal(signal.SIGUSR2)  # whoever listened before us, as submitit does, may now requeue the job
    return code


def _train(plan: Plan, started: float, asked: list[int]) -> int:
    """Start the worker, pass a request to stop on to it, wait for it. The numbers of the signals that came go into `asked`."""
    running: list[Attempt] = []

    def hear(number: int) -> None:
        asked.append(number)
        for attempt in running:
            attempt.stop()

    print("\n".join([*(f"note: {notice}" for notice in plan.notices), headline(plan)]), flush=True)
    with heard(hear):
        running.append(attempt := Attempt(plan, started=started))
        if asked:
            attempt.stop()
        code = attempt.wait()
    summary = attempt.summary()
    print(table(summary, run_dir=plan.run_dir), flush=True)
    return code if code == EXIT_CODES["refused"] else EXIT_CODES[summary["status"]]


class Attempt:
    """A run that this process holds: the head of its record, a worker, and in the end a summary.

    A worker or rank that dies, or gives no heartbeat for `trainer.hang_timeout_s`, is lost; the run then starts again from its last
    checkpoint, `trainer.max_restarts` times. One that ends with an error of its own would do so again: it is not started again.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        started: float,
        quiet: bool = False,
        env: Mapping[str, str] | None = None,
        born: Callable[[int], None] = lambda pid: None,
    ) -> None:
        """With `quiet`, its words are in `train.log` only. `env` goes before this process's environment, `born` hears of each worker."""
        self.plan, self._quiet, self._env, self._born = plan, quiet, env or {}, born
        self._stopping, self._restarts, self._hang = False, 0, ""
        self._begin(started)

    def _begin(self, started: float) -> None:
        run, run_dir, self._started, self._looked = self.plan.run, self.plan.run_dir, started, started
        write_record_head(self.plan)
        self._heartbeat = Heartbeat.create(run_dir, ranks=run.trainer.devices)
        whole = {
            **os.environ,
            "NOCAP_PARENT": str(os.getpid()),
            "NOCAP_STARTED": repr(started),
            "OMP_NUM_THREADS": str(run.trainer.threads),
        }
        whole.pop("HYDRA_FULL_ERROR", None)
        # A thread that waits for the others soon sleeps: libgomp's own long spin made a step tenfold slower beside other work (LOG.md).
        whole.setdefault("GOMP_SPINCOUNT", "1000")
        whole |= self._env
        command = [sys.executable, "-m", "nocap.launch.worker", str(run_dir)]
        with born_deaf():
            if self._quiet:
                with (run_dir / "train.log").open("a") as log:
                    self._worker = subprocess.Popen(command, env=whole, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log)
            else:
                self._worker = subprocess.Popen(command, env=whole)
        self._born(self._worker.pid)
        if self._stopping:  # asked while the worker of before was already dead
            self._worker.send_signal(signal.SIGTERM)

    def poll(self) -> int | None:
        """The worker's exit code once it has ended for good."""
        code = self._worker.poll()
        if code is None:
            self._look()
        elif self._lost(code) and self._restarts < (limit := self.plan.run.trainer.max_restarts):
            self._restarts += 1
            self._say(f"starting again from the last checkpoint ({self._restarts} of {limit})")
            self._begin(time.monotonic())
            return None
        return code

    def _lost(self, code: int) -> bool:
        """Whether a worker or rank was taken, with the run not at its end: the record says so, not the code alone."""
        return (code < 0 or code == LOST) and not self._stopping and self.summary()["status"] == "failed"

    def wait(self) -> int:
        while (code := self.poll()) is None:
            with suppress(subprocess.TimeoutExpired):
                self._worker.wait(timeout=LOOK_S)
        return code

    def stop(self) -> None:
        """Ask the worker, once, to save and stop. It decides when it has saved."""
        if not self._stopping:
            self._stopping = True
            self._worker.send_signal(signal.SIGTERM)

    def _look(self) -> None:
        """Kill a worker whose ranks give no heartbeat. Ranks die with their agent."""
        now, limit = time.monotonic(), self.plan.run.trainer.hang_timeout_s
        if now - self._looked < LOOK_S:
            return
        self._looked = now
        if self._heartbeat.silent_s() > limit:
            self._hang = f"{self._heartbeat.behind()} hung: no heartbeat for {limit:g} s (trainer.hang_timeout_s)"
            self._worker.kill()

    def summary(self) -> dict[str, Any]:
        """The ended worker's summary; if it died before it could write one, one that says so. Stopped in its start-up, it lost nothing."""
        run, run_dir = self.plan.run, self.plan.run_dir
        found = read_json(run_dir / "summary.json")
        if found is not None and not (self._hang and found["status"] == "failed"):
            return found
        error = self._hang or f"the worker ended with {ending(self._worker.wait())} {self._heartbeat.where(0)} and left no summary"
        if self._hang or not self._stopping:
            self._say(error)
        status, self._hang = "preempted" if self._stopping and not self._hang else "failed", ""
        return cut_short(run, run_dir, status=status, attempt_s=time.monotonic() - self._started, error=error)

    def _say(self, text: str) -> None:
        """On stderr, or where a quiet worker's words go."""
        log = self.plan.run_dir / "train.log"
        if self._quiet:
            with suppress(OSError), log.open("a") as file:  # a full disk: the summary has it, or will not be there
                file.write(f"{text}\n")
        else:
            print(f"nocap: {text}; see {log}", file=sys.stderr, flush=True)
