"""The validation loss."""

from __future__ import annotations

from collections.abc import Callable

import torch

from nocap.config.run import Run
from nocap.data.windows import Windows
from nocap.model.language_model import LanguageModel
from nocap.training.build import autocast
from nocap.training.step import seed_draws
from nocap.training.world import World


@torch.no_grad()
def validate(
    model: LanguageModel,
    windows: Windows,
    *,
    run: Run,
    world: World,
    heartbeat: Callable[[], None] = lambda: None,
) -> float:
    """Return the mean loss in nats per token over the first `trainer.val_tokens`, with a
    `heartbeat` after each micro-batch.

    The losses of all ranks' micro-batches are summed in one order, so that the result does not
    depend on the number of ranks.
    """
    micro_batch = run.trainer.micro_batch
    n_microbatches = run.trainer.val_tokens // (micro_batch * run.model.seq_len)
    losses = torch.zeros(n_microbatches, dtype=torch.float64, device=world.device)
    model.eval()
    with model.validating():
        for i in range(world.rank, n_microbatches, world.size):
            seed_draws(run, step="validation", microbatch=i)
            rows = range(i * micro_batch, (i + 1) * micro_batch)
            tokens = torch.from_numpy(windows.read(rows)).to(world.device).long()
            with autocast(run, run.trainer.val_precision):
                losses[i] = model(tokens[:, :-1], tokens[:, 1:]).total
            heartbeat()
    model.train()
    return float(world.sum(losses).mean())
