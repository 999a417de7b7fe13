"""Which tokens make a batch: a pure function of (seed, step), the same for every arm, device count
and micro-batch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from nocap.config.run import Run
from nocap.data.tokens import Shard
from nocap.data.windows import Windows
from nocap.options.data.reading import Order


def train_windows(run: Run, shards: Sequence[Shard]) -> Windows:
    """Return what the run trains on, in its order."""
    T = run.model.seq_len
    order = run.data.order
    unit = run.data.read_sequences
    return Windows(shards, seq_len=T, order=order, read_sequences=unit, seed=run.seed)


def val_windows(run: Run, shards: Sequence[Shard]) -> Windows:
    """Return what the run is validated on: the first tokens of the validation shards, the same for
    every arm and seed."""
    T = run.model.seq_len
    return Windows(shards, seq_len=T, order=Order.sequential, read_sequences=1, seed=0)


def microbatches(run: Run) -> int:
    """Return the micro-batches that a rank accumulates for an optimizer step."""
    t = run.trainer
    at_once = t.micro_batch * run.model.seq_len * t.devices
    return t.batch_tokens // at_once


def sequences_of(
    *, first: int, rank: int, world: int, microbatches: int, micro_batch: int
) -> list[int]:
    """Return the sequences that a rank reads for a step whose `first` is this one, micro-batch
    after micro-batch.

    The global batch is cut into micro-batches that go round the ranks, so that one rank with twice
    the accumulation sums the same terms.
    """
    sequences = list[int]()
    for i in range(microbatches):
        start = first + (i * world + rank) * micro_batch
        sequences += range(start, start + micro_batch)
    return sequences


def target_bytes(windows: Windows, lengths: NDArray[np.int32], *, tokens: int) -> int:
    """Count the UTF-8 bytes of the targets in the first `tokens` // seq_len windows; `lengths`
    gives each token's bytes, end-of-text none."""
    total = 0
    for sequence in range(tokens // windows.seq_len):
        targets = windows.read([sequence])[:, 1:]
        total += int(lengths[targets].sum())
    return total
