"""n-gram embeddings: several tables, each with a vector for the last n tokens, projected and added
to the token's (hashed tables as in arXiv:2412.09871 and arXiv:2501.16975)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nocap.config.keys import require
from nocap.options.ideas.bigram import FACTORS, Bigram

if TYPE_CHECKING:
    from torch import Tensor, nn

    from nocap.config.run import Run
    from nocap.model.context import Context


@dataclass(kw_only=True, slots=True)
class Ngrams(Bigram):
    kind: str = "ngrams"
    sizes: list[int]  # lengths of the n-grams, with the current token; each length has a table

    def check(self, run: Run) -> None:
        known = range(2, len(FACTORS) + 1)
        distinct = set(self.sizes)
        is_once = len(distinct) == len(self.sizes) > 0
        rule = f"hold one or more of {list(known)}, each at most once"
        require(is_once and distinct <= set(known), "ideas.ngrams.sizes", rule, self.sizes)
        Bigram.check(self, run)

    def longest(self) -> int:
        return max(self.sizes)

    def build(self, run: Run, *, vocab_size: int) -> nn.Module:
        from torch import nn

        return nn.ModuleList(self.table(n, run, vocab_size) for n in self.sizes)

    def embed(self, part: Any, x_BTC: Tensor, context: Context) -> Tensor:
        for n, table in zip(self.sizes, part, strict=True):
            x_BTC = x_BTC + self.rows_of(table, n, context)
        return x_BTC
