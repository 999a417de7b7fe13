"""Train a grid's cells: here, in order and as many at once as there is room for, or as a cluster's jobs; each by one process at a time."""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from nocap import outside
from nocap.config.outward import trusted, visible
from nocap.config.run import Run
from nocap.launch.attempt import Attempt, clean, hold
from nocap.launch.cell import CellJob
from nocap.launch.grid import Cell, Grid, Result
from nocap.launch.plan import DAMAGED, outcome
from nocap.launch.signals import stop_handler
from nocap.options.launcher import Cluster, Handle, Job, Slots
from nocap.store.lease import HeldError
from nocap.store.record import ENDED, SUMMARY, read_json, read_rows

if TYPE_CHECKING:
    from rich.progress import TaskID

HELD_POLL_S = 0.5  # for each cell that another process is training, between looks at them: a thousand are no load on a file server
REFRESH_S = 0.5  # between updates of the bars
TAIL_BYTES = 4096  # holds the last row of a run's metrics
JOBS = "jobs"  # in a grid's folder: what its jobs print
PASSED_ON = (outside.VARIABLE, "NOCAP_CACHE", "PYTHONPATH")  # no secrets: a cluster shows what it is given


def ended(cell: Cell) -> Result | None:
    """How some process has brought this run to its end."""
    if (summary := outcome(cell.plan)) is None:
        return None
    if summary["status"] != DAMAGED:
        clean(cell.plan)
    return Result(status=summary["status"], summary=summary, reason=summary.get("error"))


class Work(Protocol):
    """A cell that runs."""

    cell: Cell

    def poll(self) -> Result | None:
        """How it ended, once it has.

        Errors:
            HeldError: another process has taken it over.
        """

    def stop(self) -> None: ...


class Executor(Protocol):
    event: str  # what is said of a cell that it has begun
    poll_s: float

    def submit(self, cell: Cell) -> Work | Result | None:
        """Begin a cell, unless it has ended already. None: there is no room.

        Errors:
            HeldError: another process trains it.
            OSError, ValueError: it cannot begin.
        """


@dataclass(kw_only=True, slots=True)
class Here:
    """A worker for each cell, on a share of this machine."""

    slots: Slots
    watch: Callable[[Cell, str], None]
    event: str = "start"
    poll_s: float = 0.03  # nothing beside a cell's seconds

    def room(self, run: Run) -> bool:
        if (share := self.slots.take(run)) is not None:
            self.slots.give_back(share)
        return share is not None

    def submit(self, cell: Cell) -> Work | Result | None:
        if (share := self.slots.take(cell.plan.run)) is None:
            return None
        with ExitStack() as undo:
            undo.callback(self.slots.give_back, share)
            lease = undo.enter_context(hold(cell.plan))
            if (result := ended(cell)) is not None:
                return result
            self.watch(cell, "begun")
            attempt = Attempt(cell.plan, lease, started=time.monotonic(), quiet=True, env=share.env, on_worker=share.pin)
            return _Worker(cell=cell, attempt=attempt, undo=undo.pop_all())


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
                result = Result(status=summary["status"], trained=True, summary=summary, reason=summary.get("error"))
            except (OSError, ValueError) as error:
                result = Result(status="failed", trained=True, reason=str(error))
        if self.attempt.held.lost:
            raise HeldError(str(result.reason))
        return result

    def stop(self) -> None:
        self.attempt.stop()


@dataclass(kw_only=True, slots=True)
class There:
    """A job of a cluster for each cell. One whose machine was lost goes on on another."""

    cluster: Cluster
    folder: Path
    log: Callable[[Cell, str, str], None]
    event: str = "sent"
    poll_s: float = 0.5

    def submit(self, cell: Cell) -> Work:
        (logs := self.folder / JOBS).mkdir(exist_ok=True)
        key = cell.plan.identity
        job = Job(
            key=key,
            run=cell.plan.run,
            train=CellJob(str(self.folder), key),
            words=("-m", "nocap.launch.cell", str(self.folder), key),
            env={name: os.environ[name] for name in PASSED_ON if name in os.environ},
            log=logs / f"{key}.log",
        )
        return _Sent(cell=cell, to=self, job=job, handle=self.cluster.submit(job))


@dataclass(kw_only=True, slots=True)
class _Sent:
    cell: Cell
    to: There
    job: Job
    handle: Handle
    losses: int = 0
    stopping: bool = False
    told: bool = False

    def poll(self) -> Result | None:
        if self.stopping and not self.told:
            self.told = True
            self.handle.stop()
        if (end := self.handle.poll()) is None:
            return None
        if end.lost and not self.stopping and self.losses < self.to.cluster.restarts:
            self.losses += 1
            self.to.log(self.cell, "lost", f"{end.reason}; goes on elsewhere ({self.losses} of {self.to.cluster.restarts})")
            self.handle = self.to.cluster.submit(self.job)
            return None
        return left_by(self.cell, end.reason or f"see {self.job.log.parent}")

    def stop(self) -> None:
        self.stopping = True  # it is told at the next look: this may be a signal's handler


