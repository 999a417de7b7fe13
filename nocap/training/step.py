"""The training step: what it reads, and how it updates the weights."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from nocap.config.keys import InputError
from nocap.config.run import Run
from nocap.config.trainer import Device
from nocap.data.batches import microbatches, sequences_of
from nocap.model.language_model import LanguageModel
from nocap.model.loss import Loss
from nocap.training.build import NextBatch, Trainee, autocast
from nocap.training.build_optimizers import rates, set_lr
from nocap.training.job import Job
from nocap.training.ledger import Ledger


@dataclass(frozen=True, kw_only=True, slots=True)
class Update:
    """One optimizer step, seen from all ranks."""

    loss: float  # what was minimised
    # what it is the sum of; empty: the next-token loss alone
    parts: dict[str, float] = field(default_factory=dict)
    logged: dict[str, float] = field(default_factory=dict)  # by modules: `nocap.model.logged`
    grad_norm: float
    lrs: dict[str, float]
    stop: bool
    step_ms: float  # on a GPU from one step's wait for the device to the next

    @property
    def finite(self) -> bool:
        """Say whether loss and gradients are finite."""
        return math.isfinite(self.loss) and math.isfinite(self.grad_norm)


# --- the step -------------------------------------------------------------------------------------


def take_step(job: Job, trainee: Trainee, ledger: Ledger, *, step: int) -> Update:
    """Accumulate the micro-batches, agree with the other ranks, update. A non-finite loss or
    gradient: no update, but on a GPU, which would stand idle until the host has seen them."""
    run = job.run
    world = job.world
    on_gpu = world.device.type == "cuda"
    with ledger.charge("train"):
        begin = trainee.wait_end or time.perf_counter()
        job.heartbeat(step)
        set_lr(trainee.optimizers, run.schedule.multiplier(step=step, steps=run.trainer.steps))
        batch = _batch_of(job, trainee, ledger, step=step)
        enter_step(run, trainee.model, step)
        sums = _accumulate(job, trainee, batch, step=step)
        seed_draws(run, step=step, microbatch="update")
        for _, idea, part in trainee.model.joined_around:
            idea.before_clip(part, trainee.model, step=step)
        norms = torch._foreach_norm([p.grad for p in trainee.parameters if p.grad is not None])
        # as torch's get_total_norm, which also looks for several devices
        norm = torch.linalg.vector_norm(torch.stack(norms))
        means = sums.means(microbatches(run) * world.size)
        stop_request = sums.loss.new_full((), float(job.stop_asked()))
        of_all_ranks = world.sum(torch.stack([*means, stop_request]))
        if on_gpu and step + 1 < run.trainer.steps:
            next_batch = fetch(job, trainee, step=step + 1)
            trainee.next_batch = NextBatch(step=step + 1, batch=next_batch)
        wait_for_numbers = begin_copy(torch.cat([of_all_ranks, norm.double()[None]]))
        if on_gpu:
            # launched before its numbers are known: a run that ends with them keeps nothing of it
            update(run, trainee, norm, step=step)
        # the step's one wait for the device
        loss, *other_means, stop_requests, norm_value = wait_for_numbers()
        end = time.perf_counter()
        if not on_gpu:
            if math.isfinite(loss) and math.isfinite(norm_value):
                update(run, trainee, norm, step=step)
            end = time.perf_counter()
    trainee.wait_end = end if on_gpu else None
    n_parts = len(sums.parts)
    return Update(
        loss=loss,
        parts=dict(zip(sums.parts, other_means[:n_parts], strict=True)),
        logged=dict(zip(sums.logged, other_means[n_parts:], strict=True)),
        grad_norm=norm_value,
        lrs=rates(trainee.optimizers),
        stop=stop_requests >= 1,
        step_ms=(end - begin) * 1e3,
    )


def _batch_of(job: Job, trainee: Trainee, ledger: Ledger, *, step: int) -> torch.Tensor:
    """Return the step's batch: the one that was read during the step before, or read now."""
    if trainee.next_batch is not None and trainee.next_batch.step == step:
        return trainee.next_batch.batch
    with ledger.charge("data"):
        return fetch(job, trainee, step=step)


class LossSums:
    """What the micro-batches of a step sum up to on this rank, in fp64: the loss, its parts, and
    what modules log."""

    def __init__(self, device: torch.device) -> None:
        self.loss = torch.zeros((), dtype=torch.float64, device=device)
        self.parts: dict[str, torch.Tensor] = {}
        self.logged: dict[str, torch.Tensor] = {}

    def add(self, loss: Loss) -> None:
        """Add the loss of a micro-batch."""
        self.loss += loss.total
        for name, value in loss.parts.items():
            self.parts[name] = self.parts.get(name, 0.0) + value.double()
        for name, value in loss.logged.items():
            self.logged[name] = self.logged.get(name, 0.0) + value.double()

    def means(self, n: int) -> list[torch.Tensor]:
        """Return the sums over n, the loss first, then the parts, then what was logged."""
        return [each / n for each in (self.loss, *self.parts.values(), *self.logged.values())]


def _accumulate(job: Job, trainee: Trainee, batch: torch.Tensor, *, step: int) -> LossSums:
    """Compute forward and backward of each micro-batch. Ranks exchange gradients in the last."""
    run = job.run
    world = job.world
    last = microbatches(run) - 1
    sums = LossSums(world.device)
    for i, tokens in enumerate(batch.split(run.trainer.micro_batch)):
        seed_draws(run, step=step, microbatch=i * world.size + world.rank)
        exchange = nullcontext() if i == last else no_sync(trainee)
        with exchange:
            if trainee.graph:
                loss = trainee.graph(tokens)
            else:
                loss = forward_backward(job, trainee, tokens.long(), step=step)
        if i > 0:
            _check_names(loss.logged, sums.logged)
        sums.add(loss)
        job.heartbeat(step)
    return sums


