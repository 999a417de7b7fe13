"""Count the FLOPs of code by running it on tensors that have shapes and no memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

Forward = Callable[[int], Any]  # of so many tokens
# FLOPs of so many tokens, forward and backward, with all pairs of them
Cost = Callable[[int], float]


class NotCountedError(Exception):
    """An option cannot be counted: it does not run on tensors without memory, or has an operation
    without a formula. The text says which, in a line."""


@contextmanager
def uncounted_explained() -> Iterator[None]:
    """Turn whatever an option raises on tensors without memory into a NotCountedError. It trains
    all the same."""
    try:
        yield
    except NotCountedError:
        raise
    except Exception as error:
        line = next(iter(str(error).splitlines()), "")
        raise NotCountedError(f"{type(error).__name__}: {line}"[:200]) from error


def counted_cost(make: Callable[[], Forward]) -> Cost:
    """Build what `make` makes once, without memory, and return its cost as a function of the
    length.

    Errors:
        NotCountedError: see there; also of the cost itself.
    """
    without_memory = FakeTensorMode()
    by_length = {0: 0.0}
    with uncounted_explained(), without_memory, torch.device("cpu"):
        forward = make()

    def cost(n: int) -> float:
        if n not in by_length:
            counter = _FlopCounter()
            with uncounted_explained(), without_memory, torch.device("cpu"), counter:
                leaves = [t for t in tree_leaves(forward(n)) if isinstance(t, Tensor)]
                outputs = [t for t in leaves if t.requires_grad]
                gradients = [torch.ones_like(t) for t in outputs]
                torch.autograd.backward(outputs, gradients)
            by_length[n] = counter.flops
        return by_length[n]

    return cost


class _FlopCounter(TorchDispatchMode):
    """A counter that takes all pairs of tokens, whatever a kernel leaves out: what the convention
    leaves out is the same for all."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.flops = 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if func.namespace not in TORCHS and func._overloadpacket not in flop_registry:
            raise NotCountedError(
                f"{func.namespace}::{func._overloadpacket.__name__} has no formula for its FLOPs"
            )
        self.flops += op_flops(func, args, kwargs, out, all_pairs=True)
        return out


# Operations of torch itself: those that have no formula are no products.
TORCHS = ("aten", "prim", "prims", "profiler")


def op_flops(func: Any, args: Any, kwargs: Any, out: Any, *, all_pairs: bool = False) -> float:
    """Matrix FLOPs of one operation as torch's dispatcher sees it, by FlopCounterMode's formulas.

    It misses the fused attention kernels on the CPU and counts them in full elsewhere: here they
    are 4·Tq·Tk·D a head, half under the causal mask unless `all_pairs` are asked for, and twice
    that in the backward.
    """
    name = func._overloadpacket.__name__
    if "scaled_dot_product" in name:
        arguments = [argument.name for argument in func._schema.arguments]
        named = dict(zip(arguments, args, strict=False)) | kwargs
        B, H, T_query, D = named["query"].shape
        T_key = named["key"].shape[2]
        flops = 4.0 * B * H * T_query * T_key * D
        if name.endswith("_backward"):
            flops *= 2
        if named.get("is_causal") and not all_pairs:
            flops /= 2
        return flops
    formula = flop_registry.get(func._overloadpacket)
    if formula is None:
        return 0.0
    return float(formula(*args, **kwargs, out_val=out))
