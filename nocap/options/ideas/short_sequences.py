"""Short sequences first (arXiv:2108.06084): attention over a long context is learnt, and paid for, later.

A stage's sequences are the windows of the data cut into equal parts. So each step reads the same tokens as without, in the same order; a
part begins at position 0 and sees nothing of the part before it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from nocap.config.keys import require
from nocap.options.ideas import Growing

if TYPE_CHECKING:
    from torch import Tensor, nn

    from nocap.config.run import Run


@dataclass(kw_only=True, slots=True)
class ShortSequences(Growing):
    kind: str = "short_sequences"

    def check(self, run: Run) -> None:
        T = run.model.seq_len
        require(T % self.start == 0, "ideas.short_sequences.start", f"divide model.seq_len={T}", self.start)

    def build(self, run: Run, *, vocab_size: int) -> nn.Module:
        from torch import nn

        part: Any = nn.Module()
        part.steps = run.trainer.steps
        return part

    def shaped_at(self, run: Run, *, step: int) -> Run:
        length = run.model.seq_len // self.divisor(step=step, steps=run.trainer.steps)
        return replace(run, model=replace(run.model, seq_len=length), ideas={})

    def micro_batch(self, part: Any, tokens_BT: Tensor, targets_BT: Tensor, *, step: int) -> tuple[Tensor, Tensor]:
        parts = self.divisor(step=step, steps=part.steps)
        if parts == 1:
            return tokens_BT, targets_BT
        length = tokens_BT.shape[1] // parts
        return tokens_BT.reshape(-1, length), targets_BT.reshape(-1, length)
