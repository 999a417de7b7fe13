"""Train a grid's cells, each by one process at a time. An executor takes a cell, its work is polled
and stopped; here is this machine's."""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from typing import ClassVar

from nocap.config import hardware
from nocap.config.outward import trusted
from nocap.config.run import Run
from nocap.config.trainer import Device
from nocap.display import shorten, time_left
from nocap.launch.attempt import Attempt, clean, hold
from nocap.launch.executor import Executor, Work
from nocap.launch.first_screen import overruled
from nocap.launch.fork_server import AVAILABLE, ForkServer
from nocap.launch.grid import Cell, Grid
from nocap.launch.run_folder import outcome
from nocap.launch.run_result import RunResult
from nocap.launch.signals import stop_handler
from nocap.store.file_writing import append_text
from nocap.store.lease import HeldError
from nocap.store.record_files import ENDED, SUMMARY, RunStatus, read_json, read_rows

# for each cell that another process is training, between looks at them: a thousand are no load on a
# file server
HELD_POLL_S = 0.5
REFRESH_S = 0.5  # between updates of the bar
TAIL_BYTES = 4096  # holds the last row of a run's metrics
# other statuses name themselves
EVENTS = {RunStatus.finished: "done", RunStatus.preempted: "saved"}


def ended(cell: Cell) -> RunResult | None:
    """Return how some process has brought this run to its end."""
    result = outcome(cell.plan)
    if result is not None and result.status is not RunStatus.damaged:
        clean(cell.plan)
    return result


def ended_before(cells: Iterable[Cell]) -> dict[str, RunResult]:
    """Return identity → how that cell ended, of those that some process has brought to their
    end."""
    results = dict[str, RunResult]()
    for cell in cells:
        with suppress(OSError):  # the runner meets it again, and says so
            result = ended(cell)
            if result is not None:
                results[cell.plan.identity] = result
    return results


def _result_elsewhere(cell: Cell, *, reason: str) -> RunResult:
    """Return how a cell ended that another machine trained, from its record; `reason`: why it has
    none."""
    result = ended(cell)
    if result is not None:
        return replace(result, trained=True)
    try:
        summary = read_json(cell.plan.run_dir / SUMMARY)
        if not summary:
            return RunResult(status=RunStatus.waiting, reason=reason, trained=True)
        result = RunResult.of(summary, trained=True)
    except ValueError as error:
        return _failed(error)
    if result.status in ENDED:  # it is damaged, and the same command mends it
        return replace(result, status=RunStatus.failed)
    return result


def _failed(error: Exception) -> RunResult:
    return RunResult(status=RunStatus.failed, reason=str(error), trained=True)


# --- this machine ---------------------------------------------------------------------------------


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
class Devices(Executor):
    """A worker for each cell, on `trainer.devices` GPUs or `trainer.threads` × `trainer.devices`
    CPU cores; at most `jobs` cells."""

    jobs: int | None = None
    # none: the whole machine for each
    units: dict[Device, list[str]] = field(default_factory=_units)
    attempts: list[Attempt] = field(default_factory=list)  # that were begun
    server: ForkServer | None = field(default_factory=lambda: ForkServer() if AVAILABLE else None)
    event: ClassVar[str] = "start"
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
        self.attempts = [attempt for attempt in self.attempts if not attempt.over]
        busy = set[str]()
        for attempt in self.attempts:
            if attempt.plan.run.trainer.device is run.trainer.device:
                busy.update(attempt.units)
        free = [unit for unit in self.units[run.trainer.device] if unit not in busy]
        need = self._need(run)
        if len(self.attempts) == self.jobs or len(free) < need:
            return None
        return free[:need]

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
            result = ended(cell)
            if result is not None:
                return result
            if self.server is None:
                note = "a process that imports torch itself: workers are forked on Linux only\n"
                append_text(cell.plan.run_dir / "train.log", note)
            attempt = Attempt(cell.plan, lease, quiet=True, units=units, server=self.server)
            attempt.start_workers(time.monotonic())
            self.attempts.append(attempt)
            undo.pop_all()
            return attempt

    def close(self) -> None:
        if self.server is not None:
            self.server.close()


def one_at_a_time() -> Devices:
    """Return this machine for one cell at a time, which has all of it."""
    return Devices(jobs=1, units={device: [] for device in Device})


# --- a grid ---------------------------------------------------------------------------------------


