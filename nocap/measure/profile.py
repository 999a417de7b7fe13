"""One profile from beginning to end: count the step, take it under the profiler, bound it; and the record,
one JSON object."""

from __future__ import annotations

import math
import re
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

from torch.profiler import record_function

from nocap.config import hardware
from nocap.config.plain import to_plain
from nocap.config.run import Run
from nocap.config.trainer import Compile, Device
from nocap.data.batches import microbatches
from nocap.launch.plan import check_compiler
from nocap.measure.parts import BETWEEN, MARK, STEP, Key, Ranges, busy_ms, profiler, read
from nocap.measure.roofline import Composer, Count, Peak, Work, count, measure_peak, options_ceilings
from nocap.measure.timed import Clock, TimedArm
from nocap.model.flops import flops_per_token
from nocap.options.attention import kernel_name
from nocap.store.metrics import HELD, PARTS, STEP_PARTS
from nocap.training import allocator, memory
from nocap.training.ledger import Ledger
from nocap.training.step import configure_numerics

MOST_MICROBATCHES = 2  # the second one shows what accumulating gradients costs; more would show nothing new
# Beyond these limits a CPU was busy: on a quiet one a process had 1.00 of its core, products came to 0.92 of
# the peak at most.
LEAST_CORE, MOST_OF_PEAK = 0.8, 1.1

Row = dict[str, Any]


def profile(
    run: Run,
    overrides: Sequence[str],
    compose: Composer,
    *,
    repeats: int,
    trace: Path | None = None,
    ceilings: bool = False,
) -> dict[str, Any]:
    """The profile of a run, as JSON types. `compose` makes the run that the user's overrides and more of them
    describe.

    Errors:
        ValueError: the step does not fit into this machine's memory, or diverges.
    """
    check_compiler(run)
    try:
        # CUDA reserves addresses by the terabyte
        with memory.bounded() if run.trainer.device is Device.cpu else nullcontext():
            counted = count(run, vocab_size=run.tokenizer.vocab_size)
            allocator.use(run.trainer.malloc)
            configure_numerics(run)
            log("measuring the peaks: a large product and a large copy")
            peak = measure_peak(run.trainer.device)
            log(
                f"measuring {2 * repeats + 1} steps of {run.trainer.micro_batch} × {run.model.seq_len} tokens"
            )
            result = record(
                overrides, counted=counted, peak=peak, measured=measure(run, repeats=repeats, trace=trace)
            )
            if ceilings:
                log("counting what each option would do")
                ms = {row["part"]: row["ms"] for row in result["parts"]}
                rest_ms = result["step"]["unattributed_ms"]
                result["ceilings"] = {"table": options_ceilings(counted, compose, peak, ms, rest_ms)}
    except (RuntimeError, MemoryError) as error:
        if not memory.ran_out(error):
            raise
        cause, size = str(error).partition("\n")[0], run.trainer.micro_batch
        raise ValueError(
            f"the step must fit into the device's memory; lower trainer.micro_batch={size} ({cause})"
        ) from error
    return result


def log(line: str) -> None:
    """Progress, apart from the result."""
    print(line, file=sys.stderr, flush=True)


# --- what is measured


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    # how it ran (`plain`, eager as the parts are; `profiled`; `compiled` where the config asks for it) → its
    # clocks
    steps: dict[str, Row]
    ms: dict[Key, float]  # of the fastest profiled step, the least disturbed
    between_ms: float  # of it, what is no module's
    ranges: Ranges  # of the run as it was measured
    memory_mib: dict[str, float]


class _Marks(Ledger):
    """The loop's clock ledger, whose lines become ranges of the profiler: the step, and within it the wait
    for data."""

    @contextmanager
    def charge(self, line: str) -> Iterator[None]:
        with super().charge(line), record_function(MARK + {"train": STEP}.get(line, line)):
            yield


def measurable(run: Run) -> Run:
    """The same step, as it is in the end, with at most two micro-batches, uncompiled: a compiled graph cannot
    be taken apart by module."""
    run = run.in_the_end()
    t = run.trainer
    tokens = min(microbatches(run), MOST_MICROBATCHES) * t.micro_batch * run.model.seq_len * t.devices
    trainer = replace(t, compile=Compile.off, cuda_graphs=False, batch_tokens=tokens)
    return run.varied(trainer=trainer, optimizer=run.optimizer.at_batch(tokens))


