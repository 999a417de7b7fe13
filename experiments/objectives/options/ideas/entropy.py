"""A confidence penalty (arXiv:1701.06548): reward predictions that stay spread out.

loss -= weight·mean(H(p)), H(p) = -Σ_v p_v·log p_v in nats, p the model's probabilities of the next
token.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from nocap.config.keys import key, require
from nocap.options.ideas import Idea

if TYPE_CHECKING:
    from torch import Tensor, nn

    from nocap.config.run import Run
    from nocap.model.gpt import Head


@dataclass(kw_only=True, slots=True)
class Entropy(Idea):
    PER_TOKEN: ClassVar[bool] = True
    kind: str = "entropy"
    weight: float = key(ge=0, le=1000)  # of the entropy in the loss

    def check(self, run: Run) -> None:
        chunks = run.objective.loss_chunks
        require(
            chunks <= 1,
            "objective.loss_chunks",
            "be 0 or 1 beside ideas.entropy, which is of all logits",
            chunks,
        )

    def build(self, run: Run, *, vocab_size: int) -> nn.Module:
        from torch import nn

        return nn.Module()

    def loss(self, part: Any, x_BTC: Tensor, targets_BT: Tensor, head: Head) -> Tensor:
        log_p_BTV = head.logits(x_BTC).float().log_softmax(-1)
        return self.weight * (log_p_BTV.exp() * log_p_BTV).sum(-1).mean()
