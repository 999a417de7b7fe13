"""Partial key offset: for half of a key's channels, the key is that of the token before
(modded-nanogpt).

A query that matches a token's key in that half gets the values of the token after it: one layer can
continue what stood there before. The half is that of the pairs which rotary embedding turns the
least. The first token has no other before it and keeps its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nocap.config.keys import require
from nocap.options.ideas import Idea

if TYPE_CHECKING:
    from torch import Tensor, nn

    from nocap.config.run import Run
    from nocap.model.context import Context


@dataclass(kw_only=True, slots=True)
class PartialKeyOffset(Idea):
    kind: str = "partial_key_offset"

    def check(self, run: Run) -> None:
        d_head = run.model.d_model // run.model.n_head
        rule = "be divisible by 4 for ideas.partial_key_offset"
        require(d_head % 4 == 0, "model.d_model / model.n_head", rule, d_head)

    def flops_per_token(self, run: Run, *, vocab_size: int) -> float:
        return 0.0

    def build_layer(self, run: Run, layer: int) -> nn.Module:
        from torch import nn

        return nn.Module()

    def qkv(
        self, part: Any, q_BTHD: Tensor, k_BTKD: Tensor, v_BTKD: Tensor, context: Context
    ) -> tuple[Tensor, Tensor, Tensor]:
        import torch

        before_BTKD = torch.cat([k_BTKD[:, :1], k_BTKD[:, :-1]], dim=1)
        own = k_BTKD.chunk(4, dim=3)
        before = before_BTKD.chunk(4, dim=3)
        # Rotary pairs channel i with i + D/2, the lower i turning faster: the second and the last
        # quarter are the slow pairs.
        mixed_BTKD = torch.cat([own[0], before[1], own[2], before[3]], dim=3)
        return q_BTHD, mixed_BTKD, v_BTKD
