"""The roofline: what a step must do (counted, not computed) and how fast this machine can do it (measured peaks).

The step runs on fake tensors, which have shapes, dtypes and a device, and no memory: torch's own dispatcher decides which operations there
are, in the run's precision, with its kernels. `nocap.model.flops` has the formulas of the FLOPs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from nocap.config.run import Run
from nocap.config.trainer import Device, Precision
from nocap.measure.parts import STEP, Ranges
from nocap.measure.timed import Clock
from nocap.model.flops import op_flops
from nocap.model.gpt import build_model
from nocap.training import memory
from nocap.training.optimizer import build_optimizers
from nocap.training.step import autocast

PRODUCT = {Device.cpu: 2048, Device.cuda: 8192}  # rows and columns
COPY_BYTES = {Device.cpu: 2**28, Device.cuda: 2**31}  # far beyond any cache


@dataclass(frozen=True, kw_only=True, slots=True)
class Peak:
    """What this machine can do at most."""

    flops: dict[str, float]  # FLOP/s by precision
    bytes_per_s: float  # read and written
    product: int  # rows and columns of the matrices
    copy_bytes: int


def measure_peak(device: Device) -> Peak:
    """FLOP/s and bytes/s of the device with the threads that torch has now."""
    flops, n = {precision.value: matmul_flops(device, precision) for precision in Precision}, COPY_BYTES[device]
    pair = [torch.zeros(n // 4, device=device.value) for _ in range(2)]
    copy_ms = Clock.of(device, torch.get_num_threads()).least_ms(lambda: pair[0].copy_(pair[1]))
    pair.clear()
    memory.give_back(torch.device(device.value))
    return Peak(flops=flops, bytes_per_s=2 * n / copy_ms * 1e3, product=PRODUCT[device], copy_bytes=n)


def matmul_flops(device: Device, precision: Precision) -> float:
    """FLOP/s of a large square matrix product, the best of several: the measured denominator of MFU."""
    n, dtype = PRODUCT[device], torch.bfloat16 if precision is Precision.bf16 else torch.float32
    a, b = (torch.randn(n, n, device=device.value).to(dtype) for _ in range(2))
    out = torch.empty_like(a)
    return 2 * n**3 / Clock.of(device, torch.get_num_threads()).least_ms(lambda: torch.mm(a, b, out=out)) * 1e3


# --- what a step must do


class Op(NamedTuple):
    """One operation: its matrix FLOPs, and the bytes of what it reads and writes."""

    name: str
    dtype: str  # bf16 or fp32: whose peak bounds it
    flops: float
    bytes: float


class Work(list[Op]):
    """What a module does in a forward or in its backward."""

    @property
    def flops(self) -> float:
        return sum(op.flops for op in self)

    @property
    def bytes(self) -> float:
        return sum(op.bytes for op in self)

    def bound_ms(self, peak: Peak) -> float:
        """The roofline: no operation is faster than its FLOPs at the measured peak, or its bytes at the measured bandwidth."""
        return sum(max(op.flops / peak.flops[op.dtype], op.bytes / peak.bytes_per_s) for op in self) * 1e3

    def product_ms(self, peak: Peak) -> float:
        """The matrix FLOPs alone, at the measured peak."""
        return sum(op.flops / peak.flops[op.dtype] for op in self) * 1e3

    @property
    def kinds(self) -> frozenset[tuple[str, str]]:
        """The matrix products' operations and precisions: where they differ, a measured efficiency does not carry over."""
        return frozenset((op.name, op.dtype) for op in self if op.flops)


@dataclass(frozen=True, kw_only=True, slots=True)
class Count:
    """One micro-batch: work by (module path, direction), what each path is and keeps, and the parameters' bytes."""

    work: dict[tuple[str, str], Work]
    ranges: Ranges
    parameters: int  # bytes
    optimizer: float  # bytes of its state
    around: int  # bytes that ideas keep around the step

    def by_part(self) -> dict[str, Work]:
        merged = defaultdict[str, Work](Work)
        for (path, _), work in self.work.items():
            merged[self.ranges.part[path]] += work
        return dict(merged)


def count(run: Run, *, vocab_size: int) -> Count:
    """Count one micro-batch of the run on this machine's device, without allocating it, and what its optimizers keep after an update."""
    run = run.varied(attention=run.attention.countable())  # FlexAttention compiles itself and cannot be faked
    ranges, device = Ranges(run), run.trainer.device.value
    with FakeTensorMode(allow_non_fake_inputs=True):  # an optimizer may make a scalar before its first update
        with torch.device(device):
            model = build_model(run, vocab_size=vocab_size)
        tokens = torch.zeros(run.trainer.micro_batch, run.model.seq_len, dtype=torch.long, device=device)
        counter = _WorkCounter(ranges)
        with ranges.around(model), counter:
            with memory.saved_for_backward(list(model.parameters()), on_save=ranges.keep), autocast(run, run.trainer.precision):
                loss = model(tokens, tokens)
            loss.total.backward()
        size, around = memory.n_bytes(model.parameters()), memory.n_bytes(model.kept_around())
        optimizers = build_optimizers(run, model)
        for optimizer in optimizers:
            optimizer.step()
        state = memory.parts_mib((), optimizers)["optimizer"] * memory.MIB
    return Count(work=counter.work, ranges=ranges, parameters=size, optimizer=state, around=around)


class _WorkCounter(TorchDispatchMode):
    """Sees every operation below autograd, forward and backward."""

    def __init__(self, ranges: Ranges) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.ranges = ranges
        self.work = defaultdict[tuple[str, str], Work](Work)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if func.namespace == "prim" or _is_view(func):
            return out
        node = torch._C._current_autograd_node()
        # A recomputed forward runs inside a node, with its modules' hooks.
        path = self.ranges.here if node is None or self.ranges.here != STEP else self.ranges.node(node._sequence_nr())
        self.work[path, "forward" if node is None else "backward"].append(_op(func, args, kwargs, out))
        return out


# Operations that read some rows of an argument: (argument, what it reads instead is as large as the output).
_GATHERS = {"embedding": "weight", "nll_loss_forward": "self", "nll_loss_backward": "self"}
_VIEWS = {"_unsafe_view", "_reshape_alias"}  # views whose schema does not say so


def _is_view(func: Any) -> bool:
    returns = func._schema.returns
    return func._overloadpacket.__name__ in _VIEWS or any(r.alias_info is not None and not r.alias_info.is_write for r in returns)


def _op(func: Any, args: Any, kwargs: Any, out: Any) -> Op:
    name = func._overloadpacket.__name__
    named = dict(zip((a.name for a in func._schema.arguments), args, strict=False)) | kwargs
    read = [t for key, value in named.items() if key != _GATHERS.get(name) for t in _tensors(value)]
    written = list(_tensors(out))
    if name in _GATHERS:
        read += written
    distinct = {id(t): t for t in read}.values()
    floats = [t.dtype for t in (*read, *written) if t.is_floating_point()]
    dtype = "bf16" if floats and floats[0] is torch.bfloat16 else "fp32"
    return Op(name, dtype, op_flops(func, args, kwargs, out), sum(map(_size, distinct)) + sum(map(_size, written)))


def _tensors(tree: Any) -> Iterable[Tensor]:
    return (t for t in tree_leaves(tree) if isinstance(t, Tensor))


def _size(t: Tensor) -> int:
    """Bytes behind a tensor; an expanded one has fewer than elements."""
    return min(t.numel() * t.element_size(), t.untyped_storage().nbytes())
