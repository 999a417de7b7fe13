"""Tokens as text, while they come."""

from __future__ import annotations

import codecs
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import tiktoken


@dataclass(kw_only=True, slots=True)
class Sample:
    """One text as it grows. A token may hold a part of a character: `say` gets whole ones, and what is no UTF-8 becomes U+FFFD."""

    encoding: tiktoken.Encoding
    say: Callable[[str], None] = lambda text: None
    tokens: list[int] = field(default_factory=list)  # an end-of-text included
    text: str = ""
    ended: bool = False  # by an end-of-text: what its place in the batch goes on to say is not part of it
    _decoder: codecs.IncrementalDecoder = field(default_factory=lambda: codecs.getincrementaldecoder("utf-8")("replace"))

    def take(self, token: int) -> None:
        """The next token, unless the text has ended."""
        if self.ended:
            return
        self.tokens.append(token)
        self.ended = token == self.encoding.eot_token
        if not self.ended:
            self._add(self._decoder.decode(self.encoding.decode_single_token_bytes(token)))

    def finish(self) -> None:
        """No token follows: bytes that still wait for the rest of their character will not get it."""
        self._add(self._decoder.decode(b"", final=True))

    def _add(self, text: str) -> None:
        self.text += text
        self.say(text)


def for_a_terminal(text: str) -> str:
    """The text without what a terminal would obey: a model of bytes also writes control characters."""
    return "".join(c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text)
