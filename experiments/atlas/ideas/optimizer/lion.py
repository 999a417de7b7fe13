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

    from nocap.training.optimizer import Group, States, Tensors


@dataclass(kw_only=True, slots=True)
class Lion(Optimizer):
    kind: str = "lion"
    beta1: float = key(ge=0, lt=1)  # of the momentum in the update
    beta2: float = key(ge=0, lt=1)  # of the momentum that is kept
    decay: Decay  # which parameters decay

    def build(self, model: nn.Module) -> list[torch.optim.Optimizer]:
        from nocap.training.optimizer import ByRule, decayed

        groups = decayed(
            dict(model.named_parameters()), self.weight_decay, everything=self.decay is Decay.all
        )
        return [ByRule(self, groups)]

    def update(self, group: Group, params: Tensors, grads: Tensors, states: States) -> None:
        """p ← p - lr·(sign(β₁·m + (1-β₁)·g) + λ·p), then m ← β₂·m + (1-β₂)·g."""
        import torch

        from nocap.training.optimizer import buffers

        momenta = buffers(states, "momentum", params)
        updates = torch._foreach_lerp(momenta, grads, 1 - self.beta1)
        torch._foreach_sign_(updates)
        torch._foreach_mul_(params, 1 - group["lr"] * group["weight_decay"])
        torch._foreach_add_(params, updates, alpha=-group["lr"])
        torch._foreach_lerp_(momenta, grads, 1 - self.beta2)
