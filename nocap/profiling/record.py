"""The profile as one JSON object: rows by module and direction, sums by part and layer, memory, roof, hardware."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from typing import Any

from nocap.config import hardware
from nocap.config.compose import to_plain
from nocap.config.option import declared
from nocap.config.run import Run
from nocap.config.trainer import Device
from nocap.data.batches import microbatches
from nocap.measure.roof import Roof
from nocap.model.flops import flops_per_token
from nocap.options.attention import kernel_name
from nocap.profiling.count import Count, Work
from nocap.profiling.measure import Measured, facts
from nocap.profiling.names import KIND, MODEL_PARTS, PARTS
from nocap.profiling.timeline import Row
from nocap.training.memory import MIB

SUMMED = ("ms", "calls", "operations", "flops", "bytes", "bound_ms", "allocations", "allocated_mib", "kept_mib")

Facts = dict[str, Any]


def record(run: Run, words: Sequence[str], *, vocab_size: int, counted: Count, roof: Roof, measured: Measured) -> Facts:
    """What `--json` writes. Rows are of a whole optimizer step as the config has it, in ms, bytes, FLOPs and MiB."""
    scale, clock = _clock(run, measured)
    flops, basis = flops_per_token(run, vocab_size=vocab_size)
    rows = list(_rows(run, counted, roof, measured, scale))
    whole_ms = sum(row["ms"] for row in rows) + measured.timeline.unattributed_ms * scale * microbatches(run) / measured.microbatches
    for row in rows:
        row["share"] = row["ms"] / whole_ms
    parts = _summed(rows, ("part",), whole_ms)
    unattributed_ms = whole_ms - sum(row["ms"] for row in rows)
    return {
        "kind": KIND,
        "date": date.today().isoformat(),
        "words": list(words),
        "config": to_plain(run),
        "vocab_size": vocab_size,
        "tokens": run.trainer.batch_tokens // run.trainer.devices,
        "flops_per_token": flops,
        "flops_basis": basis,
        "kernel": kernel_name(run.attention, run.trainer.device, run.trainer.precision),
        "hardware": hardware.describe(run.trainer.device, run.trainer.threads),
        "roof": roof.plain(),
        "clock": clock,
        "step": {
            "ms": whole_ms,
            "attributed_ms": whole_ms - unattributed_ms,
            "unattributed_ms": unattributed_ms,
            "microbatches": microbatches(run),
            "measured_microbatches": measured.microbatches,
            "plain": facts(measured.plain),
            "profiled": facts(measured.profiled),
            "compiled": facts(measured.compiled),
            "compile": run.trainer.compile.value,
        },
        "parts": parts,
        "layers": [row for row in _summed(rows, ("layer", "part"), whole_ms) if row["layer"] is not None],
        "rows": rows,
        "memory_mib": _memory(run, counted, measured),
    }


def _clock(run: Run, measured: Measured) -> tuple[float, str]:
    """What profiled milliseconds are multiplied by, and the words for it."""
    if run.trainer.device is Device.cuda:
        return 1.0, "device time of the kernels"
    if run.trainer.threads > 1:
        return 1.0, f"wall time, {run.trainer.threads} threads"
    fastest = min(measured.profiled, key=lambda step: step.wall_ms)
    share = fastest.cpu_ms / fastest.wall_ms
    return share, f"process CPU time: the profiler's wall time × {share:.2f}, the share of it that this process had a core"


def _rows(run: Run, counted: Count, roof: Roof, measured: Measured, scale: float) -> Iterable[Facts]:
    n, m = microbatches(run), measured.microbatches
    extra = _work_outside(run, counted, n)
    counted_keys = (key for key in counted.work if measured.part.get(key[0]) in MODEL_PARTS)
    keys = dict.fromkeys([*measured.timeline.rows, *counted_keys, ("reduction", "backward")])  # of one rank there is none: 0
    for path, direction in keys:
        seen = measured.timeline.rows.get((path, direction), Row())
        part = measured.part.get(path, path if path in PARTS else "other")
        # Of the measured micro-batches only those after the first add gradients up, and the update comes once.
        times = n / m if part in MODEL_PARTS or part == "data" else (n - 1) / (m - 1) if part == "accumulate" and m > 1 else 1.0
        work = counted.work.get((path, direction), Work())
        flops, moved, bound_ms = work.flops * n, work.bytes * n, work.bound_ms(roof) * n
        if part in extra:
            moved = extra[part]
            bound_ms = moved / roof.bytes_per_s * 1e3
        ms = seen.ms * scale * times
        yield {
            "path": path,
            "part": part,
            "layer": int(found.group(1)) if (found := re.match(r"blocks\.(\d+)", path)) else None,
            "direction": direction,
            "ms": ms,
            "calls": round(measured.calls.get(path, int(seen.ms > 0)) * times),
            "operations": round(seen.operations * times),
            "flops": flops,
            "flop_s": flops / ms * 1e3 if ms else None,
            "bytes": moved,
            "bound_ms": bound_ms,
            "of_bound": bound_ms / ms if ms else None,
            "allocations": round(seen.allocations * times),
            "allocated_mib": seen.allocated * times / MIB,
            "kept_mib": measured.kept.get(path, 0) / MIB if direction == "forward" else 0.0,
        }


def _work_outside(run: Run, counted: Count, n: int) -> dict[str, float]:
    """Bytes that a step moves outside the model, by arithmetic. An elementwise optimizer reads gradients, and reads and writes weights and
    its state."""
    p = counted.parameters
    clip = 1 if run.trainer.grad_clip is None else 3
    found = {"accumulate": 3.0 * p * (n - 1), "clip": 1.0 * clip * p}
    elementwise = declared(run.optimizer, "elementwise", of="build")
    return {**found, "optimizer": 3.0 * p + 2.0 * counted.optimizer} if elementwise and elementwise() else found


def _summed(rows: Iterable[Facts], keys: tuple[str, ...], whole_ms: float) -> list[Facts]:
    """Rows added up over everything but `keys`, with the forward's and the backward's milliseconds beside the sum."""
    groups: dict[tuple[Any, ...], list[Facts]] = {}
    for row in rows:
        groups.setdefault(tuple(row[key] for key in keys), []).append(row)
    summed = []
    for values, members in groups.items():
        total: Facts = dict(zip(keys, values, strict=True))
        total |= {key: sum(row[key] for row in members) for key in SUMMED}
        total["calls"] = sum(row["calls"] for row in members if row["direction"] == "forward")
        for direction in ("forward", "backward"):
            total[f"{direction}_ms"] = sum(row["ms"] for row in members if row["direction"] == direction)
        total["share"] = total["ms"] / whole_ms
        total["flop_s"] = total["flops"] / total["ms"] * 1e3 if total["ms"] else None
        total["of_bound"] = total["bound_ms"] / total["ms"] if total["ms"] else None
        summed.append(total)
    order = list(PARTS)
    return sorted(summed, key=lambda row: (row.get("layer") or 0, order.index(row["part"])))


def _memory(run: Run, counted: Count, measured: Measured) -> Facts:
    """Measured beside counted; `kept` by part is one micro-batch's."""
    p = counted.parameters / MIB
    by_part: dict[str, float] = {}
    for path, n in measured.kept.items():
        by_part[measured.part[path]] = by_part.get(measured.part[path], 0.0) + n / MIB
    return {
        "measured": {**measured.memory, "kept": by_part},
        "counted": {
            "parameters": p,
            "gradients": p,
            "optimizer": counted.optimizer / MIB,
            "activations": sum(counted.kept.values()) / MIB,
            "kept": {part: n / MIB for part, n in counted.kept_by_part().items()},
        },
    }


def part_ms(found: Mapping[str, Any]) -> dict[str, float]:
    """Milliseconds by part of a step."""
    return {row["part"]: row["ms"] for row in found["parts"]}
