"""AdEMAMix (arXiv:2409.03137): AdamW with a second, slow average of the gradients, which old gradients are still in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nocap.config.keys import key, require
from nocap.options.optimizer import Optimizer
from nocap.options.optimizer.adamw import AdamW

if TYPE_CHECKING:
    import torch
    from torch import nn


@dataclass(kw_only=True, slots=True)
class AdEMAMix(AdamW):
    kind: str = "ademamix"
    beta3: float = key(gt=0, lt=1)  # of the slow average
    alpha: float = key(ge=0, le=1000)  # its weight beside the fast one
    ramp_steps: int = key(ge=0, le=10**9)  # in which alpha rises from 0 and beta3 from beta1; 0: they are constant

    def __post_init__(self) -> None:
        Optimizer.__post_init__(self)
        require(self.beta3 >= self.beta1, "optimizer.beta3", f"be at least optimizer.beta1={self.beta1}", self.beta3)

    def build(self, model: nn.Module) -> list[torch.optim.Optimizer]:
        from nocap.training import ademamix

        return [
            ademamix.AdEMAMix(
                self.groups(dict(model.named_parameters())),
                lr=self.lr,
                betas=(self.beta1, self.beta2, self.beta3),
                alpha=self.alpha,
                ramp_steps=self.ramp_steps,
                eps=self.eps,
            )
        ]
