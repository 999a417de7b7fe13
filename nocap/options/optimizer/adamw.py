"""AdamW (arXiv:1711.05101), torch's fused one."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from nocap.config.keys import key
from nocap.options.optimizer import Optimizer

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch
    from torch import nn


class Decay(Enum):
    """Which parameters weight decay applies to."""

    all = "all"
    matrices = "matrices"  # not gains, shifts or scales


@dataclass(kw_only=True, slots=True)
class AdamW(Optimizer):
    kind: str = "adamw"
    beta1: float = key(ge=0, lt=1)
    beta2: float = key(ge=0, lt=1)
    eps: float = key(gt=0, le=1)
    decay: Decay

    def build(self, model: nn.Module) -> list[torch.optim.Optimizer]:
        return [self.adamw(dict(model.named_parameters()))]

    def elementwise(self) -> bool:
        return True

    def adamw(self, named: Mapping[str, nn.Parameter]) -> torch.optim.AdamW:
        """For these parameters only."""
        import torch

        from nocap.training.optimizer import decayed, undecorated

        groups = decayed(named, self.weight_decay, everything=self.decay is Decay.all)
        return undecorated(torch.optim.AdamW)(groups, lr=self.lr, betas=(self.beta1, self.beta2), eps=self.eps, fused=True)
