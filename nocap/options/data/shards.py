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
from nocap.options.data import Data, TokenType

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
        for name in ("train", "val"):
            require(
                bool(getattr(self, name)),
                f"data.{name}",
                "be a path or a glob",
                repr(getattr(self, name)),
            )

    def locate(self, tokenizer: Tokenizer, *, cache_dir: Path) -> ShardSet:
        from nocap.data.shards import ShardSet

        train, val = _matches("data.train", self.train), _matches("data.val", self.val)
        both = {os.path.realpath(path) for path in train} & {os.path.realpath(path) for path in val}
        require(
            not both,
            "data.val",
            "not match a shard of data.train",
            f"{min(both, default='')} in both",
        )
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
    require(bool(paths), name, "match at least one shard", repr(pattern))
    return paths
