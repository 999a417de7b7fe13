"""Ranges for torch's profiler: which module runs when, and the time that the profiler saw of each.

Ranges stand around the model's modules, forward by hooks, backward by autograd's sequence numbers.
Nothing in the model knows of this: hooks are put on its modules, and its mixers wrapped, for as
long as a profile lasts. From the profiler's events each moment of a step then belongs to one module
and direction. On the CPU a row's time is wall time without that of the ranges inside it, so the
rows add up to the step. On CUDA it is the time of the kernels that the row's operations launched;
what is left of the step is the device waiting. Inside a mixer the operations tell its moments
(`nocap.measure.mixer_moments`).
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.autograd.profiler_util import FunctionEvent
from torch.profiler import ProfilerActivity, profile

from nocap.config.option import Option, declared
from nocap.config.run import Run
from nocap.measure.mixer_moments import AROUND, Call, Nodes, operations
from nocap.model.gpt import GPT, Block, Branch, GPTHead
from nocap.model.language_model import Joined
from nocap.model.self_attention import CausalSelfAttention
from nocap.options.ideas import MODEL_JOINTS

if TYPE_CHECKING:
    from nocap.generation.engines import Engine

_BY_NAME = {
    "embedding": "embedding",
    "position": "embedding",
    "norm": "norm",
    "norm_after": "norm",
    "unembed": "head",
}
# GPT adds the positions
_BY_TYPE: dict[type, str] = {
    GPT: "embedding",
    Block: "residual",
    Branch: "residual",
    GPTHead: "loss",
}
_IDEAS = ("ideas", "around")
MARK = "nocap|"  # begins the names of our ranges among the profiler's
# paths beside the modules'
STEP = "step"
ACCUMULATE = "gradients"
MIXER = "scores"  # the part whose modules are mixers


def part_of(run: Run, path: str, modules: Mapping[str, nn.Module]) -> str | None:
    """Return the part that a module's own operations belong to; `None`: its parent's. `modules` are
    the model's.

    An attention or MLP option names the parts of its modules in `rows()`; without it, all of it is
    one row. In a block or a model that is none of nocap's own, each module is a part by itself,
    named by its path, with `*` for the layer's number.
    """
    names = path.split(".")
    own = re.sub(r"\.\d+", ".*", path, count=1) or "model"
    if names[0] in _IDEAS or names[2:3] == ["ideas"]:
        return "ideas"
    in_other = names[0] == "blocks" and type(modules.get(".".join(names[:2]))) is not Block
    if in_other or not isinstance(modules[""], GPT):
        return own
    if names[0] == "blocks" and names[3:4] == ["f"] and names[2] in ("attention", "mlp"):
        return _part_inside(getattr(run, names[2]), names[2], ".".join(names[4:]))
    default = own if len(names) == 1 else None
    return _BY_NAME.get(names[-1]) or _BY_TYPE.get(type(modules.get(path)), default)


def _part_inside(option: Option, group: str, path: str) -> str | None:
    """Return the part of a module at this path inside the option's own."""
    rows = declared(option, "rows", of="build")
    if rows is not None:
        return rows().get(path)
    if path == "":
        return group
    return None


