"""SOAP (arXiv:2409.11321): Adam in the eigenbasis of Shampoo's preconditioner."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from nocap.training.optimizer import undecorated


class Soap(undecorated(torch.optim.Optimizer)):  # type: ignore[misc]  # a class made at run time
    """For a matrix W with gradient G, L and R the averages of GGᵀ and GᵀG by β₂, and Q_L and Q_R their eigenvectors:

    G' = Q_LᵀGQ_R, M the average of G by β₁, V that of G'² by β₂, W ← W - lr·(Q_L·(Q_LᵀM̂Q_R / (√V̂ + ε))·Q_Rᵀ + λ·W).

    The bases follow L and R by one step of orthogonal iteration, Q ← the orthonormal part of LQ, every `basis_every` updates. A first
    step makes them and leaves the weights alone: in the basis of one gradient, that gradient says nothing about the other directions.
    """

    def __init__(self, params: Any, *, lr: float, betas: tuple[float, float], eps: float, basis_every: int) -> None:
        super().__init__(params, {"lr": lr, "step": 0, "betas": betas, "eps": eps, "basis_every": basis_every, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        assert closure is None
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                if self.state[p]:
                    self._update(group, p, p.grad, self.state[p])
                else:
                    self.state[p].update(_first(p.grad, group["betas"][1]))
            group["step"] += 1

    def _update(self, group: dict[str, Any], p: Tensor, grad: Tensor, state: dict[str, Tensor]) -> None:
        lr, (beta1, beta2), step = group["lr"], group["betas"], group["step"]
        left, right = state["left_basis"], state["right_basis"]
        state["exp_avg"].lerp_(grad, 1 - beta1)
        turned = left.mT @ grad @ right
        state["exp_avg_sq"].mul_(beta2).addcmul_(turned, turned, value=1 - beta2)
        scale = state["exp_avg_sq"].sqrt().div_(math.sqrt(1 - beta2**step)).add_(group["eps"])
        update = left @ (left.mT @ state["exp_avg"] @ right).div_(scale) @ right.mT
        p.mul_(1 - lr * group["weight_decay"]).add_(update, alpha=-lr / (1 - beta1**step))
        for side, product in (("left", grad @ grad.mT), ("right", grad.mT @ grad)):
            state[side].lerp_(product, 1 - beta2)
            if step % group["basis_every"] == 0:
                state[f"{side}_basis"] = torch.linalg.qr(state[side] @ state[f"{side}_basis"]).Q.contiguous()


def _first(grad: Tensor, beta2: float) -> dict[str, Tensor]:
    """A parameter's state from its first gradient, the eigenvectors by falling eigenvalues, the order that orthogonal iteration keeps."""
    state = {"exp_avg": torch.zeros_like(grad), "exp_avg_sq": torch.zeros_like(grad)}
    for side, product in (("left", grad @ grad.mT), ("right", grad.mT @ grad)):
        state[side] = (1 - beta2) * product
        state[f"{side}_basis"] = torch.linalg.eigh(state[side]).eigenvectors.flip(1).contiguous()
    return state
