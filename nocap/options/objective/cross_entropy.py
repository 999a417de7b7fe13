"""Next-token cross-entropy, with an optional z-loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from nocap.config.keys import key
from nocap.options.objective import Objective

if TYPE_CHECKING:
    from torch import Tensor

    from nocap.config.run import Run
    from nocap.model.head import Head
    from nocap.model.loss import Loss


@dataclass(kw_only=True, slots=True)
class CrossEntropy(Objective):
    READS: ClassVar[tuple[str, ...]] = ("objective.loss_chunks",)
    kind: str = "cross_entropy"
    # weight of mean(logsumexp²) in the training loss (PaLM, arXiv:2204.02311)
    z_loss: float = key(ge=0, le=1000)

    def flops_per_token(self, run: Run, *, vocab_size: int) -> float:
        return 6.0 * run.model.d_model * vocab_size

    def loss(self, head: Head, x_BTC: Tensor, targets_BT: Tensor) -> Loss:
        from nocap.model.loss import Loss

        if self.z_loss == 0:
            return Loss(head.next_token(x_BTC, targets_BT))
        total, plain = head.cross_entropy(x_BTC, targets_BT, z_loss=self.z_loss)
        return Loss(total, {"next_token": plain.detach(), "z": (total - plain).detach()})
