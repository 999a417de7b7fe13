"""What an optimizer keeps, found by trying it: no table of optimizers is needed, and none that cannot be saved gets as far as step 1."""

from __future__ import annotations

import copy
import json
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from nocap.config.keys import InputError
from nocap.training import checkpoint
from nocap.training.checkpoint import Kept, Leaf
from nocap.training.optimizer import Optimizers, build_optimizers, kinds_of, set_lr

if TYPE_CHECKING:
    from nocap.config.run import Run


SMALL = 4  # numbers a side
WHOLE = 50_000_000  # parameters that a second and third copy of are not too many


class HiddenStateError(InputError):
    """An optimizer remembers what a checkpoint does not hold."""


def kept_state(run: Run, model: nn.Module) -> Kept:
    """What the run's optimizers keep of each kind of parameter: found by training a copy of the model with small parameters.

    It is saved, restored beside itself and trained on: what then differs is a state that a checkpoint does not hold. An optimizer that
    needs the parameters' own sizes is tried on those, where they are not too many.

    Errors:
        InputError: the optimizers cannot be tried, or not be saved and restored bit for bit.
    """
    sizes = sum(p.numel() for p in model.parameters())
    for side in (SMALL, None) if sizes <= WHOLE else (SMALL,):
        try:
            return _tried(run, model, side=side)
        except InputError:
            raise
        except Exception as error:  # whatever an optimizer from outside does with sizes that are not its model's
            failure = error
    line = f"{type(failure).__name__}: {failure}".splitlines()[0]
    raise HiddenStateError(
        f"optimizer.kind={run.optimizer.kind} must be one that can be tried on a copy of the model with {SMALL} numbers a side, got {line}"
    ) from failure


def _tried(run: Run, model: nn.Module, *, side: int | None) -> Kept:
    twins = [_copy(model, side) for _ in range(2)]
    optimizers = [build_optimizers(run, twin) for twin in twins]
    set_lr([optimizer for each in optimizers for optimizer in each], 1e-3 / run.optimizer.lr)  # a rate that goes astray is not the question
    for step in range(2):
        _update(twins[0], optimizers[0], step)
    try:
        tensors, plain = checkpoint.snapshot(twins[0], optimizers[0], copy=True)
        checkpoint.restore(twins[1], optimizers[1], tensors=tensors, plain=json.loads(checkpoint.as_json(plain)))
    except checkpoint.UnsavableError as error:
        raise HiddenStateError(f"optimizer.kind={run.optimizer.kind} must keep tensors and plain values, {error}") from error
    named, kinds = dict(twins[0].named_parameters()), kinds_of(model)
    found: Kept = {kind: {} for kind in kinds.values()}
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


def _copy(model: nn.Module, side: int | None) -> nn.Module:
    """The model on the CPU with parameters of so many numbers a side, or of their own sizes: its modules, names and tables as they are."""
    memo: dict[int, Any] = {id(buffer): buffer for buffer in model.buffers()}
    for p in model.parameters():
        shape = torch.Size(n if side is None else min(side, n) for n in p.shape)
        memo[id(p)] = nn.Parameter(torch.linspace(-1, 1, shape.numel()).reshape(shape), requires_grad=p.requires_grad)
    for module in model.modules():
        if (compiled := vars(module).get("_compiled_call_impl")) is not None:
            memo[id(compiled)] = None
    return copy.deepcopy(model, memo)


def _update(model: nn.Module, optimizers: Optimizers, step: int) -> None:
    for i, p in enumerate(model.parameters()):
        p.grad = torch.cos(torch.arange(p.numel(), dtype=torch.float32) + 3 * step + i).reshape(p.shape)
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
