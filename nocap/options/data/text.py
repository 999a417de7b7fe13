"""Text that is encoded on this machine: `stdlib` and `text`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from nocap.config.keys import key, require
from nocap.options.data import Data

if TYPE_CHECKING:
    from nocap.data.shards import ShardSet
    from nocap.options.tokenizer import Tokenizer


@dataclass(kw_only=True, slots=True)
class Stdlib(Data):
    """The Python standard library's own source, as found on this machine."""

    has_documents: ClassVar[bool] = True
    kind: str = "stdlib"
    val_fraction: float = key(gt=0, lt=1)  # share of the documents for validation, chosen by hash

    def locate(self, tokenizer: Tokenizer, *, cache_dir: Path) -> ShardSet:
        from nocap.data.corpus import stdlib

        return stdlib(tokenizer, val_fraction=self.val_fraction, cache_dir=cache_dir)


@dataclass(kw_only=True, slots=True)
class Text(Stdlib):
    """The user's own UTF-8 text: a file, a folder, a glob, or a list of them."""

    kind: str = "text"
    path: Any = key(identity=False, text=True)  # a text file, a folder, a glob, or a list of these

    def __post_init__(self) -> None:
        Stdlib.__post_init__(self)
        ok = bool(self.paths) and all(isinstance(item, str) and item for item in self.paths)
        require(ok, "data.path", "be a file, a folder, a glob or a list of them", repr(self.path))

    @property
    def paths(self) -> list[str]:
        return self.path if isinstance(self.path, list) else [self.path]

    def locate(self, tokenizer: Tokenizer, *, cache_dir: Path) -> ShardSet:
        from nocap.data.corpus import text

        return text(self.paths, tokenizer, val_fraction=self.val_fraction, cache_dir=cache_dir)
