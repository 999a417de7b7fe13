"""Tokens that need no text."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from nocap.config.keys import require
from nocap.options.data import Data

if TYPE_CHECKING:
    from nocap.data.shards import ShardSet
    from nocap.options.tokenizer import Tokenizer


@dataclass(kw_only=True, slots=True)
class Synthetic(Data):
    """A Markov chain with four successors a token: needs nothing, can be learned, and its entropy is known (ln 4)."""

    kind: str = "synthetic"
    train_tokens: int
    val_tokens: int
    source_seed: int

    def __post_init__(self) -> None:
        Data.__post_init__(self)
        for name in ("train_tokens", "val_tokens"):
            require(getattr(self, name) >= 1, f"data.{name}", "be at least 1", getattr(self, name))
        require(self.source_seed >= 0, "data.source_seed", "be at least 0", self.source_seed)

    def locate(self, tokenizer: Tokenizer, *, cache_dir: Path) -> ShardSet:
        from nocap.data.corpus import synthetic

        lengths = {"train": self.train_tokens, "val": self.val_tokens}
        return synthetic(lengths, self.source_seed, tokenizer, cache_dir=cache_dir)
