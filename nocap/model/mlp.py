"""The feed-forward branch: plain with one activation, or gated."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


class PlainMlp(nn.Module):
    """down(f(up(x))): exact GELU, or squared ReLU."""

    def __init__(self, *, d_model: int, hidden: int, squared_relu: bool) -> None:
        super().__init__()
        self.squared_relu = squared_relu
        self.up = nn.Linear(d_model, hidden, bias=False)
        self.down = nn.Linear(hidden, d_model, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = self.up(x)
        if self.squared_relu:
            return self.down(F.relu(h).square())
        return self.down(F.gelu(h))


class SwiGLU(nn.Module):
    """down(silu(gate(x)) · up(x)) (arXiv:2002.05202)."""

    def __init__(self, *, d_model: int, hidden: int) -> None:
        super().__init__()
        self.gate = nn.Linear(d_model, hidden, bias=False)
        self.up = nn.Linear(d_model, hidden, bias=False)
        self.down = nn.Linear(hidden, d_model, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate = F.silu(self.gate(x))
        return self.down(gate * self.up(x))
