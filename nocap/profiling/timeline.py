"""From the profiler's events to rows: each moment of a step belongs to one module and direction.

On the CPU a row's time is wall time without that of the ranges inside it, so the rows add up to the step. On CUDA it is the time of the
kernels that the row's operations launched; what is left of the step is the device waiting.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch.autograd.profiler_util import FunctionEvent
from torch.profiler import ProfilerActivity, profile

from nocap.profiling.parts import MARK, STEP, Ranges

BACKWARD = "autograd::engine::evaluate_function: "
COLLECTIVES = ("c10d::", "gloo:", "nccl:")
MIB = 2**20

Key = tuple[str, str]  # (module path, forward or backward)


@dataclass(slots=True)
class Row:
    """What a module cost in one direction of one step."""

    ms: float = 0.0
    operations: int = 0
    allocations: int = 0
    allocated: int = 0  # bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Timeline:
    rows: dict[Key, Row]
    step_ms: float  # the step's range, or on CUDA its wall time on the device's clock
    unattributed_ms: float  # between the backward's nodes and around the ranges; on CUDA the device's idle time
    peak: int  # bytes: the most that the step's tensors held at once, beyond what was held before it


def profiler(*, on_cuda: bool) -> profile:
    """torch's profiler for one step."""
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_cuda else [])]
    return profile(activities=activities, profile_memory=True, acc_events=True)  # older versions warn about the default


def read(prof: profile, ranges: Ranges, *, on_cuda: bool) -> Timeline:
    """The one step that `prof` saw. Ranges must be those that watched it."""
    events = [e for e in prof.events() if not e.is_async and e.device_type.name == "CPU"]
    step = next(e for e in events if e.name == MARK + STEP)
    backward_ends = max((e.time_range.end for e in events if e.name.startswith(BACKWARD)), default=step.time_range.start)
    rows: dict[Key, Row] = {}
    moments: dict[int, list[tuple[float, Key]]] = {}  # thread → when another key begins
    unattributed = 0.0

    def visit(event: FunctionEvent, key: Key) -> None:
        nonlocal unattributed
        key = _key(event, key, ranges, backward_ends)
        times = moments.setdefault(event.thread, [])
        times.append((event.time_range.start, key))
        own_us = event.self_device_time_total if on_cuda else event.self_cpu_time_total
        if key[0] == STEP and event.name.startswith(MARK):
            unattributed += own_us / 1e3
        else:
            row = rows.setdefault(key, Row())
            row.ms += own_us / 1e3
            row.operations += event.name.startswith("aten::") and (
                event.cpu_parent is None or not event.cpu_parent.name.startswith("aten::")
            )
        for child in sorted(event.cpu_children, key=lambda e: e.time_range.start):
            visit(child, key)
            times.append((child.time_range.end, key))

    roots = [e for e in events if e is step or (e.cpu_parent is None and e.thread != step.thread)]
    for root in roots:
        visit(root, (STEP, "forward"))
    step_ms = (step.time_range.end - step.time_range.start) / 1e3
    if on_cuda:
        unattributed = step_ms - sum(row.ms for row in rows.values())
    peak = _allocations(prof, rows, moments)
    return Timeline(rows=rows, step_ms=step_ms, unattributed_ms=unattributed, peak=peak)


def _key(event: FunctionEvent, parents: Key, ranges: Ranges, backward_ends: float) -> Key:
    path, direction = parents
    if event.name.startswith(MARK):
        return event.name.removeprefix(MARK), direction
    if event.name.startswith(BACKWARD):
        return ranges.node(event.sequence_nr), "backward"
    if event.name.startswith(COLLECTIVES):
        return "reduction", "backward"
    if path == STEP:
        if event.name.startswith("Optimizer."):
            return "optimizer", "forward"
        if event.time_range.start >= backward_ends:
            return "clip", "forward"
    return parents


def _allocations(prof: profile, rows: dict[Key, Row], moments: dict[int, list[tuple[float, Key]]]) -> int:
    """Give each allocation to the row that was running in its thread, and return the peak of the running sum."""
    results: Any = prof.profiler and prof.profiler.kineto_results
    start_ns = results.trace_start_ns()
    starts = {thread: [time for time, _ in times] for thread, times in moments.items()}
    held = peak = 0
    for at_us, thread, n in sorted(_memory_events(results, start_ns)):
        held += n
        peak = max(peak, held)
        times = starts.get(thread)
        if n > 0 and times and (index := bisect_right(times, at_us) - 1) >= 0:
            row = rows.setdefault(moments[thread][index][1], Row())
            row.allocations += 1
            row.allocated += n
    return peak


def _memory_events(results: Any, start_ns: int) -> Iterator[tuple[float, int, int]]:
    """(microseconds from the trace's start, thread, bytes; negative where freed)."""
    for event in results.events():
        if event.name() == "[memory]":
            yield (event.start_ns() - start_ns) / 1e3, event.start_thread_id(), event.nbytes()
