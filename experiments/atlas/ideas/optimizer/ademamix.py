"""AdEMAMix (arXiv:2409.03137): AdamW with a second, slow average of the gradients, which old
gradients are still in."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nocap.config.keys import key, require
from nocap.options.optimizer import Optimizer
from nocap.options.optimizer.adamw import AdamW

if TYPE_CHECKING:
    import torch
    from torch import nn

    from nocap.training.optimizer import Group, States, Tensors


@dataclass(kw_only=True, slots=True)
class AdEMAMix(AdamW):
    kind: str = "ademamix"
    beta3: float = key(gt=0, lt=1)  # of the slow average
    alpha: float = key(ge=0, le=1000)  # its weight beside the fast one
    # in which alpha rises from 0 and beta3 from beta1; 0: they are constant
    ramp_steps: int = key(ge=0, le=10**9)

    def __post_init__(self) -> None:
        Optimizer.__post_init__(self)
        require(
            self.beta3 >= self.beta1,
            "optimizer.beta3",
            f"be at least optimizer.beta1={self.beta1}",
            self.beta3,
        )

    def build(self, model: nn.Module) -> list[torch.optim.Optimizer]:
        from nocap.training.optimizer import ByRule

        return [ByRule(self, self.groups(dict(model.named_parameters())))]

    def update(self, group: Group, params: Tensors, grads: Tensors, states: States) -> None:
        """p ← p - lr·((m̂₁ + α·m₂) / (√v̂ + ε) + λ·p) with m₁, m₂ and v the averages of g, g and g²
        by β₁, β₃ and β₂; m₂ has no bias correction. α rises from 0 and β₃ from β₁."""
        import torch

        from nocap.training.optimizer import buffers

        fast, slow, squares = (
            buffers(states, name, params) for name in ("exp_avg", "exp_avg_slow", "exp_avg_sq")
        )
        step, lr = group["step"], group["lr"]
        alpha, beta3 = self.ramped(step)
        torch._foreach_lerp_(fast, grads, 1 - self.beta1)
        torch._foreach_lerp_(slow, grads, 1 - beta3)
        torch._foreach_mul_(squares, self.beta2)
        torch._foreach_addcmul_(squares, grads, grads, value=1 - self.beta2)
        scales = torch._foreach_sqrt(squares)
        torch._foreach_div_(scales, math.sqrt(1 - self.beta2**step))
        torch._foreach_add_(scales, self.eps)
        updates = torch._foreach_mul(slow, alpha)
        torch._foreach_add_(updates, fast, alpha=1 / (1 - self.beta1**step))
        torch._foreach_mul_(params, 1 - lr * group["weight_decay"])
        torch._foreach_addcdiv_(params, updates, scales, value=-lr)

    def ramped(self, step: int) -> tuple[float, float]:
        """α and β₃ of a step, counted from 1: α in a straight line, and β₃ so that its half-life
        does."""
        share = min(1.0, step / self.ramp_steps) if self.ramp_steps else 1.0
        if share == 1.0:
            return self.alpha, self.beta3
        per_log = (1 - share) * (
            1 / math.log(self.beta1) if self.beta1 else 0.0
        ) + share / math.log(self.beta3)
        return share * self.alpha, min(math.exp(1 / per_log), self.beta3)
