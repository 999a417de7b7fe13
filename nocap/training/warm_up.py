"""Compile a run's model, and make its CUDA graph, before the first step is timed."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import partial

import torch
from torch import nn

from nocap.training import memory
from nocap.training.build import Trainee, autocast
from nocap.training.cuda_graph import MicroBatchGraph
from nocap.training.job import Job
from nocap.training.ledger import Ledger
from nocap.training.step import enter_step, forward_backward, forward_of, no_sync


def warm_up(
    job: Job, trainee: Trainee, ledger: Ledger, *, step: int = 0, validates: bool = True
) -> float:
    """Run one forward, backward and validation forward on dummy tokens: compilation and first-call
    costs get a ledger line of their own.

    Weights, random state and optimizer state stay as they are. Returns the MiB that a forward keeps
    for its backward.
    """
    with ledger.charge("compile"):
        run = job.run
        t = run.trainer
        shape = (t.micro_batch, run.model.seq_len + 1)
        dummy = torch.zeros(shape, dtype=torch.long, device=job.world.device)
        parameters = list(trainee.model.parameters())
        saved_mib = _forward_backward_once(job, trainee, dummy, parameters, step=step)
        if t.cuda_graphs:
            once = partial(forward_backward, job, trainee, step=0)
            trainee.graph = MicroBatchGraph(once, dummy, parameters)
        # after the graph, whose memory no validation can have: so both are in a peak
        if validates:
            trainee.model.eval()
            with trainee.model.validating(), torch.no_grad(), autocast(run, t.val_precision):
                # with a batch's strides: compiled graphs are made for those
                trainee.model(dummy[:, :-1], dummy[:, 1:])
            trainee.model.train()
        job.world.synchronize()
    return saved_mib


def _forward_backward_once(
    job: Job, trainee: Trainee, tokens: torch.Tensor, parameters: list[nn.Parameter], *, step: int
) -> float:
    """Compute a micro-batch's forward and backward as in this step, and drop the gradients. Return
    the MiB that the forward keeps."""
    enter_step(job.run, trainee.model, step)

    def compute(hooks: AbstractContextManager[dict[int, int]]) -> float:
        trainee.logs.clear()
        with no_sync(trainee), hooks as saved_bytes:
            with autocast(job.run, job.run.trainer.precision):
                loss = trainee.forward(*forward_of(trainee, tokens, step=step))
            saved_mib = sum(saved_bytes.values()) / memory.MIB
            loss.total.backward()
        for p in parameters:
            p.grad = None
        return saved_mib

    saved_mib = compute(memory.saved_for_backward(parameters))
    # once more without the hooks, with which a compiled graph may be another
    compute(nullcontext({}))
    return saved_mib
