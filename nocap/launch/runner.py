"""Train a grid's cells: hand them to an executor, follow them and stop them, and print how far they
are."""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from nocap.config.outgoing_text import trusted
from nocap.display import shorten, time_left
from nocap.launch.attempt import clean, clean_if_ended
from nocap.launch.executor import Executor, JobEnd, Work
from nocap.launch.grid import Cell, Grid
from nocap.launch.run_result import RunResult
from nocap.launch.signals import stop_handler
from nocap.store.lease import HeldError
from nocap.store.record_files import ROWS, SUMMARY, RunStatus, read_json
from nocap.store.rows_file import read_rows

# for each cell that another process is training, between looks at them: a thousand are no load on a
# file server
HELD_POLL_S = 0.5
REFRESH_S = 0.5  # between updates of the bar
TAIL_BYTES = 4096  # holds the last row of a run's metrics
# other statuses name themselves
EVENTS = {RunStatus.finished: "done", RunStatus.preempted: "saved"}


def clean_ended(cells: Iterable[Cell]) -> dict[str, RunResult]:
    """Clean the folders of the cells that some process has brought to their end, and return
    identity → how that cell ended."""
    results = dict[str, RunResult]()
    for cell in cells:
        with suppress(OSError):  # the runner meets it again, and says so
            result = clean_if_ended(cell.plan)
            if result is not None:
                results[cell.plan.identity] = result
    return results


def _result_of(cell: Cell, job: JobEnd) -> RunResult:
    """Return from its record how a cell ended that another machine trained, and clean its
    folder."""
    end = cell.plan.end()
    if end.summary is not None:
        clean(cell.plan)
    result = end.result()
    if result is not None:
        return replace(result, trained=True)
    if end.damage is not None:  # the same command mends it
        return _failed(end.damage)
    try:
        summary = read_json(cell.plan.run_dir / SUMMARY)
        if not summary:
            return RunResult(status=RunStatus.waiting, reason=job.reason, trained=True)
        return RunResult.of(summary, trained=True)
    except ValueError as error:
        return _failed(error)


def _failed(error: Exception) -> RunResult:
    return RunResult(status=RunStatus.failed, reason=str(error), trained=True)


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
        of cells that have ended already, see `clean_ended`."""
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
                if self._running or self._elsewhere or self._waiting:
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
            work = clean_if_ended(cell.plan) or self._executor.submit(cell)
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
        # the bar names what runs here
        if self._bar.disable or not self._executor.is_here:
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
            if isinstance(result, JobEnd):
                result = _result_of(cell, result)
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
        self._bar.n = self._steps()
        self._bar.total = self._total_steps()
        labels = [cell.label for cell, _ in self._running]
        self._bar.set_postfix_str(shorten(labels, most=3))

    def _steps(self) -> int:
        """Return the steps that all cells have made."""
        return self._end_steps + sum(last_step(cell) for cell, _ in self._running)

    def _total_steps(self) -> int:
        """Return the steps that all cells have in the end."""
        running = [cell for cell, _ in self._running]
        unfinished = (*running, *self._waiting, *self._elsewhere)
        return self._end_steps + sum(cell.plan.run.trainer.steps for cell in unfinished)

    def _time_left(self) -> str:
        """Return the time that is left at the speed so far."""
        steps = self._steps()
        left = self._total_steps() - steps
        spent_s = time.monotonic() - self._start_time
        return time_left(steps - self._first_steps, left, spent_s)

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
        with (cell.plan.run_dir / ROWS).open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - TAIL_BYTES))
            rows = read_rows(file.read().partition(b"\n")[2])
    except OSError:
        return 0
    if not rows:
        return 0
    return int(rows[-1]["step"])
