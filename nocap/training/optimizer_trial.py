"""Tries a run's optimizers on a copy of its model: what they keep, and that a checkpoint holds all of it."""

from __future__ import annotations

import copy
import json
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from nocap.config.keys import InputError
from nocap.training.optimizer import Optimizers, build_optimizers, set_lr
from nocap.training.state import OPTIMIZER, Shapes, UnsavableError, as_json, restore, snapshot, top_level

if TYPE_CHECKING:
    from nocap.config.run import Run

SMALL = (5, 7, 9, 11)  # numbers a side, another for each: a tensor's sides tell which of its parameter's they are
WHOLE = 50_000_000  # parameters that a second and third copy of are not too many


def optimizer_shapes(run: Run, model: nn.Module) -> Shapes:
    """The tensors that the run's optimizers keep for this model, found by training a copy of it with small parameters: a tensor whose sides
    are its parameter's, or 1, has them beside the model's own, too.

    The copy's state is saved, restored into a second copy, and both are trained on: where they then differ, a checkpoint does not hold
    the whole state. An optimizer that needs the parameters' own sizes is tried on those, where they are not too many.

    Errors:
        InputError: the optimizers cannot be tried, or not be saved and restored bit for bit.
    """
    size = sum(p.numel() for p in model.parameters())
    for sides in (SMALL, None) if size <= WHOLE else (SMALL,):
        try:
            return _try(run, model, sides=sides)
        except InputError:
            raise
        except Exception as error:  # whatever an optimizer from outside does with sizes that are not its model's
            failure = error
    line = f"{type(failure).__name__}: {failure}".splitlines()[0]
    raise _invalid(run, f"be one that can be tried on a copy of the model with few numbers a side, got {line}") from failure


def optimizer_numbers(shapes: Shapes, model: nn.Module) -> int:
    """How many numbers the optimizers keep for this model in tensors whose shape is known, scalars left out."""
    return sum(torch.Size(shape).numel() for shape in shapes.values() if shape)


def _try(run: Run, model: nn.Module, *, sides: tuple[int, ...] | None) -> Shapes:
    first, second = (_copy(model, sides) for _ in range(2))
    its, others = (build_optimizers(run, twin) for twin in (first, second))
    set_lr([*its, *others], 1e-3 / run.optimizer.lr)  # a rate at which training diverges is not the question
    for step in range(2):
        _update(first, its, step)
    try:
        tensors, plain = snapshot(first, its, copy=True)
        restore(second, others, tensors=tensors, plain=json.loads(as_json(plain)))
    except UnsavableError as error:
        raise _invalid(run, f"keep tensors and plain values, {error}") from error
    small, whole = dict(first.named_parameters()), dict(model.named_parameters())
    shapes = {top_level(key): _shape(key, tensor, small, whole) for key, tensor in tensors[OPTIMIZER].items()}
    _update(first, its, 2)
    _update(second, others, 2)
    for name, p in second.named_parameters():
        if not torch.equal(p, small[name]):
            rule = "keep its state in `state` and `param_groups`, where a checkpoint finds it"
            raise _invalid(run, f"{rule}: saved and restored, it went on differently at {name}")
    return shapes


def _invalid(run: Run, rule: str) -> InputError:
    return InputError(f"optimizer.kind={run.optimizer.kind} must {rule}")


def _shape(key: str, tensor: Tensor, small: dict[str, nn.Parameter], whole: dict[str, nn.Parameter]) -> list[int] | None:
    """The shape that this tensor has beside the model's own parameter: as large as it, a scalar, or of its sides; None for any other."""
    name = key.split("/")[1]
    if top_level(key) != key:
        return None
    if tensor.shape == small[name].shape:
        return list(whole[name].shape)
    pairs = {(1, 1), *zip(small[name].shape, whole[name].shape, strict=True)}
    sides = dict(pairs)
    return [sides[n] for n in tensor.shape] if len(sides) == len(pairs) and sides.keys() >= set(tensor.shape) else None


def _copy(model: nn.Module, sides: tuple[int, ...] | None) -> nn.Module:
    """The model on the CPU with parameters of so many numbers a side, or of their own sizes: its modules, names and tables as they are."""
    memo: dict[int, Any] = {id(buffer): buffer for buffer in model.buffers()}
    for p in model.parameters():
        shape = p.shape if sides is None else torch.Size(min(n, sides[i % len(sides)]) for i, n in enumerate(p.shape))
        memo[id(p)] = nn.Parameter(torch.linspace(-1, 1, shape.numel()).reshape(shape), requires_grad=p.requires_grad)
    for module in model.modules():
        if (compiled := vars(module).get("_compiled_call_impl")) is not None:
            memo[id(compiled)] = None
    return copy.deepcopy(model, memo)


def _update(model: nn.Module, optimizers: Optimizers, step: int) -> None:
    for i, p in enumerate(model.parameters()):
        if p.requires_grad:
            p.grad = torch.cos(torch.arange(p.numel(), dtype=torch.float32) + 3 * step + i).reshape(p.shape)
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
