"""The executor of this machine: a worker for each cell, on CPU cores or GPUs of its own."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import ClassVar

from nocap.config import hardware
from nocap.config.run import Run
from nocap.config.trainer import Device
from nocap.launch.attempt import Attempt, clean_if_ended, hold
from nocap.launch.executor import Executor, Work
from nocap.launch.first_screen import overruled
from nocap.launch.fork_server import AVAILABLE, ForkServer
from nocap.launch.grid import Cell
from nocap.launch.run_result import RunResult
from nocap.store.file_writing import append_text
from nocap.store.record_files import TRAIN_LOG


def _units() -> dict[Device, list[str]]:
    """List this machine's CPU cores by their numbers, and its GPUs as CUDA_VISIBLE_DEVICES names
    them."""
    cores = list(range(os.cpu_count() or 1))
    if hasattr(os, "sched_getaffinity"):
        cores = sorted(os.sched_getaffinity(0))
    n_gpus = len(hardware.cuda_devices())
    gpus = [str(gpu) for gpu in range(n_gpus)]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    if visible.split(",")[0]:
        gpus = visible.split(",")[:n_gpus]
    return {Device.cpu: [str(core) for core in cores], Device.cuda: gpus}


@dataclass(kw_only=True)
class ThisMachine(Executor):
    """A worker for each cell, on `trainer.devices` GPUs or `trainer.threads` × `trainer.devices`
    CPU cores; at most `jobs` cells."""

    jobs: int | None = None
    # none: the whole machine for each
    units: dict[Device, list[str]] = field(default_factory=_units)
    attempts: list[Attempt] = field(default_factory=list)  # that were begun
    server: ForkServer | None = field(default_factory=lambda: ForkServer() if AVAILABLE else None)
    event: ClassVar[str] = "start"
    is_here: ClassVar[bool] = True
    poll_s: ClassVar[float] = 0.03  # nothing beside a cell's seconds

    def _need(self, run: Run) -> int:
        """Count the units that a run takes: where it has more threads than there are cores, all
        cores."""
        trainer = run.trainer
        wanted = trainer.devices
        if trainer.device is not Device.cuda:
            wanted = trainer.devices * trainer.threads
        return min(wanted, len(self.units[trainer.device]))

    def free(self, run: Run) -> list[str] | None:
        """Return what of this machine this run can have to itself. None: there is no room."""
        running = self._running()
        busy = set[str]()
        for attempt in running:
            if attempt.plan.run.trainer.device is run.trainer.device:
                busy.update(attempt.units)
        free = [unit for unit in self.units[run.trainer.device] if unit not in busy]
        need = self._need(run)
        if len(running) == self.jobs or len(free) < need:
            return None
        return free[:need]

    def _running(self) -> list[Attempt]:
        """List the attempts that go on."""
        return [attempt for attempt in self.attempts if not attempt.over]

    def at_once(self, run: Run) -> int:
        """Return how many runs like this one there is room for."""
        limits = list[int]()
        need = self._need(run)
        if need:
            limits.append(len(self.units[run.trainer.device]) // need)
        if self.jobs:
            limits.append(self.jobs)
        return min(limits)

    def describe(self, runs: Sequence[Run]) -> str | None:
        run = min(runs, key=self.at_once)
        trainer = run.trainer
        n_units = len(self.units[trainer.device])
        if not n_units:
            return None
        n_at_once = self.at_once(run)
        unit = "GPU" if trainer.device is Device.cuda else "core"
        text = f"pool: {n_at_once} at once, {self._need(run)} of {n_units} {unit}s each"
        is_crowded = n_at_once == 1 and self.jobs != 1
        if trainer.device is Device.cpu and trainer.threads > 1 and is_crowded:
            room = n_units // trainer.devices or 1
            remedy = f"trainer.threads=1 makes room for {room}"
            text = f"{text} (trainer.threads={trainer.threads}; {remedy})"
        return "; ".join([text, *overruled(run)])

    def submit(self, cell: Cell) -> Work | RunResult | None:
        units = self.free(cell.plan.run)
        if units is None:
            return None
        with ExitStack() as undo:
            lease = undo.enter_context(hold(cell.plan))
            result = clean_if_ended(cell.plan)
            if result is not None:
                return result
            if self.server is None:
                note = "a process that imports torch itself: workers are forked on Linux only\n"
                append_text(cell.plan.run_dir / TRAIN_LOG, note)
            attempt = Attempt(cell.plan, lease, to_log=True, units=units, server=self.server)
            attempt.start_workers(time.monotonic())
            self.attempts = [*self._running(), attempt]
            undo.pop_all()
            return attempt

    def close(self) -> None:
        """End the server that forks workers."""
        if self.server is not None:
            self.server.close()


def one_at_a_time() -> ThisMachine:
    """Return this machine for one cell at a time, which has all of it."""
    return ThisMachine(jobs=1, units={device: [] for device in Device})
