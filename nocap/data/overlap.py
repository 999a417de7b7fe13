"""How much of a validation text stands in its training text, too, wherever it begins there.

Passages are compared by a rolling hash. Of all passages a sixteenth is looked at, chosen by the
hash itself: so a text is found again behind another beginning. In a short text, or one of few
passages, all are looked at.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from nocap.data.tokens import Shard

PASSAGE = 64  # tokens
LEAST_PASSAGES = 32  # passages that a share is made of
CHUNK = 1 << 16  # passages hashed at once, which fit a core's cache
SAMPLED_BITS = 4  # of a hash, which are 0 where its passage is looked at
MULTIPLIER = 0x9E3779B97F4A7C15  # odd, so that its powers can be divided by modulo 2^64
# the most of it that a share may be: licences and tables stand in many files of a text
MOST_IN_TRAINING = 0.5

Hashes = NDArray[np.uint64]


def share_in_training(train: Sequence[Shard], val: Sequence[Shard]) -> float | None:
    """Return the share of the passages of `val` that stand in `train`; None where there are too
    few."""
    for bits in (SAMPLED_BITS, 0):
        looked_at = [hashes for shard in val for hashes in _hashes(shard, bits)]
        different, counts = np.unique(np.concatenate(looked_at), return_counts=True)
        if counts.sum() >= LEAST_PASSAGES:
            break
    else:
        return None
    found = np.zeros(len(different), dtype=bool)
    for shard in train:
        for hashes in _hashes(shard, bits):
            places = np.searchsorted(different, hashes) % len(different)
            found[places[different[places] == hashes]] = True
    return float(counts[found].sum() / counts.sum())


def _hashes(shard: Shard, bits: int) -> Iterator[Hashes]:
    """Yield the hashes of the passages that are looked at, whose first `bits` are 0. A passage's
    hash is Σ (token + 1)·Mⁱ modulo 2^64, a difference of two sums from the chunk's beginning on."""
    tokens = shard.map()
    powers, inverses = _powers(MULTIPLIER), _powers(pow(MULTIPLIER, -1, 2**64))
    for start in range(0, len(tokens), CHUNK):
        chunk = tokens[start : start + CHUNK + PASSAGE - 1].astype(np.uint64) + np.uint64(1)
        sums = np.concatenate(
            [np.zeros(1, dtype=np.uint64), np.cumsum(chunk * powers[: len(chunk)])]
        )
        differences = sums[PASSAGE:] - sums[:-PASSAGE]
        hashes = differences * inverses[: len(differences)]
        yield hashes[hashes <= np.uint64(2 ** (64 - bits) - 1)]


def _powers(base: int) -> Hashes:
    powers = np.full(CHUNK + PASSAGE - 1, base, dtype=np.uint64)
    powers[0] = 1
    return np.cumprod(powers, dtype=np.uint64)
