"""Train a grid's cells, each by one process at a time. An executor takes a cell, its work is polled
and stopped; here is this machine's."""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import ClassVar

from tqdm import tqdm

from nocap.config import hardware
from nocap.config.outward import trusted
from nocap.config.run import Run
from nocap.config.trainer import Device
from nocap.display import shorten
from nocap.launch.attempt import Attempt, clean, hold
from nocap.launch.executor import Executor, Work
from nocap.launch.grid import Cell, Grid
from nocap.launch.plan import DAMAGED, RunResult, outcome, overruled
from nocap.launch.server import AVAILABLE, Server
from nocap.launch.signals import stop_handler
from nocap.store.files import append_text
from nocap.store.lease import HeldError
from nocap.store.record import ENDED, SUMMARY, read_json, read_rows
from nocap.training.terminal import left

# for each cell that another process is training, between looks at them: a thousand are no load on a
# file server
HELD_POLL_S = 0.5
REFRESH_S = 0.5  # between updates of the bar
TAIL_BYTES = 4096  # holds the last row of a run's metrics


def ended(cell: Cell) -> RunResult | None:
    """Return how some process has brought this run to its end."""
    if (summary := outcome(cell.plan)) is None:
        return None
    if summary["status"] != DAMAGED:
        clean(cell.plan)
    return RunResult(summary=summary)


def _left_by(cell: Cell, reason: str) -> RunResult:
    """Return how a cell ended that another machine trained, from its record; `reason`: why it has
    none."""
    if (result := ended(cell)) is not None:
        return replace(result, trained=True)
    try:
        summary = read_json(cell.plan.run_dir / SUMMARY) or {"status": "waiting", "error": reason}
    except ValueError as error:
        return _failed(error)
    # one that has ended is damaged, and the same command mends it
    status = "failed" if summary["status"] in ENDED else summary["status"]
    return RunResult(summary={**summary, "status": status}, trained=True)


def _failed(error: Exception) -> RunResult:
    return RunResult(summary={"status": "failed", "error": str(error)}, trained=True)


# --- this machine ---------------------------------------------------------------------------------