def left_by(cell: Cell, reason: str) -> Result:
    """How a cell ended that another machine trained, from its record; `reason`: why it has none."""
    if (result := ended(cell)) is not None:
        return replace(result, trained=True)
    try:
        summary = read_json(cell.plan.run_dir / SUMMARY) or {"status": "waiting", "error": reason}
    except ValueError as error:
        summary = {"status": "failed", "error": str(error)}
    status = "failed" if summary["status"] in ENDED else summary["status"]  # it is damaged, and the same command mends it
    return Result(status=status, trained=True, summary=summary, reason=summary.get("error"))


class Runner:
    def __init__(
        self,
        grid: Grid,
        *,
        slots: Slots | None = None,
        cluster: Cluster | None = None,
        watch: Callable[[Cell, str], None] = lambda cell, event: None,
        more: Callable[[], Sequence[Cell]] = tuple,
        total: int = 0,
        fail_fast: bool = False,
        detach: bool = False,
    ) -> None:
        """On `slots` of this machine, or as jobs of a `cluster`. `watch` is told of each cell that it is `begun`, before its worker starts,
        and then how it ended. `more`: asked for cells beyond the grid's while none waits and there is room for one; with them there may be
        `total`. `fail_fast`: the first that fails stops the others. `detach`: leave the cluster once it has them."""
        self._watch, self._more, self._fail_fast, self._detach = watch, more, fail_fast, detach
        self.stopping = False  # whether a request to stop came
        self._progress = Progress(grid, total=total, bars=cluster is None)
        self._executor: Executor
        if cluster is None:
            assert slots is not None
            self._executor = Here(slots=slots, watch=watch)
        else:
            self._executor = There(cluster=cluster, folder=grid.folder, log=self._progress.log)
        self._waiting, self._held = deque(grid.cells), deque[Cell]()
        self._running: list[Work] = []
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
                    if self._detach and not self.stopping:
                        self._stop(0)
                    self._collect()
                    self._progress.update([work.cell for work in self._running])
                    time.sleep(self._executor.poll_s if self._running or self._held else 0)
            finally:
                self._progress.close()
        for cell in (*self._waiting, *self._held):
            self._results[cell.plan.identity] = Result(status="waiting", reason="not started")
        return self._results

    def _stop(self, number: int) -> None:
        self.stopping = True
        for work in self._running:
            work.stop()

    def _start_what_fits(self) -> None:
        if not self._waiting and self._held and time.monotonic() >= self._held_until:
            self._waiting, self._held = self._held, deque()
        while not self.stopping and (self._waiting or self._asked_for_more()):
            cell = self._waiting[0]
            try:
                work = ended(cell) or self._executor.submit(cell)
                if work is None:
                    return
                if isinstance(work, Result):
                    self._results[cell.plan.identity] = work
                else:
                    self._running.append(work)
                    self._progress.started(cell, self._executor.event)
                    self._last = cell.plan.run
                    if self.stopping:
                        work.stop()
            except HeldError as error:
                self._leave(cell, str(error).partition("and ")[2])
            except (OSError, ValueError) as error:
                self._conclude(cell, Result(status="failed", trained=True, reason=str(error)))
            self._waiting.popleft()

    def _asked_for_more(self) -> bool:
        """Whether there are cells beyond those known. The later they are asked for, the more is known to choose them by."""
        if self._last is not None and isinstance(self._executor, Here) and not self._executor.room(self._last):
            return False
        cells = self._more()
        self._waiting.extend(cells)
        self._progress.add(cells)
        return bool(cells)

    def _leave(self, cell: Cell, why: str) -> None:
        """Come back later to a cell that another process trains."""
        if cell.plan.identity not in self._results:
            self._progress.log(cell, "later", why)
            self._results[cell.plan.identity] = Result(status="waiting")
        self._held.append(cell)
        self._held_until = time.monotonic() + HELD_POLL_S * len(self._held)

    def _collect(self) -> None:
        for work in list(self._running):
            try:
                if (result := work.poll()) is None:
                    continue
                self._conclude(work.cell, result)
            except HeldError as error:
                self._progress.closed(work.cell)
                self._leave(work.cell, str(error))
            self._running.remove(work)

    def _conclude(self, cell: Cell, result: Result) -> None:
        self._results[cell.plan.identity] = result
        self._progress.ended(cell, result)
        self._watch(cell, result.status)
        if self._fail_fast and result.status == "failed" and not self.stopping:
            self._stop(0)


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

    def started(self, cell: Cell, event: str) -> None:
        if self._bars:
            self._tasks[cell.plan.identity] = self._bars.add_task(cell.label, total=cell.plan.run.trainer.steps)
        else:
            self.log(cell, event)

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
            rows = read_rows(file.read().partition(b"\n")[2])
        return int(rows[-1]["step"]) if rows else 0
    except OSError:
        return 0
