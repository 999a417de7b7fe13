"""What an optimizer keeps, found by trying it: no table of optimizers is needed, and none that cannot be saved gets as far as step 1."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import torch
from torch import nn

from nocap.config.keys import InputError
from nocap.optimizer import Kind, Optimizers, build_optimizers, kinds_of, set_lr
from nocap.run import checkpoint
from nocap.run.checkpoint import Kept, Leaf

if TYPE_CHECKING:
    from nocap.config.run import Run


class HiddenStateError(InputError):
    """An optimizer remembers what a checkpoint does not hold."""


def kept_state(run: Run, model: nn.Module) -> Kept:
    """What the run's optimizers keep of each kind of parameter: found by training small ones of the model's names.

    They are saved, restored beside themselves and trained on: what then differs is a state that a checkpoint does not hold.

    Errors:
        HiddenStateError: the optimizers cannot be saved and restored bit for bit.
    """
    twins = [_small(model) for _ in range(2)]
    optimizers = [build_optimizers(run, twin) for twin in twins]
    set_lr([optimizer for each in optimizers for optimizer in each], 1e-3 / run.optimizer.lr)  # a rate that goes astray is not the question
    for step in range(2):
        _update(twins[0], optimizers[0], step)
    try:
        tensors, plain = checkpoint.snapshot(twins[0], optimizers[0], copy=True)
        checkpoint.restore(twins[1], optimizers[1], tensors=tensors, plain=json.loads(checkpoint.as_json(plain)))
    except checkpoint.UnsavableError as error:
        raise HiddenStateError(f"optimizer.kind={run.optimizer.kind} must keep tensors and plain values, {error}") from error
    found: Kept = {kind: {} for kind in kinds_of(model).values()}
    named, kinds = dict(twins[0].named_parameters()), kinds_of(model)
    for key, tensor in tensors["optimizer.safetensors"].items():
        index, name, *path = key.split("/")
        found[kinds[name]][f"{index}/{path[0]}"] = _leaf(tensor, named[name]) if len(path) == 1 else Leaf.nest
    for twin, twins_own in zip(twins, optimizers, strict=True):
        _update(twin, twins_own, 2)
    for (name, p), q in zip(twins[0].named_parameters(), twins[1].parameters(), strict=True):
        if not torch.equal(p, q):
            rule = "must keep its state in `state` and `param_groups`, where a checkpoint finds it"
            raise HiddenStateError(f"optimizer.kind={run.optimizer.kind} {rule}: saved and restored, it went on differently at {name}")
    return found


def _leaf(tensor: torch.Tensor, p: nn.Parameter) -> Leaf:
    if tensor.shape == p.shape:
        return Leaf.whole
    return Leaf.other if tensor.ndim else Leaf.scalar


def state_numbers(kept: Kept, model: nn.Module) -> int:
    """How many numbers the optimizers keep for this model, as far as each is as large as its parameter."""
    kinds = kinds_of(model)
    return sum(p.numel() * list(kept[kinds[name]].values()).count(Leaf.whole) for name, p in model.named_parameters())


def _small(model: nn.Module) -> nn.Module:
    """Parameters of four numbers a side, by the model's own names, one of each kind."""
    root, seen = nn.Module(), set[Kind]()
    kinds = kinds_of(model)
    for name, p in model.named_parameters():
        if kinds[name] in seen:
            continue
        seen.add(kinds[name])
        *path, last = name.split(".")
        place = root
        for word in path:
            if word not in dict(place.named_children()):
                place.add_module(word, nn.Module())
            place = place.get_submodule(word)
        shape = torch.Size(min(4, n) for n in p.shape)
        small = nn.Parameter(torch.linspace(-1, 1, shape.numel()).reshape(shape))
        if kinds[name][1] and path:  # optimizers tell a table by its module
            root.get_submodule(".".join(path[:-1])).add_module(path[-1], nn.Embedding.from_pretrained(small, freeze=False))
        else:
            place.register_parameter(last, small)
    return root


def _update(model: nn.Module, optimizers: Optimizers, step: int) -> None:
    for i, p in enumerate(model.parameters()):
        p.grad = torch.cos(torch.arange(p.numel(), dtype=torch.float32) + 3 * step + i).reshape(p.shape)
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
