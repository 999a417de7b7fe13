"""The training loop: set up, then a story a step long."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from nocap import hardware
from nocap.data.batches import Windows, sequences_of, train_windows, val_windows
from nocap.data.shards import Shard
from nocap.model.attention import prepare_flex
from nocap.model.flops import flops_per_token
from nocap.model.gpt import GPT, build_model, count_parameters
from nocap.optimizer import build_optimizers, set_lr
from nocap.run import checkpoint, memory
from nocap.run.evaluate import autocast, bits_per_byte, validate
from nocap.run.ledger import Ledger
from nocap.run.record import Metrics, Row
from nocap.run.spikes import Spikes
from nocap.run.world import World
from nocap.schedule import multiplier
from nocap.schema import Compile, Run


@dataclass(frozen=True, kw_only=True)
class Job:
    """A run, its tokens and its place, and how to tell the one who asked."""

    run: Run
    train_shards: tuple[Shard, ...]
    val_shards: tuple[Shard, ...]
    vocab_size: int
    val_bytes: int | None = None  # of text behind the validation targets; None where unknown
    run_dir: Path
    world: World
    started: float  # time.monotonic() of this attempt's first moment
    spent_s: float = 0.0  # wall-clock of the attempts before
    on_start: Callable[[list[Row]], None] = lambda rows: None  # the rows that stand, before the first step
    on_row: Callable[[Row], None] = lambda row: None
    say: Callable[[str], None] = print
    stop_asked: Callable[[], bool] = lambda: False
    beat: Callable[[int], None] = lambda step: None  # a sign of life, at least one a micro-batch


@dataclass(kw_only=True)
class Outcome:
    """How training ended and what it measured once."""

    status: str  # finished, preempted or diverged
    step: int
    ledger: Ledger
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(kw_only=True)
class Trainee:
    """What a step changes, and what it reads."""

    model: GPT
    optimizers: list[torch.optim.Optimizer]
    forward: nn.Module  # the model, behind DDP where there are ranks
    train: Windows
    val: Windows


@dataclass(frozen=True, kw_only=True, slots=True)
class Books:
    """What a run writes down as it goes, beside its rows."""

    ledger: Ledger
    metrics: Metrics
    checkpoints: checkpoint.Writer
    spikes: Spikes


@dataclass(frozen=True, kw_only=True, slots=True)
class Update:
    """One optimizer step, seen from all ranks."""

    loss: float
    grad_norm: float
    lrs: list[float]
    stop: bool
    step_ms: float

    @property
    def finite(self) -> bool:
        return math.isfinite(self.loss) and math.isfinite(self.grad_norm)


def train(job: Job) -> Outcome:
    """Train from the newest checkpoint, or from the start, to the last step, a request to stop, or a loss that is no number."""
    t = job.run.trainer
    configure_numerics(job.run)
    trainee = build(job)
    first, books = resume(job, trainee)
    saved_mib = warm_up(job, trainee, books.ledger)
    books.ledger.started_up()

    def end(status: str, step: int, **facts: Any) -> Outcome:
        with books.ledger.charge("checkpoint"):
            tell(job, books.checkpoints.settle())
        return Outcome(status=status, step=step, ledger=books.ledger, facts={**account(job, trainee, saved_mib), **facts})

    for step in range(first, t.steps):
        if step > first and (_due(step, t.checkpoint_every) or step in t.keep_steps):
            save(job, trainee, books, step=step)
        row: Row = {"step": step, "tokens": step * t.batch_tokens}
        if step == 0 or _due(step, t.val_every):
            row |= score(job, trainee, books.ledger, step=step)
        update = take_step(job, trainee, books.ledger, step=step)
        row |= describe(job, update)
        row |= spike(job, books, update, step=step)
        if "val/loss" in row or "train/spike" in row or _due(step, t.log_every):
            log(job, books, row)
        if not update.finite:
            where = {"step": step, "loss": repr(update.loss), "grad_norm": repr(update.grad_norm), **_batch(job, step)}
            job.say(f"diverged: {where}")
            return end("diverged", step, diverged=where)
        if update.stop and step + 1 < t.steps:
            save(job, trainee, books, step=step + 1, last=True)
            return end("preempted", step + 1)

    if first < t.steps:
        save(job, trainee, books, step=t.steps, last=True)
    row = {"step": t.steps, "tokens": t.steps * t.batch_tokens, **score(job, trainee, books.ledger, step=t.steps)}
    log(job, books, row)
    if row["val/loss"] is None:
        job.say("diverged: the last validation loss is not a number")
        return end("diverged", t.steps, diverged={"step": t.steps, "loss": "validation"})
    return end("finished", t.steps)


# --- setup -------------------------------------------------------------------------------------------------------------------------


def configure_numerics(run: Run) -> None:
    """Threads as configured; fp32 means fp32, TF32 off."""
    torch.set_num_threads(run.trainer.threads)
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False


def build(job: Job) -> Trainee:
    run, world = job.run, job.world
    model = build_model(run, vocab_size=job.vocab_size).to(world.device)
    optimizers = build_optimizers(run.optimizer, model)
    prepare_flex(run.attention, seq_len=run.model.seq_len, device=world.device)
    if run.trainer.compile is Compile.regional:
        for block in model.blocks:
            block.compile(fullgraph=True, dynamic=False)
        model.head.compile(fullgraph=True, dynamic=False)
    elif run.trainer.compile is Compile.full:
        model.compile(fullgraph=True, dynamic=False)
    forward: nn.Module = model
    if world.size > 1:
        # The only buffers are constants: without this, every forward would broadcast them.
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, [name for name, _ in model.named_buffers()])
        forward = DistributedDataParallel(model, gradient_as_bucket_view=True)
    train, val = train_windows(run, job.train_shards), val_windows(run, job.val_shards)
    return Trainee(model=model, optimizers=optimizers, forward=forward, train=train, val=val)


def resume(job: Job, trainee: Trainee) -> tuple[int, Books]:
    """Load the newest valid checkpoint on every rank, and cut the metrics back to it. Before a run has one of its own, that is
    `trainer.init_from`.

    Errors:
        NoneValidError: there are checkpoints and none is valid. Starting over would hide the loss.
    """
    root, metrics = job.run_dir / "checkpoints", Metrics(job.run_dir / "metrics.jsonl")
    fits = partial(checkpoint.misfit, model=trainee.model, optimizers=trainee.optimizers)
    found = job.world.from_main(_newest(job, root, fits) if job.world.is_main else None)
    assert found is not None
    if found.path is None and found.invalid and not any(root.glob("step-*")):
        raise checkpoint.NoneValidError(f"trainer.init_from must be a valid checkpoint, got {found.invalid[0]}")
    tell(job, [f"checkpoint not used: {problem}" for problem in found.invalid])
    if found.path is None and found.invalid:
        raise checkpoint.NoneValidError(f"{root} must hold a valid checkpoint to resume from, got none; delete the folder to start over")
    state: dict[str, Any] = {}
    if found.path is not None:
        state = checkpoint.load(found.path, model=trainee.model, optimizers=trainee.optimizers)
        job.say(f"resuming from step {found.step}" if found.path.parent == root else f"beginning from step {found.step} of {found.path}")
    gone = [step for step in job.run.trainer.keep_steps if step <= found.step and not (root / checkpoint.name_of(step)).exists()]
    if gone:
        job.say(f"trainer.keep_steps: no checkpoint of {gone}: this attempt begins at step {found.step}")
    before = state.get("clock_s", {})
    lost_s = max(0.0, job.spent_s - sum(before.values()))
    if job.world.is_main:
        job.on_start(metrics.cut_back(found.step))
    return found.step, Books(
        ledger=Ledger(started=job.started, before=before, lost_s=lost_s),
        metrics=metrics,
        checkpoints=checkpoint.Writer(root, background=job.world.device.type == "cuda", always=job.run.trainer.keep_steps),
        spikes=Spikes(state.get("losses", ())),
    )


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
            with _no_sync(trainee), hooks as kept:
                with autocast(run, run.trainer.precision):
                    loss = trainee.forward(tokens, targets)
                saved_mib += sum(kept.values()) / memory.MIB
                loss.backward()
            for p in parameters:
                p.grad = None
        if validates:
            trainee.model.eval()
            with torch.no_grad(), autocast(run, run.trainer.val_precision):
                trainee.model(tokens, targets)
            trainee.model.train()
        job.world.synchronize()
    return saved_mib


# --- the step ----------------------------------------------------------------------------------------------------------------------


def take_step(job: Job, trainee: Trainee, ledger: Ledger, *, step: int) -> Update:
    """Accumulate the micro-batches, agree with the other ranks, update. A loss or gradient that is no number stops before the update."""
    with ledger.charge("train"):
        began, run, world = time.perf_counter(), job.run, job.world
        job.beat(step)
        set_lr(trainee.optimizers, multiplier(run.schedule, step=step, steps=run.trainer.steps))
        with ledger.charge("data"):
            batch = fetch(job, trainee, step=step)
        n = run.microbatches
        losses = torch.zeros((), dtype=torch.float64, device=world.device)
        for i, tokens in enumerate(batch.split(run.trainer.micro_batch)):
            tokens = tokens.long()
            with nullcontext() if i == n - 1 else _no_sync(trainee):
                with autocast(run, run.trainer.precision):
                    loss = trainee.forward(tokens[:, :-1], tokens[:, 1:])
                job.beat(step)  # a rank that waits for the others does so in its backward, one sign ahead
                (loss / n).backward()
            losses += loss.detach()
            job.beat(step)
        parameters = list(trainee.model.parameters())
        norm = nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
        sums = world.sum(torch.stack([losses / (n * world.size), losses.new_tensor(float(job.stop_asked()))]))
        mean, stops, norm_value = torch.cat([sums, norm.double()[None]]).tolist()  # the step's one wait for the device before its update
        if math.isfinite(mean) and math.isfinite(norm_value):
            if run.trainer.grad_clip is not None:
                nn.utils.clip_grads_with_norm_(parameters, run.trainer.grad_clip, norm)
            for optimizer in trainee.optimizers:
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
        world.synchronize()
    lrs = [optimizer.param_groups[0]["lr"] for optimizer in trainee.optimizers]
    return Update(loss=mean, grad_norm=norm_value, lrs=lrs, stop=stops > 0, step_ms=(time.perf_counter() - began) * 1e3)


def fetch(job: Job, trainee: Trainee, *, step: int) -> torch.Tensor:
    """This rank's sequences of the step, (sequences, T + 1) int32 on the device, in one copy."""
    run, world = job.run, job.world
    t = run.trainer
    rows = sequences_of(step=step, rank=world.rank, world=world.size, microbatches=run.microbatches, micro_batch=t.micro_batch)
    batch = torch.from_numpy(trainee.train.read(rows))
    return batch.pin_memory().to(world.device, non_blocking=True) if world.device.type == "cuda" else batch


