"""A matrix product in 8-bit floats with a scale for each tensor (arXiv:2209.05433): twice bf16's
rate on GPUs of capability 8.9 and newer.

N: tokens, C: channels, V: columns, a multiple of 16, as are N and C.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from nocap.model.head import padded

E4M3 = torch.float8_e4m3fn  # values and weights
E5M2 = torch.float8_e5m2  # gradients, whose range is wider


class Fp8Linear(nn.Linear):
    """A bias-free linear map whose three products of a training step are in fp8; in validation it
    is `nn.Linear`."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return super().forward(x)
        x_NC = x.flatten(0, -2)
        y_NV: Tensor = _Fp8Product.apply(x_NC, padded(self.weight))  # type: ignore[no-untyped-call]
        y = y_NV.unflatten(0, x.shape[:-1])
        return y[..., : self.out_features]


class _Fp8Product(torch.autograd.Function):
    """x·weightᵀ, (N, V) in bf16."""

    @staticmethod
    def forward(ctx: Any, x_NC: Tensor, weight_VC: Tensor) -> Tensor:
        x, x_scale = quantized(x_NC, E4M3)
        weight, weight_scale = quantized(weight_VC, E4M3)
        ctx.save_for_backward(x, x_scale, weight, weight_scale)
        ctx.x_dtype = x_NC.dtype
        ctx.weight_dtype = weight_VC.dtype
        return product((x, x_scale), (weight.t(), weight_scale), fast=True)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_y_NV: Tensor) -> tuple[Tensor, Tensor]:
        x, x_scale, weight, weight_scale = ctx.saved_tensors
        by_y, scale = quantized(by_y_NV, E5M2)
        by_x_NC = product((by_y, scale), (by_column(weight), weight_scale))
        by_y_VN = by_y.t().contiguous()
        by_weight_VC = product((by_y_VN, scale), (by_column(x), x_scale))
        return by_x_NC.to(ctx.x_dtype), by_weight_VC.to(ctx.weight_dtype)


def quantized(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """x divided by a scale that takes its largest value to the dtype's, and that scale, fp32."""
    largest = x.abs().amax().float()
    scale = largest.clamp_min(1e-12) / torch.finfo(dtype).max
    scaled = x.float() / scale
    return scaled.to(dtype), scale


def by_column(x: Tensor) -> Tensor:
    """Return the same matrix with its columns contiguous, as the second factor has to be."""
    return x.t().contiguous().t()


def product(a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor], *, fast: bool = False) -> Tensor:
    """Return a·b in bf16. `fast`: a GPU's tensor cores add in fewer bits than fp32, which gradients
    do not bear."""
    a_values, a_scale = a
    b_values, b_scale = b
    how: dict[str, Any] = {"scale_a": a_scale, "scale_b": b_scale, "use_fast_accum": fast}
    return torch._scaled_mm(a_values, b_values, out_dtype=torch.bfloat16, **how)