class Runner:
    """Carries out the cells of a grid, and tells a terminal how far it is."""

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
        results: Mapping[str, RunResult] | None = None,
    ) -> None:
        """Prepare to run. `watch` gets each cell with how it ended. `more`: returns cells beyond
        the grid's when those known have ended; with them there may be `total`. `fail_fast`: the
        first that fails stops the others. `detach`: leave the cluster once it has them. `results`:
        of cells that have ended already, see `ended_before`."""
        # a fiftieth of a second, which a grid that has ended need not pay
        from tqdm import tqdm

        self.stopping = False  # whether a request to stop came
        self._executor = executor
        self._watch = watch
        self._more = more
        self._total = total
        self._fail_fast = fail_fast
        self._detach = detach
        self._cells = list(grid.cells)
        self._results = dict(results or {})
        todo = [cell for cell in self._cells if cell.plan.identity not in self._results]
        self._waiting = deque(todo)
        self._elsewhere = deque[Cell]()  # that other processes train
        self._elsewhere_until = 0.0  # when they are looked at again
        self._running: list[tuple[Cell, Work]] = []
        self._end_steps = 0  # of the cells that ended here, all that they have
        self._first_steps = 0  # that cells had when they began here
        self._start_time = time.monotonic()
        self._draw_time = 0.0  # of the bar, the last
        self._bar = tqdm(
            desc="steps of all cells",
            unit="step",
            disable=None,  # but on a terminal
            leave=False,
            file=trusted(sys.stdout),
        )

    def run(self) -> dict[str, RunResult]:
        """Return identity → how that cell ended, once all have, or a request to stop came."""
        with stop_handler(self._stop), self._bar:
            while self._has_work():
                self._start_what_fits()
                self.stopping = self.stopping or self._detach
                self._collect()
                self._draw()
                if self._running or self._elsewhere:
                    time.sleep(self._executor.poll_s)
        not_started = RunResult(status=RunStatus.waiting, reason="not started")
        for cell in (*self._waiting, *self._elsewhere):
            self._results[cell.plan.identity] = not_started
        return self._results

    def _stop(self, number: int) -> None:
        self.stopping = True

    def _has_work(self) -> bool:
        """Say whether a cell runs or can begin; where none of those known can, ask for more."""
        if self._running:
            return True
        if self.stopping:
            return False
        if self._waiting or self._elsewhere:
            return True
        cells = self._more()
        self._cells.extend(cells)
        self._waiting.extend(cells)
        return bool(cells)

    # --- cells begin and end

    def _start_what_fits(self) -> None:
        """Begin cells, in their order, as long as there is room."""
        if not self._waiting and self._elsewhere and time.monotonic() >= self._elsewhere_until:
            self._waiting = self._elsewhere
            self._elsewhere = deque()
        while self._waiting and not self.stopping:
            cell = self._waiting.popleft()
            if not self._start(cell):
                self._waiting.appendleft(cell)
                return

    def _start(self, cell: Cell) -> bool:
        """Begin a cell, unless it has ended already, and say whether there was room."""
        try:
            work = ended(cell) or self._executor.submit(cell)
        except HeldError as error:
            self._put_off(cell, error.reason)
            return True
        except (OSError, ValueError) as error:
            self._conclude(cell, _failed(error))
            return True
        if work is None:
            return False
        if isinstance(work, RunResult):
            self._results[cell.plan.identity] = work
            return True
        self._running.append((cell, work))
        self._first_steps += last_step(cell)
        # the bar names what has begun here
        if self._bar.disable or self._executor.event != Devices.event:
            self._log(cell, self._executor.event)
        return True

    def _put_off(self, cell: Cell, reason: str | None) -> None:
        """Come back later to a cell that another process trains."""
        if cell.plan.identity not in self._results:
            self._log(cell, "later", reason)
            self._results[cell.plan.identity] = RunResult(status=RunStatus.waiting)
        self._elsewhere.append(cell)
        self._elsewhere_until = time.monotonic() + HELD_POLL_S * len(self._elsewhere)

    def _collect(self) -> None:
        """Take the results of cells that have ended."""
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
            if isinstance(result, str):
                result = _result_elsewhere(cell, reason=result)
            if result.taken_over:
                self._put_off(cell, result.reason)
            else:
                self._conclude(cell, result)

    def _conclude(self, cell: Cell, result: RunResult) -> None:
        """Note and print how a cell ended."""
        self._results[cell.plan.identity] = result
        self._end_steps += result.summary.get("steps") or 0
        about = result.reason
        if result.status is RunStatus.finished:
            about = _figures(result)
        event = EVENTS.get(result.status, result.status)
        self._log(cell, event, about, self._time_left())
        self._watch(cell, result.status)
        if self._fail_fast and result.status is RunStatus.failed:
            self.stopping = True

    # --- what a terminal shows

    def _draw(self) -> None:
        """Draw the bar again, where the last time is long ago."""
        if self._bar.disable or time.monotonic() <= self._draw_time + REFRESH_S:
            return
        self._draw_time = time.monotonic()
        self._time_left()
        labels = [cell.label for cell, _ in self._running]
        self._bar.set_postfix_str(shorten(labels, most=3))

    def _time_left(self) -> str:
        """Return the time that is left at the speed so far. The bar gets the steps of all cells."""
        running = [cell for cell, _ in self._running]
        steps = self._end_steps + sum(map(last_step, running))
        unfinished = (*running, *self._waiting, *self._elsewhere)
        total = self._end_steps + sum(cell.plan.run.trainer.steps for cell in unfinished)
        self._bar.n = steps
        self._bar.total = total
        spent_s = time.monotonic() - self._start_time
        return time_left(steps - self._first_steps, total - steps, spent_s)

    def _log(self, cell: Cell, event: str, *more: str | None) -> None:
        """Print a line about a cell."""
        number = self._cells.index(cell) + 1
        n = max(self._total, len(self._cells))
        width = max(len(each.label) for each in self._cells)
        head = f"[{number:>{len(str(n))}}/{n}] {event:<8} {cell.label:<{width}}"
        self._bar.clear()
        print("  ".join([head, *filter(None, more)]).rstrip(), flush=True)


def _figures(result: RunResult) -> str:
    """Return a finished run in half a line."""
    summary = result.summary
    parts = list[str]()
    if summary.get("val_loss") is not None:
        parts.append(f"val {summary['val_loss']:.4f}")
    if summary.get("tokens_per_s"):
        parts.append(f"{summary['tokens_per_s']:,.0f} tokens/s")
    parts.append(f"{summary['clock_s']['wall']:.1f} s")
    return "  ".join(parts)


def last_step(cell: Cell) -> int:
    """Return the step of the last whole row; 0: there is none."""
    try:
        with (cell.plan.run_dir / "metrics.jsonl").open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - TAIL_BYTES))
            rows = read_rows(file.read().partition(b"\n")[2])
    except OSError:
        return 0
    if not rows:
        return 0
    return int(rows[-1]["step"])
