"""The parts of a step, and whose turn it is: ranges around the model's modules, forward by hooks, backward by sequence number.

Nothing in the model knows of this: hooks are put on its modules, and its mixers wrapped, for as long as a profile lasts.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from nocap.config.option import Option, declared
from nocap.config.run import Run
from nocap.model.attention import CausalSelfAttention
from nocap.model.gpt import GPT, Block, Branch, Head
from nocap.options.ideas import MODEL_JOINTS, Idea

_BY_NAME = {"embedding": "embedding", "position": "embedding", "norm": "norm", "norm_after": "norm", "unembed": "head"}
_BY_TYPE: dict[type[nn.Module], str] = {GPT: "embedding", Block: "residual", Branch: "residual", Head: "loss"}  # GPT adds the positions
_IDEAS = ("ideas", "around")
MARK = "nocap|"  # begins the names of our ranges among the profiler's
STEP, ACCUMULATE = "step", "gradients"  # paths beside the modules'


def part_of(run: Run, path: str, module: nn.Module) -> str | None:
    """The part a module's own operations belong to; `None`: its parent's.

    The frame's are known here. What stands in it says its own: `rows()` of the attention and MLP options, by the names of the modules that
    they build; where they say nothing, all of it is one row.
    """
    words = path.split(".")
    if set(words) & set(_IDEAS):
        return "ideas"
    if words[0] == "blocks" and words[3:4] == ["f"] and words[2] in ("attention", "mlp"):
        option: Option = getattr(run, words[2])
        rows, name = declared(option, "rows", of="build"), ".".join(words[4:])
        found: str | None = rows().get(name) if rows else words[2] if not name else None
        return found
    return _BY_NAME.get(words[-1]) or _BY_TYPE.get(type(module))


class Ranges:
    """Which module is running. Paths are the modules' names; `part` says what each is."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.part: dict[str, str] = {STEP: "other", ACCUMULATE: "accumulate", "data": "data", "clip": "clip", "optimizer": "optimizer"}
        self.calls: dict[str, int] = {}
        self._open: list[tuple[str, AbstractContextManager[Any]]] = []
        self._numbers: list[int] = []  # autograd's sequence number at each change of the running module, ascending
        self._paths: list[str] = []

    @property
    def here(self) -> str:
        return self._open[-1][0] if self._open else STEP

    @property
    def inside(self) -> bool:
        return bool(self._open)

    def reset(self) -> None:
        assert not self._open
        self._numbers, self._paths, self.calls = [], [], {}

    def node(self, sequence: int) -> str:
        """The module whose forward made the autograd node of this number. A gradient accumulator's is the largest there is."""
        if not 0 <= sequence < 2**62:
            return ACCUMULATE
        at = bisect_right(self._numbers, sequence) - 1
        return self._paths[at] if at >= 0 else STEP

    def _changed(self) -> None:
        if torch._C._current_autograd_node() is not None:
            return  # a forward recomputed within a backward, perhaps on another thread with numbers of its own: its nodes never run
        self._numbers.append(torch.autograd._get_sequence_nr())  # type: ignore[attr-defined]
        self._paths.append(self.here)

    def _enter(self, path: str) -> None:
        profiled = torch.autograd._profiler_enabled()  # type: ignore[attr-defined]
        block: AbstractContextManager[Any] = torch.profiler.record_function(MARK + path) if profiled else nullcontext()
        block.__enter__()
        self._open.append((path, block))
        self.calls[path] = self.calls.get(path, 0) + 1
        self._changed()

    def _leave(self) -> None:
        _, block = self._open.pop()
        block.__exit__(None, None, None)
        self._changed()

    @contextmanager
    def around(self, model: nn.Module) -> Iterator[None]:
        """Watch the model inside the block."""
        handles: list[RemovableHandle] = []
        replaced: list[tuple[nn.Module, str, Any]] = []

        def replace(module: nn.Module, name: str, by: Any) -> None:
            replaced.append((module, name, getattr(module, name)))
            setattr(module, name, by)

        for path, module in model.named_modules():
            if part := part_of(self.run, path, module):
                self._watch(path or "model", part, module, handles)
            if isinstance(module, CausalSelfAttention) and not isinstance(module.mixer, nn.Module):
                self.part[f"{path}.mixer"] = "scores"
                replace(module, "mixer", self._wrapped(f"{path}.mixer", module.mixer))
            if isinstance(module, GPT | Block | Head) and module.joined:
                watched = tuple((name, self._watched(path, name, idea), part) for name, idea, part in module.joined)
                replace(module, "joined", watched)
                if isinstance(module, Block) and module.of_qkv:
                    replace(module, "of_qkv", (watched,))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
            for module, name, before in replaced:
                setattr(module, name, before)

    def _watch(self, path: str, part: str, module: nn.Module, handles: list[RemovableHandle]) -> None:
        self.part[path] = part
        handles.append(module.register_forward_pre_hook(lambda *_: self._enter(path)))
        # Also when the forward ends by an exception, as activation checkpointing ends its recomputation.
        handles.append(module.register_forward_hook(lambda *_: self._leave(), always_call=True))

    def _watched(self, place: str, name: str, idea: Idea) -> Any:
        """The idea, each of whose joints in this place is one of its moments in the profile."""
        path = f"{place}.ideas.{name}".lstrip(".")
        self.part[path] = "ideas"
        return SimpleNamespace(**{joint: self._wrapped(path, getattr(idea, joint)) for joint in MODEL_JOINTS})

    def _wrapped(self, path: str, mixer: Callable[..., Any]) -> Callable[..., Any]:
        def mix(*args: Any) -> Any:
            self._enter(path)
            try:
                return mixer(*args)
            finally:
                self._leave()

        return mix
