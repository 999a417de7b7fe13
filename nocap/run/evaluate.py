"""Validation: the plain next-token loss on a fixed number of tokens, the same number at any world size."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from nocap.data.batches import Windows
from nocap.model.gpt import GPT
from nocap.run.world import World
from nocap.schema import Precision, Run


def autocast(run: Run, precision: Precision) -> torch.autocast:
    """bf16 autocast, or none. Its cache of cast weights is torch's default: on, for the length of the block."""
    return torch.autocast(run.trainer.device.value, dtype=torch.bfloat16, enabled=precision is Precision.bf16)


@torch.no_grad()
def validate(model: GPT, windows: Windows, *, run: Run, world: World, beat: Callable[[], None] = lambda: None) -> float:
    """Mean loss in nats per token over the first `trainer.val_tokens`; a `beat` after each micro-batch.

    Micro-batches are dealt out to the ranks and summed in one order, so that the number of ranks does not show in the result.
    """
    size, T = run.trainer.micro_batch, run.model.seq_len
    n_batch = run.trainer.val_tokens // (size * T)
    losses = torch.zeros(n_batch, dtype=torch.float64, device=world.device)
    model.eval()
    for i in range(world.rank, n_batch, world.size):
        tokens = torch.from_numpy(windows.read(range(i * size, (i + 1) * size))).to(world.device).long()
        with autocast(run, run.trainer.val_precision):
            losses[i] = model(tokens[:, :-1], tokens[:, 1:])
        beat()
    model.train()
    return float(world.sum(losses).mean())


def bits_per_byte(loss: float, *, tokens: int, n_bytes: int) -> float:
    """Nats per token as bits per byte of the text that the tokens stand for."""
    # Not in nocap.stats: all that the loop imports is part of a run's identity, and no test's change should make another run.
    return loss * tokens / (math.log(2) * n_bytes)