def score(job: Job, trainee: Trainee, ledger: Ledger, *, step: int) -> Row:
    """Validation loss and, where the text's bytes are known, bits per byte; `null` where the loss is no number."""
    with ledger.charge("val"):
        loss = validate(trainee.model, trainee.val, run=job.run, world=job.world, beat=lambda: job.beat(step))
    row: Row = {"val/loss": loss if math.isfinite(loss) else None}
    if job.val_bytes is not None and math.isfinite(loss):
        row["val/bpb"] = bits_per_byte(loss, tokens=job.run.trainer.val_tokens, n_bytes=job.val_bytes)
    return row


def save(job: Job, trainee: Trainee, books: Books, *, step: int, last: bool = False) -> None:
    """Rank 0 writes the checkpoint of `step`; the rows before it reach the disk first.

    Errors:
        OSError: the `last` one of this process cannot be written. Before that, a full disk is a line, and training goes on.
    """
    if not job.world.is_main:
        return
    t = job.run.trainer
    with books.ledger.charge("checkpoint"):
        books.metrics.sync()
        clock = {line: s for line, s in books.ledger.seconds().items() if line != "wall"}
        lines = books.checkpoints.save(
            step=step,
            model=trainee.model,
            optimizers=trainee.optimizers,
            state={"clock_s": clock, "losses": books.spikes.state()},
            keep=1 if step == t.steps else t.keep_checkpoints,
            must=last,
        )
    tell(job, lines)


