"""Build the optimizers of a run by its option, and set their learning rates: ideas scale them, the
schedule multiplies them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import nn

from nocap.config.keys import InputError
from nocap.training.optimizer import ByRule, Group

if TYPE_CHECKING:
    from nocap.config.run import Run

Optimizers = list[torch.optim.Optimizer]
Factors = tuple[float, float]  # of the rate and of the decay


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
                    f"optimizer.kind={run.optimizer.kind} must give each param group a float as "
                    f"lr, got {lr!r}"
                )
            group["peak_lr"] = lr
    return optimizers


def _check_shares(run: Run, model: nn.Module, optimizers: Optimizers) -> None:
    groups = Counter[int]()  # of a parameter, by its id
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            groups.update(id(p) for p in group["params"])
    rule = "must have each of the model's parameters in exactly one group of one optimizer"
    for name, p in model.named_parameters():
        if p.requires_grad and groups[id(p)] != 1:
            raise InputError(
                f"optimizer.kind={run.optimizer.kind} {rule}, got {name} in none or in several"
            )


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
    """Decay only what the update u does not move away from zero, whatever optimizer makes it:
    p ← p - lr·(u + λ·1[u·p ≥ 0]·p) (arXiv:2510.12402).

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
    """Set each learning rate to its peak times the schedule's factor."""
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
