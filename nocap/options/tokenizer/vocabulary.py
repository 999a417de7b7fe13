"""The two vocabularies that come with nocap: `bytes` and `gpt2` are the yamls."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from nocap.options.tokenizer import Tokenizer

if TYPE_CHECKING:
    import tiktoken


class Vocabulary(Enum):
    bytes = "bytes"  # 256 bytes and an end-of-text
    gpt2 = "gpt2"  # tiktoken's GPT-2 encoding, 50,257 tokens


SIZES = {Vocabulary.bytes: 257, Vocabulary.gpt2: 50257}


@dataclass(kw_only=True, slots=True)
class BuiltIn(Tokenizer):
    kind: str = "tokenizer"
    vocabulary: Vocabulary  # vocabulary of the tokens

    @property
    def name(self) -> str:
        return self.vocabulary.name

    @property
    def vocab_size(self) -> int:
        return SIZES[self.vocabulary]

    @property
    def end_of_text(self) -> int | None:
        return self.vocab_size - 1

    def load(self, *, cache_dir: Path) -> tiktoken.Encoding:
        from nocap.data import tokenizer

        if self.vocabulary is Vocabulary.bytes:
            return tokenizer.bytes_encoding()
        return tokenizer.gpt2(cache_dir / "tiktoken")
