"""AdEMAMix (arXiv:2409.03137): Adam with a second, slow average of the gradients."""

from __future__ import annotations

import math
from typing import Any

import torch

from nocap.training.optimizer import each_group, undecorated


class AdEMAMix(undecorated(torch.optim.Optimizer)):  # type: ignore[misc]  # a class made at run time
    """p ← p - lr·((m̂₁ + α·m₂) / (√v̂ + ε) + λ·p) with m₁, m₂ and v the averages of g, g and g² by β₁, β₃ and β₂; m₂ has no bias correction.

    α rises from 0 and β₃ from β₁, over `ramp_steps`.
    """

    def __init__(self, params: Any, *, lr: float, betas: tuple[float, float, float], alpha: float, ramp_steps: int, eps: float) -> None:
        how = {"betas": betas, "alpha": alpha, "ramp_steps": ramp_steps, "eps": eps}
        super().__init__(params, {"lr": lr, "step": 0, "weight_decay": 0.0, **how})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        assert closure is None
        zeros = torch.zeros_like
        for group, params, grads, (fast, slow, squares) in each_group(self, exp_avg=zeros, exp_avg_slow=zeros, exp_avg_sq=zeros):
            group["step"] += 1
            step, lr, (beta1, beta2, _) = group["step"], group["lr"], group["betas"]
            alpha, beta3 = ramped(group, step)
            torch._foreach_lerp_(fast, grads, 1 - beta1)
            torch._foreach_lerp_(slow, grads, 1 - beta3)
            torch._foreach_mul_(squares, beta2)
            torch._foreach_addcmul_(squares, grads, grads, value=1 - beta2)
            scales = torch._foreach_sqrt(squares)
            torch._foreach_div_(scales, math.sqrt(1 - beta2**step))
            torch._foreach_add_(scales, group["eps"])
            updates = torch._foreach_mul(slow, alpha)
            torch._foreach_add_(updates, fast, alpha=1 / (1 - beta1**step))
            torch._foreach_mul_(params, 1 - lr * group["weight_decay"])
            torch._foreach_addcdiv_(params, updates, scales, value=-lr)


def ramped(group: dict[str, Any], step: int) -> tuple[float, float]:
    """α and β₃ of a step, counted from 1: α in a straight line, and β₃ so that its half-life does."""
    share = min(1.0, step / group["ramp_steps"]) if group["ramp_steps"] else 1.0
    beta1, _, beta3 = group["betas"]
    if share == 1.0:
        return group["alpha"], beta3
    per_log = (1 - share) * (1 / math.log(beta1) if beta1 else 0.0) + share / math.log(beta3)
    return share * group["alpha"], min(math.exp(1 / per_log), beta3)
