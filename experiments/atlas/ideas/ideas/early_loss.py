"""A loss at an intermediate layer (deeply-supervised nets, arXiv:1409.5185): in training the head
predicts from the middle too.

loss += weight·CE(head(output of block `layer`)); norm and unembedding are the head's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nocap.config.keys import key, require
from nocap.options.ideas import Idea

if TYPE_CHECKING:
    from torch import Tensor, nn

    from nocap.config.run import Run
    from nocap.model.gpt import Context, Head


@dataclass(kw_only=True, slots=True)
class EarlyLoss(Idea):
    PER_TOKEN = True
    kind: str = "early_loss"
    # whose output is predicted from, from 0 on; null: the last of the first half
    layer: int | None = key(ge=0, le=4096)
    weight: float = key(ge=0, le=1000)  # of its loss

    def check(self, run: Run) -> None:
        last = run.model.n_layer - 1
        require(
            self.middle(run) < last,
            "ideas.early_loss.layer",
            f"be below the last, {last}",
            self.layer,
        )

    def middle(self, run: Run) -> int:
        return (run.model.n_layer - 1) // 2 if self.layer is None else self.layer

    def build(self, run: Run, *, vocab_size: int) -> nn.Module:
        from torch import nn

        part: Any = nn.Module()
        part.x_BTC = None
        return part

    def build_layer(self, run: Run, layer: int) -> nn.Module | None:
        from torch import nn

        return nn.Module() if layer == self.middle(run) else None

    def leave(self, part: Any, x_BTC: Tensor, context: Context) -> Tensor:
        context.memory[self.kind] = x_BTC
        return x_BTC

    def readout(self, part: Any, x_BTC: Tensor, context: Context) -> Tensor:
        part.x_BTC = context.memory[self.kind] if part.training else None
        return x_BTC

    def loss(self, part: Any, x_BTC: Tensor, targets_BT: Tensor, head: Head) -> Tensor:
        early_BTC, part.x_BTC = part.x_BTC, None  # nothing is kept from step to step
        return self.weight * head.next_token(early_BTC, targets_BT)
