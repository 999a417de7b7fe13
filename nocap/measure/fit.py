"""The largest micro-batch of a config on this machine: a step of each is trained until one does not
fit."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace

from nocap.config import gpu_defaults
from nocap.config.defaults import micro_batch
from nocap.config.hardware import device_name
from nocap.config.run import Run
from nocap.config.trainer import Device
from nocap.launch.plan import check_compiler
from nocap.measure.bench_result import ArmStatus
from nocap.measure.clock import Clock
from nocap.measure.timed_arm import TimedArm
from nocap.training import memory
from nocap.training.memory_limit import within_memory


@dataclass(frozen=True, kw_only=True, slots=True)
class Size:
    """A micro-batch that was tried."""

    sequences: int
    peak_mib: float | None  # None: it does not fit
    reason: str | None = None

    @property
    def line(self) -> str:
        if self.peak_mib is None:
            return f"trainer.micro_batch={self.sequences}: does not fit ({self.reason})"
        return f"trainer.micro_batch={self.sequences}: fits, at most {self.peak_mib:,.0f} MiB"


class _Step(TimedArm):
    """A step of one micro-batch with its validation."""

    validates = True


def fit(run: Run) -> Iterator[str]:
    """Yield what a person reads: a line of each power of two that divides the batch and the
    validation, from 1 on until one does not fit; then the largest.

    Errors:
        ValueError: not even one sequence fits, or a step fails for another reason.
    """
    check_compiler(run)
    largest: Size | None = None
    with within_memory() if run.trainer.device is Device.cpu else nullcontext():
        for sequences in _sizes(run):
            tried = _try(run, sequences)
            yield tried.line
            if tried.peak_mib is None:
                break
            largest = tried
    if largest is None:
        raise ValueError(f"even trainer.micro_batch=1 does not fit into memory: {tried.reason}")
    yield from _answer(run, largest)


def _sizes(run: Run) -> Iterator[int]:
    """Yield the powers of two that a device's batch and a validation are multiples of."""
    t = run.trainer
    length = run.model.seq_len
    sequences = math.gcd(t.batch_tokens // (length * t.devices), t.val_tokens // length)
    size = 1
    while sequences % size == 0:
        yield size
        size *= 2


def _try(run: Run, size: int) -> Size:
    tokens = size * run.model.seq_len
    trainer = replace(run.trainer, micro_batch=size, batch_tokens=tokens, devices=1)
    arm = _Step("", run.varied(trainer=trainer, optimizer=run.optimizer.at_batch(tokens)))
    memory.reset_peak(arm.device)
    arm.tried(lambda: arm.warm(Clock.wall))
    peak_mib = memory.peak_mib(arm.device) + arm.unseen_mib
    status = arm.status
    reason = arm.reason
    arm.close()
    if status is ArmStatus.measured:
        return Size(sequences=size, peak_mib=peak_mib)
    if status is not ArmStatus.does_not_fit:
        raise ValueError(f"a step with trainer.micro_batch={size} cannot be trained: {reason}")
    return Size(sequences=size, peak_mib=None, reason=reason)


def _answer(run: Run, largest: Size) -> list[str]:
    t = run.trainer
    where = device_name(t.device)
    lines = [
        f"the largest micro-batch that fits on {where}: trainer.micro_batch={largest.sequences}"
    ]
    if t.device is Device.cuda:
        shape = (run.model, run.tokenizer)
        default, why = micro_batch(t.device, *shape, t.batch_tokens, t.val_tokens, t.devices)
        lines.append(
            f"the default is {default}: {why} ({gpu_defaults.ROOM_MIB // 1024} GiB on every card)"
        )
    return [
        *lines,
        "use one micro-batch for all arms that you compare, because sizes round differently",
    ]
