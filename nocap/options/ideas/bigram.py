"""Bigram embedding: a vector for each pair of the previous and the current token, projected, is
added to the token's (modded-nanogpt).

A row a pair where V² rows are not too many, else pairs are hashed to `rows`. The rows start at 0:
the model is the one without. A step updates the whole table: of bytes, 2.1 million numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nocap.config.keys import key
from nocap.config.option import require_default
from nocap.options.ideas import WithRate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor, nn

    from nocap.config.run import Run
    from nocap.model.context import Context

# large odd numbers; times an id they stay below 2⁶³
FACTORS = 2_654_435_761, 2_246_822_519, 3_266_489_917, 668_265_263, 374_761_393, 1_540_483_477


@dataclass(kw_only=True, slots=True)
class Bigram(WithRate):
    kind: str = "bigram"
    channels: int = key(ge=1, le=2**20)  # width of the embeddings of the pairs
    # largest number of pairs for which each pair has a row of its own
    exact: int = key(ge=0, le=2**32)
    rows: int = key(ge=1, le=2**32, default=65_536)  # number of rows that more pairs are hashed to

    def check(self, run: Run) -> None:
        WithRate.check(self, run)
        pairs = run.tokenizer.vocab_size ** self.longest()
        if pairs <= self.exact:
            why = (
                f"because each of the {pairs:,} pairs has its own row "
                f"(ideas.{self.kind}.exact={self.exact:,})"
            )
            require_default(self, f"ideas.{self.kind}.rows", why)

    def longest(self) -> int:
        """Return the most tokens that a row stands for."""
        return 2

    def build(self, run: Run, *, vocab_size: int) -> nn.Module:
        return self.table(2, run, vocab_size)

    def embed(self, part: Any, x_BTC: Tensor, context: Context) -> Tensor:
        return x_BTC + self.rows_of(part, 2, context)

    def table(self, n: int, run: Run, vocab_size: int) -> nn.Module:
        """Return the table of the last n tokens."""
        from torch import nn

        part: Any = nn.Module()
        part.base = 0  # of a row's number, whose digits are ids; 0: the number is a hash
        n_rows = self.rows
        if vocab_size**n <= self.exact:
            part.base = vocab_size
            n_rows = vocab_size**n
        part.table = nn.Embedding(n_rows, self.channels)
        nn.init.zeros_(part.table.weight)
        part.project = nn.Linear(self.channels, run.model.d_model, bias=False)
        return part

    def rows_of(self, part: Any, n: int, context: Context) -> Tensor:
        """Return each token's row, projected, (B, T, C); the first n - 1 have none."""
        from torch.nn.functional import pad

        length = context.tokens_BT.shape[1]
        n_ends = max(0, length - n + 1)  # tokens that end n of them
        ids = [context.tokens_BT[:, i : i + n_ends] for i in range(n)]
        if part.base:
            row_BT = numbers(ids, part.base)
        else:
            row_BT = hashes(ids) % self.rows
        rows_BTC = part.project(part.table(row_BT))
        return pad(rows_BTC, (0, 0, length - n_ends, 0))


def numbers(ids: Sequence[Tensor], base: int) -> Tensor:
    """Return the number whose digits in this base are the ids, the first of them the highest."""
    number_BT = ids[0]
    for id_BT in ids[1:]:
        number_BT = number_BT * base + id_BT
    return number_BT


def hashes(ids: Sequence[Tensor]) -> Tensor:
    """Return a hash of the ids, in which each place has a factor of its own."""
    hash_BT = ids[0] * FACTORS[0]
    for id_BT, factor in zip(ids[1:], FACTORS[1:], strict=False):
        hash_BT = hash_BT ^ (id_BT * factor)
    return hash_BT