def measure(run: Run, *, repeats: int, trace: Path | None) -> Measured:
    """Train a few steps and watch.

    Errors:
        torch.OutOfMemoryError: the device's memory does not hold the step.
    """
    on_cuda, eager = run.trainer.device is Device.cuda, measurable(run)
    arm, ranges = _warm(eager), Ranges(eager)
    model, arm.ledger = arm.built.model, _Marks(started=arm.job.started)
    with ranges.around(model), memory.saved_for_backward(model.parameters(), on_save=ranges.keep):
        arm.step()
    plain = _fastest(arm, repeats)
    profiled: Row = {"wall_ms": math.inf}
    for _ in range(repeats):
        ranges.reset()
        with ranges.around(model), profiler(on_cuda=on_cuda) as prof:
            step = _clocked(arm)
        if step["wall_ms"] < profiled["wall_ms"]:
            profiled, ms, work_ms = step, read(prof, ranges, on_cuda=on_cuda), busy_ms(prof)
            if trace is not None:
                prof.export_chrome_trace(str(trace))
    between_ms = ms.pop(BETWEEN, 0.0)
    del model
    arm.close()
    steps = {"plain": busy(plain, work_ms), "profiled": profiled}
    if run.trainer.compile is not Compile.off or run.trainer.cuda_graphs:
        steps["compiled"] = _compiled(run, eager, repeats=repeats)
    return Measured(
        steps=steps, ms=ms, between_ms=between_ms, ranges=ranges, memory_mib=arm.facts["memory_mib"]
    )


def _compiled(run: Run, eager: Run, *, repeats: int) -> Row:
    """The step as it is trained, whole: nothing sees into it."""
    t = replace(eager.trainer, compile=run.trainer.compile, cuda_graphs=run.trainer.cuda_graphs)
    arm = _warm(replace(eager, trainer=t))
    step = _fastest(arm, repeats)
    with profiler(on_cuda=run.trainer.device is Device.cuda) as prof:
        _clocked(arm)
    return busy(step, busy_ms(prof))


def _warm(run: Run) -> TimedArm:
    arm = TimedArm("", run)
    arm.warm(Clock.wall)
    return arm


def _fastest(arm: TimedArm, repeats: int) -> Row:
    return min((_clocked(arm) for _ in range(repeats)), key=lambda step: step["wall_ms"])


def _clocked(arm: TimedArm) -> Row:
    """One training step, timed as it is trained, by the wall and by this process; it ends when the device has
    finished."""
    began, cpu = time.perf_counter(), time.process_time()
    arm.step()
    arm.job.world.synchronize()
    return {
        "wall_ms": (time.perf_counter() - began) * 1e3,
        "cpu_ms": (time.process_time() - cpu) * 1e3,
        "gpu_busy": None,
    }


def busy(step: Row, busy_ms: float) -> Row:
    """The step with the share of it in which the GPU worked. `busy_ms` are kernels': what the profiler costs
    the host is in neither."""
    return {**step, "gpu_busy": min(1.0, busy_ms / step["wall_ms"]) if busy_ms else None}


# --- the record

SUMMED = ("ms", "calls", "flops", "bytes", "bound_ms")  # of a row


def record(overrides: Sequence[str], *, counted: Count, peak: Peak, measured: Measured) -> dict[str, Any]:
    """What `--json` writes. A row is what a module cost in one direction of a whole optimizer step as the
    config has it: ms, calls, bytes, FLOPs, and its bound by the roofline."""
    run, n = counted.run, microbatches(counted.run)
    flops, basis = flops_per_token(run, vocab_size=run.tokenizer.vocab_size)
    scale, clock = _clock(run, measured)
    rows = list(_rows(counted, peak, measured, scale))
    attributed_ms = sum(row["ms"] for row in rows)
    whole_ms = attributed_ms + _unattributed_ms(run, measured, attributed_ms, scale)
    parts = _summed(rows, ("part",), whole_ms)
    core = min(
        measured.steps[how]["cpu_ms"] / measured.steps[how]["wall_ms"] for how in ("plain", "profiled")
    )
    # Bytes are no bound here: a cache is faster than the copy that was measured.
    of_peak = max(row["flop_s"] or 0.0 for row in parts) / peak.flops[run.trainer.precision.value]
    quiet = run.trainer.device is Device.cuda or (core >= LEAST_CORE and of_peak <= MOST_OF_PEAK)
    return {
        "kind": "profile",
        "date": date.today().isoformat(),
        "words": list(overrides),
        "config": to_plain(run),
        "vocab_size": run.tokenizer.vocab_size,
        "tokens": run.trainer.batch_tokens // run.trainer.devices,
        "flops_per_token": flops,
        "flops_basis": basis,
        "not_counted": counted.not_counted,  # why the rows have no FLOPs, bytes and bounds
        "kernel": kernel_name(run, run.trainer.precision),
        "hardware": hardware.describe(run.trainer.device, run.trainer.threads),
        "roof": asdict(peak),
        "clock": clock,
        "trusted": quiet,
        "doubts": {"core": core, "peak": of_peak},
        "step": {
            "ms": whole_ms,
            "attributed_ms": attributed_ms,
            "unattributed_ms": whole_ms - attributed_ms,
            "microbatches": n,
            "measured_microbatches": microbatches(measured.ranges.run),
            **dict.fromkeys(("plain", "profiled", "compiled")),
            **measured.steps,
            "compile": run.trainer.compile.value,
            "cuda_graphs": run.trainer.cuda_graphs,
        },
        "parts": parts,
        "layers": _summed([row for row in rows if row["layer"] is not None], ("layer", "part"), whole_ms),
        "rows": [_rated(row, whole_ms) for row in rows],
        "memory_mib": {
            "measured": {
                **{part: measured.memory_mib[part] for part in HELD},
                "kept": {part: n / memory.MIB for part, n in measured.ranges.kept.items()},
            }
        },
    }


