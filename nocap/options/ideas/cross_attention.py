"""Unused cross-attention: after each block a branch looks at a memory of zeros, as a decoder does
that no encoder feeds.

x + out(softmax(q·kᵀ)·v) with v = 0: the output is the same to the bit and no gradient is other than
0, while parameters, FLOPs and memory are spent. It measures what leaving such a branch out is
worth.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nocap.config.keys import key
from nocap.options.ideas import Idea

if TYPE_CHECKING:
    from torch import Tensor, nn

    from nocap.config.run import Run
    from nocap.model.context import Context


@dataclass(kw_only=True, slots=True)
class CrossAttention(Idea):
    PER_TOKEN = True
    kind: str = "cross_attention"
    tokens: int = key(ge=1, le=2**24)  # number of zero vectors that the branch attends to

    def build_layer(self, run: Run, layer: int) -> nn.Module:
        import torch
        from torch import nn

        width = run.model.d_model
        part: Any = nn.Module()
        part.norm = run.norm.build(width)
        part.n_head = run.model.n_head
        part.q_proj = nn.Linear(width, width, bias=False)
        part.k_proj = nn.Linear(width, width, bias=False)
        part.v_proj = nn.Linear(width, width, bias=False)
        part.out_proj = nn.Linear(width, width, bias=False)
        part.register_buffer("memory_1MC", torch.zeros(1, self.tokens, width), persistent=False)
        return part

    def leave(self, part: Any, x_BTC: Tensor, context: Context) -> Tensor:
        from torch.nn.functional import scaled_dot_product_attention

        memory_BMC = part.memory_1MC.expand(x_BTC.shape[0], -1, -1)
        q_BTC = part.q_proj(part.norm(x_BTC))
        k_BMC = part.k_proj(memory_BMC)
        v_BMC = part.v_proj(memory_BMC)
        q_BHTD = _by_head(q_BTC, part.n_head)
        k_BHMD = _by_head(k_BMC, part.n_head)
        v_BHMD = _by_head(v_BMC, part.n_head)
        y_BHTD = scaled_dot_product_attention(q_BHTD, k_BHMD, v_BHMD)
        return x_BTC + part.out_proj(y_BHTD.transpose(1, 2).flatten(2))


def _by_head(y: Tensor, n_head: int) -> Tensor:
    return y.unflatten(2, (n_head, -1)).transpose(1, 2)
