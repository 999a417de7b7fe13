"""Run the training step of a config on random tokens: plain, under the profiler, and against the sequence length."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch.profiler import record_function

from nocap.config.run import Run
from nocap.config.trainer import Compile, Device, Precision
from nocap.data.batches import microbatches
from nocap.measure.parts import MARK, STEP, Ranges, Timeline, busy_ms, profiler, read
from nocap.measure.timed import Clock, TimedArm
from nocap.training import memory
from nocap.training.ledger import Ledger
from nocap.training.step import autocast

MOST_MICROBATCHES = 2  # the second one shows what accumulating gradients costs; more would show nothing new


Step = dict[str, float]  # `wall_ms`, and `cpu_ms` of this process: of one step as it is trained


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    plain: list[Step]  # eager, as the parts are, without a profiler
    compiled: list[Step] | None  # where the config asks for compilation or CUDA graphs
    busy_ms: dict[str, float]  # on CUDA: of the GPU in a `plain` and a `compiled` step, profiled
    profiled: list[Step]
    timeline: Timeline  # of the fastest profiled step, the least disturbed
    ranges: Ranges
    microbatches: int  # in the measured step
    memory: dict[str, float]  # MiB


class _Marks(Ledger):
    """The loop's clock ledger, whose lines become ranges of the profiler: the step, and within it the wait for data."""

    @contextmanager
    def charge(self, line: str) -> Iterator[None]:
        with super().charge(line), record_function(MARK + {"train": STEP}.get(line, line)):
            yield


def measurable(run: Run) -> Run:
    """The same step, as it is in the end, with at most two micro-batches, uncompiled: a compiled graph cannot be taken apart by module."""
    run = run.in_the_end()
    t = run.trainer
    micro = t.micro_batch * run.model.seq_len * t.devices
    tokens = min(microbatches(run), MOST_MICROBATCHES) * micro
    trainer = replace(t, compile=Compile.off, cuda_graphs=False, batch_tokens=tokens)
    return replace(run, trainer=trainer, optimizer=run.optimizer.at_batch(tokens))


def measure(run: Run, *, repeats: int, trace: Path | None) -> Measured:
    """Train a few steps and watch.

    Errors:
        torch.OutOfMemoryError: the device's memory does not hold the step.
    """
    before_mib, on_cuda = memory.resident_mib(), run.trainer.device is Device.cuda
    eager = measurable(run)
    arm, ranges = TimedArm("", eager), Ranges(eager)
    arm.warm(Clock.wall)
    model, optimizers, arm.ledger = arm.built.model, arm.built.optimizers, _Marks(started=arm.job.started)
    with ranges.around(model), memory.saved_for_backward(model.parameters(), on_save=ranges.keep):
        arm.step()
    memory.reset_peak(torch.device("cpu"))
    memory.reset_peak(arm.device)
    plain = [clocked(arm) for _ in range(repeats)]
    resident_mib, profiled = memory.resident_mib(highest=True) - before_mib, list[Step]()
    for _ in range(repeats):
        ranges.reset()
        with ranges.around(model), profiler(on_cuda=on_cuda) as prof:
            profiled.append(clocked(arm))
        if profiled[-1] is fastest(profiled):
            timeline = read(prof, ranges, on_cuda=on_cuda)
            if trace is not None:
                prof.export_chrome_trace(str(trace))
    # Gradients come and go within the step. Slack is what the process took for it and no tensor had at the peak.
    mib = memory.parts_mib(model.parameters(), optimizers, model.kept_around())
    peak_mib = mib["parameters"] + mib["optimizer"] + timeline.peak / memory.MIB
    if on_cuda:
        peak_mib, resident_mib = (n / memory.MIB for n in (torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()))
    mib |= {"activations": sum(ranges.kept.values()) / memory.MIB, "peak": peak_mib, "slack": resident_mib - peak_mib}
    del model, optimizers
    arm.close()
    as_asked = replace(eager.trainer, compile=run.trainer.compile, cuda_graphs=run.trainer.cuda_graphs)
    compiled, compiled_busy_ms = _compiled(replace(eager, trainer=as_asked), repeats)
    return Measured(
        plain=plain,
        compiled=compiled,
        busy_ms={"plain": timeline.busy_ms, "compiled": compiled_busy_ms} if on_cuda else {},
        profiled=profiled,
        timeline=timeline,
        ranges=ranges,
        microbatches=microbatches(eager),
        memory=mib,
    )


