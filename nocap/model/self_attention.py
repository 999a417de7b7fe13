"""Causal self-attention: one module of projections around the mixer that an option chooses.

B: batch, T: tokens, C: channels, H: query heads, K: key/value heads, D: channels of a head.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nocap.model.norm import rms_norm

if TYPE_CHECKING:
    from nocap.model.context import Context, Mixer
    from nocap.options.ideas import Idea
    from nocap.options.model import Model
    from nocap.options.position import Position


class Merged(nn.Module):
    """Several bias-free linear maps of one input as one product. The outputs are theirs; the
    input's gradient is rounded once, not once a map. The weights stay apart, for Muon, initial
    values and checkpoints."""

    def forward(self, x_BTC: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
        sizes = [weight.shape[0] for weight in weights]
        return F.linear(x_BTC, torch.cat(weights)).split(sizes, dim=2)


class CausalSelfAttention(nn.Module):
    """Project, turn, mix, project. Queries, keys and values have a matrix each: Muon must
    orthogonalise them one by one."""

    def __init__(
        self,
        m: Model,
        position: Position,
        mixer: Mixer,
        *,
        n_kv_heads: int,
        merge_qkv: bool,
    ) -> None:
        super().__init__()
        self.n_head = m.n_head
        self.n_kv_heads = n_kv_heads
        self.d_head = m.d_model // m.n_head
        self.qk_norm = m.qk_norm
        self.position = position
        self.mixer = mixer
        d_kv = self.n_kv_heads * self.d_head
        self.q_proj = nn.Linear(m.d_model, self.n_head * self.d_head, bias=False)
        self.k_proj = nn.Linear(m.d_model, d_kv, bias=False)
        self.v_proj = nn.Linear(m.d_model, d_kv, bias=False)
        self.out_proj = nn.Linear(m.d_model, m.d_model, bias=False)
        self.merged = Merged() if merge_qkv else None

    def forward(
        self,
        x_BTC: Tensor,
        context: Context,
        ideas: Sequence[tuple[str, Idea, nn.Module]] = (),
    ) -> Tensor:
        """`ideas`: name, idea and part of those that change queries, keys or values.
        `context.mixers` replace the layer's own mixer: those of generation read and write a
        cache."""
        mix = self.mixer if context.mixers is None else next(context.mixers)
        q_BTHD, k_BTKD, v_BTKD = self._heads(x_BTC)
        if self.qk_norm:
            q_BTHD = rms_norm(q_BTHD, 1e-6)
            k_BTKD = rms_norm(k_BTKD, 1e-6)
        q_BTHD, k_BTKD = self.position.turn(q_BTHD, k_BTKD, context.tables)
        for _, idea, part in ideas:
            q_BTHD, k_BTKD, v_BTKD = idea.qkv(part, q_BTHD, k_BTKD, v_BTKD, context)
        arguments = [x.transpose(1, 2) for x in (q_BTHD, k_BTKD, v_BTKD)]
        if context.documents is not None:
            arguments.append(context.documents)
        y_BHTD = mix(*arguments)
        return self.out_proj(y_BHTD.transpose(1, 2).flatten(2))

    def _heads(self, x_BTC: Tensor) -> list[Tensor]:
        """Return queries, keys and values, head by head."""
        projections = (self.q_proj, self.k_proj, self.v_proj)
        if self.merged is None:
            qkv = [projection(x_BTC) for projection in projections]
        else:
            weights = [projection.weight for projection in projections]
            qkv = self.merged(x_BTC, *weights)
        return [y.unflatten(2, (-1, self.d_head)) for y in qkv]
