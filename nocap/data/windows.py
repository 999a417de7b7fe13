"""The windows of a set of shards: all stretches of seq_len tokens (and one more, the last target),
numbered over the shards.

An order maps the n-th sequence of training to a window: there is no loader state to save, and a
resumed run reads what the uninterrupted one would have read.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from nocap.data.tokens import Shard
from nocap.options.data.reading import Order

# the windows of an epoch in a shuffled order, and the epoch → the order in which they are read
Arranged = Callable[[NDArray[np.int64], int], NDArray[np.int64]]


def splitmix64(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return a bijective 64-bit hash (Steele, Lea & Flood 2014). NumPy's own shuffles may change
    between versions; this cannot."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def permutation(n: int, *, seed: int, epoch: int) -> NDArray[np.int64]:
    """Return a pseudo-random order of range(n): its elements sorted by a hash of (seed, epoch,
    element)."""
    of_seed = splitmix64(np.array([seed], np.uint64))
    key = splitmix64(of_seed ^ np.uint64(epoch))
    hashes = splitmix64(np.arange(n, dtype=np.uint64) ^ key)
    return np.argsort(hashes, kind="stable")


class Windows:
    """The windows of a set of shards in the order that training or validation reads them."""

    def __init__(
        self, shards: Sequence[Shard], *, seq_len: int, order: Order, read_sequences: int, seed: int
    ) -> None:
        """`read_sequences` counts in sequential order only: a shard is left when it cannot give
        that many sequences at once.

        Errors:
            ValueError: the shards do not hold one window.
        """
        unit = read_sequences if order is Order.sequential else 1
        counts = list[int]()
        for shard in shards:
            counts.append((shard.tokens - 1) // (seq_len * unit) * unit)
        self.counts = np.array(counts, np.int64)
        self.n = int(self.counts.sum())
        if self.n == 0:
            least = unit * seq_len + 1
            n_tokens = sum(shard.tokens for shard in shards)
            rule = f"have a shard of at least {unit} × model.seq_len + 1 = {least} tokens"
            raise ValueError(f"data must {rule}, got {n_tokens} in all shards")
        self.seq_len = seq_len
        self.order = order
        self.seed = seed
        # the same memory; memmap's own indexing is slow
        self._tokens = [np.asarray(shard.map()) for shard in shards]
        self._ends: list[int] = np.cumsum(self.counts).tolist()
        self._epoch = -1
        self._permutation = np.empty(0, np.int64)
        self._all = self.n
        self._arranged: Arranged | None = None

    def arrange(
        self, scores: NDArray[np.float64], *, keep: float, noise: float, sequences: int
    ) -> None:
        """Read but the share `keep` of the windows with the lowest scores; and those of an epoch
        that training of so many sequences reads, in the order of (1 - noise)·(rank of the score) +
        noise·(place in the shuffled order)."""
        most = max(1, round(keep * self._all))
        chosen = np.argsort(scores, kind="stable")[:most]
        rank = np.full(self._all, -1)
        rank[chosen] = np.arange(len(chosen))
        self.n = len(chosen)

        def arranged(order: NDArray[np.int64], epoch: int) -> NDArray[np.int64]:
            order = order[rank[order] >= 0]
            n_read = max(0, sequences - epoch * len(order))
            read = order[:n_read]
            later = order[len(read) :]
            ranks = np.argsort(np.argsort(rank[read]))
            by = (1 - noise) * ranks + noise * np.arange(len(read))
            sorted_read = read[np.argsort(by, kind="stable")]
            return np.concatenate([sorted_read, later])

        self._arranged = arranged

    def _window(self, sequence: int) -> int:
        epoch, index = divmod(sequence, self.n)
        if self.order is Order.sequential:
            return index
        if epoch != self._epoch:
            self._epoch = epoch
            self._permutation = permutation(self._all, seed=self.seed, epoch=epoch)
            if self._arranged is not None:
                self._permutation = self._arranged(self._permutation, epoch)
        return int(self._permutation[index])

    def read(self, sequences: Sequence[int]) -> NDArray[np.int32]:
        """Return the n-th sequences of training, (len(sequences), seq_len + 1) token ids."""
        return self.at([self._window(sequence) for sequence in sequences])

    def at(self, windows: Sequence[int]) -> NDArray[np.int32]:
        """Return these windows, as they are numbered over the shards."""
        T = self.seq_len
        out = np.empty((len(windows), T + 1), np.int32)
        for row, window in enumerate(windows):
            shard = bisect_right(self._ends, window)
            first = self._ends[shard - 1] if shard else 0
            start = (window - first) * T
            out[row] = self._tokens[shard][start : start + T + 1]
        return out
