"""The state of a model and its optimizers as files have it: tensors by name, plain values as JSON;
and the way back.

`model.safetensors` has a tensor a parameter. In `optimizer.safetensors`, `INDEX/PARAMETER/FIELD` is
what optimizer INDEX keeps of a parameter under that name.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from nocap.config.keys import InputError
from nocap.store.checkpoints import MODEL, OPTIMIZER
from nocap.training.build_optimizers import Optimizers

PLAIN = (bool, int, float, str, type(None))

Tensors = dict[str, dict[str, Tensor]]  # file → name → tensor
Plain = dict[str, Any]  # JSON types


def snapshot(model: nn.Module, optimizers: Optimizers, *, copy: bool) -> tuple[Tensors, Plain]:
    """Return the tensors on the CPU, and what the optimizers keep besides; `copy` them where
    training goes on before they are written.

    Errors:
        InputError: an optimizer keeps what is neither a tensor nor plain.
    """
    state: dict[str, Tensor] = {}
    others: Plain = {}
    for key, value in _states(model, optimizers):
        if isinstance(value, Tensor):
            state[key] = value
            continue
        if not _is_plain(value):
            raise InputError(
                "the optimizer's state must hold only tensors and plain values (such as "
                f"numbers, texts and lists of them), got {type(value).__name__} in {key}"
            )
        others[key] = value
    files = {
        MODEL: _on_cpu(weights(model), copy=copy),
        OPTIMIZER: _on_cpu(state, copy=copy),
    }
    groups = [_plain_groups(optimizer) for optimizer in optimizers]
    return files, {"state": others, "groups": groups}


def _states(model: nn.Module, optimizers: Optimizers) -> Iterator[tuple[str, Any]]:
    """Yield what the optimizers keep of the parameters, each value with its key in the file."""
    names: dict[Tensor, str] = {p: name for name, p in model.named_parameters()}
    for index, optimizer in enumerate(optimizers):
        for p, fields in optimizer.state.items():
            for field, value in fields.items():
                yield f"{index}/{names[p]}/{field}", value


def _on_cpu(tensors: Mapping[str, Tensor], *, copy: bool) -> dict[str, Tensor]:
    return {name: t.to("cpu", copy=copy).contiguous() for name, t in tensors.items()}


def restore(model: nn.Module, optimizers: Optimizers, *, tensors: Tensors, plain: Plain) -> None:
    """Put back what `snapshot` returned.

    Errors:
        ValueError: the state is of optimizers with other groups, or with other keys in them.
    """
    put_weights(model, tensors[MODEL])
    parameters = dict(model.named_parameters())
    for key, value in {**tensors[OPTIMIZER], **plain.get("state", {})}.items():
        index, name, field = key.split("/", 2)
        p = parameters[name]
        if isinstance(value, Tensor):
            value = value.to(p.device)
        state = optimizers[int(index)].state[p]
        state[field] = value
    for optimizer, groups in zip(optimizers, plain.get("groups", ()), strict=True):
        for group, values in zip(optimizer.param_groups, groups, strict=True):
            _put_group(group, values)


def _put_group(group: dict[str, Any], values: Plain) -> None:
    """Put what an optimizer kept in a group back into it; JSON has made lists of its tuples."""
    missing = _plain_keys(group).keys() - values.keys()
    if missing:
        raise ValueError(f"the state is of another optimizer, because it has no {min(missing)}")
    for key, value in values.items():
        if isinstance(group.get(key), tuple):
            value = tuple(value)
        group[key] = value


def weights(model: nn.Module) -> dict[str, Tensor]:
    """Return the parameters, and the buffers that a module declares persistent, each once:
    safetensors takes no tensor twice."""
    own = {name for name, _ in chain(model.named_parameters(), model.named_buffers())}
    return {name: t for name, t in model.state_dict().items() if name in own}


def put_weights(model: nn.Module, saved: Mapping[str, Tensor]) -> None:
    """Copy these weights into the model."""
    with torch.no_grad():
        for name, tensor in weights(model).items():
            tensor.copy_(saved[name])


def as_json(plain: Plain) -> str:
    """Return the text of a state.

    Errors:
        InputError: it holds a number that JSON has not.
    """
    try:
        return json.dumps(plain, allow_nan=False)
    except ValueError as error:
        raise InputError(
            "the optimizer's state must hold only tensors and plain values (such as "
            f"numbers, texts and lists of them), got a non-finite number ({error})"
        ) from error


def difference(shapes: Mapping[str, list[int]], model: nn.Module) -> str | None:
    """Say where a file of weights does not have the names and shapes of the model's."""
    expected = {name: list(t.shape) for name, t in weights(model).items()}
    names = shapes.keys() | expected.keys()
    for name in sorted(names):
        if shapes.get(name) != expected.get(name):
            return f"{MODEL} must hold the tensors of this run's model, and differs in {name}"
    return None


def _plain_groups(optimizer: torch.optim.Optimizer) -> list[Plain]:
    return [_plain_keys(group) for group in optimizer.param_groups]


def _plain_keys(group: Mapping[str, Any]) -> Plain:
    """Return what an optimizer keeps in a group: rates, and whatever else it counts there."""
    return {key: value for key, value in group.items() if key != "params" and _is_plain(value)}


def _is_plain(value: object) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return isinstance(value, PLAIN)
