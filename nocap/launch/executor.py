"""Where a grid's cells run: an executor takes a cell, and its work is polled and stopped. Here is the one of this machine."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import ClassVar, Protocol

from nocap.config import hardware
from nocap.config.run import Run
from nocap.config.trainer import Device
from nocap.launch.attempt import Attempt, Share, clean, hold
from nocap.launch.grid import Cell, Result
from nocap.launch.plan import DAMAGED, outcome
from nocap.store.lease import HeldError
from nocap.store.record import read_json
from nocap.store.verify import ENDED, SUMMARY


class Work(Protocol):
    """A cell that runs."""

    cell: Cell

    def poll(self) -> Result | None:
        """How it ended, once it has.

        Errors:
            HeldError: another process has taken it over.
        """

    def stop(self) -> None:
        """Ask it, once or again, to save and end."""


class Executor(Protocol):
    event: ClassVar[str]  # what is said of a cell that it has begun
    poll_s: ClassVar[float]

    def describe(self, runs: Sequence[Run]) -> str | None:
        """A line for the user about these runs, printed before the first of them."""

    def submit(self, cell: Cell, begun: Callable[[], None]) -> Work | Result | None:
        """Begin a cell, unless it has ended already. None: there is no room. `begun` is called before a worker on this machine starts.

        Errors:
            HeldError: another process trains it.
            OSError, ValueError: it cannot begin.
        """

    def close(self) -> None: ...


def ended(cell: Cell) -> Result | None:
    """How some process has brought this run to its end."""
    if (summary := outcome(cell.plan)) is None:
        return None
    if summary["status"] != DAMAGED:
        clean(cell.plan)
    return Result(summary=summary)


def left_by(cell: Cell, reason: str) -> Result:
    """How a cell ended that another machine trained, from its record; `reason`: why it has none."""
    if (result := ended(cell)) is not None:
        return replace(result, trained=True)
    try:
        summary = read_json(cell.plan.run_dir / SUMMARY) or {"status": "waiting", "error": reason}
    except ValueError as error:
        summary = {"status": "failed", "error": str(error)}
    if summary["status"] in ENDED:  # it is damaged, and the same command mends it
        summary["status"] = "failed"
    return Result(summary=summary, trained=True)


def last_words(printed: str | None) -> str | None:
    """The last line in which a job says what is wrong."""
    lines = re.findall(r"^nocap: (.*)", printed or "", re.MULTILINE)
    return str(lines[-1]) if lines else None


# --- this machine --------------------------------------------------------------------------------------------------------------------


def _units() -> dict[Device, list[str]]:
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
    gpus = len(hardware.cuda_devices())
    names = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    return {Device.cpu: [str(core) for core in cores], Device.cuda: names[:gpus] if names[0] else [str(gpu) for gpu in range(gpus)]}


@dataclass(kw_only=True)
class Devices:
    """A worker for each cell, on `trainer.devices` GPUs or `trainer.threads` × `trainer.devices` CPU cores; at most `jobs` cells."""

    jobs: int | None = None
    units: dict[Device, list[str]] = field(default_factory=_units)  # none: the whole machine for each
    running: int = 0
    event: ClassVar[str] = "start"
    poll_s: ClassVar[float] = 0.03  # nothing beside a cell's seconds

    def __post_init__(self) -> None:
        self._free = {device: list(units) for device, units in self.units.items()}

    def _need(self, run: Run) -> int:
        t = run.trainer
        wanted = t.devices if t.device is Device.cuda else t.devices * t.threads
        return min(wanted, len(self.units[t.device]))  # more threads than cores: all cores

    def take(self, run: Run) -> Share | None:
        """A share for this run. None while there is none."""
        free, need = self._free[run.trainer.device], self._need(run)
        if self.running == self.jobs or len(free) < need:
            return None
        self.running += 1
        share = Share(device=run.trainer.device, units=tuple(free[:need]))
        del free[:need]
        return share

    def give_back(self, share: Share) -> None:
        self.running -= 1
        self._free[share.device] += share.units

    def at_once(self, run: Run) -> int:
        """How many runs like this one there is room for."""
        need = self._need(run)
        fit = [len(self.units[run.trainer.device]) // need] if need else []
        return min([*fit, *([self.jobs] if self.jobs else [])])

    def describe(self, runs: Sequence[Run]) -> str | None:
        run = min(runs, key=self.at_once)
        t, n = run.trainer, len(self.units[run.trainer.device])
        if not n:
            return None
        kind = "GPU" if t.device is Device.cuda else "core"
        text = f"pool: {self.at_once(run)} at once, {self._need(run)} of {n} {kind}s each"
        if t.device is Device.cpu and t.threads > 1 and self.at_once(run) == 1 and self.jobs != 1:
            text += f" (trainer.threads={t.threads}; trainer.threads=1 makes room for {n // t.devices or 1})"
        return text

    def submit(self, cell: Cell, begun: Callable[[], None]) -> Work | Result | None:
        if (share := self.take(cell.plan.run)) is None:
            return None
        with ExitStack() as undo:
            undo.callback(self.give_back, share)
            lease = undo.enter_context(hold(cell.plan))
            if (result := ended(cell)) is not None:
                return result
            begun()
            attempt = Attempt(cell.plan, lease, started=time.monotonic(), quiet=True, share=share)
            return _Worker(cell=cell, attempt=attempt, undo=undo.pop_all())

    def close(self) -> None:
        pass


def one_at_a_time() -> Devices:
    return Devices(jobs=1, units={device: [] for device in Device})


@dataclass(kw_only=True, slots=True)
class _Worker:
    cell: Cell
    attempt: Attempt
    undo: ExitStack

    def poll(self) -> Result | None:
        if self.attempt.poll() is None:
            return None
        with self.undo:
            try:
                summary = self.attempt.summary()
            except (OSError, ValueError) as error:
                summary = {"status": "failed", "error": str(error)}
        if self.attempt.held.lost:
            raise HeldError(summary["error"])
        return Result(summary=summary, trained=True)

    def stop(self) -> None:
        self.attempt.stop()
