"""A Markov chain with four successors a token: needs no text, can be learned, and its entropy is known (ln 4 nats)."""

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
        from nocap.data.synthetic import synthetic

        return synthetic({"train": self.train_tokens, "val": self.val_tokens}, self.source_seed, tokenizer, cache_dir=cache_dir)
