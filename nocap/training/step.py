"""The training step: what is built before it, what it reads, how it updates the weights. All numbers of a run come from here or below."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from nocap.config.run import Run
from nocap.config.trainer import Compile, Precision
from nocap.data.batches import Windows, microbatches, sequences_of, train_windows, val_windows
from nocap.data.tokens import Shard
from nocap.model.gpt import build_model
from nocap.model.language_model import LanguageModel
from nocap.store.record import Row
from nocap.training.ledger import Ledger
from nocap.training.optimizer import Optimizers, build_optimizers, rates, set_lr
from nocap.training.world import World


@dataclass(frozen=True, kw_only=True)
class Job:
    """A run, its tokens, its place among the ranks, and callbacks to the process around it."""

    run: Run
    train_shards: tuple[Shard, ...]
    val_shards: tuple[Shard, ...]
    vocab_size: int
    val_bytes: int | None = None  # of text behind the validation targets; None where unknown
    run_dir: Path
    world: World
    started: float  # time.monotonic() of this attempt's first moment
    spent_s: float = 0.0  # wall-clock of the attempts before
    on_start: Callable[[list[Row]], None] = lambda rows: None  # with the earlier attempts' rows, before the first step
    on_row: Callable[[Row], None] = lambda row: None
    log: Callable[[str], None] = print
    stop_asked: Callable[[], bool] = lambda: False
    heartbeat: Callable[[int], None] = lambda step: None  # with the step, at least once a micro-batch


@dataclass(kw_only=True)
class Trainee:
    """What a step updates, and what it reads."""

    model: LanguageModel
    optimizers: Optimizers
    forward: nn.Module  # the model, behind DDP where there are ranks
    train: Windows
    val: Windows


@dataclass(frozen=True, kw_only=True, slots=True)
class Update:
    """One optimizer step, seen from all ranks."""

    loss: float  # what was minimised
    parts: dict[str, float] = field(default_factory=dict)  # what it is the sum of; empty: the next-token loss alone
    grad_norm: float
    lrs: dict[str, float]
    stop: bool
    step_ms: float

    @property
    def finite(self) -> bool:
        return math.isfinite(self.loss) and math.isfinite(self.grad_norm)


# --- setup -------------------------------------------------------------------------------------------------------------------------


def configure_numerics(run: Run) -> None:
    """Threads as configured; fp32 means fp32, TF32 off."""
    torch.set_num_threads(run.trainer.threads)
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False


def build(job: Job) -> Trainee:
    run, world = job.run, job.world
    model = build_model(run, vocab_size=job.vocab_size).to(world.device)
    optimizers = build_optimizers(run, model)
    run.attention.prepare(run, world.device)
    if run.trainer.compile is not Compile.off:
        # dynamo gives up on a class after 8 versions of it, and an idea may differ from layer to layer.
        torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, 4 * run.model.n_layer)
    if run.trainer.compile is Compile.regional:
        for region in model.regions():
            region.compile(fullgraph=True, dynamic=False)
    elif run.trainer.compile is Compile.full:
        model.compile(fullgraph=True, dynamic=False)
    forward: nn.Module = model
    if world.size > 1:
        # Every rank computes the same buffers: without this, every forward would broadcast them.
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, [name for name, _ in model.named_buffers()])
        forward = DistributedDataParallel(model, gradient_as_bucket_view=True)
    train, val = train_windows(run, job.train_shards), val_windows(run, job.val_shards)
    return Trainee(model=model, optimizers=optimizers, forward=forward, train=train, val=val)


def autocast(run: Run, precision: Precision) -> torch.autocast:
    """bf16 autocast, or none. Its cache of cast weights is torch's default: on, for the length of the block."""
    return torch.autocast(run.trainer.device.value, dtype=torch.bfloat16, enabled=precision is Precision.bf16)


# --- the step ----------------------------------------------------------------------------------------------------------------------


