"""The training loop: set up, then step by step to the end."""

from __future__ import annotations

import math

from nocap.row_keys import SPIKE, VAL_LOSS
from nocap.store.record_files import RunStatus
from nocap.store.rows_file import Row
from nocap.training.build import Trainee, build, configure_numerics
from nocap.training.job import Job
from nocap.training.ledger import Ledger
from nocap.training.probe import probe
from nocap.training.recorder import Outcome, Recorder
from nocap.training.resume import resume
from nocap.training.step import enter_step, settle, take_step
from nocap.training.validation import validate
from nocap.training.warm_up import warm_up


def train(job: Job) -> Outcome:
    """Train from the newest checkpoint, or from the start, to the last step, a request to stop, or
    a loss that is not finite."""
    t = job.run.trainer
    configure_numerics(job.run)
    trainee = build(job)
    start = resume(job, trainee)
    first = start.step
    recorder = Recorder(job, trainee, clock_s=start.clock_s, losses=start.losses)
    if job.world.is_main:
        job.on_start(recorder.restore_rows(start.checkpoint))
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
        if VAL_LOSS in row or SPIKE in row or _due(step, t.log_every):
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
