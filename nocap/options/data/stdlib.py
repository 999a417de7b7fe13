"""The text that every machine has."""

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
class Stdlib(Data):
    """The Python standard library's own source, as found on this machine."""

    kind: str = "stdlib"
    val_fraction: float  # of the documents, chosen by hash

    def __post_init__(self) -> None:
        Data.__post_init__(self)
        require(0 < self.val_fraction < 1, "data.val_fraction", "be between 0 and 1", self.val_fraction)

    def locate(self, tokenizer: Tokenizer, *, cache_dir: Path) -> ShardSet:
        from nocap.data.corpus import stdlib

        return stdlib(tokenizer, val_fraction=self.val_fraction, cache_dir=cache_dir)
