"""AdamW Schedule-Free (arXiv:2405.15682): an average of the weights in place of a decaying rate and of Adam's momentum."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from nocap.training.optimizer import each_group, undecorated


class ScheduleFree(undecorated(torch.optim.Optimizer)):  # type: ignore[misc]  # a class made at run time
    """The parameters are y = (1-β₁)·z + β₁·x, where the gradients are taken; x is validated.

    z ← z - γ·(g / (√v + ε) + λ·y) and x ← (1-c)·x + c·z, with γ = lr·√(1-β₂ᵗ), v the average of g² by β₂, and c = γ² / Σγ² over all steps
    so far. As x follows from y and z, only z and v are kept.
    """

    def __init__(self, params: Any, *, lr: float, betas: tuple[float, float], eps: float) -> None:
        super().__init__(params, {"lr": lr, "step": 0, "sum": 0.0, "betas": betas, "eps": eps, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        assert closure is None
        for group, y, grads, (z, squares) in each_group(self, z=torch.clone, exp_avg_sq=torch.zeros_like):
            group["step"] += 1
            beta1, beta2 = group["betas"]
            rate = group["lr"] * math.sqrt(1 - beta2 ** group["step"])
            group["sum"] += rate**2
            c = rate**2 / group["sum"]
            torch._foreach_mul_(squares, beta2)
            torch._foreach_addcmul_(squares, grads, grads, value=1 - beta2)
            scales = torch._foreach_sqrt(squares)
            torch._foreach_add_(scales, group["eps"])
            updates = torch._foreach_div(grads, scales)
            torch._foreach_add_(updates, y, alpha=group["weight_decay"])
            # y after the step is (1-c)·y + c·z - (1 - β₁·(1-c))·γ·update, with the z of before it.
            torch._foreach_lerp_(y, z, c)
            torch._foreach_add_(y, updates, alpha=-rate * (1 - beta1 * (1 - c)))
            torch._foreach_add_(z, updates, alpha=-rate)

    def averages(self) -> list[tuple[Tensor, Tensor]]:
        """Each parameter that has been updated, with its x = (y - (1-β₁)·z) / β₁."""
        pairs = [(p, self.state[p]["z"], group["betas"][0]) for group in self.param_groups for p in group["params"] if p in self.state]
        return [(p, torch.lerp(z, p.detach(), 1 / beta1)) for p, z, beta1 in pairs]
