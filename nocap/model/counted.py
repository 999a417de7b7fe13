"""FLOPs by counting: a module runs forward and backward on tensors that have shapes and no memory.

torch's own dispatcher decides which operations there are. Formulas are FlopCounterMode's, and for the fused attention kernels, which it
misses on the CPU and counts in full elsewhere, 4·Tq·Tk·D a head, half under the causal mask, and twice that in the backward.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry


def op_flops(func: Any, args: Any, kwargs: Any, out: Any) -> float:
    """Matrix FLOPs of one operation as the dispatcher sees it."""
    name = func._overloadpacket.__name__
    if "scaled_dot_product" in name:
        named = dict(zip((a.name for a in func._schema.arguments), args, strict=False)) | kwargs
        B, H, T_query, D = named["query"].shape
        whole = 4.0 * B * H * T_query * named["key"].shape[2] * D * (2 if name.endswith("_backward") else 1)
        return whole / 2 if named.get("is_causal") else whole
    formula = flop_registry.get(func._overloadpacket)
    return float(formula(*args, **kwargs, out_val=out)) if formula else 0.0


def counted(make: Callable[[], Callable[..., Any]], *shapes: tuple[int, ...], device: str = "cpu") -> float:
    """FLOPs of a forward and backward of what `make` builds, on inputs of these shapes that have gradients."""
    counter = _Counter()
    with FakeTensorMode():
        with torch.device(device):
            module = make()
            inputs = [torch.zeros(shape, requires_grad=True) for shape in shapes]
        with counter:
            outputs = [t for t in tree_leaves(module(*inputs)) if isinstance(t, Tensor) and t.requires_grad]
            torch.autograd.backward(outputs, [torch.ones_like(t) for t in outputs])
    return counter.flops


class _Counter(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.flops = 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        self.flops += op_flops(func, args, kwargs, out)
        return out
