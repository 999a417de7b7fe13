"""A Markov chain with four successors a token: needs no text, can be learned, and its entropy is
known (ln 4 nats)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from nocap.config.keys import key
from nocap.options.data import Data

if TYPE_CHECKING:
    from nocap.data.shards import ShardSet
    from nocap.options.tokenizer import Tokenizer


@dataclass(kw_only=True, slots=True)
class Synthetic(Data):
    kind: str = "synthetic"
    train_tokens: int = key(ge=1, le=10**9)  # tokens for training; 10⁹ take 100 s and 2 GB to make
    val_tokens: int = key(ge=1, le=10**9)  # tokens for validation
    source_seed: int = key(ge=0, lt=2**63)  # seed of the synthetic text

    def locate(self, tokenizer: Tokenizer, *, cache_dir: Path) -> ShardSet:
        from nocap.data.synthetic import synthetic

        return synthetic(
            {"train": self.train_tokens, "val": self.val_tokens},
            self.source_seed,
            tokenizer,
            cache_dir=cache_dir,
        )
