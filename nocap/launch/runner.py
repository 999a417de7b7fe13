"""Train a grid's cells on this machine: in order, as many at once as there is room for, each by one process at a time."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from nocap.config.outward import trusted, visible
from nocap.config.run import Run
from nocap.launch.attempt import Attempt, clean, hold
from nocap.launch.grid import Cell, Grid, Result
from nocap.launch.plan import DAMAGED, outcome
from nocap.launch.signals import stop_handler
from nocap.options.launcher import Share, Slots
from nocap.store.lease import HeldError
from nocap.store.record import read_rows

if TYPE_CHECKING:
    from rich.progress import TaskID

POLL_S = 0.03  # between looks at the running cells: nothing beside a cell's seconds
HELD_POLL_S = 0.5  # for each cell that another process is training, between looks at them: a thousand are no load on a file server
REFRESH_S = 0.5  # between updates of the bars
TAIL_BYTES = 4096  # holds the last row of a run's metrics


@dataclass(frozen=True, kw_only=True, slots=True)
class _Running:
    cell: Cell
    attempt: Attempt
    share: Share


class Runner:
    def __init__(
        self,
        grid: Grid,
        *,
        slots: Slots,
        watch: Callable[[Cell, str], None] = lambda cell, event: None,
        more: Callable[[], Sequence[Cell]] = tuple,
        total: int = 0,
    ) -> None:
        """`watch` is told of each cell that it is `begun`, before its worker starts, and then how it ended. `more`: asked for cells beyond
        the grid's while none waits and there is room for one; with them there may be `total`."""
        self._watch, self._more = watch, more
        self.stopping = False  # whether a request to stop came
        self._slots, self._progress = slots, Progress(grid, total=total)
        self._waiting, self._held = deque(grid.cells), deque[Cell]()
        self._running: list[_Running] = []
        self._results: dict[str, Result] = {}
        self._held_until = 0.0
        self._last: Run | None = None  # that was started

    def run(self) -> dict[str, Result]:
        """Identity → how that cell ended."""
        with stop_handler(self._stop):
            try:
                while self._running or (not self.stopping and (self._waiting or self._held or self._asked_for_more())):
                    if not self.stopping:
                        self._start_what_fits()
                    self._collect()
                    self._progress.update([running.cell for running in self._running])
                    time.sleep(POLL_S if self._running or self._held else 0)
            finally:
                self._progress.close()
        for cell in (*self._waiting, *self._held):
            self._results[cell.plan.identity] = Result(status="waiting", reason="not started")
        return self._results

    def _stop(self, number: int) -> None:
        self.stopping = True
        for running in self._running:
            running.attempt.stop()

    def _start_what_fits(self) -> None:
        if not self._waiting and self._held and time.monotonic() >= self._held_until:
            self._waiting, self._held = self._held, deque()
        while not self.stopping and (self._waiting or self._asked_for_more()):
            cell = self._waiting[0]
            if not self._ended(cell):
                if (share := self._slots.take(cell.plan.run)) is None:
                    return
                if not self._start(cell, share):
                    self._slots.give_back(share)
            self._waiting.popleft()

    def _asked_for_more(self) -> bool:
        """Whether there are cells beyond those known. The later they are asked for, the more is known to choose them by."""
        if self._last is not None:
            if (share := self._slots.take(self._last)) is None:
                return False
            self._slots.give_back(share)
        cells = self._more()
        self._waiting.extend(cells)
        self._progress.add(cells)
        return bool(cells)

    def _ended(self, cell: Cell) -> bool:
        """Whether some process has brought this run to its end."""
        summary = outcome(cell.plan)
        if summary is not None:
            if summary["status"] != DAMAGED:
                clean(cell.plan)
            self._results[cell.plan.identity] = Result(status=summary["status"], summary=summary, reason=summary.get("error"))
        return summary is not None

    def _start(self, cell: Cell, share: Share) -> bool:
        """Start a cell, unless another process holds it or has finished it meanwhile."""
        held = None
        try:
            held = hold(cell.plan)
            if not self._ended(cell):
                self._watch(cell, "begun")
                attempt = Attempt(cell.plan, held, started=time.monotonic(), quiet=True, env=share.env, on_worker=share.pin)
                self._running.append(_Running(cell=cell, attempt=attempt, share=share))
                if self.stopping:
                    attempt.stop()
                self._progress.started(cell)
                self._last = cell.plan.run
                return True
        except HeldError as error:
            self._leave(cell, str(error).partition("and ")[2])
        except (OSError, ValueError) as error:
            self._conclude(cell, Result(status="failed", trained=True, reason=str(error)))
        if held is not None:
            held.close()
        return False

    def _leave(self, cell: Cell, why: str) -> None:
        """Come back later to a cell that another process trains."""
        if cell.plan.identity not in self._results:
            self._progress.log(cell, "later", why)
            self._results[cell.plan.identity] = Result(status="waiting")
        self._held.append(cell)
        self._held_until = time.monotonic() + HELD_POLL_S * len(self._held)

    def _collect(self) -> None:
        for running in [running for running in self._running if running.attempt.poll() is not None]:
            self._running.remove(running)
            try:
                summary = running.attempt.summary()
                result = Result(status=summary["status"], trained=True, summary=summary, reason=summary.get("error"))
            except (OSError, ValueError) as error:
                result = Result(status="failed", trained=True, reason=str(error))
            running.attempt.held.close()
            self._slots.give_back(running.share)
            if running.attempt.held.lost:
                self._progress.closed(running.cell)
                self._leave(running.cell, str(result.reason))
            else:
                self._conclude(running.cell, result)

    def _conclude(self, cell: Cell, result: Result) -> None:
        self._results[cell.plan.identity] = result
        self._progress.ended(cell, result)
        self._watch(cell, result.status)


