"""Ranges for torch's profiler: which module runs when.

Ranges stand around the model's modules, forward by hooks, backward by autograd's sequence numbers.
Nothing in the model knows of this: hooks are put on its modules, and its mixers wrapped, for as
long as a profile lasts. `nocap.measure.profiler_events` reads the time of each.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from nocap.config.option import Option, declared
from nocap.config.run import Run
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
