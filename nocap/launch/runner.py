"""Run a grid's cells on this machine: in order, as many at once as there is room for, each once whoever else is at work on them."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from statistics import mean
from typing import IO, Any

from nocap.launch.attempt import Attempt, hold
from nocap.launch.board import Board, Line
from nocap.launch.grid import Cell, Grid, told
from nocap.launch.plan import outcome
from nocap.launch.signals import heard
from nocap.options.launcher import Share, Slots
from nocap.store.lock import HeldError

POLL_S = 0.03  # between looks at the running cells: nothing beside a cell's seconds
HELD_POLL_S = 0.5  # between looks at cells that another process is training


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """How a cell ended, or that it did not."""

    status: str  # finished, diverged, failed, preempted; waiting: not started
    trained: bool = False  # by this process, now
    summary: dict[str, Any] | None = None
    reason: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class _Running:
    cell: Cell
    attempt: Attempt
    share: Share
    lock: IO[str]
    began: float


class Runner:
    def __init__(self, grid: Grid, *, slots: Slots, board: Board) -> None:
        self.grid, self.stopping = grid, False
        self._slots, self._board = slots, board
        self._waiting, self._held = deque(grid.cells), deque[Cell]()
        self._running: list[_Running] = []
        self._results: dict[str, Result] = {}
        self._held_until = 0.0
        self._place = {cell.plan.identity: place for place, cell in enumerate(grid.cells, start=1)}

    def run(self) -> dict[str, Result]:
        """Identity → how that cell ended."""
        with heard(self._hear):
            try:
                while self._running or (not self.stopping and (self._waiting or self._held)):
                    if not self.stopping:
                        self._begin_what_fits()
                    self._collect()
                    self._draw()
                    time.sleep(POLL_S if self._running or self._held else 0)
            finally:
                self._board.close()
        for cell in (*self._waiting, *self._held):
            self._results[cell.plan.identity] = Result(status="waiting", reason="not started")
        return self._results

    def _hear(self, number: int) -> None:
        if not self.stopping:
            self.stopping = True
            for running in self._running:
                running.attempt.stop()

    # --- beginning -----------------------------------------------------------------------------------------------------------------

    def _begin_what_fits(self) -> None:
        if not self._waiting and self._held and time.monotonic() >= self._held_until:
            self._waiting, self._held = self._held, deque()
        while self._waiting and not self.stopping:
            cell = self._waiting[0]
            if self._found(cell):
                self._waiting.popleft()
                continue
            if (share := self._slots.take(cell.plan.run)) is None:
                return
            self._waiting.popleft()
            if not self._begin(cell, share):
                self._slots.give_back(share)

    def _found(self, cell: Cell) -> bool:
        """Whether somebody has brought this run to its end."""
        summary = outcome(cell.plan)
        if summary is not None:
            self._results[cell.plan.identity] = Result(status=summary["status"], summary=summary)
        return summary is not None

    def _begin(self, cell: Cell, share: Share) -> bool:
        """Start a cell, unless it cannot be had or has been finished meanwhile."""
        lock, began = None, time.monotonic()
        try:
            lock = hold(cell.plan)
            if not self._found(cell):
                attempt = Attempt(cell.plan, started=began, quiet=True, env=share.env, born=share.pin)
                self._running.append(_Running(cell=cell, attempt=attempt, share=share, lock=lock, began=began))
                if self.stopping:
                    attempt.stop()
                self._say(cell, "start")
                return True
        except HeldError as error:
            if cell.plan.identity not in self._results:
                self._say(cell, "later", str(error).partition("and ")[2])
                self._results[cell.plan.identity] = Result(status="waiting")
            self._held.append(cell)
            self._held_until = time.monotonic() + HELD_POLL_S
        except (OSError, ValueError) as error:
            self._conclude(cell, Result(status="failed", trained=True, reason=str(error)))
        if lock is not None:
            lock.close()
        return False

    # --- ending --------------------------------------------------------------------------------------------------------------------

    def _collect(self) -> None:
        for running in [running for running in self._running if running.attempt.poll() is not None]:
            self._running.remove(running)
            try:
                summary = running.attempt.summary()
                result = Result(status=summary["status"], trained=True, summary=summary, reason=summary.get("error"))
            except (OSError, ValueError) as error:
                result = Result(status="failed", trained=True, reason=str(error))
            running.lock.close()
            self._slots.give_back(running.share)
            self._conclude(running.cell, result)

    def _conclude(self, cell: Cell, result: Result) -> None:
        self._results[cell.plan.identity] = result
        words = {"finished": "done", "preempted": "saved"}
        self._say(cell, words.get(result.status, result.status), told(result.summary) if result.status == "finished" else result.reason)

    # --- showing -------------------------------------------------------------------------------------------------------------------

    def _say(self, cell: Cell, word: str, more: str | None = None) -> None:
        if self._board.live and word == "start":
            return  # it is on the board
        n = len(self.grid.cells)
        place = f"{self._place[cell.plan.identity]:>{len(str(n))}}/{n}"
        self._board.say("  ".join([f"[{place}] {word:<8} {cell.label}", *([more] if more else [])]))

    def _draw(self) -> None:
        if not self._board.due():
            return
        now, statuses = time.monotonic(), [result.status for result in self._results.values()]
        lines = [
            Line(label=r.cell.label, run_dir=r.cell.plan.run_dir, steps=r.cell.plan.run.trainer.steps, elapsed_s=now - r.began)
            for r in self._running
        ]
        counts = {
            "done": statuses.count("finished"),
            "running": len(self._running),
            "waiting": len(self._waiting),
            "with another process": len(self._held),
            "failed": statuses.count("failed"),
            "diverged": statuses.count("diverged"),
        }
        self._board.draw(counts, lines, left_s=self._left_s(now))

    def _left_s(self, now: float) -> float | None:
        """From the cells trained here, or from older ones while there are none."""
        done = [(r.trained, r.summary["clock_s"]["wall"]) for r in self._results.values() if r.status == "finished" and r.summary]
        walls = [wall for trained, wall in done if trained] or [wall for _, wall in done]
        if not walls or not self._running:
            return None
        rest = sum(max(0.0, mean(walls) - (now - r.began)) for r in self._running) + mean(walls) * len(self._waiting)
        return rest / max(len(self._running), self._slots.at_once(self._running[0].cell.plan.run) if self._waiting else 1)
