"""The challenge's data."""

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
class Fineweb(Data):
    """FineWeb-10B, already in GPT-2 tokens, from the Hugging Face hub: 100M tokens a shard."""

    kind: str = "fineweb"
    repo: str
    revision: str
    train_shards: int

    def __post_init__(self) -> None:
        Data.__post_init__(self)
        require(1 <= self.train_shards <= 103, "data.train_shards", "be between 1 and 103", self.train_shards)

    def locate(self, tokenizer: Tokenizer, *, cache_dir: Path) -> ShardSet:
        from nocap.data.fineweb import fineweb

        # Asked before gigabytes are fetched.
        require(tokenizer.name == "gpt2", "tokenizer.vocabulary", "be gpt2 for data=fineweb, whose tokens are GPT-2's", tokenizer.name)
        return fineweb(self, cache_dir=cache_dir)