def _check_names(logged: Mapping[str, torch.Tensor], before: Mapping[str, torch.Tensor]) -> None:
    """Refuse modules that log other names than in the forward before.

    Errors:
        InputError: they do.
    """
    differing = logged.keys() ^ before.keys()
    if differing:
        names = ", ".join(sorted(differing))
        raise InputError(
            f"modules must log the same names in each training forward, got {names} only in "
            "some forwards"
        )


def enter_step(run: Run, model: LanguageModel, step: int) -> None:
    """Give ideas the step that the model's next forwards belong to. What they draw there follows
    from it."""
    seed_draws(run, step=step, microbatch="beginning")
    for _, idea, part in model.joined:
        idea.before_forward(part, model, step=step)


def seed_draws(run: Run, *, step: int | str, microbatch: int | str) -> None:
    """Seed torch's generators for what code from outside draws: in a micro-batch, counted over all
    ranks, in the update, or at the step's beginning.

    The draws are a function of the run's seed, the step and the micro-batch's place in the step's
    whole batch: the same after a resume, and on any number of ranks.
    """
    if not run.outside_files():
        return
    text = f"{run.seed} {step} {microbatch}"
    digest = hashlib.sha256(text.encode()).digest()
    seed = int.from_bytes(digest[:7], "big")
    # torch.manual_seed, for both, takes half a millisecond without a GPU
    torch.default_generator.manual_seed(seed)
    if run.trainer.device is Device.cuda:
        torch.cuda.manual_seed(seed)


def forward_backward(job: Job, trainee: Trainee, tokens: torch.Tensor, *, step: int) -> Loss:
    """Return the loss of one micro-batch, (sequences, T + 1) int64, without gradients: those are
    added to the parameters'."""
    trainee.logs.clear()
    with autocast(job.run, job.run.trainer.precision):
        loss = trainee.forward(*forward_of(trainee, tokens, step=step))
    logged = trainee.logs.means()
    # a rank that waits for the others does so in its backward, one heartbeat ahead
    job.heartbeat(step)
    share = loss.total / microbatches(job.run)
    share.backward()
    return loss._replace(total=loss.total.detach(), logged=logged)


def forward_of(
    trainee: Trainee, tokens: torch.Tensor, *, step: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what a forward of this step gets of a micro-batch, (sequences, T + 1): tokens and
    targets."""
    tokens_BT = tokens[:, :-1]
    targets_BT = tokens[:, 1:]
    for _, idea, part in trainee.model.joined:
        tokens_BT, targets_BT = idea.micro_batch(part, tokens_BT, targets_BT, step=step)
    return tokens_BT, targets_BT


def begin_copy(numbers: torch.Tensor) -> Callable[[], list[float]]:
    """Begin to copy numbers to the host. Return a function that waits for the copy, but not for
    what is launched after it, and returns them."""
    if numbers.device.type != "cuda":
        return numbers.tolist
    host_numbers = torch.empty_like(numbers, device="cpu", pin_memory=True)
    copy_end = torch.cuda.Event()
    host_numbers.copy_(numbers, non_blocking=True)
    copy_end.record()

    def wait_for_numbers() -> list[float]:
        copy_end.synchronize()
        return host_numbers.tolist()

    return wait_for_numbers


def update(run: Run, trainee: Trainee, norm: torch.Tensor, *, step: int) -> None:
    """Clip the gradients, of this norm, and let the optimizers take their step."""
    if run.trainer.grad_clip is not None:
        clip(trainee.parameters, run.trainer.grad_clip, norm)
    for _, idea, part in trainee.model.joined_around:
        idea.before_step(part, trainee.model, step=step)
    for optimizer in trainee.optimizers:
        optimizer.step()
        if trainee.graph is None:
            optimizer.zero_grad(set_to_none=True)
    if trainee.graph is not None:
        trainee.graph.zero()
    for _, idea, part in trainee.model.joined_around:
        idea.after_step(part, trainee.model, step=step)


def clip(parameters: list[nn.Parameter], limit: float, norm: torch.Tensor) -> None:
    """Scale the gradients by limit / (norm + 1e-6), unless that is above 1."""
    # then torch multiplies all of them by 1, which on a GPU costs less than asking
    if norm.device.type == "cuda" or 1.001 * (float(norm) + 1e-6) > limit:
        nn.utils.clip_grads_with_norm_(parameters, limit, norm)


def settle(job: Job, trainee: Trainee, ledger: Ledger) -> None:
    """Wait for the step's update, so that what comes next, which is no step, is charged for its own
    time alone."""
    with ledger.charge("train"):
        job.world.synchronize()
    trainee.wait_end = None


def fetch(job: Job, trainee: Trainee, *, step: int) -> torch.Tensor:
    """Return this rank's sequences of the step, (sequences, T + 1) int32 on the device, in one
    copy."""
    run = job.run
    world = job.world
    rows = sequences_of(
        first=run.tokens_before(step) // run.model.seq_len,
        rank=world.rank,
        world=world.size,
        microbatches=microbatches(run),
        micro_batch=run.trainer.micro_batch,
    )
    batch = torch.from_numpy(trainee.train.read(rows))
    if world.device.type != "cuda":
        return batch
    return batch.pin_memory().to(world.device, non_blocking=True)


def no_sync(trainee: Trainee) -> Any:
    """Keep gradients local inside the block; DDP averages them in the backward that follows
    outside."""
    if isinstance(trainee.forward, DistributedDataParallel):
        return trainee.forward.no_sync()
    return nullcontext()
