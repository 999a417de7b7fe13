"""One arm whose step is timed, from its run to what is known of its step: the trainer's own
(`nocap.training.step.take_step`), on random tokens."""

from __future__ import annotations

import gc
import math
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nocap.config.keys import require
from nocap.config.run import Run
from nocap.config.trainer import Device
from nocap.data.shards import write_shard
from nocap.data.tokens import Shard
from nocap.measure.bench_arms import step_config
from nocap.measure.bench_result import ArmStatus, Facts
from nocap.measure.clock import Clock, repeat
from nocap.model.attention_facts import kernel_name
from nocap.model.build import count_parameters
from nocap.model.flops import flops_per_token
from nocap.training import allocator, memory
from nocap.training.build import build, configure_numerics
from nocap.training.job import Job
from nocap.training.ledger import Ledger
from nocap.training.memory_limit import ran_out
from nocap.training.step import take_step
from nocap.training.warm_up import warm_up
from nocap.training.world import join

WARM_STEPS = 3  # the first makes the optimizer's state, the last sets the length of a block
# of one block; on a busy CPU many short blocks give narrower intervals than few long ones
BLOCK_S = {Device.cpu: 0.05, Device.cuda: 0.3}
LONGEST_PERIOD = 100  # steps of an optimizer's whole period: a block of more would take minutes


def block_steps(wanted: float, *, period: int) -> int:
    """Return how many steps a block has: about so many as are wanted, in whole periods of the
    optimizer.

    Errors:
        ValueError: a period is longer than a block may be.
    """
    rule = f"have a period of at most {LONGEST_PERIOD} steps (in SOAP: optimizer.basis_every)"
    require(period <= LONGEST_PERIOD, "the optimizer", rule, period)
    return max(1, round(wanted / period)) * period


@contextmanager
def random_tokens(run: Run) -> Iterator[Job]:
    """Yield a job on random tokens, in a shard that the loop's own reader maps. Build inside the
    block: a mapped file may be deleted."""
    with tempfile.TemporaryDirectory() as folder:
        size = run.tokenizer.vocab_size
        path = Path(folder) / "random.bin"
        n = run.trainer.batch_tokens + run.model.seq_len * run.data.read_sequences + 1
        draw = np.random.default_rng(run.seed)
        write_shard(path, draw.integers(0, size, n, dtype=np.uint16))
        shards = (Shard(path=str(path), tokens=n, sha256="", max_id=size - 1),)
        yield Job(
            run=run,
            train_shards=shards,
            val_shards=shards,
            vocab_size=size,
            run_dir=Path(folder),
            world=join(run.trainer.device),
            started=time.monotonic(),
        )


class DivergedError(ValueError):
    """A loss that is not finite: the optimizer's part of the step is skipped, and the time is not a
    step's."""


