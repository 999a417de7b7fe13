"""How tokens are read: in which order, and of which type."""

from __future__ import annotations

from enum import Enum


class Order(Enum):
    shuffled = "shuffled"  # a permutation of all windows, another one each epoch, from the seed
    sequential = "sequential"  # the challenge's order; the seed does not touch it


class TokenType(Enum):
    """How a file without a header holds its tokens, in little-endian order."""

    uint16 = "uint16"
    uint32 = "uint32"