def _units() -> dict[Device, list[str]]:
    cores = (
        sorted(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else list(range(os.cpu_count() or 1))
    )
    gpus = len(hardware.cuda_devices())
    names = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    return {
        Device.cpu: [str(core) for core in cores],
        Device.cuda: names[:gpus] if names[0] else [str(gpu) for gpu in range(gpus)],
    }


@dataclass(kw_only=True)
class Devices(Executor):
    """A worker for each cell, on `trainer.devices` GPUs or `trainer.threads` × `trainer.devices`
    CPU cores; at most `jobs` cells."""

    jobs: int | None = None
    units: dict[Device, list[str]] = field(
        default_factory=_units
    )  # none: the whole machine for each
    attempts: list[Attempt] = field(default_factory=list)  # that were begun
    server: Server | None = field(default_factory=lambda: Server() if AVAILABLE else None)
    event: ClassVar[str] = "start"
    poll_s: ClassVar[float] = 0.03  # nothing beside a cell's seconds

    def _need(self, run: Run) -> int:
        t = run.trainer
        wanted = t.devices if t.device is Device.cuda else t.devices * t.threads
        return min(wanted, len(self.units[t.device]))  # more threads than cores: all cores

    def free(self, run: Run) -> list[str] | None:
        """Return what of this machine this run can have to itself. None: there is no room."""
        self.attempts = [attempt for attempt in self.attempts if not attempt.over]
        beside = [
            other for other in self.attempts if other.plan.run.trainer.device is run.trainer.device
        ]
        taken = {unit for other in beside for unit in other.units}
        free = [unit for unit in self.units[run.trainer.device] if unit not in taken]
        need = self._need(run)
        return None if len(self.attempts) == self.jobs or len(free) < need else free[:need]

    def at_once(self, run: Run) -> int:
        """Return how many runs like this one there is room for."""
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
            text += (
                f" (trainer.threads={t.threads}; trainer.threads=1 makes room for "
                f"{n // t.devices or 1})"
            )
        return "; ".join([text, *overruled(run)])

    def submit(self, cell: Cell) -> Work | RunResult | None:
        if (units := self.free(cell.plan.run)) is None:
            return None
        with ExitStack() as undo:
            lease = undo.enter_context(hold(cell.plan))
            if (result := ended(cell)) is not None:
                return result
            if self.server is None:
                note = "a process that imports torch itself: workers are forked on Linux only\n"
                append_text(cell.plan.run_dir / "train.log", note)
            attempt = Attempt(cell.plan, lease, quiet=True, units=units, server=self.server)
            attempt.start(time.monotonic())
            self.attempts.append(attempt)
            undo.pop_all()
            return attempt

    def close(self) -> None:
        if self.server is not None:
            self.server.close()


def one_at_a_time() -> Devices:
    return Devices(jobs=1, units={device: [] for device in Device})


# --- a grid ---------------------------------------------------------------------------------------


class Runner:
    def __init__(
        self,
        grid: Grid,
        executor: Executor,
        *,
        watch: Callable[[Cell, str], None] = lambda cell, status: None,
        more: Callable[[], Sequence[Cell]] = tuple,
        total: int = 0,
        fail_fast: bool = False,
        detach: bool = False,
    ) -> None:
        """`watch` is told of each cell how it ended. `more`: asked for cells beyond the grid's when
        those known have ended; with them there may be `total`. `fail_fast`: the first that fails
        stops the others. `detach`: leave the cluster once it has them."""
        self._executor, self._watch, self._fail_fast, self._detach = (
            executor,
            watch,
            fail_fast,
            detach,
        )
        self._more, self._total = more, total
        self.stopping = False  # whether a request to stop came
        self._cells = list(grid.cells)
        self._waiting, self._elsewhere = deque(self._cells), deque[Cell]()
        self._running: list[tuple[Cell, Work]] = []
        self._results: dict[str, RunResult] = {}
        self._elsewhere_until = self._drawn = 0.0
        # steps of the cells that ended here, and those that cells had when they began here
        self._done, self._before, self._began = 0, 0, time.monotonic()
        self._bar = tqdm(
            desc="steps of all cells",
            unit="step",
            disable=None,
            leave=False,
            file=trusted(sys.stdout),
        )  # on a terminal alone

    def run(self) -> dict[str, RunResult]:
        """Identity → how that cell ended."""
        with stop_handler(self._stop), self._bar:
            while self._running or (
                not self.stopping and (self._waiting or self._elsewhere or self._add(self._more()))
            ):
                self._start_what_fits()
                self.stopping = self.stopping or self._detach
                self._collect()
                if not self._bar.disable and time.monotonic() > self._drawn + REFRESH_S:
                    self._drawn = time.monotonic()
                    self._left()
                    self._bar.set_postfix_str(
                        shorten((cell.label for cell, _ in self._running), most=3)
                    )
                time.sleep(self._executor.poll_s if self._running or self._elsewhere else 0)
        for cell in (*self._waiting, *self._elsewhere):
            self._results[cell.plan.identity] = RunResult(
                summary={"status": "waiting", "error": "not started"}
            )
        return self._results

    def _stop(self, number: int) -> None:
        self.stopping = True

    def _start_what_fits(self) -> None:
        if not self._waiting and self._elsewhere and time.monotonic() >= self._elsewhere_until:
            self._waiting, self._elsewhere = self._elsewhere, deque()
        while self._waiting and not self.stopping:
            cell = self._waiting.popleft()
            try:
                work = ended(cell) or self._executor.submit(cell)
                if work is None:
                    self._waiting.appendleft(cell)
                    return
                if isinstance(work, RunResult):
                    self._results[cell.plan.identity] = work
                else:
                    self._running.append((cell, work))
                    self._before += last_step(cell)
                    # the bar names what has begun here
                    if self._bar.disable or self._executor.event != Devices.event:
                        self._log(cell, self._executor.event)
            except HeldError as error:
                self._leave(cell, str(error).partition("and ")[2])
            except (OSError, ValueError) as error:
                self._conclude(cell, _failed(error))

    def _add(self, cells: Sequence[Cell]) -> bool:
        self._cells.extend(cells)
        self._waiting.extend(cells)
        return bool(cells)

    def _leave(self, cell: Cell, why: str | None) -> None:
        """Come back later to a cell that another process trains."""
        if cell.plan.identity not in self._results:
            self._log(cell, "later", why)
            self._results[cell.plan.identity] = RunResult(summary={"status": "waiting"})
        self._elsewhere.append(cell)
        self._elsewhere_until = time.monotonic() + HELD_POLL_S * len(self._elsewhere)

    def _collect(self) -> None:
        for cell, work in list(self._running):
            if self.stopping:
                work.stop()
            try:
                result = work.poll()
            except (OSError, ValueError) as error:
                result = _failed(error)
            if result is None:
                continue
            self._running.remove((cell, work))
            if isinstance(result, RunResult) and result.taken_over:
                self._leave(cell, result.reason)
            else:
                self._conclude(cell, _left_by(cell, result) if isinstance(result, str) else result)

    def _conclude(self, cell: Cell, result: RunResult) -> None:
        self._results[cell.plan.identity] = result
        self._done += result.summary.get("steps") or 0
        event = {"finished": "done", "preempted": "saved"}.get(result.status, result.status)
        self._log(
            cell,
            event,
            _figures(result) if result.status == "finished" else result.reason,
            self._left(),
        )
        self._watch(cell, result.status)
        self.stopping = self.stopping or (self._fail_fast and result.status == "failed")

    def _left(self) -> str:
        """Return the time that is left at the pace so far. The bar gets the steps of all cells."""
        running = [cell for cell, _ in self._running]
        steps = self._done + sum(map(last_step, running))
        self._bar.n = steps
        todo = sum(
            cell.plan.run.trainer.steps for cell in (*running, *self._waiting, *self._elsewhere)
        )
        self._bar.total = self._done + todo
        return left(steps - self._before, self._bar.total - steps, time.monotonic() - self._began)

    def _log(self, cell: Cell, event: str, *more: str | None) -> None:
        place, n = self._cells.index(cell) + 1, max(self._total, len(self._cells))
        wide = max(len(each.label) for each in self._cells)
        self._bar.clear()
        print(
            "  ".join(
                [
                    f"[{place:>{len(str(n))}}/{n}] {event:<8} {cell.label:<{wide}}",
                    *filter(None, more),
                ]
            ).rstrip(),
            flush=True,
        )


def _figures(result: RunResult) -> str:
    """Return a finished run in half a line."""
    summary = result.summary
    parts = [f"val {summary['val_loss']:.4f}"] if summary.get("val_loss") is not None else []
    parts += [f"{summary['tokens_per_s']:,.0f} tokens/s"] if summary.get("tokens_per_s") else []
    return "  ".join([*parts, f"{summary['clock_s']['wall']:.1f} s"])


def last_step(cell: Cell) -> int:
    """Return the step of the last whole row; 0: there is none."""
    try:
        with (cell.plan.run_dir / "metrics.jsonl").open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - TAIL_BYTES))
            rows = read_rows(file.read().partition(b"\n")[2])
        return int(rows[-1]["step"]) if rows else 0
    except OSError:
        return 0
