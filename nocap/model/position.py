"""Rotary position embedding, and positions that begin anew in each document.

B: batch, T: tokens, H: heads, D: channels of a head.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


def document_positions(tokens_BT: Tensor, *, start: int) -> Tensor:
    """Return how far each token stands from the last `start`, (B, T); before the first one, from
    the sequence's beginning."""
    T = tokens_BT.shape[1]
    places_T = torch.arange(T, device=tokens_BT.device)
    starts_BT = torch.where(tokens_BT == start, places_T, 0)
    return places_T - starts_BT.cummax(dim=1).values


def rotary_tables(*, seq_len: int, d_head: int, base: float) -> tuple[Tensor, Tensor]:
    """Return cosines and sines of the angle t·base^(-2i/D) for position t and pair i, each
    (T, D/2), fp32 (RoFormer, arXiv:2104.09864)."""
    pairs = torch.arange(0, d_head, 2).float()
    inverse_frequency = 1.0 / (base ** (pairs / d_head))
    places_T = torch.arange(seq_len).float()
    angle_TD = torch.outer(places_T, inverse_frequency)
    return angle_TD.cos(), angle_TD.sin()


def rotate(x_BTHD: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate each pair (x[i], x[i + D/2]) by its position's angle, clockwise as the challenge does;
    fp32, as the tables are: (T, D/2), or (B, T, D/2) where sequences have positions of their
    own."""
    T = x_BTHD.shape[1]
    half = x_BTHD.shape[3] // 2
    cos = cos[..., :T, None, :]
    sin = sin[..., :T, None, :]
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
