"""Normalisation over channels."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def rms_norm(x: Tensor, eps: float) -> Tensor:
    """x / √(mean(x²) + eps) over the last dimension, computed in fp32, returned in x's dtype
    (arXiv:1910.07467)."""
    x_float = x.float()
    mean_square = x_float.pow(2).mean(-1, keepdim=True)
    return (x_float * torch.rsqrt(mean_square + eps)).type_as(x)


class RMSNorm(nn.Module):
    """`rms_norm` with an optional learned gain, which starts at 1."""

    def __init__(self, *, d_model: int, eps: float, gain: bool) -> None:
        super().__init__()
        self.eps = eps
        self.gain: nn.Parameter | None = None
        if gain:
            self.gain = nn.Parameter(torch.ones(d_model))

    def forward(self, x: Tensor) -> Tensor:
        x = rms_norm(x, self.eps)
        if self.gain is None:
            return x
        return x * self.gain
