"""Muon (Keller Jordan, 2024): torch's own, with the matrices of one shape orthogonalised together, in fewer and larger products.

Options: Polar Express (arXiv:2505.16932), NorMuon (arXiv:2510.05491), and a momentum that rises.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.optim._muon import _adjust_lr, _zeropower_via_newtonschulz

from nocap.config import hardware
from nocap.training.optimizer import undecorated

AT_ONCE = {"cpu": 2**17, "cuda": 2**26}  # numbers in a stack: a CPU gains with small matrices only, a GPU must have room for some copies
# Polar Express: for each iteration the odd polynomial ax + bx³ + cx⁵ that is nearest to 1 on the interval in which the iterations before it
# leave the singular values, from [0.001, 1] on; an interval counts as beginning at 0.024 of its end at least. The numbers are the paper's
# list; tests/test_optimizers.py derives them again.
POLAR_EXPRESS = (
    (8.28721201814563, -23.595886519098837, 17.300387312530933),
    (4.107059111542203, -2.9478499167379106, 0.5448431082926601),
    (3.9486908534822946, -2.908902115962949, 0.5518191394370137),
    (3.3184196573706015, -2.488488024314874, 0.51004894012372),
    (2.300652019954817, -1.6689039845747493, 0.4188073119525673),
    (1.891301407787398, -1.2679958271945868, 0.37680408948524835),
    (1.8750014808534479, -1.2500016453999487, 0.3750001645474248),
    (1.875, -1.25, 0.375),  # and for all after it
)
SAFETY = 1.01  # each but the last is used of x / 1.01, as there: a singular value that rounding puts beyond the interval still converges


class Muon(undecorated(torch.optim.Muon)):  # type: ignore[misc]  # a class made at run time
    """torch's update: the same bits on a CPU with bf16 products. On one without, fp32 in place of bf16. On CUDA a product of a stack may be
    summed in another order than that of a matrix.

    `warmup`: the momentum of the first step, and the steps until it is `momentum`.
    """

    def __init__(
        self,
        params: Any,
        *,
        polar_express: bool = False,
        row_beta2: float | None = None,
        warmup: tuple[float, int] = (0.0, 0),
        **torchs: Any,
    ) -> None:
        super().__init__(params, **torchs)
        for group in (self.defaults, *self.param_groups):
            group.update(polar_express=polar_express, row_beta2=row_beta2, warmup=warmup, step=0)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        assert closure is None
        for group in self.param_groups:
            group["step"] += 1
            held: tuple[list[Tensor], list[Tensor], list[Tensor]] = [], [], []
            self._init_group(group, *held)
            by_shape: dict[torch.Size, list[tuple[Tensor, ...]]] = {}
            for one in zip(*held, strict=True):
                by_shape.setdefault(one[0].shape, []).append(one)
            for shape, alike in by_shape.items():
                n = max(1, AT_ONCE[alike[0][0].device.type] // shape.numel())
                for i in range(0, len(alike), n):
                    self._update(group, *map(list, zip(*alike[i : i + n], strict=True)))

    def _update(self, group: dict[str, Any], params: list[Tensor], grads: list[Tensor], momenta: list[Tensor]) -> None:
        """Of parameters that have one shape."""
        momentum = _momentum(group)
        torch._foreach_lerp_(momenta, grads, 1 - momentum)
        updates = torch._foreach_lerp(grads, momenta, momentum) if group["nesterov"] else momenta
        dtype = _precision(params[0].device)
        if len(updates) > 1 or dtype is torch.float32 or group["polar_express"]:
            updates = orthogonalized(torch.stack(updates), _polynomials(group), group["eps"], dtype=dtype)
        else:
            updates = [_zeropower_via_newtonschulz(updates[0], group["ns_coefficients"], group["ns_steps"], group["eps"])]
        if group["row_beta2"] is not None:
            updates = self._even_rows(group["row_beta2"], params, updates)
        torch._foreach_mul_(params, 1 - group["lr"] * group["weight_decay"])
        torch._foreach_add_(params, updates, alpha=-_adjust_lr(group["lr"], group["adjust_lr_fn"], params[0].shape))

    def _even_rows(self, beta2: float, params: list[Tensor], updates: list[Tensor]) -> list[Tensor]:
        """NorMuon: each row over the root of its second moment, and the whole as long as an orthogonal matrix, √min(A, B)."""
        for p in params:
            self.state[p].setdefault("row_second_moment", torch.zeros_like(p[:, :1]))
        moments = [self.state[p]["row_second_moment"] for p in params]
        torch._foreach_lerp_(moments, [update.square().mean(1, keepdim=True) for update in updates], 1 - beta2)
        evened = [update / (moment.sqrt() + 1e-10) for update, moment in zip(updates, moments, strict=True)]
        lengths = torch.stack(torch._foreach_norm(evened)).clamp(min=1e-10)
        torch._foreach_mul_(evened, list((math.sqrt(min(params[0].shape)) / lengths).unbind()))
        return evened


def _momentum(group: dict[str, Any]) -> float:
    """Of the step that has begun, a function of its number alone."""
    start, steps = group["warmup"]
    return float(group["momentum"]) if group["step"] > steps else start + (group["momentum"] - start) * (group["step"] - 1) / steps


def _polynomials(group: dict[str, Any]) -> list[tuple[float, float, float]]:
    """a, b and c of each iteration."""
    if not group["polar_express"]:
        return [group["ns_coefficients"]] * group["ns_steps"]
    found = [POLAR_EXPRESS[min(i, len(POLAR_EXPRESS) - 1)] for i in range(group["ns_steps"])]
    return [(a / SAFETY, b / SAFETY**3, c / SAFETY**5) if (a, b, c) != POLAR_EXPRESS[-1] else (a, b, c) for a, b, c in found]


def _precision(device: torch.device) -> torch.dtype:
    """bf16, as torch has it, but where a CPU would emulate it: there fp32 is 3 times as fast (AVX-512) or 20 times (AVX2; LOG.md)."""
    return torch.float32 if device.type == "cpu" and not hardware.native_bf16() else torch.bfloat16


def orthogonalized(
    x_NAB: Tensor, polynomials: list[tuple[float, float, float]], eps: float, *, dtype: torch.dtype = torch.bfloat16
) -> list[Tensor]:
    """N matrices with singular values near 1, by an iteration for each polynomial: X ← a·X + (b·G + c·G²)·X with G = X·Xᵀ. `x_NAB` may be
    lost."""
    x = x_NAB.to(dtype)
    norm_N = torch.stack(torch._foreach_norm(x.unbind()))
    x.div_(norm_N.clamp(min=eps)[:, None, None])
    tall = x.shape[1] > x.shape[2]
    x = x.mT if tall else x
    for a, b, c in polynomials:
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    x = x.mT if tall else x
    return list(x.to(x_NAB.dtype, memory_format=torch.contiguous_format).unbind())  # exact, and as CUDA's fast path wants it
