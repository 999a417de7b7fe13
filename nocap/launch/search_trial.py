"""A trial of a search: its settings, its run, and how it ended."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from nocap.display import loss
from nocap.launch.grid import Cell
from nocap.store.record_files import RunStatus


@dataclass(kw_only=True, slots=True)
class SearchTrial:
    """A training with settings that the search chose."""

    number: int  # from 1
    words: tuple[str, ...]
    cell: Cell | None = None
    status: RunStatus = RunStatus.open  # later finished, diverged, or refused: it cannot be trained
    val_loss: float | None = None
    reason: str | None = None  # why it is refused

    @property
    def loss(self) -> float | None:
        """Return the loss that the sampler gets; None: the trial has not ended."""
        if self.status in (RunStatus.diverged, RunStatus.refused):
            return math.inf
        return self.val_loss

    @property
    def rank(self) -> tuple[bool, float, int]:
        """Return what trials are sorted by: those that can be trained first, then by loss, then by
        number."""
        loss = math.inf if self.loss is None else self.loss
        return self.status is RunStatus.refused, loss, self.number

    def read_end(self) -> None:
        """Read how a trial's run ended, once it has.

        Errors:
            ValueError: the run's record is damaged.
        """
        if self.cell is None or self.status is not RunStatus.open:
            return
        summary = self.cell.plan.end().believe()
        if summary is None:
            return
        self.status = RunStatus.diverged
        if summary["status"] == RunStatus.finished:
            self.val_loss = summary.get("val_loss")
        if self.val_loss is not None:
            self.status = RunStatus.finished

    def json(self) -> dict[str, Any]:
        """Return the trial's entry in `grid.json`."""
        return {
            "trial": self.number,
            "overrides": self.words,
            "status": self.status,
            "val_loss": self.val_loss,
            "reason": self.reason,
        }

    def lines(self) -> list[str]:
        """Return the lines that are printed of a trial before it begins."""
        if self.cell is not None:
            return [f"note: {notice}" for notice in self.cell.plan.notices]
        words = " ".join(self.words)
        return [
            (
                f"trial {self.number}: {words} cannot be trained, and the search counts this as "
                f"its result: {self.reason}"
            )
        ]

    def row(self) -> list[str]:
        """Return the trial's row of the table: number, loss, a value a key, and what a reader must
        know."""
        values = [word.partition("=")[2] for word in self.words]
        return [str(self.number), loss(self.val_loss), *values, self._note()]

    def _note(self) -> str:
        """Return what a reader must know beside the loss."""
        if self.status is RunStatus.finished:
            return ""
        if self.status is RunStatus.open:
            return "not finished"
        if self.status is RunStatus.refused:
            return f"cannot be trained: {self.reason}"
        return self.status
