"""What a yaml may ask for in place of a value, as in `${nocap.fraction:0.05,${trainer.steps}}`; and what a
run gets that does not choose device, precision, compilation or threads.

These defaults follow from the command line and from what the machine is. Nothing is measured to find them.
The figures behind the rules were measured (LOG.md, 2026-11-22, 2026-11-25), and stand beside them. The rules
look at the model's shape, the vocabulary and how much there is to compute, never at an option that is
compared. In a grid or study the baseline decides for all arms: `Composed.defaults`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import cast

import omegaconf
from omegaconf import OmegaConf

from nocap.config import hardware
from nocap.config.run import Run
from nocap.config.trainer import Compile, Device, Malloc, Precision
from nocap.options.attention.softmax import Kernel
from nocap.options.model import Model
from nocap.options.optimizer.adamw import beta2_of
from nocap.options.tokenizer import Tokenizer

EAGER_FLOPS = 5e10  # per second and thread
# CPU-seconds to compile with nothing in the cache; the last is a guess
COLD_S = {Compile.off: 0.0, Compile.regional: 45.0, Compile.full: 60.0, Compile.max: 600.0}
SHORT = 10_000_000  # weights of all blocks; below, the calls of regions cost 1 to 6% of a step
SAVED = 0.2  # of an eager step's time
SAVED_BY_HEAD = 0.5  # the same where the head has more weights than the blocks


def device() -> Device:
    """CUDA where there are a GPU and a torch built for it, else the CPU."""
    return Device.cuda if hardware.torch_build()["cuda"] and hardware.cuda_devices() else Device.cpu


def threads(device: Device, devices: int) -> int:
    """CPU threads per worker: the cores this process may use, shared out; on CUDA the CPU computes nothing
    that threads would speed up."""
    if device is Device.cuda:
        return 1
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // max(1, devices))


def malloc(device: Device) -> Malloc:
    """Return `pooled` for a CPU with glibc. On CUDA torch has a pool of its own."""
    return Malloc.pooled if device is Device.cpu and hardware.has_glibc() else Malloc.system


def _weights(model: Model, tokenizer: Tokenizer) -> tuple[int, int]:
    """Return the weights of the blocks' products, and those of the head's."""
    return 12 * model.n_layer * model.d_model**2, tokenizer.vocab_size * model.d_model


def precision(device: Device) -> tuple[Precision, str]:
    """Return the precision that a device trains in by default, and why.

    On CPUs with bf16 products and without AMX it depends on CPU and shape: of two of them one computed
    `model=tiny` in bf16 at 0.56 times fp32's speed, the other at 1.55 times (docs/speed.md).
    """
    if device is Device.cuda:
        return Precision.bf16, "the GPU's tensor cores"
    if hardware.has_amx():
        return Precision.bf16, "this CPU has AMX"
    return Precision.fp32, "this CPU has no AMX"


def other_precision(device: Device) -> Precision | None:
    """Return the precision that may be faster than the default, as only a bench can say. None: it is not."""
    if device is Device.cuda or not hardware.native_bf16():
        return None
    return Precision.fp32 if precision(device)[0] is Precision.bf16 else Precision.bf16


def compilation(
    device: Device,
    model: Model,
    tokenizer: Tokenizer,
    steps: int,
    batch_tokens: int,
    threads: int,
    devices: int,
) -> tuple[Compile, str]:
    """Return what is compiled by default, and why: the block and the head, or the whole of a small model,
    where compiling takes less time, with nothing in its cache, than it saves within the run."""
    if device is Device.cuda:
        return Compile.regional, "a GPU"
    blocks, head = _weights(model, tokenizer)
    tokens = steps * batch_tokens // max(1, threads * devices)  # of a thread
    eager_s = 6 * (blocks + head) * tokens / EAGER_FLOPS
    saved_s = eager_s * (SAVED_BY_HEAD if head > blocks else SAVED)
    compiled = Compile.full if blocks < SHORT else Compile.regional
    why = f"it takes {COLD_S[compiled]:g} s of each core, and would save {saved_s:,.1f} s of this run"
    if saved_s <= COLD_S[compiled]:
        return Compile.off, why
    if not hardware.cpp_compiler():
        return Compile.off, f"no C++ compiler is here; {why}"
    return compiled, why


def reasons(run: Run) -> dict[str, str]:
    """Return for a key of `trainer` what a run of this shape gets by default, and why."""
    t = run.trainer
    numbers, numbers_why = precision(t.device)
    compiled, compiled_why = compilation(
        t.device, run.model, run.tokenizer, t.steps, t.batch_tokens, t.threads, t.devices
    )
    return {
        "precision": f"{numbers.value}: {numbers_why}",
        "compile": f"{compiled.value}: {compiled_why}",
    }


# --- what a yaml may ask for --------------------------------------------------------------------------------


def _gqa_heads(n_head: int) -> int:
    """Key/value heads for groups of 3, 2 or 5 query heads: the first that divides."""
    for group in (3, 2, 5):
        if n_head % group == 0:
            return n_head // group
    raise ValueError(
        "attention=gqa needs model.n_head divisible by 3, 2 or 5, or an explicit "
        f"attention.n_kv_heads, got {n_head}"
    )


# What a yaml may ask for instead of a number. Device, precision and threads are decided here, once, and
# travel as plain values.
RESOLVERS: dict[str, Callable[..., object]] = {
    "gqa_heads": _gqa_heads,
    "fraction": lambda share, whole: math.floor(share * whole),
    # a wrong part is refused where it is read
    "quotient": lambda whole, part: max(1, math.floor(whole / part)) if part > 0 else 1,
    "least": lambda a, b: min(a, b),  # OmegaConf 2.4 inspects what it is given, and a builtin says nothing
    "times": lambda a, b: a * b,
    "beta2": lambda default, half_life, batch: (
        # one that is no positive number is refused where it is read
        default if half_life is None or half_life <= 0 else beta2_of(half_life, batch)
    ),
    # both kinds, also of fewer than four layers
    "pattern": lambda n_layer: "L" * min(3, n_layer - 1) + "G",
    "device": device,
    "precision": lambda device: precision(device)[0],
    "threads": threads,
    "malloc": malloc,
    "compile": lambda device, model, tokenizer, *run: compilation(
        device, model, cast(Tokenizer, OmegaConf.to_object(tokenizer)), *run
    )[0],
    # one micro-batch of d48 takes a CPU core an hour
    "hang_timeout_s": lambda device: 3600.0 if device is Device.cpu else 600.0,
    "local_kernel": lambda device: Kernel.blocks if device is Device.cpu else Kernel.flex,
}
OLD = omegaconf.__version__.startswith("2.3.")
# what 2.4 calls the same
register_resolver: Callable[..., None] = (
    OmegaConf.register_new_resolver if OLD else OmegaConf.register_resolver
)
for _name, _resolver in RESOLVERS.items():
    register_resolver(f"nocap.{_name}", _resolver, replace=True)
