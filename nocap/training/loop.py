"""The training loop: set up, then a story a step long."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch

from nocap.config.keys import InputError
from nocap.store.record import Metrics, Row
from nocap.training import checkpoint, memory
from nocap.training.books import Books, Outcome, open_books, tell
from nocap.training.kept import kept_state
from nocap.training.ledger import Ledger
from nocap.training.step import Job, Trainee, autocast, build, configure_numerics, no_sync, take_step, validate


def train(job: Job) -> Outcome:
    """Train from the newest checkpoint, or from the start, to the last step, a request to stop, or a loss that is no number."""
    t = job.run.trainer
    configure_numerics(job.run)
    trainee = build(job)
    first, books = resume(job, trainee)
    saved_mib = warm_up(job, trainee, books.ledger)
    books.ledger.started_up()
    end = partial(books.close, trainee, saved_mib=saved_mib)

    for step in range(first, t.steps):
        if step > first and (_due(step, t.checkpoint_every) or step in t.keep_steps):
            books.save(trainee, step=step)
        row: Row = {"step": step, "tokens": step * t.batch_tokens}
        if step == 0 or _due(step, t.val_every):
            row |= books.scored(score(job, trainee, books.ledger, step=step))
        update = take_step(job, trainee, books.ledger, step=step)
        row |= books.describe(update)
        row |= books.spike(update, step=step)
        if "val/loss" in row or "train/spike" in row or _due(step, t.log_every):
            books.log(row)
        if not update.finite:
            return end(status="diverged", step=step, diverged=books.diverged(update, step=step))
        if update.stop and step + 1 < t.steps:
            books.save(trainee, step=step + 1, last=True)
            return end(status="preempted", step=step + 1)

    if first < t.steps:
        books.save(trainee, step=t.steps, last=True)
    loss = score(job, trainee, books.ledger, step=t.steps)
    books.log({"step": t.steps, "tokens": t.steps * t.batch_tokens, **books.scored(loss)})
    if not math.isfinite(loss):
        job.say("diverged: the last validation loss is not a number")
        return end(status="diverged", step=t.steps, diverged={"step": t.steps, "loss": "validation"})
    return end(status="finished", step=t.steps)


def score(job: Job, trainee: Trainee, ledger: Ledger, *, step: int) -> float:
    """Validation loss in nats per token."""
    with ledger.charge("val"):
        return validate(trainee.model, trainee.val, run=job.run, world=job.world, beat=lambda: job.beat(step))


def _due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0


# --- setup -------------------------------------------------------------------------------------------------------------------------


def resume(job: Job, trainee: Trainee) -> tuple[int, Books]:
    """Load the newest valid checkpoint on every rank, and cut the metrics back to it. Before a run has one of its own, that is
    `trainer.init_from`.

    Errors:
        InputError: there are checkpoints and none is valid (starting over would hide the loss), or the optimizer's state cannot be saved.
    """
    root, metrics = job.run_dir / "checkpoints", Metrics(job.run_dir / "metrics.jsonl")
    fits = partial(checkpoint.misfit, model=trainee.model, kept=kept_state(job.run, trainee.model))
    found = job.world.from_main(_newest(job, root, fits) if job.world.is_main else None)
    assert found is not None
    if found.path is None and found.invalid and not any(root.glob("step-*")):
        raise InputError(f"trainer.init_from must be a valid checkpoint, got {found.invalid[0]}")
    tell(job, [f"checkpoint not used: {problem}" for problem in found.invalid])
    if found.path is None and found.invalid:
        raise InputError(f"{root} must hold a valid checkpoint to resume from, got none; delete the folder to start over")
    state: dict[str, Any] = {}
    if found.path is not None:
        state = checkpoint.load(found.path, model=trainee.model, optimizers=trainee.optimizers)
        job.say(f"resuming from step {found.step}" if found.path.parent == root else f"beginning from step {found.step} of {found.path}")
    gone = [step for step in job.run.trainer.keep_steps if step <= found.step and not (root / checkpoint.name_of(step)).exists()]
    if gone:
        job.say(f"trainer.keep_steps: no checkpoint of {gone}: this attempt begins at step {found.step}")
    if job.world.is_main:
        job.on_start(metrics.cut_back(found.step))
    return found.step, open_books(job, before=state.get("clock_s", {}), losses=state.get("losses", []))


def _newest(job: Job, root: Path, fits: Callable[[Path], str | None]) -> checkpoint.Found:
    """The run's own newest checkpoint, or the one that it is to begin from."""
    found, init_from = checkpoint.find(root, fits=fits), job.run.trainer.init_from
    if found.path is not None or found.invalid or init_from is None:
        return found
    return checkpoint.given(Path(init_from).expanduser().absolute(), fits=fits)


def warm_up(job: Job, trainee: Trainee, ledger: Ledger, *, validates: bool = True) -> float:
    """One forward, backward and validation forward on dummy tokens: compilation and first-call costs get a line of their own.

    No weight, no random state and no optimizer state changes. Returns MiB that the forward keeps for its backward.
    """
    with ledger.charge("compile"):
        run = job.run
        dummy = torch.zeros(run.trainer.micro_batch, run.model.seq_len + 1, dtype=torch.long, device=job.world.device)
        tokens, targets = dummy[:, :-1], dummy[:, 1:]  # with a batch's strides: compiled graphs are made for those
        parameters = list(trainee.model.parameters())
        saved_mib = 0.0
        for counting in (True, False):  # once more without the hooks: what they might have changed in a compiled graph is compiled here too
            hooks: AbstractContextManager[dict[int, int]] = memory.saved_for_backward(parameters) if counting else nullcontext({})
            with no_sync(trainee), hooks as kept:
                with autocast(run, run.trainer.precision):
                    loss = trainee.forward(tokens, targets)
                saved_mib += sum(kept.values()) / memory.MIB
                loss.total.backward()
            for p in parameters:
                p.grad = None
        if validates:
            trainee.model.eval()
            with torch.no_grad(), autocast(run, run.trainer.val_precision):
                trainee.model(tokens, targets)
            trainee.model.train()
        job.world.synchronize()
    return saved_mib