def take_step(job: Job, trainee: Trainee, ledger: Ledger, *, step: int) -> Update:
    """Accumulate the micro-batches, agree with the other ranks, update. A non-finite loss or gradient: no update."""
    with ledger.charge("train"):
        began, run, world = time.perf_counter(), job.run, job.world
        job.heartbeat(step)
        set_lr(trainee.optimizers, run.schedule.multiplier(step=step, steps=run.trainer.steps))
        with ledger.charge("data"):
            batch = fetch(job, trainee, step=step)
        n = microbatches(run)
        losses = torch.zeros((), dtype=torch.float64, device=world.device)
        parts: dict[str, torch.Tensor] = {}
        for i, tokens in enumerate(batch.split(run.trainer.micro_batch)):
            tokens = tokens.long()
            with nullcontext() if i == n - 1 else no_sync(trainee):
                with autocast(run, run.trainer.precision):
                    loss = trainee.forward(tokens[:, :-1], tokens[:, 1:])
                job.heartbeat(step)  # a rank that waits for the others does so in its backward, one heartbeat ahead
                (loss.total / n).backward()
            losses += loss.total.detach()
            for name, part in loss.parts.items():
                parts[name] = parts.get(name, 0.0) + part.double()
            job.heartbeat(step)
        parameters = list(trainee.model.parameters())
        norm = nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
        means = [losses / (n * world.size), *(part / (n * world.size) for part in parts.values())]
        sums = world.sum(torch.stack([*means, losses.new_tensor(float(job.stop_asked()))]))
        # The step's one wait for the device before its update.
        mean, *part_means, stops, norm_value = torch.cat([sums, norm.double()[None]]).tolist()
        if math.isfinite(mean) and math.isfinite(norm_value):
            if run.trainer.grad_clip is not None:
                nn.utils.clip_grads_with_norm_(parameters, run.trainer.grad_clip, norm)
            for _, idea, part in trainee.model.joined_around:
                idea.before_step(part, trainee.model, step=step)
            for optimizer in trainee.optimizers:
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
            for _, idea, part in trainee.model.joined_around:
                idea.after_step(part, trainee.model, step=step)
        world.synchronize()
    return Update(
        loss=mean,
        parts=dict(zip(parts, part_means, strict=True)),
        grad_norm=norm_value,
        lrs=rates(trainee.optimizers),
        stop=stops > 0,
        step_ms=(time.perf_counter() - began) * 1e3,
    )


def fetch(job: Job, trainee: Trainee, *, step: int) -> torch.Tensor:
    """This rank's sequences of the step, (sequences, T + 1) int32 on the device, in one copy."""
    run, world = job.run, job.world
    rows = sequences_of(step=step, rank=world.rank, world=world.size, microbatches=microbatches(run), micro_batch=run.trainer.micro_batch)
    batch = torch.from_numpy(trainee.train.read(rows))
    return batch.pin_memory().to(world.device, non_blocking=True) if world.device.type == "cuda" else batch


def no_sync(trainee: Trainee) -> Any:
    """Gradients stay local inside the block; DDP averages them in the backward that follows outside."""
    return trainee.forward.no_sync() if isinstance(trainee.forward, DistributedDataParallel) else nullcontext()


@torch.no_grad()
def validate(model: LanguageModel, windows: Windows, *, run: Run, world: World, heartbeat: Callable[[], None] = lambda: None) -> float:
    """Mean loss in nats per token over the first `trainer.val_tokens`; a `heartbeat` after each micro-batch.

    The losses of all ranks' micro-batches are summed in one order, so that the result does not depend on the number of ranks.
    """
    size, T = run.trainer.micro_batch, run.model.seq_len
    n_batch = run.trainer.val_tokens // (size * T)
    losses = torch.zeros(n_batch, dtype=torch.float64, device=world.device)
    model.eval()
    with model.validating():
        for i in range(world.rank, n_batch, world.size):
            tokens = torch.from_numpy(windows.read(range(i * size, (i + 1) * size))).to(world.device).long()
            with autocast(run, run.trainer.val_precision):
                losses[i] = model(tokens[:, :-1], tokens[:, 1:]).total
            heartbeat()
    model.train()
    return float(world.sum(losses).mean())


def bits_per_byte(loss: float, *, tokens: int, n_bytes: int) -> float:
    """Nats per token as bits per byte of the text that the tokens stand for."""
    return loss * tokens / (math.log(2) * n_bytes)