class Progress:
    """What a person sees: a line for each cell that starts or ends, and on a terminal, with `bars`, one for each cell that runs."""

    def __init__(self, grid: Grid, *, total: int = 0, bars: bool = True) -> None:
        self._place, self._total = dict[str, int](), total
        self.add(grid.cells)
        self._next, self._tasks = 0.0, dict[str, "TaskID"]()
        self._bars = None
        if bars and sys.stdout.isatty():
            from rich import progress
            from rich.console import Console

            columns = (progress.TextColumn("{task.description}"), progress.BarColumn(), progress.MofNCompleteColumn())
            clocks = (progress.TimeElapsedColumn(), progress.TimeRemainingColumn())
            screen = Console(file=trusted(sys.stdout))
            self._bars = progress.Progress(*columns, *clocks, console=screen, auto_refresh=False, transient=True, speed_estimate_period=1e9)
            steps = sum(cell.plan.run.trainer.steps for cell in grid.cells if outcome(cell.plan) is None)
            self._all, self._done = self._bars.add_task("all cells", total=None if total else steps), 0
            self._bars.start()

    def add(self, cells: Sequence[Cell]) -> None:
        for cell in cells:
            self._place.setdefault(cell.plan.identity, len(self._place) + 1)

    def log(self, cell: Cell, event: str, more: str | None = None) -> None:
        n = max(len(self._place), self._total)
        place = f"{self._place[cell.plan.identity]:>{len(str(n))}}/{n}"
        line = "  ".join([f"[{place}] {event:<8} {cell.label}", *([more] if more else [])])
        if self._bars:
            self._bars.console.print(visible(line), markup=False, highlight=False, soft_wrap=True)
        else:
            print(line, flush=True)

    def started(self, cell: Cell) -> None:
        if self._bars:
            self._tasks[cell.plan.identity] = self._bars.add_task(cell.label, total=cell.plan.run.trainer.steps)
        else:
            self.log(cell, "start")

    def closed(self, cell: Cell) -> bool:
        """Take away the cell's bar, if it has one."""
        if found := self._bars is not None and cell.plan.identity in self._tasks:
            self._bars.remove_task(self._tasks.pop(cell.plan.identity))
        return found

    def ended(self, cell: Cell, result: Result) -> None:
        if self.closed(cell):
            self._done += cell.plan.run.trainer.steps
        event = {"finished": "done", "preempted": "saved"}.get(result.status, result.status)
        self.log(cell, event, _figures(result) if result.status == "finished" else result.reason)

    def update(self, cells: Sequence[Cell]) -> None:
        """Move the bars of these running cells."""
        if self._bars is None or time.monotonic() < self._next:
            return
        self._next = time.monotonic() + REFRESH_S
        steps = {cell.plan.identity: last_step(cell.plan.run_dir) for cell in cells}
        for identity, step in steps.items():
            self._bars.update(self._tasks[identity], completed=step)
        self._bars.update(self._all, completed=self._done + sum(steps.values()))
        self._bars.refresh()

    def close(self) -> None:
        if self._bars:
            self._bars.stop()


def _figures(result: Result) -> str:
    """A finished run in half a line."""
    if (summary := result.summary) is None:
        return ""
    parts = [f"val {summary['val_loss']:.4f}"] if summary.get("val_loss") is not None else []
    parts += [f"{summary['tokens_per_s']:,.0f} tokens/s"] if summary.get("tokens_per_s") else []
    return "  ".join([*parts, f"{summary['clock_s']['wall']:.1f} s"])


def last_step(run_dir: Path) -> int:
    """The step of the last whole row; 0: there is none."""
    try:
        with (run_dir / "metrics.jsonl").open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - TAIL_BYTES))
            rows, _ = read_rows(file.read().partition(b"\n")[2])
        return int(rows[-1]["step"]) if rows else 0
    except OSError:
        return 0
