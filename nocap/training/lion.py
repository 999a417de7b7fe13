"""Lion (arXiv:2302.06675): the sign of an interpolated momentum."""

from __future__ import annotations

from typing import Any

import torch

from nocap.training.optimizer import each_group, undecorated


class Lion(undecorated(torch.optim.Optimizer)):  # type: ignore[misc]  # a class made at run time
    """p ← p - lr·(sign(β₁·m + (1-β₁)·g) + λ·p), then m ← β₂·m + (1-β₂)·g."""

    def __init__(self, params: Any, *, lr: float, betas: tuple[float, float]) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        assert closure is None
        for group, params, grads, (momenta,) in each_group(self, momentum=torch.zeros_like):
            beta1, beta2 = group["betas"]
            updates = torch._foreach_lerp(momenta, grads, 1 - beta1)
            torch._foreach_sign_(updates)
            torch._foreach_mul_(params, 1 - group["lr"] * group["weight_decay"])
            torch._foreach_add_(params, updates, alpha=-group["lr"])
            torch._foreach_lerp_(momenta, grads, 1 - beta2)
