"""Rotary position embedding.

T: tokens, D: channels of a head.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


def rotary_tables(*, seq_len: int, d_head: int, base: float) -> tuple[Tensor, Tensor]:
    """Cosines and sines of the angle t·base^(-2i/D) for position t and pair i, each (T, D/2), fp32
    (RoFormer, arXiv:2104.09864)."""
    exponent = torch.arange(0, d_head, 2).float() / d_head
    inverse_frequency = 1.0 / (base**exponent)
    angle_TD = torch.outer(torch.arange(seq_len).float(), inverse_frequency)
    return angle_TD.cos(), angle_TD.sin()


def rotate(x_BTHD: Tensor, cos_TD: Tensor, sin_TD: Tensor) -> Tensor:
    """Rotate each pair (x[i], x[i + D/2]) by its position's angle, clockwise as the challenge does;
    fp32, as the tables are."""
    T = x_BTHD.shape[1]
    half = x_BTHD.shape[3] // 2
    cos = cos_TD[:T, None]
    sin = sin_TD[:T, None]
    x1 = x_BTHD[..., :half]
    x2 = x_BTHD[..., half:]
    return torch.cat([x1 * cos + x2 * sin, x2 * cos - x1 * sin], dim=3)


class RotaryTables(nn.Module):
    """The tables of every position, as buffers outside the checkpoint."""

    cos: Tensor
    sin: Tensor

    def __init__(self, *, seq_len: int, d_head: int, base: float) -> None:
        super().__init__()
        cos, sin = rotary_tables(seq_len=seq_len, d_head=d_head, base=base)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
