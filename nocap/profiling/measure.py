"""Run the step: the loop's own, on random tokens, with its model, optimizer and micro-batch."""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.profiler import record_function

from nocap.config.run import Run
from nocap.config.trainer import Compile, Device
from nocap.data.batches import microbatches
from nocap.data.shards import write_shard
from nocap.data.tokens import Shard
from nocap.profiling import timeline
from nocap.profiling.parts import MARK, STEP, Ranges
from nocap.profiling.timeline import Timeline
from nocap.training import memory
from nocap.training.ledger import Ledger
from nocap.training.step import Job, Trainee, build, configure_numerics, take_step
from nocap.training.world import join

MOST_MICROBATCHES = 2  # the second one shows what accumulating gradients costs; more would show nothing new


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """Clocks of one step as it is trained, without a profiler."""

    wall_ms: float
    cpu_ms: float  # of this process


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    plain: list[Step]  # eager, as the parts are
    compiled: list[Step] | None  # where the config asks for compilation
    timeline: Timeline  # of the fastest profiled step, the least disturbed
    profiled: list[Step]
    calls: dict[str, int]  # module path → calls in that step
    kept: dict[str, int]  # module path → bytes that one micro-batch's forward keeps for its backward
    part: dict[str, str]
    microbatches: int  # in the measured step
    memory: dict[str, float]  # MiB


class _Marks(Ledger):
    """The loop's clock ledger, whose lines become ranges of the profiler: the step, and within it the wait for data."""

    @contextmanager
    def charge(self, line: str) -> Iterator[None]:
        with super().charge(line), record_function(MARK + {"train": STEP}.get(line, line)):
            yield


def measurable(run: Run) -> Run:
    """The same step with at most two micro-batches, uncompiled: a compiled graph cannot be taken apart by module."""
    t = run.trainer
    micro = t.micro_batch * run.model.seq_len * t.devices
    return replace(run, trainer=replace(t, compile=Compile.off, batch_tokens=min(microbatches(run), MOST_MICROBATCHES) * micro))


def measure(run: Run, *, vocab_size: int, repeats: int, trace: Path | None) -> Measured:
    """Train a few steps and watch.

    Errors:
        torch.OutOfMemoryError: the device's memory does not hold the step.
    """
    floor_mib = _resident_mib("VmRSS")
    configure_numerics(run)
    eager = measurable(run)
    with random_tokens(eager, vocab_size) as job:
        trainee, marks = build(job), _Marks(started=job.started)
        ranges, kept = Ranges(eager), _warm_up(job, trainee)
        _reset_peaks(run.trainer.device)
        plain = [step_clock(job, trainee, marks, step=1 + i) for i in range(repeats)]
        highest_mib = _resident_mib("VmHWM")
        best: tuple[Step, Timeline, dict[str, int]] | None = None
        profiled = []
        for i in range(repeats):
            ranges.reset()
            with ranges.around(trainee.model), timeline.profiler(on_cuda=run.trainer.device is Device.cuda) as prof:
                clock = step_clock(job, trainee, marks, step=1 + repeats + i)
            profiled.append(clock)
            if best is None or clock.wall_ms < best[0].wall_ms:
                best = clock, timeline.read(prof, ranges, on_cuda=run.trainer.device is Device.cuda), dict(ranges.calls)
                if trace is not None:
                    prof.export_chrome_trace(str(trace))
        assert best is not None
        parts = _memory(trainee, best[1], kept, run.trainer.device, resident_mib=highest_mib - floor_mib)
        del trainee
        compiled = _compiled(replace(eager, trainer=replace(eager.trainer, compile=run.trainer.compile)), job, repeats)
    return Measured(
        plain=plain,
        compiled=compiled,
        timeline=best[1],
        profiled=profiled,
        calls=best[2],
        kept=kept,
        part=ranges.part,
        microbatches=microbatches(eager),
        memory=parts,
    )


