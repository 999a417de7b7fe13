"""What every optimizer option may use: the usual parameter groups and their learning rates."""

from __future__ import annotations

import functools
import inspect
import math
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn

from nocap.config import hardware
from nocap.config.keys import InputError

if TYPE_CHECKING:
    from nocap.config.run import Run

Optimizers = list[torch.optim.Optimizer]
# What an option's `update` gets: a group of torch's, its parameters, their gradients, what it keeps
# of each.
Group = dict[str, Any]
Tensors = list[Tensor]
States = list[dict[str, Tensor]]
Factors = tuple[float, float]  # of the rate and of the decay
AnOptimizer = TypeVar("AnOptimizer", bound=torch.optim.Optimizer)


@functools.cache
def undecorated(optimizer: type[AnOptimizer]) -> type[AnOptimizer]:
    """torch's optimizer without the decorators that import all of `torch._dynamo`: a second of the
    start of a run that compiles nothing."""
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


def build_optimizers(run: Run, model: nn.Module) -> Optimizers:
    """Return the run's optimizers, their groups split where an idea scales a rate. Each group
    carries `peak_lr`, which the schedule multiplies.

    Errors:
        InputError: the option leaves out a parameter, gives one to two optimizers, or has a group
            without a learning rate.
    """
    optimizers = run.optimizer.build(model)
    _check_shares(run, model, optimizers)
    _scale(run, model, optimizers)
    if run.optimizer.cautious_decay:
        _decay_cautiously(run, optimizers)
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            lr = group.get("lr")
            if not isinstance(lr, float):
                raise InputError(
                    f"optimizer.kind={run.optimizer.kind} must give each group a learning rate, "
                    f"lr, got {lr!r}"
                )
            group["peak_lr"] = lr
    return optimizers


def _check_shares(run: Run, model: nn.Module, optimizers: Optimizers) -> None:
    groups = Counter[int]()  # of a parameter, by its id
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            groups.update(id(p) for p in group["params"])
    rule = "must have each of the model's parameters in one group of one optimizer"
    for name, p in model.named_parameters():
        if p.requires_grad and groups[id(p)] != 1:
            raise InputError(f"optimizer.kind={run.optimizer.kind} {rule}, but not {name}")


def _scale(run: Run, model: nn.Module, optimizers: Optimizers) -> None:
    """Split the groups by the factors that ideas put on rate and decay; without ideas, nothing."""
    factors: dict[int, Factors] = {}
    for name, p in model.named_parameters():
        scales = [idea.rates(name) for idea in run.ideas.values()]
        lr = math.prod(scale.lr for scale in scales)
        weight_decay = math.prod(scale.weight_decay for scale in scales)
        if (lr, weight_decay) != (1.0, 1.0):
            factors[id(p)] = (lr, weight_decay)
    if not factors:
        return
    for optimizer in optimizers:
        for group in list(optimizer.param_groups):
            _split(optimizer, group, factors)
        optimizer.param_groups[:] = [group for group in optimizer.param_groups if group["params"]]


def _split(optimizer: torch.optim.Optimizer, group: Group, factors: Mapping[int, Factors]) -> None:
    """Move the parameters of a group that have factors into groups of their own, one for each pair
    of factors."""
    pairs = {factors[id(p)] for p in group["params"] if id(p) in factors}
    for pair in sorted(pairs):
        lr, weight_decay = pair
        scaled = dict(group)
        scaled["params"] = [p for p in group["params"] if factors.get(id(p)) == pair]
        scaled["lr"] = group["lr"] * lr
        scaled["weight_decay"] = group.get("weight_decay", 0.0) * weight_decay
        group["params"] = [p for p in group["params"] if factors.get(id(p)) != pair]
        optimizer.add_param_group(scaled)


def _decay_cautiously(run: Run, optimizers: Optimizers) -> None:
    """p ← p - lr·(u + λ·1[u·p ≥ 0]·p), whatever optimizer makes the update u (arXiv:2510.12402).

    Errors:
        InputError: no group has a weight decay that the optimizer does not keep to itself.
    """
    has_decay = False
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            has_decay = has_decay or bool(group.get("weight_decay"))
    if not has_decay:
        kind = run.optimizer.kind
        raise InputError(
            f"optimizer.cautious_decay must be false with optimizer.kind={kind}, whose groups "
            "have no weight_decay"
        )
    pending: list[PendingDecay] = []  # of the step in progress

    def put_off(optimizer: torch.optim.Optimizer, *_: object) -> None:
        for group in optimizer.param_groups:
            if group.get("weight_decay"):
                pending.append(PendingDecay(group))

    @torch.no_grad()
    def make_up(*_: object) -> None:
        for decay in pending:
            decay.apply()
        pending.clear()

    for optimizer in optimizers:
        optimizer.register_step_pre_hook(put_off)
        optimizer.register_step_post_hook(make_up)


class PendingDecay:
    """A group's weight decay, which waits until the step has made its update alone."""

    def __init__(self, group: Group) -> None:
        """Take the decay out of the group, and keep its weights of before the step."""
        self.group = group
        self.weight_decay: float = group["weight_decay"]
        self.params = [p for p in group["params"] if p.grad is not None]
        self.before = [p.detach().clone() for p in self.params]
        group["weight_decay"] = 0.0

    def apply(self) -> None:
        """Give the decay back to the group, and take it off the numbers that the update did not
        move away from zero."""
        self.group["weight_decay"] = self.weight_decay
        for p, before in zip(self.params, self.before, strict=True):
            shrinks = (before - p).mul_(before) >= 0
            p.sub_(before.mul_(shrinks), alpha=self.group["lr"] * self.weight_decay)


def set_lr(optimizers: Optimizers, factor: float) -> None:
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group["peak_lr"] * factor


def rates(optimizers: Optimizers) -> dict[str, float]:
    """Return each learning rate by its name in a row: `lr`, `lr_muon` for another optimizer, `lr_2`
    for another group with a peak of its own."""
    by_name: dict[str, float] = {}
    for optimizer in optimizers:
        prefix = "lr"
        if optimizer is not optimizers[0]:
            prefix = f"lr_{_kind(optimizer)}"
        by_peak: dict[float, float] = {}
        for group in optimizer.param_groups:
            by_peak.setdefault(group["peak_lr"], group["lr"])
        for number, lr in enumerate(by_peak.values(), start=1):
            name = prefix
            if number > 1:
                name = f"{prefix}_{number}"
            while name in by_name:  # two optimizers of one kind
                name += "_again"
            by_name[name] = lr
    return by_name


def _kind(optimizer: torch.optim.Optimizer) -> str:
    """Name an optimizer: by its option where it steps by that one's rule, else by its class."""
    if isinstance(optimizer, ByRule):
        return str(optimizer.option.kind)
    return type(optimizer).__name__.lower()
