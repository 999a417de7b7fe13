"""What a run gets that does not choose device, precision, compilation or threads: what is fast on its machine for its shape.

The rules for a CPU look at the model's shape, the vocabulary and how much there is to compute, never at an option that is compared. Their
figures are measured (LOG.md, 2026-11-22). In a grid or study the baseline decides for all arms: `Composed.defaults`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from nocap.config import hardware
from nocap.config.run import Run
from nocap.config.trainer import Compile, Device, Precision
from nocap.options.model import Model

WIDE = 4096  # d_model × channels of a head: below, attention's backward loses more in bf16 than the products win
EAGER_FLOPS = 5e10  # per second and thread
COLD_S = 40.0  # CPU-seconds to compile the block and the head with nothing in the cache
SAVED, SAVED_BY_HEAD = 0.2, 0.5  # of an eager step's time; the second where the head is more than the blocks


def device() -> Device:
    """CUDA where there are a GPU and a torch built for it, else the CPU."""
    return Device.cuda if hardware.torch_build()["cuda"] and hardware.cuda_devices() else Device.cpu


def threads(device: Device, devices: int) -> int:
    """CPU threads per worker: the cores this process may use, shared out; on CUDA the CPU computes nothing that threads would speed up."""
    if device is Device.cuda:
        return 1
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // max(1, devices))


@dataclass(frozen=True, slots=True)
class Work:
    """What the rules look at."""

    model: Model
    vocab_size: int
    tokens: int  # of the whole run, a thread

    @property
    def blocks(self) -> int:
        """Weights of the blocks' products."""
        return 12 * self.model.n_layer * self.model.d_model**2

    @property
    def head(self) -> int:
        return self.vocab_size * self.model.d_model

    @property
    def eager_s(self) -> float:
        return 6 * (self.blocks + self.head) * self.tokens / EAGER_FLOPS


def precision(device: Device, work: Work) -> tuple[Precision, str]:
    """bf16 where the hardware multiplies it natively and the products are large enough, and why."""
    if device is Device.cuda:
        return Precision.bf16, "the GPU's tensor cores"
    if not hardware.native_bf16():
        return Precision.fp32, "this CPU has no bf16 products"
    width = work.model.d_model
    size = f"width {width} × {width // max(1, work.model.n_head)} channels a head"
    if width * (width // max(1, work.model.n_head)) < WIDE and work.head <= work.blocks:
        return Precision.fp32, f"{size} is below {WIDE}"
    return Precision.bf16, f"{size} is at least {WIDE}" if work.head <= work.blocks else "the head is more than the blocks"


def compilation(device: Device, work: Work) -> tuple[Compile, str]:
    """The block and the head compiled where that takes less time, cold, than it saves within the run, and why."""
    if device is Device.cuda:
        return Compile.regional, "a GPU"
    if not hardware.cpp_compiler():
        return Compile.off, "there is no C++ compiler"
    saved = (SAVED_BY_HEAD if work.head > work.blocks else SAVED) * work.eager_s
    why = f"it would save about {saved:,.0f} CPU-seconds a thread, and takes {COLD_S:g}"
    return Compile.regional if saved > COLD_S else Compile.off, why


def reasons(run: Run) -> dict[str, str]:
    """`trainer` key → what a run of this shape gets by default, and why."""
    t = run.trainer
    work = Work(run.model, run.tokenizer.vocab_size, t.steps * t.batch_tokens // (t.threads * t.devices))
    found = {"precision": precision(t.device, work), "compile": compilation(t.device, work)}
    return {key: f"{choice.value}: {why}" for key, (choice, why) in found.items()}
