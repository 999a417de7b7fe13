"""Muon (Keller Jordan, 2024): torch's own, with the matrices of one shape orthogonalised together, in fewer and larger products."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim._muon import _adjust_lr, _zeropower_via_newtonschulz

from nocap.config import hardware
from nocap.training.optimizer import undecorated

AT_ONCE = {"cpu": 2**17, "cuda": 2**26}  # numbers in a stack: a CPU gains with small matrices only, a GPU must have room for some copies


class Muon(undecorated(torch.optim.Muon)):  # type: ignore[misc]  # a class made at run time
    """torch's update: the same bits on a CPU with bf16 products. On one without, fp32 in place of bf16. On CUDA a product of a stack may be
    summed in another order than that of a matrix."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        assert closure is None
        for group in self.param_groups:
            held: tuple[list[Tensor], list[Tensor], list[Tensor]] = [], [], []
            self._init_group(group, *held)
            by_shape: dict[torch.Size, list[tuple[Tensor, ...]]] = {}
            for one in zip(*held, strict=True):
                by_shape.setdefault(one[0].shape, []).append(one)
            for shape, alike in by_shape.items():
                n = max(1, AT_ONCE[alike[0][0].device.type] // shape.numel())
                for i in range(0, len(alike), n):
                    _update(group, *map(list, zip(*alike[i : i + n], strict=True)))


def _update(group: dict[str, Any], params: list[Tensor], grads: list[Tensor], momenta: list[Tensor]) -> None:
    """Of parameters that have one shape."""
    torch._foreach_lerp_(momenta, grads, 1 - group["momentum"])
    updates = torch._foreach_lerp(grads, momenta, group["momentum"]) if group["nesterov"] else momenta
    how = group["ns_coefficients"], group["ns_steps"], group["eps"]
    dtype = _precision(params[0].device)
    if len(updates) > 1 or dtype is torch.float32:
        updates = orthogonalized(torch.stack(updates), *how, dtype=dtype)
    else:
        updates = [_zeropower_via_newtonschulz(updates[0], *how)]
    torch._foreach_mul_(params, 1 - group["lr"] * group["weight_decay"])
    torch._foreach_add_(params, updates, alpha=-_adjust_lr(group["lr"], group["adjust_lr_fn"], params[0].shape))


def _precision(device: torch.device) -> torch.dtype:
    """bf16, as torch has it, but where a CPU would emulate it: there fp32 is 3 times as fast (AVX-512) or 20 times (AVX2; LOG.md)."""
    return torch.float32 if device.type == "cpu" and not hardware.native_bf16() else torch.bfloat16


def orthogonalized(
    x_NAB: Tensor, coefficients: tuple[float, float, float], steps: int, eps: float, *, dtype: torch.dtype = torch.bfloat16
) -> list[Tensor]:
    """N matrices with singular values near 1, by Newton-Schulz iterations: X ← a·X + (b·G + c·G²)·X with G = X·Xᵀ. `x_NAB` may be lost."""
    a, b, c = coefficients
    x = x_NAB.to(dtype)
    norm_N = torch.stack(torch._foreach_norm(x.unbind()))
    x.div_(norm_N.clamp(min=eps)[:, None, None])
    tall = x.shape[1] > x.shape[2]
    x = x.mT if tall else x
    for _ in range(steps):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    x = x.mT if tall else x
    return list(x.to(x_NAB.dtype, memory_format=torch.contiguous_format).unbind())  # exact, and as CUDA's fast path wants it
