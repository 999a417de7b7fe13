"""Small batches first (arXiv:1711.00489, arXiv:2505.23971): early gradients point much the same way in a small batch as in a large one.

A step's batch is `trainer.batch_tokens` divided by a power of 2; the tokens follow each other in the same order. `trainer.steps` counts
updates: with small ones among them, a run reads fewer tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nocap.config.keys import require
from nocap.options.ideas import Growing

if TYPE_CHECKING:
    from nocap.config.run import Run


@dataclass(kw_only=True, slots=True)
class SmallBatches(Growing):
    kind: str = "small_batches"

    def check(self, run: Run) -> None:
        t = run.trainer
        unit = t.micro_batch * run.model.seq_len * t.devices
        rule = f"divide trainer.batch_tokens={t.batch_tokens} into multiples of micro_batch × seq_len × devices = {unit}"
        require(t.batch_tokens % (self.start * unit) == 0, "ideas.small_batches.start", rule, self.start)
        fixed = run.optimizer.at_batch(t.batch_tokens // self.start) == run.optimizer
        require(fixed, "ideas.small_batches", "be left out beside a beta2 that follows from the batch's tokens", run.optimizer.kind)

    def batch_divisor(self, *, step: int, steps: int) -> int:
        return self.divisor(step=step, steps=steps)