@contextmanager
def random_tokens(run: Run, vocab_size: int) -> Iterator[Job]:
    """A job whose data are made up: enough for a step, in a file that the loop's own reader maps."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "random.bin"
        n = run.trainer.batch_tokens + run.model.seq_len * run.data.read_sequences + 1
        ids = np.random.default_rng(run.seed).integers(0, vocab_size, n, dtype=np.uint16)
        write_shard(path, ids)
        shard = Shard(path=str(path), tokens=n, sha256="", max_id=int(ids.max()))
        yield Job(
            run=run,
            train_shards=(shard,),
            val_shards=(shard,),
            vocab_size=vocab_size,
            run_dir=Path(folder),
            world=join(run.trainer.device),
            started=time.monotonic(),
        )


def step_clock(job: Job, trainee: Trainee, ledger: Ledger, *, step: int) -> Step:
    """One training step, timed as it is trained; it ends when the device has finished."""
    cpu = time.process_time()
    update = take_step(job, trainee, ledger, step=min(step, job.run.trainer.steps - 1))
    return Step(wall_ms=update.step_ms, cpu_ms=(time.process_time() - cpu) * 1e3)


def _warm_up(job: Job, trainee: Trainee) -> dict[str, int]:
    """A first step, not timed: it makes the optimizer's state, and shows by module what the forward keeps for the backward."""
    kept: dict[str, int] = {}
    ranges = Ranges(job.run)

    def keep(n: int) -> None:
        if ranges.calls.get("model", 0) <= 1:  # of one micro-batch
            kept[ranges.here] = kept.get(ranges.here, 0) + n

    with ranges.around(trainee.model), memory.saved_for_backward(trainee.model.parameters(), on_save=keep):
        take_step(job, trainee, Ledger(started=job.started), step=0)
    return kept


def _memory(trainee: Trainee, seen: Timeline, kept: dict[str, int], device: Device, resident_mib: float) -> dict[str, float]:
    """MiB of the step's memory in parts, as measured. Slack is what the process took for the step and no tensor had at the peak."""
    parts = memory.parts_mib(trainee.model.parameters(), trainee.optimizers)
    peak = parts["parameters"] + parts["optimizer"] + seen.peak / memory.MIB  # gradients come and go within the step
    slack = resident_mib - peak
    if device is Device.cuda:
        peak = torch.cuda.max_memory_allocated() / memory.MIB
        slack = torch.cuda.max_memory_reserved() / memory.MIB - peak
    return {**parts, "activations": sum(kept.values()) / memory.MIB, "peak": peak, "slack": slack}


def _reset_peaks(device: Device) -> None:
    if device is Device.cuda:
        torch.cuda.reset_peak_memory_stats()
    with suppress(OSError):  # Linux: the high-water mark begins anew
        Path("/proc/self/clear_refs").write_text("5")


def _resident_mib(key: str) -> float:
    """This process's memory now (`VmRSS`) or at its highest (`VmHWM`); elsewhere than on Linux, at its highest."""
    try:
        found = re.search(rf"^{key}:\s*(\d+) kB", Path("/proc/self/status").read_text(), re.M)
    except OSError:
        found = None
    return int(found.group(1)) / 1024 if found else memory.peak_mib(torch.device("cpu"))


def _compiled(run: Run, job: Job, repeats: int) -> list[Step] | None:
    """The same step compiled as the config asks, timed whole; `None` where it asks for nothing."""
    if run.trainer.compile is Compile.off:
        return None
    job = replace(job, run=run)
    trainee, ledger = build(job), Ledger(started=job.started)
    step_clock(job, trainee, ledger, step=0)  # compiles
    return [step_clock(job, trainee, ledger, step=1 + i) for i in range(repeats)]


def facts(steps: list[Step] | None) -> dict[str, Any] | None:
    """The fastest of some steps, and all of them."""
    if not steps:
        return None
    fastest = min(steps, key=lambda step: step.wall_ms)
    return {"wall_ms": fastest.wall_ms, "cpu_ms": fastest.cpu_ms, "all_wall_ms": [step.wall_ms for step in steps]}
