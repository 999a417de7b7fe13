"""Token shards that exist already: in the challenge's .bin format, or without a header, as nanoGPT
writes them."""

from __future__ import annotations

import glob
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from nocap.config.keys import key, require
from nocap.config.paths import expanded
from nocap.options.data import Data
from nocap.options.data.reading import TokenType

if TYPE_CHECKING:
    from nocap.data.shards import ShardSet
    from nocap.options.tokenizer import Tokenizer


@dataclass(kw_only=True, slots=True)
class Shards(Data):
    has_documents: ClassVar[bool] = True
    kind: str = "shards"
    train: str = key(identity=False)  # glob of the training files
    val: str = key(identity=False)  # glob of the validation files
    # type of the tokens in files without a header, uint16 or uint32; null: the files have a header.
    # The hash of the data includes it
    dtype: TokenType | None = key(identity=False, default=None)

    def __post_init__(self) -> None:
        Data.__post_init__(self)
        rule = "be a path or a glob"
        require(self.train != "", "data.train", rule, repr(self.train))
        require(self.val != "", "data.val", rule, repr(self.val))

    def locate(self, tokenizer: Tokenizer, *, cache_dir: Path) -> ShardSet:
        from nocap.data.shards import ShardSet

        train = _matches("data.train", self.train)
        val = _matches("data.val", self.val)
        shared = set(map(os.path.realpath, train)) & set(map(os.path.realpath, val))
        first = min(shared, default="")
        require(not shared, "data.val", "match no file of data.train", f"{first} in both")
        source: dict[str, object] = {
            "kind": "shards",
            "text": True,
            "train": self.train,
            "val": self.val,
        }
        if self.dtype is not None:
            source["dtype"] = self.dtype.value
        return ShardSet(train=train, val=val, source=source, raw=self.dtype)


def _matches(name: str, pattern: str) -> tuple[Path, ...]:
    path = expanded(pattern)
    if path.is_file():  # whatever its name is
        return (path,)
    paths = tuple(Path(match) for match in sorted(glob.glob(str(path), recursive=True)))
    require(bool(paths), name, "match at least one file", repr(pattern))
    return paths
