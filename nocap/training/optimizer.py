"""What optimizer options may use, from outside too: parameter groups, buffers, a step by a rule of
their own. `build_optimizers` calls the options."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from nocap.config import hardware

# What an option's `update` gets: a group of torch's, its parameters, their gradients, what it keeps
# of each.
Group = dict[str, Any]
Tensors = list[Tensor]
States = list[dict[str, Tensor]]
AnOptimizer = TypeVar("AnOptimizer", bound=torch.optim.Optimizer)


@functools.cache
def undecorated(optimizer: type[AnOptimizer]) -> type[AnOptimizer]:
    """Return torch's optimizer without the decorators that import all of `torch._dynamo`: a second
    of the start of a run that compiles nothing."""
    members: dict[str, Any] = {}
    for name in ("add_param_group", "zero_grad", "step"):
        members[name] = inspect.unwrap(getattr(optimizer, name))
    members["step"] = torch.no_grad()(members["step"])
    return type(optimizer.__name__, (optimizer,), members)


def decayed(
    named: Mapping[str, nn.Parameter], weight_decay: float, *, everything: bool = False
) -> list[dict[str, Any]]:
    """Return groups in which matrices and tables decay and vectors (gains, shifts, scales) do not,
    unless `everything` does."""
    decaying = []
    others = []
    for p in named.values():
        if everything or p.ndim >= 2:
            decaying.append(p)
        else:
            others.append(p)
    groups = []
    if decaying:
        groups.append({"params": decaying, "weight_decay": weight_decay})
    if others:
        groups.append({"params": others, "weight_decay": 0.0})
    return groups


def split_matrices(model: nn.Module) -> tuple[dict[str, nn.Parameter], dict[str, nn.Parameter]]:
    """Return the matrices inside the blocks, by name, and the rest: vectors, and tables of
    embeddings."""
    tables = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    inside = {}
    rest = {}
    for name, p in model.named_parameters():
        if name.startswith("blocks.") and p.ndim == 2 and id(p) not in tables:
            inside[name] = p
        else:
            rest[name] = p
    return inside, rest


class ByRule(undecorated(torch.optim.Optimizer)):  # type: ignore[misc]  # a class made at run time
    """Steps by the option's own rule: `option.update(group, params, grads, states)` for each group,
    with its parameters that have a gradient, and the dict that is kept of each. `group["step"]`
    counts from 1. What else `more` puts into a group is saved with it."""

    def __init__(self, option: Any, params: Any, **more: Any) -> None:
        super().__init__(params, {"lr": option.lr, "weight_decay": 0.0, "step": 0, **more})
        self.option = option

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        assert closure is None
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            if not params:
                continue
            group["step"] += 1
            grads = [p.grad for p in params]
            states = [self.state[p] for p in params]
            self.option.update(group, params, grads, states)


def buffers(
    states: list[dict[str, Tensor]],
    name: str,
    params: list[Tensor],
    *,
    first: Callable[[Tensor], Tensor] = torch.zeros_like,
) -> list[Tensor]:
    """Return the tensor of this name in each parameter's state. `first`: makes it of the parameter
    where the state has none yet."""
    for state, p in zip(states, params, strict=True):
        if name not in state:
            state[name] = first(p.detach())
    return [state[name] for state in states]


def matmul_dtype(p: Tensor) -> torch.dtype:
    """Return the type of an optimizer's products of matrices: bf16, but where a CPU would emulate
    it: there fp32 is 3 times as fast (AVX-512) or 20 times (AVX2; LOG.md)."""
    if p.device.type == "cpu" and not hardware.native_bf16():
        return p.dtype
    return torch.bfloat16
