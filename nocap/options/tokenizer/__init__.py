"""The tokenizer options: text to token ids and back."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from nocap.config.option import Option

if TYPE_CHECKING:
    import tiktoken


@dataclass(kw_only=True, slots=True)
class Tokenizer(Option):
    """A vocabulary of up to 65,536 tokens, as a tiktoken encoding with an end-of-text."""

    @property
    def name(self) -> str:
        """Return a name for people, and for what is kept in the cache: equal names mean equal
        tokens."""
        return self.kind

    @property
    def vocab_size(self) -> int:
        """Return the number of tokens, end-of-text included, without loading anything."""
        raise NotImplementedError(f"tokenizer.kind={self.kind} must define the property vocab_size")

    @property
    def end_of_text(self) -> int | None:
        """Return the token with which a document begins, without loading anything; None: unknown,
        and `data.document_mask` is refused."""
        return None

    def load(self, *, cache_dir: Path) -> tiktoken.Encoding:
        """Return the encoding. `ValueError` where its files are missing and cannot be fetched; it
        says how to get them."""
        raise NotImplementedError(f"tokenizer.kind={self.kind} must define the method load")