# --- the record --------------------------------------------------------------------------------------------------------------------


def describe(job: Job, update: Update) -> Row:
    """The row of a step: `null` where the value is no number."""
    run = job.run
    tokens_per_s = run.trainer.batch_tokens / (update.step_ms / 1e3)
    flops = tokens_per_s * flops_per_token(run, vocab_size=job.vocab_size)
    names = ("train/lr", "train/lr_muon")
    return {
        "train/loss": update.loss if math.isfinite(update.loss) else None,
        "train/grad_norm": update.grad_norm if math.isfinite(update.grad_norm) else None,
        **dict(zip(names, update.lrs, strict=False)),
        "perf/step_ms": update.step_ms,
        "perf/tokens_per_s": tokens_per_s,
        "perf/mfu": hardware.utilization(flops, run.trainer.device, run.trainer.precision, job.world.size),
    }


def spike(job: Job, books: Books, update: Update, *, step: int) -> Row:
    """A loss that jumps, said and written into the step's row."""
    sigmas = books.spikes.see(update.loss) if update.finite else None
    if sigmas is None:
        return {}
    job.say(f"spike at step {step}: loss {update.loss:.4f}, {sigmas:.1f} standard deviations up: {_batch(job, step)}")
    return {"train/spike": sigmas}


def log(job: Job, books: Books, row: Row) -> None:
    """Write the row, with the memory's peak and the clock so far."""
    if job.world.is_main:
        row["memory/peak_mib"] = memory.peak_mib(job.world.device)
        row |= {f"clock/{line}_s": seconds for line, seconds in books.ledger.seconds().items()}
        books.metrics.append(row)
        job.on_row(row)


