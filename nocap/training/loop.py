"""The training loop: set up, then step by step to the end."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from nocap.config.keys import InputError
from nocap.config.paths import expanded
from nocap.store.checkpoints import FOLDER, name_of, newest_first
from nocap.store.record_files import RunStatus
from nocap.store.rows_file import Row
from nocap.training import memory
from nocap.training.build import Trainee, autocast, build, configure_numerics
from nocap.training.cuda_graph import MicroBatchGraph
from nocap.training.job import Job
from nocap.training.ledger import Ledger
from nocap.training.loading import ValidCheckpoint, first_valid, load_checkpoint, misfit
from nocap.training.probe import probe
from nocap.training.recorder import Outcome, Recorder
from nocap.training.step import enter_step, forward_backward, forward_of, no_sync, settle, take_step
from nocap.training.validation import validate


def train(job: Job) -> Outcome:
    """Train from the newest checkpoint, or from the start, to the last step, a request to stop, or
    a loss that is not finite."""
    t = job.run.trainer
    configure_numerics(job.run)
    trainee = build(job)
    first, recorder = resume(job, trainee)
    probe(job, trainee, step=first)
    with job.stop_at_once():  # compiling may take a minute, and no step is lost
        saved_mib = warm_up(job, trainee, recorder.ledger, step=first)
    recorder.started(saved_mib=saved_mib)

    for step in range(first, t.steps):
        if step > first and (_due(step, t.checkpoint_every) or step in t.keep_steps):
            recorder.save(step=step)
        row: Row = {"step": step, "tokens": job.run.tokens_before(step)}
        if step == 0 or _due(step, t.val_every):
            row |= recorder.val_row(val_loss(job, trainee, recorder.ledger, step=step))
        update = take_step(job, trainee, recorder.ledger, step=step)
        row |= recorder.train_row(update, step=step)
        if "val/loss" in row or "train/spike" in row or _due(step, t.log_every):
            recorder.write(row)
        if not update.finite:
            divergence = recorder.diverged(update, step=step)
            return recorder.close(status=RunStatus.diverged, step=step, diverged=divergence)
        if update.stop and step + 1 < t.steps:
            recorder.save(step=step + 1, last=True)
            return recorder.close(status=RunStatus.preempted, step=step + 1)

    if first < t.steps:
        recorder.save_end()
    loss = val_loss(job, trainee, recorder.ledger, step=t.steps)
    last: Row = {"step": t.steps, "tokens": job.run.tokens_before(t.steps)}
    last |= recorder.val_row(loss)
    recorder.write(last)
    if not math.isfinite(loss):
        job.log("diverged: the last validation loss is not finite")
        divergence = {"step": t.steps, "loss": "validation"}
        return recorder.close(status=RunStatus.diverged, step=t.steps, diverged=divergence)
    return recorder.close(status=RunStatus.finished, step=t.steps)


def val_loss(job: Job, trainee: Trainee, ledger: Ledger, *, step: int) -> float:
    """Return the validation loss in nats per token."""
    settle(job, trainee, ledger)
    # the last that was trained, also where a run was resumed
    enter_step(job.run, trainee.model, max(step - 1, 0))
    with ledger.charge("val"), job.run.optimizer.validating(trainee.optimizers):
        return validate(
            trainee.model,
            trainee.val,
            run=job.run,
            world=job.world,
            heartbeat=lambda: job.heartbeat(step),
        )


def _due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0


# --- setup ----------------------------------------------------------------------------------------


def resume(job: Job, trainee: Trainee) -> tuple[int, Recorder]:
    """Load the newest valid checkpoint on every rank, and cut the metrics back to it; the step to
    go on from, and the record.

    Before a run has a checkpoint of its own, that is `trainer.init_from`.

    Errors:
        InputError: there are checkpoints and none is valid (starting over would hide the loss), or
            it is of another optimizer.
    """
    root = job.run_dir / FOLDER
    init_from = job.run.trainer.init_from
    own = newest_first(root)
    identity: str | None = None
    paths = list[Path]()
    if own:
        identity = job.run_dir.name.rpartition("-")[2]
        paths = own
    elif init_from:
        paths = [expanded(init_from).absolute()]
    newest = _newest_valid(job, trainee, paths, identity)
    if newest.path is None and newest.invalid and not own:
        raise InputError(f"trainer.init_from must be a valid checkpoint, got {newest.invalid[0]}")
    for problem in newest.invalid:
        job.log(f"checkpoint not used: {problem}")
    if newest.path is None and newest.invalid:
        raise InputError(
            f"{root} must hold a valid checkpoint to resume from, got none; delete the folder to "
            "start over"
        )
    first = newest.step
    state = dict[str, Any]()
    if newest.path is not None:
        state = load_checkpoint(newest.path, model=trainee.model, optimizers=trainee.optimizers)
        line = f"beginning from step {first} of {newest.path}"
        if own:
            line = f"resuming from step {first}"
        job.log(line)
    passed = [step for step in job.run.trainer.keep_steps if step <= first]
    missing = [step for step in passed if not (root / name_of(step)).exists()]
    if missing:
        job.log(
            f"trainer.keep_steps: no checkpoint of {missing}: this attempt begins at step {first}"
        )
    clock_s = state.get("clock_s", {})
    losses = state.get("losses", [])
    recorder = Recorder(job, trainee, clock_s=clock_s, losses=losses)
    if job.world.is_main:
        own_path = newest.path if own else None
        job.on_start(recorder.resume(own_path))
    return first, recorder


def _newest_valid(
    job: Job, trainee: Trainee, paths: Sequence[Path], identity: str | None
) -> ValidCheckpoint:
    """Return the first valid one of these checkpoints, as rank 0 finds it, on every rank."""
    found: list[Any] = [None, []]
    if job.world.is_main:
        of_run = partial(misfit, model=trainee.model, identity=identity)
        newest = first_valid(paths, misfit=of_run)
        found = [newest.path and str(newest.path), newest.invalid]
    name, invalid = job.world.from_main(found)
    path: Path | None = None
    if name is not None:
        path = Path(name)
    return ValidCheckpoint(path=path, invalid=invalid)


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
