"""Lion (arXiv:2302.06675): the sign of a momentum, with half of AdamW's state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nocap.config.keys import key
from nocap.options.optimizer import Optimizer
from nocap.options.optimizer.adamw import Decay

if TYPE_CHECKING:
    import torch
    from torch import nn


@dataclass(kw_only=True, slots=True)
class Lion(Optimizer):
    kind: str = "lion"
    beta1: float = key(ge=0, lt=1)  # of the momentum in the update
    beta2: float = key(ge=0, lt=1)  # of the momentum that is kept
    decay: Decay  # which parameters decay

    def build(self, model: nn.Module) -> list[torch.optim.Optimizer]:
        from nocap.training import lion
        from nocap.training.optimizer import decayed

        groups = decayed(dict(model.named_parameters()), self.weight_decay, everything=self.decay is Decay.all)
        return [lion.Lion(groups, lr=self.lr, betas=(self.beta1, self.beta2))]
