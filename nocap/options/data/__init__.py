"""The data options: where the tokens come from, and the order in which they are read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from nocap.config.keys import key
from nocap.config.option import Option, require_default
from nocap.options.data.reading import Order

if TYPE_CHECKING:
    from nocap.data.shards import ShardSet
    from nocap.options.tokenizer import Tokenizer


@dataclass(kw_only=True, slots=True)
class Data(Option):
    """A source of token shards. Its tokens are part of a run's identity, by their hash. Where they
    are stored is not: a key that is only about that is declared as `key(identity=False)`."""

    has_documents: ClassVar[bool] = False  # True: each begins with the tokenizer's end-of-text

    order: Order  # order in which training reads the windows of the text
    # sequences in one read with data.order=sequential; nocap skips a shorter rest of a shard
    read_sequences: int = key(ge=1, le=2**31, default=16)
    # attention stops where a document ends
    document_mask: bool = key(default=False, added=True, step=True)

    def __post_init__(self) -> None:
        if self.order is not Order.sequential:
            why = f"with data.order={self.order.value}, which does not read this key"
            require_default(self, "data.read_sequences", why)

    def locate(self, tokenizer: Tokenizer, *, cache_dir: Path) -> ShardSet:
        """Return the shards, made or fetched if they are missing, not yet read.
        `nocap.data.shard_cache.cached_set` keeps what is made in the cache, until the code
        that makes it is another. `ValueError` in one line for whatever a user can put right."""
        raise NotImplementedError(f"data.kind={self.kind} must define the method locate")
