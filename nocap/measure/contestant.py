"""One arm of a bench, built and warm: the trainer's own step (`nocap.training.loop.take_step`) on random tokens."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nocap.config.run import Run
from nocap.config.trainer import Device
from nocap.data.shards import write_shard
from nocap.data.tokens import Shard
from nocap.measure.arms import BenchArm
from nocap.measure.clock import Clock, repeat
from nocap.model.flops import flops_per_token
from nocap.model.gpt import count_parameters
from nocap.options.attention import kernel_name
from nocap.training import memory
from nocap.training.ledger import Ledger
from nocap.training.loop import warm_up
from nocap.training.step import Job, Update, build, configure_numerics, take_step
from nocap.training.world import World, join

WARM_STEPS = 3  # the first makes the optimizer's state, the last sets the length of a block
BLOCK_S = {Device.cpu: 0.05, Device.cuda: 0.3}  # of one block; on a busy CPU many short blocks give narrower intervals than few long ones


@contextmanager
def random_tokens(run: Run) -> Iterator[Job]:
    """A job on random tokens, in a shard that the loop's own reader maps. Build inside the block: a mapped file may be deleted."""
    with tempfile.TemporaryDirectory() as folder:
        size, path = run.tokenizer.vocab_size, Path(folder) / "random.bin"
        n = run.trainer.batch_tokens + run.model.seq_len * run.data.read_sequences + 1
        write_shard(path, np.random.default_rng(run.seed).integers(0, size, n, dtype=np.uint16))
        shards, world = (Shard(path=str(path), tokens=n, sha256="", max_id=size - 1),), join(run.trainer.device)
        yield Job(
            run=run,
            train_shards=shards,
            val_shards=shards,
            vocab_size=size,
            run_dir=Path(folder),
            world=world,
            started=time.monotonic(),
        )


class DivergedError(Exception):
    """A loss that is not finite: the optimizer's part of the step is skipped, and the time is not a step's."""


@dataclass(kw_only=True, slots=True)
class StepInfo:
    """What is known of an arm's step besides its times."""

    tokens_per_step: int
    steps_per_block: int
    warm_up_s: float
    flops_per_token: float | None  # None: an external arm that does not say
    flops_basis: str | None
    params: int
    kernel: str | None
    memory_mib: dict[str, float]
    settings: dict[str, Any] | None = None  # an external arm's own words on what it is


class Contestant:
    """An arm that takes training steps.

    Errors, of building and of every step:
        DivergedError: the loss is not finite.
        torch.OutOfMemoryError, RuntimeError: the arm does not fit (see `memory.ran_out`).
    """

    def __init__(self, arm: BenchArm, *, clock: Clock, block_s: float | None = None) -> None:
        run = arm.run.in_the_end()
        self.run, self.clock, self._step, self._peak_mib, self._unseen_mib = run, clock, 0, 0.0, 0.0
        before, began = _allocated_mib(join(run.trainer.device)), time.perf_counter()
        configure_numerics(run)
        with random_tokens(run) as self._job:
            self._saved_mib = self._prepare()
        warm_s = [clock.seconds(self.step) for _ in range(WARM_STEPS)]
        self.steps = max(1, round((block_s or BLOCK_S[run.trainer.device]) / warm_s[-1]))  # a block
        self._held_mib = _allocated_mib(self._job.world) - before
        self.warm_up_s = time.perf_counter() - began

    def _prepare(self) -> float:
        """Build, and run what a first step would compile; the MiB that a forward keeps for its backward."""
        self._trainee, self._ledger = build(self._job), Ledger(started=time.monotonic())
        saved_mib = warm_up(self._job, self._trainee, self._ledger, validates=False)
        if self._trainee.graphed is not None:
            self._unseen_mib = self._trainee.graphed.unseen_mib
        return saved_mib

    def step(self) -> Update:
        """One optimizer step on the next random batch; after its last step the schedule begins anew."""
        update = take_step(self._job, self._trainee, self._ledger, step=self._step % self.run.trainer.steps)
        self._step += 1
        if not update.finite:
            raise DivergedError(f"the loss is {update.loss!r}, its gradient's norm {update.grad_norm!r}, after {self._step} steps")
        return update

    def block(self) -> float:
        """Seconds a token over some steps. On CUDA a step before them does not count: the allocator takes back what other arms left."""
        configure_numerics(self.run)
        device = self._job.world.device
        if device.type == "cuda":
            others_mib = _allocated_mib(self._job.world) - self._held_mib
            memory.reset_peak(device)
            self.step()
        seconds = self.clock.seconds(lambda: repeat(self.step, self.steps))
        if device.type == "cuda":
            self._peak_mib = max(self._peak_mib, memory.peak_mib(device) - others_mib + self._unseen_mib)
        return seconds / (self.steps * self.run.trainer.batch_tokens)

    def info(self) -> StepInfo:
        run, model = self.run, self._trainee.model
        flops, basis = flops_per_token(run, vocab_size=self._job.vocab_size)
        return StepInfo(
            tokens_per_step=run.trainer.batch_tokens,
            steps_per_block=self.steps,
            warm_up_s=self.warm_up_s,
            flops_per_token=flops,
            flops_basis=basis,
            params=count_parameters(model)["total"],
            kernel=kernel_name(run, run.trainer.precision),
            memory_mib=self._memory(memory.parts_mib(model.parameters(), self._trainee.optimizers, model.kept_around())),
        )

    def _memory(self, parts_mib: dict[str, float]) -> dict[str, float]:
        """On the CPU the peak is counted (parameters, gradients, optimizer, activations), on CUDA measured."""
        parts = {**parts_mib, "activations": self._saved_mib}
        return {"peak": self._peak_mib if self._job.world.device.type == "cuda" else sum(parts.values()), **parts}

    def close(self) -> None:
        """Give the memory back."""
        del self._trainee
        memory.give_back(self._job.world.device)


def _allocated_mib(world: World) -> float:
    return torch.cuda.memory_allocated(world.device) / memory.MIB if world.device.type == "cuda" else math.nan