class Ranges:
    """Which module is running. Paths are the modules' names; `part` says what each is."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.part: dict[str, str] = {
            STEP: "other",
            ACCUMULATE: "accumulate",
            "data": "data",
            "clip": "clip",
            "optimizer": "optimizer",
        }
        self.calls = Counter[str]()
        # part → bytes that one micro-batch's forward keeps for its backward
        self.kept = Counter[str]()
        self._open: list[str] = []
        # autograd's sequence number at each change of the running module, ascending
        self._changes: list[tuple[int, str]] = []

    @property
    def here(self) -> str:
        if not self._open:
            return STEP
        return self._open[-1]

    def keep(self, n: int) -> None:
        """Count bytes that the running module keeps: for `memory.saved_for_backward`."""
        if self.calls["model"] <= 1:
            self.kept[self.part[self.here]] += n

    def reset(self) -> None:
        self._changes = []
        self.calls = Counter()

    def node(self, sequence: int) -> str:
        """Return the module whose forward made the autograd node of this number. A gradient
        accumulator's is the largest there is."""
        if not 0 <= sequence < 2**62:
            return ACCUMULATE
        at = bisect_right(self._changes, sequence, key=lambda change: change[0])
        if at == 0:
            return STEP
        _, path = self._changes[at - 1]
        return path

    @contextmanager
    def around(self, model: nn.Module) -> Iterator[None]:
        """Watch the model inside the block."""
        with ExitStack() as undo:

            def replace(module: nn.Module, name: str, by: Any) -> None:
                own = vars(module)
                if name in own:
                    undo.callback(own.update, {name: own[name]})
                else:
                    undo.callback(own.pop, name)
                own[name] = by

            modules = dict(model.named_modules())
            for path, module in modules.items():
                part = part_of(self.run, path, modules)
                if part:
                    replace(module, "forward", self._watched(path or "model", part, module.forward))
                function = _mixer_of(module)
                if function is not None:
                    mixer = f"{path}.mixer"
                    part = part_of(self.run, mixer, modules) or "scores"
                    replace(module, "mixer", self._watched(mixer, part, function))
                if isinstance(module, GPT | Block | GPTHead) and module.joined:
                    joined = self._joined(path, module.joined)
                    replace(module, "joined", joined)
                    if isinstance(module, Block) and module.of_qkv:
                        replace(module, "of_qkv", (joined,))
            yield

    @contextmanager
    def around_engine(self, engine: Engine) -> Iterator[None]:
        """Watch what decodes text inside the block, beside the model: its trunk and its head
        without a loss, and what reads and writes the cached keys and values."""
        model: Any = engine.model
        places: list[tuple[Any, str, str, str]] = []
        if isinstance(model, GPT):
            places.append((model, "trunk", "model", "embedding"))
            places.append((model.head, "logits", "head", "head"))
        for i, layer in enumerate(getattr(engine, "layers", ())):
            mixer = f"blocks.{i}.attention.f.mixer"
            places.append((layer, "prefill", mixer, "scores"))
            places.append((layer, "decode", mixer, "scores"))
        try:
            for owner, name, path, part in places:
                vars(owner)[name] = self._watched(path, part, getattr(owner, name))
            yield
        finally:
            for owner, name, *_ in places:
                vars(owner).pop(name, None)

    def _joined(self, path: str, joined: Joined) -> tuple[tuple[str, Any, nn.Module], ...]:
        """Return the ideas of a place, each of whose joints is one of its moments in the
        profile."""
        watched = []
        for name, idea, part in joined:
            at = f"{path}.ideas.{name}".lstrip(".")
            joints = {}
            for joint in MODEL_JOINTS:
                joints[joint] = self._watched(at, "ideas", getattr(idea, joint))
            watched.append((name, SimpleNamespace(**joints), part))
        return tuple(watched)

    def _watched(self, path: str, part: str, call: Callable[..., Any]) -> Callable[..., Any]:
        self.part[path] = part

        def watched(*args: Any, **more: Any) -> Any:
            profiled = torch.autograd._profiler_enabled()  # type: ignore[attr-defined]
            with torch.profiler.record_function(MARK + path) if profiled else nullcontext():
                self._open.append(path)
                self.calls[path] += 1
                self._changed()
                try:  # activation checkpointing ends its recomputation by an exception
                    return call(*args, **more)
                finally:
                    self._open.pop()
                    self._changed()

        return watched

    def _changed(self) -> None:
        if torch._C._current_autograd_node() is not None:
            # a forward recomputed within a backward, perhaps on another thread with numbers of its
            # own: its nodes never run
            return
        number = torch.autograd._get_sequence_nr()  # type: ignore[attr-defined]
        self._changes.append((number, self.here))


def _mixer_of(module: nn.Module) -> Callable[..., Any] | None:
    """Return the mixer of an attention that is a function: as a module it has its own hooks."""
    if not isinstance(module, CausalSelfAttention):
        return None
    if isinstance(module.mixer, nn.Module):
        return None
    return module.mixer


# --- what the profiler saw

BACKWARD = "autograd::engine::evaluate_function: "

Key = tuple[str, str]  # (module path, forward or backward)
# (module path, direction, moment of a mixer) → ms
Moments = dict[tuple[str, str, str | None], float]


BETWEEN: Key = (STEP, "between")  # no module: between the backward's nodes, and around the ranges


def profiler(*, on_cuda: bool, memory: bool = False) -> profile:
    """torch's profiler for one step."""
    activities = [ProfilerActivity.CPU]
    if on_cuda:
        activities.append(ProfilerActivity.CUDA)
    # older versions warn about the default
    return profile(activities=activities, profile_memory=memory, acc_events=True)


def read(prof: profile, ranges: Ranges, *, on_cuda: bool) -> dict[Key, float]:
    """Milliseconds of the one step that `prof` saw. Ranges must be those that watched it."""
    return of_modules(read_moments(prof, ranges, on_cuda=on_cuda))


def of_modules(moments: Moments) -> dict[Key, float]:
    """Return the same milliseconds, a mixer's moments together."""
    ms = defaultdict[Key, float](float)
    for (path, direction, _), each in moments.items():
        ms[path, direction] += each
    return dict(ms)


def read_moments(prof: profile, ranges: Ranges, *, on_cuda: bool) -> Moments:
    """Milliseconds of the one step that `prof` saw, a mixer's by its moments: see
    `nocap.measure.mixer_moments`."""
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
    """Milliseconds in which a kernel or a copy ran on the GPU: the union of their intervals. Ranges
    on its timeline are no work."""
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
    """Bytes that the call asks torch's allocator for on the CPU, whether it gives them back or not:
    the profiler's record of each allocation (compiled code's included)."""
    with profiler(on_cuda=False, memory=True) as prof:
        call(*arguments)
    results: Any = prof.profiler and prof.profiler.kineto_results
    return sum(max(0, event.nbytes()) for event in results.events() if event.name() == "[memory]")
