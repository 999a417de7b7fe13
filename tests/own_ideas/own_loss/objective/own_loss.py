"""The plain next-token loss, computed by a method that does not read `objective.loss_chunks`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nocap.options.objective import Objective

if TYPE_CHECKING:
    from torch import Tensor

    from nocap.model.head import Head
    from nocap.model.loss import Loss


@dataclass(kw_only=True, slots=True)
class OwnLoss(Objective):
    kind: str = "own_loss"

    def loss(self, head: Head, x_BTC: Tensor, targets_BT: Tensor) -> Loss:
        from nocap.model.loss import Loss

        return Loss(head.next_token(x_BTC, targets_BT))
