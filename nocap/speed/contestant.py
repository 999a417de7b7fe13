"""One arm, built and warm: the trainer's own step (`nocap.training.loop.take_step`) over made-up tokens."""

from __future__ import annotations

import gc
import math
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nocap.config.run import Run
from nocap.config.trainer import Compile, Device
from nocap.data.shards import write_shard
from nocap.data.tokens import Shard
from nocap.model.flops import flops_per_token
from nocap.model.gpt import count_parameters
from nocap.options.attention import kernel_name
from nocap.speed.arms import Arm
from nocap.speed.clock import Clock
from nocap.training import memory
from nocap.training.ledger import Ledger
from nocap.training.loop import warm_up
from nocap.training.step import Job, Update, build, configure_numerics, take_step
from nocap.training.world import World, join

WARM_STEPS = 3  # the first makes the optimizer's state, the last sets the length of a block
BLOCK_S = {Device.cpu: 0.05, Device.cuda: 0.3}  # of one block; on a busy CPU many short blocks say twice as much as few long ones


COMPILED_ARMS = 128  # versions of one module's code that may live side by side


class DivergedError(Exception):
    """A loss that is no number: the optimizer's part of the step is skipped, and the time is not a step's."""


class Contestant:
    """An arm that takes training steps.

    Errors, of building and of every step:
        DivergedError: the loss is no number.
        torch.OutOfMemoryError, RuntimeError: the arm does not fit (`memory.ran_out` tells).
    """

    def __init__(self, arm: Arm, *, clock: Clock, block_s: float | None = None) -> None:
        run = arm.run
        self.run, self.clock, self._step, self._peak_mib = run, clock, 0, 0.0
        if run.trainer.compile is not Compile.off:
            # Dynamo gives up on a class after 8 versions of it, and a bench may hold more arms than that.
            torch._dynamo.config.recompile_limit = COMPILED_ARMS
        world = join(run.trainer.device)
        before = _allocated_mib(world)
        began = time.perf_counter()
        configure_numerics(run)
        with tempfile.TemporaryDirectory() as folder:  # a shard stays mapped when its file is gone
            self._job = _job(run, world, Path(folder))
            self._trainee = build(self._job)
        self._ledger = Ledger(started=time.monotonic())
        self._saved_mib = warm_up(self._job, self._trainee, self._ledger, validates=False)
        warm_s = [clock.seconds(self.step) for _ in range(WARM_STEPS)]
        self.steps = max(1, round((block_s or BLOCK_S[run.trainer.device]) / warm_s[-1]))  # a block
        self._held_mib = _allocated_mib(world) - before
        self.warm_up_s = time.perf_counter() - began

    @property
    def tokens(self) -> int:
        """Of one step."""
        return self.run.trainer.batch_tokens

    def step(self) -> Update:
        """One optimizer step, on the next made-up batch; the schedule begins anew when it is through."""
        update = take_step(self._job, self._trainee, self._ledger, step=self._step % self.run.trainer.steps)
        self._step += 1
        if not update.finite:
            raise DivergedError(f"the loss is {update.loss!r}, its gradient's norm {update.grad_norm!r}, after {self._step} steps")
        return update

    def block(self) -> float:
        """Seconds a token over some steps. On CUDA one goes before that does not count: the allocator takes back what other arms left."""
        configure_numerics(self.run)
        if (device := self._job.world.device).type == "cuda":
            others_mib = _allocated_mib(self._job.world) - self._held_mib
            torch.cuda.reset_peak_memory_stats(device)
            self.step()
            seconds = self.clock.seconds(self._steps)
            self._peak_mib = max(self._peak_mib, memory.peak_mib(device) - others_mib)
        else:
            seconds = self.clock.seconds(self._steps)
        return seconds / (self.steps * self.tokens)

    def _steps(self) -> None:
        for _ in range(self.steps):
            self.step()

    def facts(self) -> dict[str, Any]:
        """What is known besides the times."""
        run = self.run
        parts = {**memory.parts_mib(self._trainee.model.parameters(), self._trainee.optimizers), "activations": self._saved_mib}
        on_gpu = self._job.world.device.type == "cuda"
        flops, basis = flops_per_token(run, vocab_size=self._job.vocab_size)
        return {
            "tokens_per_step": self.tokens,
            "steps_per_block": self.steps,
            "warm_up_s": self.warm_up_s,
            "flops_per_token": flops,
            "flops_basis": basis,
            "params": count_parameters(self._trainee.model)["total"],
            "kernel": kernel_name(run.attention, run.trainer.device, run.trainer.precision),
            "memory_mib": {"peak": self._peak_mib if on_gpu else sum(parts.values()), **parts},
        }

    def close(self) -> None:
        """Give the memory back."""
        del self._trainee
        gc.collect()
        if self._job.world.device.type == "cuda":
            torch.cuda.empty_cache()


def _allocated_mib(world: World) -> float:
    return torch.cuda.memory_allocated(world.device) / memory.MIB if world.device.type == "cuda" else math.nan


def _job(run: Run, world: World, folder: Path) -> Job:
    """The run on a shard of uniformly random tokens, which is read as any other."""
    size, T = run.tokenizer.vocab_size, run.model.seq_len
    sequences = max(run.trainer.batch_tokens // T, run.data.read_sequences)
    tokens = np.random.default_rng(run.seed).integers(0, size, sequences * T + 1)
    path = folder / "tokens.bin"
    write_shard(path, tokens.astype(np.uint16))
    shards = (Shard(path=str(path), tokens=len(tokens), sha256="", max_id=size - 1),)
    return Job(run=run, train_shards=shards, val_shards=shards, vocab_size=size, run_dir=folder, world=world, started=time.monotonic())