def _unattributed_ms(run: Run, measured: Measured, attributed_ms: float, scale: float) -> float:
    """What no module accounts for in the step. On a GPU: the device's waiting in a step without the profiler,
    whose own work on the host would be taken for it."""
    times = microbatches(run) / microbatches(measured.ranges.run)
    if run.trainer.device is Device.cuda:
        return max(0.0, measured.steps["plain"]["wall_ms"] * times - attributed_ms)
    return measured.between_ms * scale * times


def _clock(run: Run, measured: Measured) -> tuple[float, str]:
    """What profiled milliseconds are multiplied by, and how the record describes the result."""
    clock, step = Clock.of(run.trainer.device, run.trainer.threads), measured.steps["profiled"]
    share = step["cpu_ms"] / step["wall_ms"] if clock is Clock.cpu else 1.0
    return share, {
        Clock.cuda: "device time of the kernels",
        Clock.wall: f"wall time, {run.trainer.threads} threads",
        Clock.cpu: f"process CPU time: the profiler's wall time × {share:.2f}, the share of it that "
        "this process had a core",
    }[clock]


def _rows(counted: Count, peak: Peak, measured: Measured, scale: float) -> Iterator[Row]:
    ranges, n, m = measured.ranges, microbatches(counted.run), microbatches(measured.ranges.run)
    counted_keys = (key for key in counted.work if ranges.part[key[0]] not in STEP_PARTS)
    # of one rank: 0
    for path, direction in dict.fromkeys([*measured.ms, *counted_keys, ("reduction", "backward")]):
        ms = measured.ms.get((path, direction), 0.0)
        work = counted.work.get((path, direction), Work())
        part = ranges.part.get(path, path if path in PARTS else "other")
        times = _times(part, n, m)
        layer = re.match(r"blocks\.(\d+)", path)
        yield {
            "path": path,
            "part": part,
            "layer": int(layer.group(1)) if layer else None,
            "direction": direction,
            "ms": ms * scale * times,
            "calls": round(ranges.calls.get(path, int(ms > 0)) * times),
            "flops": work.flops * n,
            "bytes": work.bytes * n,
            "bound_ms": work.bound_ms(peak) * n,
        }


def _times(part: str, n: int, m: int) -> float:
    """How often the step of `n` micro-batches does what was measured over `m`: only those after the first add
    gradients up, and the update comes once."""
    if part not in STEP_PARTS or part == "data":
        return n / m
    return (n - 1) / (m - 1) if part == "accumulate" and m > 1 else 1.0


def _rated(row: Row, whole_ms: float) -> Row:
    """A row, or a sum of rows, with its share of the step, and how close it is to the roofline."""
    ms = row["ms"]
    rates = {
        "flop_s": row["flops"] / ms * 1e3 if ms else None,
        "of_bound": row["bound_ms"] / ms if ms else None,
    }
    return {**row, "share": ms / whole_ms, **rates}


def _summed(rows: Iterable[Row], keys: tuple[str, ...], whole_ms: float) -> list[Row]:
    """Rows added up over everything but `keys`, with the forward's and the backward's milliseconds beside the
    sum."""
    groups: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        whole = groups.setdefault(
            tuple(row[key] for key in keys),
            {**{key: row[key] for key in keys}, **dict.fromkeys((*SUMMED, "forward_ms", "backward_ms"), 0)},
        )
        for key in SUMMED:
            whole[key] += row[key] if key != "calls" or row["direction"] == "forward" else 0
        whole[f"{row['direction']}_ms"] += row["ms"]
    order = {part: float(place) for place, part in enumerate(PARTS)}
    # 0.5: a replaced block's own parts, after the embedding.
    return sorted(
        (_rated(row, whole_ms) for row in groups.values()),
        key=lambda row: (row.get("layer", 0), order.get(row["part"], 0.5)),
    )