def tell(job: Job, lines: list[str]) -> None:
    for line in lines:
        job.say(line)


def account(job: Job, trainee: Trainee, saved_mib: float) -> dict[str, Any]:
    """What is true of the whole run: sizes, work, memory in parts."""
    run, device = job.run, job.world.device
    parts = memory.parts_mib(trainee.model.parameters(), trainee.optimizers)
    peak = memory.peak_mib(device)
    return {
        "params": count_parameters(trainee.model),
        "flops_per_token": flops_per_token(run, vocab_size=job.vocab_size),
        "memory_mib": {"peak": peak, **parts, "activations": saved_mib},
        "memory_notes": {
            "peak": "allocated on the GPU" if device.type == "cuda" else "resident, torch's libraries included",
            "activations": "kept by one micro-batch's forward for its backward",
        },
        "train_windows": trainee.train.n,
    }


def _batch(job: Job, step: int) -> dict[str, Any]:
    """Which sequences of the data order a step read."""
    n = job.run.trainer.batch_tokens // job.run.model.seq_len
    return {"sequences": [step * n, (step + 1) * n]}


def _due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0


def _no_sync(trainee: Trainee) -> Any:
    """Gradients stay local inside the block; DDP averages them in the backward that follows outside."""
    return trainee.forward.no_sync() if isinstance(trainee.forward, DistributedDataParallel) else nullcontext()
