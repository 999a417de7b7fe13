"""The characters of an override's values, as they were typed.

Hydra's grammar reads `2024_11_27` as a number before the type of its key is known. Its own lexer
says here where the values of an override stand, so that a key of text gets what was typed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from antlr4 import CommonTokenStream, InputStream, Token
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.grammar.gen.OverrideLexer import OverrideLexer

# What Hydra reads as another type than text.
TYPED = (OverrideLexer.INT, OverrideLexer.FLOAT, OverrideLexer.BOOL, OverrideLexer.NULL)
OPENING = (OverrideLexer.POPEN, OverrideLexer.BRACKET_OPEN, OverrideLexer.BRACE_OPEN)
CLOSING = (OverrideLexer.PCLOSE, OverrideLexer.BRACKET_CLOSE, OverrideLexer.BRACE_CLOSE)


@dataclass(frozen=True, slots=True)
class Element:
    """A value in an override that is no list, mapping or function."""

    start: int  # of its characters in the override
    stop: int
    around: tuple[int, ...]  # the kinds of brackets that are open there, the outermost first
    is_typed: bool  # Hydra reads another type than text

    @property
    def is_argument(self) -> bool:
        """Return whether it is an argument of a function, such as range, which wants numbers."""
        return OverrideLexer.POPEN in self.around


def elements(word: str) -> Iterator[Element]:
    """Yield each element of an override that Hydra can parse, from left to right."""
    stream = CommonTokenStream(OverrideLexer(InputStream(word)))
    stream.fill()
    tokens = iter(stream.tokens)
    for token in tokens:
        if token.type == OverrideLexer.EQUAL:
            break
    around = list[int]()
    its_tokens = list[Any]()
    for token in tokens:
        is_key = token.type == OverrideLexer.COLON and OverrideLexer.BRACE_OPEN in around
        if token.type in OPENING:
            its_tokens = []  # a function's name
            around.append(token.type)
        elif token.type in (*CLOSING, OverrideLexer.COMMA, Token.EOF) or is_key:
            if its_tokens and not is_key:
                yield Element(
                    start=its_tokens[0].start,
                    stop=its_tokens[-1].stop + 1,
                    around=tuple(around),
                    is_typed=len(its_tokens) == 1 and its_tokens[0].type in TYPED,
                )
            its_tokens = []
            if token.type in CLOSING:
                around.pop()
        elif token.type != OverrideLexer.WS or its_tokens:
            its_tokens.append(token)


def texts_of_typed(word: str) -> Iterator[str]:
    """Yield the characters of each value of a sweep that Hydra reads as another type than text."""
    for element in elements(word):
        if element.is_typed and not element.around:
            yield word[element.start : element.stop]


@lru_cache(maxsize=4096)
def as_text(word: str) -> Any:
    """Return an override's value with every number, truth value and null as the text that was
    typed.

    Errors:
        HydraException: it cannot be parsed.
    """
    parts = list[str]()
    end = 0
    for element in elements(word):
        if element.is_typed and not element.is_argument:
            parts += [word[end : element.start], repr(word[element.start : element.stop])]
            end = element.stop
    parts.append(word[end:])
    return OverridesParser.create().parse_override("".join(parts)).value()
