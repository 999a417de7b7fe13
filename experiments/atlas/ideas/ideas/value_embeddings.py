"""Value embeddings: a table of its own adds a vector for the token to a layer's values, gated
(modded-nanogpt, nanochat).

v ← v + g·e[token]. The gate of a head is 2·σ(w·v), w starting at 0, or one learned number, starting
at 1. Tables that start at 0 leave the model as it is without them. A step updates the whole table,
as it does the embedding's.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from nocap.config.keys import key
from nocap.options.ideas import WithRate

if TYPE_CHECKING:
    from torch import Tensor, nn

    from nocap.config.run import Run
    from nocap.model.gpt import Context


class Gate(Enum):
    head = "head"  # of each token and head
    scalar = "scalar"


@dataclass(kw_only=True, slots=True)
class ValueEmbeddings(WithRate):
    PER_TOKEN = True
    kind: str = "value_embeddings"
    every: int = key(ge=1, le=4096)  # layers between two that have it, the last one among them
    gate: Gate  # by what the added vector is multiplied
    start: float = key(ge=0, le=1e3)  # the embeddings' numbers are uniform in ± this

    def build_layer(self, run: Run, layer: int) -> nn.Module | None:
        import torch
        from torch import nn

        if (run.model.n_layer - 1 - layer) % self.every:
            return None
        heads, d_head, part = (
            run.attention.n_kv_heads,
            run.model.d_model // run.model.n_head,
            nn.Module(),
        )
        part.table = nn.Embedding(run.tokenizer.vocab_size, heads * d_head)
        nn.init.uniform_(part.table.weight, -self.start, self.start)
        part.gate = nn.Parameter(
            torch.zeros(heads, d_head) if self.gate is Gate.head else torch.ones(())
        )
        return part

    def qkv(
        self, part: Any, q_BTHD: Tensor, k_BTKD: Tensor, v_BTKD: Tensor, context: Context
    ) -> tuple[Tensor, Tensor, Tensor]:
        added_BTKD = part.table(context.tokens_BT).unflatten(2, v_BTKD.shape[2:])
        gate = (
            2 * (v_BTKD * part.gate).sum(3, keepdim=True).sigmoid()
            if self.gate is Gate.head
            else part.gate
        )
        return q_BTHD, k_BTKD, (v_BTKD + gate * added_BTKD).type_as(v_BTKD)
