"""The time that torch's profiler saw of each module.

From the profiler's events each moment of a step belongs to one module and direction, by the ranges
around it (`nocap.measure.profiler_ranges`). On the CPU a row's time is wall time without that of
the ranges inside it, so the rows add up to the step. On CUDA it is the time of the kernels that the
row's operations launched; what is left of the step is the device waiting. Inside a mixer the
operations tell its moments (`nocap.measure.mixer_moments`).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from torch.autograd.profiler_util import FunctionEvent
from torch.profiler import ProfilerActivity, profile

from nocap.measure.mixer_moments import AROUND, Call, Nodes, operations
from nocap.measure.profiler_ranges import MARK, MIXER, STEP, Ranges

BACKWARD = "autograd::engine::evaluate_function: "

Key = tuple[str, str]  # (module path, forward or backward)
# (module path, direction, moment of a mixer) → ms
Moments = dict[tuple[str, str, str | None], float]
BETWEEN: Key = (STEP, "between")  # no module: between the backward's nodes, and around the ranges


def profiler(*, on_cuda: bool, memory: bool = False) -> profile:
    """Return torch's profiler for one step."""
    activities = [ProfilerActivity.CPU]
    if on_cuda:
        activities.append(ProfilerActivity.CUDA)
    # older versions warn about the default
    return profile(activities=activities, profile_memory=memory, acc_events=True)


def of_modules(moments: Moments) -> dict[Key, float]:
    """Return the milliseconds of modules, a mixer's moments together."""
    ms = defaultdict[Key, float](float)
    for (path, direction, _), each in moments.items():
        ms[path, direction] += each
    return dict(ms)


def read_moments(prof: profile, ranges: Ranges, *, on_cuda: bool) -> Moments:
    """Return the milliseconds of the one step that `prof` saw, those of a mixer by its moments (see
    `nocap.measure.mixer_moments`)."""
    events = [e for e in prof.events() if not e.is_async and e.device_type.name == "CPU"]
    step = next(e for e in events if e.name == MARK + STEP)
    # without a backward nothing comes after it
    ends = [e.time_range.end for e in events if e.name.startswith(BACKWARD)]
    backward_ends = max(ends, default=math.inf)
    others = [e for e in events if e.cpu_parent is None and e.thread != step.thread]
    root_ids = {id(e) for e in (step, *others)}
    mixers = _Mixers(events, ranges)
    ms = defaultdict[tuple[str, str, str | None], float](float)

    def visit(event: FunctionEvent, parents: Key, node: str | None) -> None:
        key = _key(event, parents, ranges, backward_ends)
        path = key[0]
        own_us = event.self_device_time_total if on_cuda else event.self_cpu_time_total
        ours = path == STEP and event.name.startswith(MARK)
        if event.name.startswith(BACKWARD):
            node = mixers.of_node(path, event.sequence_nr)
        ms[(*(BETWEEN if ours else key), mixers.of_event(event, path) or node)] += own_us / 1e3
        for child in event.cpu_children:
            visit(child, key, None if event.name.startswith(MARK) else node)

    for event in events:
        if id(event) in root_ids:
            visit(event, (STEP, "forward"), None)
    return dict(ms)


class _Mixers:
    """The moments of all mixers of a step."""

    def __init__(self, events: list[FunctionEvent], ranges: Ranges) -> None:
        self._part = ranges.part
        self._calls: dict[int, Call] = {}  # id of a mixer's range
        self._events: dict[int, tuple[Call, str]] = {}  # id of an event inside
        self._nodes = Nodes()
        marked = [e for e in events if e.name.startswith(MARK)]
        mixers = [e for e in marked if self._is_mixer(e.name.removeprefix(MARK))]
        for mixer in sorted(mixers, key=lambda event: event.time_range.start):
            self._add(mixer)

    def _is_mixer(self, path: str) -> bool:
        return self._part.get(path) == MIXER

    def _add(self, mixer: FunctionEvent) -> None:
        call = Call()
        path = mixer.name.removeprefix(MARK)
        self._calls[id(mixer)] = call
        is_recomputed = _in_backward(mixer)  # its nodes never run
        for event, added in operations(mixer, call):
            self._events[id(event)] = call, added
            if event.sequence_nr >= 0 and not is_recomputed:
                self._nodes.add(path, event.sequence_nr, call, added)

    def of_event(self, event: FunctionEvent, path: str) -> str | None:
        """Return the moment of an event of a mixer's forward; what the range itself takes is around
        the rest."""
        if not self._is_mixer(path):
            return None
        call = self._calls.get(id(event))
        if call is not None:
            return AROUND if call.is_apart else None
        return _moment(self._events.get(id(event)))

    def of_node(self, path: str, sequence: int) -> str | None:
        """Return the moment of a mixer that made the node."""
        if not self._is_mixer(path):
            return None
        return _moment(self._nodes.begun(path, sequence))


def _moment(operation: tuple[Call, str] | None) -> str | None:
    if operation is None:
        return None
    call, added = operation
    return call.moment(added)


def _in_backward(event: FunctionEvent) -> bool:
    parent = event.cpu_parent
    while parent is not None and not parent.name.startswith(BACKWARD):
        parent = parent.cpu_parent
    return parent is not None


def busy_ms(prof: profile) -> float:
    """Return the milliseconds in which a kernel or a copy ran on the GPU: the union of their
    intervals. Ranges on the GPU's timeline are no work."""
    busy_us = 0.0
    until = -math.inf
    on_gpu = [e for e in prof.events() if e.device_type.name == "CUDA"]
    work = [e.time_range for e in on_gpu if not e.is_user_annotation]
    for start, end in sorted((at.start, at.end) for at in work):
        busy_us += max(0.0, end - max(start, until))
        until = max(until, end)
    return busy_us / 1e3


def _key(event: FunctionEvent, parents: Key, ranges: Ranges, backward_ends: float) -> Key:
    path, direction = parents
    if event.name.startswith(MARK):
        return event.name.removeprefix(MARK), direction
    if event.name.startswith(BACKWARD):
        return ranges.node(event.sequence_nr), "backward"
    if path == STEP:
        if event.name.startswith("Optimizer."):
            return "optimizer", "forward"
        if event.time_range.start >= backward_ends:
            return "clip", "forward"
    return parents


def allocated_bytes(call: Callable[..., object], *arguments: object) -> int:
    """Return the bytes that the call asks torch's allocator for on the CPU, with those that it
    gives back. The profiler records each allocation, those of compiled code included."""
    with profiler(on_cuda=False, memory=True) as prof:
        call(*arguments)
    results: Any = prof.profiler and prof.profiler.kineto_results
    return sum(max(0, event.nbytes()) for event in results.events() if event.name() == "[memory]")