def fastest(steps: Sequence[Step]) -> Step:
    return min(steps, key=lambda step: step["wall_ms"])


def clocked(arm: TimedArm) -> Step:
    """One training step, timed as it is trained; it ends when the device has finished."""
    began, cpu = time.perf_counter(), time.process_time()
    arm.step()
    arm.job.world.synchronize()
    return {"wall_ms": (time.perf_counter() - began) * 1e3, "cpu_ms": (time.process_time() - cpu) * 1e3}


def _compiled(run: Run, repeats: int) -> tuple[list[Step] | None, float]:
    """The same step compiled as the config asks, timed whole, and the GPU's busy ms in one more; `None` where it asks for nothing."""
    if run.trainer.compile is Compile.off and not run.trainer.cuda_graphs:
        return None, 0.0
    arm = TimedArm("", run)
    arm.warm(Clock.wall)
    steps = [clocked(arm) for _ in range(repeats)]
    if run.trainer.device is not Device.cuda:
        return steps, 0.0
    with profiler(on_cuda=True) as prof:
        clocked(arm)
    return steps, busy_ms(prof)


# --- cost against the sequence length


def exponent(lengths: Sequence[float], costs: Sequence[float]) -> dict[str, float]:
    """The exponent of the power law of cost in T: the slope of log cost on log T by least squares, with its 95% t-interval.

    Errors:
        ValueError: fewer than three lengths, through which no interval can be put.
    """
    from scipy import stats

    if len(lengths) < 3:
        raise ValueError(f"--curve must have at least 3 lengths for an exponent with an interval, got {len(lengths)}")
    fit = stats.linregress([math.log(T) for T in lengths], [math.log(cost) for cost in costs])
    half = float(stats.t.ppf(0.975, len(lengths) - 2)) * float(fit.stderr)
    return {"exponent": float(fit.slope), "low": float(fit.slope) - half, "high": float(fit.slope) + half}


def attention_ms(run: Run) -> float:
    """Forward and backward of a layer's mixer on random queries, keys and values of the run's shape; a hybrid's, on average."""
    windows = [run.attention.window_of(layer) for layer in range(run.model.n_layer)]
    return sum(_mixer_ms(run, windows.index(window)) * windows.count(window) for window in set(windows)) / len(windows)


def _mixer_ms(run: Run, layer: int) -> float:
    device, m = run.trainer.device, run.model
    torch.set_num_threads(run.trainer.threads)
    run.attention.prepare(run, torch.device(device.value))
    mixer = run.attention.mixer(run, layer)
    B, T, D = run.trainer.micro_batch, m.seq_len, m.d_model // m.n_head
    # As the projections leave them: (B, T, H, D) in memory.
    heads = (m.n_head, run.attention.n_kv_heads, run.attention.n_kv_heads)
    q, k, v = (torch.randn(B, T, n, D, device=device.value).transpose(1, 2).requires_grad_() for n in heads)
    if run.trainer.precision is Precision.bf16:
        v = v.detach().bfloat16().requires_grad_()

    def mixed() -> torch.Tensor:
        with autocast(run, run.trainer.precision):
            return mixer(q, k, v)

    grad = torch.ones_like(mixed())
    return Clock.of(device, run.trainer.threads).least_ms(lambda: torch.autograd.grad(mixed(), (q, k, v), grad))


def at_length(run: Run, T: int) -> Run:
    """The run with sequences of T tokens, one micro-batch a step, and nothing else changed."""
    t = run.trainer
    tokens = t.micro_batch * T
    trainer = replace(t, batch_tokens=tokens * t.devices, val_tokens=tokens)
    return replace(run, model=replace(run.model, seq_len=T), trainer=trainer, optimizer=run.optimizer.at_batch(trainer.batch_tokens))


def with_window(run: Run, T: int, *, window: int) -> Run:
    """The run with sequences of T tokens, and a window that does not grow with them."""
    return at_length(replace(run, attention=run.attention.at_window(window)), T)
