"""What a run gets that does not choose device, precision, compilation, threads, micro-batch or CUDA
graphs.

These defaults follow from the command line and from what the machine is. Nothing is measured to
find them. The figures behind the rules were measured (LOG.md, 2026-11-22, 2026-11-25), and stand
beside them; those of a GPU are in `nocap.config.gpu_defaults`. The rules look at the model's shape,
the vocabulary and how much there is to compute, never at an option that is compared. In a grid or
study the baseline decides for all arms: `Composed.defaults`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable

from nocap import outside
from nocap.config import gpu_defaults, hardware
from nocap.config.option import Option
from nocap.config.run import Run
from nocap.config.trainer import Compile, Device, Malloc, Precision
from nocap.options.ideas import STEP_JOINTS, Idea
from nocap.options.model import Model
from nocap.options.tokenizer import Tokenizer

# FLOP/s of a thread in an eager step: 6 × weights × the tokens/s of `python -m nocap.bench
# model=tiny`. One EPYC has 3.0e10 in fp32, another 5.2e10 in bf16.
EAGER_FLOPS = 5e10
# CPU-seconds to compile with nothing in the cache: those of a run of 4 steps over the same run
# eager, at nano and tiny (experiments/cpu_defaults). The last is a guess.
COLD_S = {Compile.off: 0.0, Compile.regional: 45.0, Compile.full: 60.0, Compile.max: 600.0}
SHORT = 10_000_000  # weights of all blocks; below, the calls of regions cost 1 to 6% of a step
# What compiling saves of an eager step's time, a fifth to a half (LOG.md, 2026-11-22): `python -m
# nocap.bench model=nano --arm trainer.compile=off --arm trainer.compile=full --seconds 120`.
SAVED = 0.2
SAVED_BY_HEAD = 0.5  # where the head has more weights than the blocks
# On a CPU with AMX, bf16's speed over fp32's by channels × channels of a head: 0.59 at 64 × 16,
# 0.90 at 128 × 16, 1.20 at 128 × 32, 1.70 at 256 × 64 (experiments/cpu_defaults).
WIDE, WIDE_HEAD = 128, 32
ON_CPU = 8  # sequences of a micro-batch


def device() -> Device:
    """Return CUDA where there are a GPU and a torch built for it, else the CPU."""
    if hardware.torch_build()["cuda"] and hardware.cuda_devices():
        return Device.cuda
    return Device.cpu


def threads(device: Device, devices: int) -> int:
    """Return the CPU threads of a worker: the cores that this process may use, shared out. On CUDA
    the CPU computes nothing that threads would speed up."""
    if device is Device.cuda:
        return 1
    return max(1, _cores() // max(1, devices))


def _cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def malloc(device: Device) -> Malloc:
    """Return `pooled` for a CPU with glibc. On CUDA torch has a pool of its own."""
    if device is Device.cpu and hardware.has_glibc():
        return Malloc.pooled
    return Malloc.system


def precision(device: Device, model: Model) -> tuple[Precision, str]:
    """Return the precision that a model of this shape trains in by default, and why.

    On CPUs with bf16 products and without AMX it depends on CPU and shape: of two of them one
    computed `model=tiny` in bf16 at 0.56 times fp32's speed, the other at 1.55 times
    (experiments/cpu_defaults).
    """
    if device is Device.cuda:
        return Precision.bf16, "the GPU has tensor cores"
    if not hardware.has_amx():
        return Precision.fp32, "this CPU has no AMX"
    head = model.d_model // max(1, model.n_head)
    if model.d_model >= WIDE and head >= WIDE_HEAD:
        return Precision.bf16, "this CPU has AMX"
    shape = f"{model.d_model} channels and heads of {head}"
    return (
        Precision.fp32,
        (
            f"AMX helps if a model has at least {WIDE} channels and heads of {WIDE_HEAD}; this "
            f"model has {shape}"
        ),
    )


def other_precision(device: Device, model: Model) -> Precision | None:
    """Return the precision that may be faster than the default, as only a bench can say. None: it
    is not."""
    if device is Device.cuda or not hardware.native_bf16():
        return None
    default, _ = precision(device, model)
    if default is Precision.bf16:
        return Precision.fp32
    return Precision.bf16


def compilation(
    device: Device,
    model: Model,
    tokenizer: Tokenizer,
    steps: int,
    batch_tokens: int,
    threads: int,
    devices: int,
) -> tuple[Compile, str]:
    """Return what is compiled by default, and why. On a GPU: the block and the head, or the whole
    model where that takes less time than it saves within the run. On a CPU: those, or the whole of
    a small model, where compiling takes less time, with nothing in its cache, than it saves."""
    if device is Device.cuda:
        is_full, why = gpu_defaults.compiles_whole(
            model, tokenizer, steps * batch_tokens // max(1, devices)
        )
        if is_full:
            return Compile.full, why
        return Compile.regional, why
    blocks, head = gpu_defaults.weights(model, tokenizer)
    tokens = steps * batch_tokens // max(1, threads * devices)  # of a thread
    share = SAVED
    if head > blocks:
        share = SAVED_BY_HEAD
    saved_s = share * (6 * (blocks + head) * tokens / EAGER_FLOPS)
    compiled = Compile.regional
    if blocks < SHORT:
        compiled = Compile.full
    why = (
        f"compiling takes {COLD_S[compiled]:g} s of each core, and would save this run "
        f"{saved_s:,.1f} s"
    )
    if saved_s <= COLD_S[compiled]:
        return Compile.off, why
    if not hardware.cpp_compiler():
        return Compile.off, f"this machine has no C++ compiler; {why}"
    return compiled, why


def micro_batch(
    device: Device,
    model: Model,
    tokenizer: Tokenizer,
    batch_tokens: int,
    val_tokens: int,
    devices: int,
) -> tuple[int, str]:
    """Return the sequences of a micro-batch by default, and why: on a GPU as many as its rule has
    room for, of which the batch of a device and a validation are multiples."""
    if device is Device.cpu:
        return ON_CPU, "a CPU"
    length = max(1, model.seq_len)  # a wrong one is refused where it is read
    of_batch = batch_tokens // (length * max(1, devices))
    sequences = math.gcd(of_batch, val_tokens // length)
    return gpu_defaults.micro_batch(model, tokenizer, max(1, sequences))


def cuda_graphs(
    device: Device,
    model: Model,
    tokenizer: Tokenizer,
    batch_tokens: int,
    devices: int,
    options: Iterable[type[Option]],
) -> tuple[bool, str]:
    """Return whether a GPU gets a micro-batch as one launch by default, and why: where launching a
    step takes longer than computing it, and a graph can hold what these options do."""
    if device is Device.cpu:
        return False, "a CPU"
    is_short, why = gpu_defaults.is_short(model, tokenizer, batch_tokens)
    if not is_short:
        return False, why
    if devices > 1:
        return False, f"ranks exchange gradients in the backward pass; {why}"
    if not all(_fits(option) for option in options):
        return False, f"{BEYOND_GRAPHS}; {why}"
    return True, why


BEYOND_GRAPHS = (
    "an option comes from outside nocap, draws random numbers, or runs code between steps"
)


def fits_a_graph(run: Run) -> bool:
    """Return whether a CUDA graph is known to hold what all options of a run do."""
    return all(_fits(type(option)) for _, option in run.options())


def _fits(option: type[Option]) -> bool:
    """Return whether a CUDA graph is known to hold what an option does. What is from outside may
    wait for the device."""
    if option.random or outside.used({cls.__module__ for cls in option.__mro__}):
        return False
    if not issubclass(option, Idea):
        return True
    return all(getattr(option, joint) is getattr(Idea, joint) for joint in STEP_JOINTS)


def reasons(run: Run) -> dict[str, str]:
    """Return the default of a key of `trainer` for a run of this shape, and why."""
    t = run.trainer
    shape = (run.model, run.tokenizer)
    numbers, numbers_why = precision(t.device, run.model)
    compiled, compiled_why = compilation(
        t.device, *shape, t.steps, t.batch_tokens, t.threads, t.devices
    )
    why = {
        "precision": f"{numbers.value}: {numbers_why}",
        "compile": f"{compiled.value}: {compiled_why}",
    }
    if t.device is Device.cpu:
        return why
    size, size_why = micro_batch(t.device, *shape, t.batch_tokens, t.val_tokens, t.devices)
    kinds = [type(option) for _, option in run.options()]
    graphs, graphs_why = cuda_graphs(t.device, *shape, t.batch_tokens, t.devices, kinds)
    why["micro_batch"] = f"{size}: {size_why}"
    why["cuda_graphs"] = f"{str(graphs).lower()}: {graphs_why}"
    return why
