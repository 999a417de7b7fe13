"""Token shards that are there already."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from nocap.config.keys import key, require
from nocap.options.data import Data

if TYPE_CHECKING:
    from nocap.data.shards import ShardSet
    from nocap.options.tokenizer import Tokenizer


@dataclass(kw_only=True, slots=True)
class Shards(Data):
    """Token shards in the challenge's .bin format."""

    kind: str = "shards"
    train: str = key(identity=False)  # glob
    val: str = key(identity=False)  # glob

    def __post_init__(self) -> None:
        Data.__post_init__(self)
        for name in ("train", "val"):
            require(bool(getattr(self, name)), f"data.{name}", "be a path or a glob", repr(getattr(self, name)))

    def locate(self, tokenizer: Tokenizer, *, cache_dir: Path) -> ShardSet:
        from nocap.data.shards import matching

        return matching(train=self.train, val=self.val)
