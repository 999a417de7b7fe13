"""Bigram embedding: a vector for each pair of the previous and the current token, projected, is added to the
token's (modded-nanogpt).

A row a pair where V² rows are not too many, else pairs are hashed to `rows`. The rows start at 0: the model
is the one without. A step updates the whole table: of bytes, 2.1 million numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nocap.config.keys import key
from nocap.options.ideas import WithRate

if TYPE_CHECKING:
    from torch import Tensor, nn

    from nocap.config.run import Run
    from nocap.model.gpt import Context

FACTORS = 2_654_435_761, 2_246_822_519  # large odd numbers; times an id they stay below 2⁶³


@dataclass(kw_only=True, slots=True)
class Bigram(WithRate):
    kind: str = "bigram"
    channels: int = key(ge=1, le=2**20)  # of the pairs' embeddings
    exact: int = key(ge=0, le=2**32)  # pairs, at most, for which each has a row of its own
    rows: int = key(ge=1, le=2**32)  # that more pairs are hashed to

    def build(self, run: Run, *, vocab_size: int) -> nn.Module:
        from torch import nn

        part: Any = nn.Module()
        part.base = vocab_size if vocab_size**2 <= self.exact else 0
        part.table = nn.Embedding(part.base**2 or self.rows, self.channels)
        nn.init.zeros_(part.table.weight)
        part.project = nn.Linear(self.channels, run.model.d_model, bias=False)
        return part

    def embed(self, part: Any, x_BTC: Tensor, context: Context) -> Tensor:
        from torch.nn.functional import pad

        before, now = context.tokens_BT[:, :-1], context.tokens_BT[:, 1:]
        row = (
            before * part.base + now
            if part.base
            else ((before * FACTORS[0]) ^ (now * FACTORS[1])) % self.rows
        )
        return x_BTC + pad(part.project(part.table(row)), (0, 0, 1, 0))  # the first token has no pair
