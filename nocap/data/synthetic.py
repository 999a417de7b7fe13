"""A Markov chain with four equally likely successors a token: needs no file, can be learned, and
its entropy is exactly ln 4 nats.

Everything comes from an integer hash, so the tokens are the same under every version of NumPy and
Python.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from nocap.data.shard_cache import NewSet, cached_set, write_shards
from nocap.data.shards import ShardSet
from nocap.data.windows import splitmix64
from nocap.options.tokenizer import Tokenizer

CHUNK_TOKENS = 1_000_000
# what a draw is for
_SUCCESSORS = 0
_FIRST = 1
_CHOICES = 2


def synthetic(
    lengths: dict[str, int], source_seed: int, tokenizer: Tokenizer, *, cache_dir: Path
) -> ShardSet:
    """Return the chain over the vocabulary's ids as shards, `lengths` tokens a split. They are not
    text."""
    size = tokenizer.vocab_size

    def make(target: Path) -> NewSet:
        shards = {}
        for stream, (split, count) in enumerate(lengths.items()):
            chain = tokens(count, vocab_size=size, seed=source_seed, stream=stream)
            shards[split] = write_shards(target, split, chain)
        return {"text": False}, shards

    key = {"lengths": lengths, "source_seed": source_seed, "vocab_size": size}
    return cached_set("synthetic", tokenizer.name, key, cache_dir=cache_dir, make=make)


def _draw(numbers: npt.NDArray[np.uint64], *, seed: int, purpose: int) -> npt.NDArray[np.uint64]:
    start = np.array([seed % 2**64], dtype=np.uint64)
    key = splitmix64(splitmix64(start) + np.uint64(purpose))
    return splitmix64(numbers ^ key)


def successors(*, vocab_size: int, seed: int) -> npt.NDArray[np.int64]:
    """Return the four different tokens that may follow each token, of shape (vocab_size, 4)."""
    assert vocab_size >= 4
    size = np.uint64(vocab_size)
    places = np.arange(vocab_size * 4, dtype=np.uint64).reshape(-1, 4)
    table = _draw(places, seed=seed, purpose=_SUCCESSORS) % size
    # two equal successors would lower the entropy: a repeated one moves to the next free token
    for choice in range(1, 4):
        repeated = _repeated(table, choice)
        while repeated.any():
            table[repeated, choice] = (table[repeated, choice] + np.uint64(1)) % size
            repeated = _repeated(table, choice)
    return table.astype(np.int64)


def _repeated(table: npt.NDArray[np.uint64], choice: int) -> npt.NDArray[np.bool_]:
    """Return the tokens one of whose earlier successors is this one again."""
    is_equal = table[:, :choice] == table[:, choice, None]
    return is_equal.any(axis=1)


def tokens(
    count: int, *, vocab_size: int, seed: int, stream: int
) -> Iterator[npt.NDArray[np.uint16]]:
    """`count` tokens of the chain in chunks. Streams (training, validation) walk the same chain by
    independent choices."""
    table = successors(vocab_size=vocab_size, seed=seed).ravel().tolist()
    streams = np.array([stream], dtype=np.uint64)
    first = _draw(streams, seed=seed, purpose=_FIRST)
    token = int(first[0]) % vocab_size
    for start in range(0, count, CHUNK_TOKENS):
        end = min(start + CHUNK_TOKENS, count)
        positions = np.arange(start, end, dtype=np.uint64)
        draws = _draw(positions, seed=seed, purpose=_CHOICES + stream)
        choices = draws & np.uint64(3)
        walk = []
        for choice in choices.tolist():
            token = table[4 * token + choice]
            walk.append(token)
        yield np.array(walk, dtype=np.uint16)