class TimedArm:
    """What is timed under one name. It fails by itself: `status` and `reason` say how, and its
    blocks take NaN seconds from then on."""

    validates = False  # also once, before the first step

    def __init__(self, label: str, run: Run) -> None:
        self.label = label
        self.config = step_config(run)
        self.run = run.in_the_end()
        self.device = torch.device(run.trainer.device.value)
        self.status = ArmStatus.measured
        self.reason: str | None = None
        self.facts = Facts()
        # from `warm` on
        self.clock: Clock
        self.ledger: Ledger
        self.job: Job
        self.built: Any = None  # what holds its tensors
        self.held_bytes = 0  # on a GPU, by what was built
        self.at = 0  # the next step
        self.steps = 0  # of a block
        self.unseen_mib = 0.0

    # --- what an arm that is not nocap's does in its own way (experiments/peers)

    def build(self) -> float:
        """Build, and run what a first step would compile; the MiB that a forward keeps for its
        backward."""
        self.built = build(self.job)
        saved_mib = warm_up(self.job, self.built, self.ledger, validates=self.validates)
        if self.built.graph is not None:
            self.unseen_mib = self.built.graph.unseen_mib
        return saved_mib

    def step(self) -> float:
        """Return the loss of one optimizer step on the next random batch; after its last step the
        schedule begins anew.

        Errors:
            DivergedError: it is not finite.
            torch.OutOfMemoryError, RuntimeError: the arm does not fit (see `memory_limit.ran_out`).
        """
        step = self.at % self.run.trainer.steps
        update = take_step(self.job, self.built, self.ledger, step=step)
        self.at += 1
        if not update.finite:
            raise DivergedError(
                f"a step must have a finite loss and gradient, got loss {update.loss!r} and "
                f"gradient norm {update.grad_norm!r} after {self.at} steps"
            )
        return update.loss

    def describe(self) -> Facts:
        """Return the facts that depend on what was built; MiB without the peak and the
        activations."""
        run = self.run
        model = self.built.model
        flops, basis = flops_per_token(run, vocab_size=self.job.vocab_size)
        parts = memory.parts_mib(model.parameters(), self.built.optimizers, model.kept_around())
        return Facts(
            flops_per_token=flops,
            flops_basis=basis,
            params=count_parameters(model)["total"],
            kernel=kernel_name(run, run.trainer.precision),
            memory_mib=parts,
        )

    # --- what all have in common

    def warm(self, clock: Clock, *, ledger: Ledger | None = None) -> None:
        """Build, take the first steps, and note the facts. The peak of memory is counted on the
        CPU, and measured on CUDA. `ledger`: what the steps are charged to."""
        self.clock = clock
        self.ledger = ledger or Ledger(started=time.monotonic())
        began = time.perf_counter()
        before = torch.cuda.memory_allocated()
        allocator.use(self.run.trainer.malloc)
        configure_numerics(self.run)
        with random_tokens(self.run) as self.job:
            saved_mib = self.build()
        warm_s = [clock.seconds(self.step) for _ in range(WARM_STEPS)]
        wanted = BLOCK_S[self.run.trainer.device] / warm_s[-1]
        self.steps = block_steps(wanted, period=self.run.optimizer.period())
        self.held_bytes = torch.cuda.memory_allocated() - before
        known = self.describe()
        mib = {**(known.memory_mib or {}), "activations": saved_mib}
        mib["peak"] = 0.0 if self.device.type == "cuda" else sum(mib.values())
        self.facts = replace(
            known,
            tokens_per_step=self.run.trainer.batch_tokens,
            steps_per_block=self.steps,
            warm_up_s=time.perf_counter() - began,
            memory_mib=mib,
        )

    def block(self) -> float:
        """Seconds a token over some steps. On CUDA a step before them does not count: the allocator
        takes back what other arms left."""
        allocator.use(self.run.trainer.malloc)
        configure_numerics(self.run)
        on_cuda = self.device.type == "cuda"
        if on_cuda:
            others_mib = (torch.cuda.memory_allocated() - self.held_bytes) / memory.MIB
            memory.reset_peak(self.device)
            self.step()
        seconds = self.clock.seconds(partial(repeat, self.step, self.steps))
        if on_cuda:
            peak_mib = memory.peak_mib(self.device) - others_mib + self.unseen_mib
            mib = dict(self.facts.memory_mib or {})
            mib["peak"] = max(mib["peak"], peak_mib)
            self.facts = replace(self.facts, memory_mib=mib)
        return seconds / (self.steps * self.run.trainer.batch_tokens)

    def tried(self, work: Callable[[], float | None]) -> float:
        """Return what `work`, a method of this arm, returns; NaN from the moment the arm fails,
        which stops no other."""
        if self.status is not ArmStatus.measured:
            return math.nan
        try:
            return work() or 0.0
        except (Exception, SystemExit) as error:  # an option from outside may raise anything
            if ran_out(error):
                self.status = ArmStatus.does_not_fit
                self.reason = _first_line(error)
            else:
                self.status = ArmStatus.failed
                self.reason = _named_line(error)
            error.__traceback__ = None  # its frames hold the arm's tensors
            self.close()
            return math.nan

    def close(self) -> None:
        """Give the memory back, also in the middle of rounds, where the collector looks at no arm
        (`nocap.measure.bench.in_turns`): what is compiled refers to itself."""
        self.built = None
        is_frozen = gc.get_freeze_count() > 0
        gc.unfreeze()
        memory.give_back(self.device)
        if is_frozen:
            gc.freeze()


def _first_line(error: BaseException) -> str:
    """Return the first line of what an error says; of a compiler's, which ends with a colon, also
    what it passes on."""
    first, _, rest = str(error).strip().partition("\n")
    if first.endswith(":"):
        first += " " + rest.strip().partition("\n")[0]
    return first


def _named_line(error: BaseException) -> str:
    """Return the error's kind before its first line."""
    return f"{type(error).__name__}: {_first_line(error)}"
