"""One start of a planned run: its lock, its worker, its summary. This side never imports torch."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import IO, Any

from nocap.launch.plan import Plan, headline, nothing_to_train, outcome, write_record_head
from nocap.launch.signals import born_deaf, heard
from nocap.run import lock
from nocap.run.config import EXIT_CODES
from nocap.run.record import Metrics, read_json, write_json
from nocap.run.summary import cut_short
from nocap.run.terminal import ending, table


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
        print(f"{nothing_to_train(summary)}\n{table(summary, run_dir=plan.run_dir)}", flush=True)
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

    print(headline(plan), flush=True)
    with heard(hear):
        running.append(attempt := Attempt(plan, started=started))
        if asked:
            attempt.stop()
        code = attempt.wait()
    summary = attempt.summary()
    print(table(summary, run_dir=plan.run_dir), flush=True)
    return code if code == EXIT_CODES["refused"] else EXIT_CODES[summary["status"]]


class Attempt:
    """One start of a run that this process holds: the head of its record, a worker, and in the end a summary."""

    def __init__(self, plan: Plan, *, started: float, quiet: bool = False, env: Mapping[str, str] | None = None) -> None:
        """With `quiet`, what the worker says is in `train.log` only. `env` goes before this process's environment."""
        self.plan, self._started, self._quiet, self._stopping = plan, started, quiet, False
        write_record_head(plan)
        threads = str(plan.run.trainer.threads)
        whole = {**os.environ, "NOCAP_PARENT": str(os.getpid()), "NOCAP_STARTED": repr(started), "OMP_NUM_THREADS": threads, **(env or {})}
        whole.pop("HYDRA_FULL_ERROR", None)
        # A thread that waits for the others soon sleeps: libgomp's own long spin made a step tenfold slower beside other work (LOG.md).
        whole.setdefault("GOMP_SPINCOUNT", "1000")
        command = [sys.executable, "-m", "nocap.launch.worker", str(plan.run_dir)]
        with born_deaf():
            if quiet:
                with (plan.run_dir / "train.log").open("a") as log:
                    self._worker = subprocess.Popen(command, env=whole, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log)
            else:
                self._worker = subprocess.Popen(command, env=whole)
        self.pid = self._worker.pid

    def poll(self) -> int | None:
        """The worker's exit code once it has ended."""
        return self._worker.poll()

    def wait(self) -> int:
        return self._worker.wait()

    def stop(self) -> None:
        """Ask the worker, once, to save and stop. It decides when it has saved."""
        if not self._stopping:
            self._stopping = True
            self._worker.send_signal(signal.SIGTERM)

    def summary(self) -> dict[str, Any]:
        """The ended worker's summary; if it died before it could write one, one that says so. Stopped in its start-up, it lost nothing."""
        if (summary := read_json(self.plan.run_dir / "summary.json")) is not None:
            return summary
        error = f"the worker ended with {ending(self.wait())} and left no summary"
        if not self._quiet and not self._stopping:
            print(f"nocap: {error}; see {self.plan.run_dir / 'train.log'}", file=sys.stderr)
        found = read_json(self.plan.run_dir / "manifest.json")
        assert found is not None
        rows, status = Metrics(self.plan.run_dir / "metrics.jsonl").rows(), "preempted" if self._stopping else "failed"
        spent_s = time.monotonic() - self._started
        summary = cut_short(self.plan.run, found, rows, status=status, attempt_s=spent_s, error=error)
        write_json(self.plan.run_dir / "summary.json", summary)
        return summary
