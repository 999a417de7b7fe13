"""The roofline: what a step must do, counted and not computed. `nocap.measure.peaks` measures how
fast this machine can do it.

The step runs on fake tensors, which have shapes, dtypes and a device, and no memory: torch's own
dispatcher decides which operations there are, in the run's precision, with its kernels.
`nocap.model.flops` has the formulas of the FLOPs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from nocap.config.run import Run
from nocap.generation.engines import Cached, Engine, Recompute, UncachedError
from nocap.measure.mixer_moments import Call, Nodes
from nocap.measure.profile_schema import Peak
from nocap.measure.profiler_events import Key
from nocap.measure.profiler_ranges import MIXER, STEP, Ranges
from nocap.measure.subject import Subject, SubjectKind
from nocap.model.attention_facts import first_window
from nocap.model.build import build_model
from nocap.model.counted_flops import NotCountedError, op_flops, uncounted_explained
from nocap.model.flops import component_flops, without_documents
from nocap.model.language_model import LanguageModel
from nocap.training import memory
from nocap.training.build import autocast

HELD_COPIES = 4  # parameters, gradients and AdamW's two moments, all as large


class Op(NamedTuple):
    """One operation: its matrix FLOPs, and the bytes of what it reads and writes."""

    name: str
    dtype: str  # bf16 or fp32: whose peak bounds it
    flops: float
    bytes: float
    # the mixer's call that it is of, and what that said of it
    mixing: tuple[Call, str] | None = None

    @property
    def moment(self) -> str | None:
        """Return the moment of a mixer: see `nocap.measure.mixer_moments`."""
        if self.mixing is None:
            return None
        call, added = self.mixing
        return call.moment(added)

    def bound_s(self, peak: Peak) -> float:
        flops_s = self.flops / peak.flops[self.dtype]
        bytes_s = self.bytes / peak.bytes_per_s
        return max(flops_s, bytes_s)


class OpWork(list[Op]):
    """What a module does in a forward or in its backward."""

    @property
    def flops(self) -> float:
        return sum(op.flops for op in self)

    @property
    def bytes(self) -> float:
        return sum(op.bytes for op in self)

    def bound_ms(self, peak: Peak) -> float:
        """Return the roofline: no operation is faster than its FLOPs at the measured peak, or its
        bytes at the measured bandwidth."""
        return sum(op.bound_s(peak) for op in self) * 1e3

    def product_ms(self, peak: Peak) -> float:
        """Return the matrix FLOPs alone, at the measured peak."""
        return sum(op.flops / peak.flops[op.dtype] for op in self) * 1e3

    def by_moment(self) -> dict[str | None, OpWork]:
        """Return the same work, a mixer's by its moments."""
        moments = defaultdict[str | None, OpWork](OpWork)
        for op in self:
            moments[op.moment].append(op)
        return moments

    @property
    def kinds(self) -> frozenset[tuple[str, str]]:
        """Return the matrix products' operations and precisions: where they differ, a measured
        efficiency does not carry over."""
        return frozenset((op.name, op.dtype) for op in self if op.flops)


class Count(TorchDispatchMode):
    """One micro-batch, or what else the subject is: work by (module path, direction), what each
    path is and keeps, and the parameters' bytes. While it counts it sees every operation below
    autograd, forward and backward."""

    def __init__(self, run: Run, subject: Subject | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.run = run
        self.ranges = Ranges(run)
        self.parameters = 0  # bytes
        self.subject = subject or Subject()
        self.cache = 0  # bytes of keys and values
        self.as_run = True  # by the kernels that run; else by others of the same mathematics
        self.not_counted: str | None = None  # why there is no work here
        self.work = defaultdict[Key, OpWork](OpWork)
        self._calls = defaultdict[tuple[str, int], Call](Call)  # of mixers, by path and number
        self._nodes = Nodes()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if func.namespace == "prim":
            return out
        node = torch._C._current_autograd_node()
        # A recomputed forward runs inside a node, with its modules' hooks.
        in_forward = node is None or self.ranges.here != STEP
        path = self.ranges.here if in_forward else self.ranges.node(node._sequence_nr())
        mixing = None
        if self.ranges.part.get(path) == MIXER:
            name = func._overloadpacket.__name__
            if in_forward:
                mixing = self._in_mixer(path, name)
            else:
                mixing = self._nodes.ended(path, node._sequence_nr())
        if not _is_view(func):
            op = _op(func, args, kwargs, out)._replace(mixing=mixing)
            direction = "forward" if node is None else "backward"
            self.work[path, direction].append(op)
        return out

    def _in_mixer(self, path: str, name: str) -> tuple[Call, str]:
        """Return what the mixer's call says of the operation, whose node, if it has one, is the
        last that was made."""
        call = self._calls[path, self.ranges.calls[path]]
        added = call.add(name)
        if torch._C._current_autograd_node() is None:
            last = torch.autograd._get_sequence_nr() - 1  # type: ignore[attr-defined]
            self._nodes.add(path, last, call, added)
        return call, added

    def by_part(self) -> defaultdict[str, OpWork]:
        merged = defaultdict[str, OpWork](OpWork)
        for (path, _), work in self.work.items():
            merged[self.ranges.part[path]] += work
        return merged

    def product_ms(self, peak: Peak) -> float:
        """Return the matrix products that are needed, at the measured peak."""
        ms = {part: work.product_ms(peak) for part, work in self.by_part().items()}
        skipped_ms = ms.get("scores", 0.0) * (1 - self.needed())
        return sum(ms.values()) - skipped_ms

    def needed(self) -> float:
        """Return the share of the computed scores that lies in the window: chunks compute a border
        that another kernel can skip. Of a text it is not known."""
        run = self.run
        computed = self.by_part()["scores"].flops
        if not computed or first_window(run) is None or self.subject.of.generates:
            return 1.0
        # a model of its own has no such component
        scores = component_flops(run, vocab_size=1).get("scores")
        if scores is None:
            return 1.0
        tokens = run.trainer.micro_batch * run.model.seq_len
        directions = 1 if self.subject.of.trains else 3  # a backward has twice a forward's products
        return min(1.0, scores * tokens / directions / computed)

    def held_mib(self) -> float:
        copies = HELD_COPIES if self.subject.of.trains else 1
        activations = sum(self.ranges.kept.values())
        return (copies * self.parameters + activations + self.cache) / memory.MIB


def count(run: Run, *, vocab_size: int, subject: Subject | None = None) -> Count:
    """Count one micro-batch of the run on this machine's device, without allocating it; or what
    else the subject is. Where that cannot be done, nothing is counted, and `not_counted` says
    why."""
    counted = Count(run, subject)
    device = run.trainer.device.value
    try:
        with uncounted_explained():
            _count(counted, device, vocab_size=vocab_size)
    except NotCountedError as error:
        counted = Count(run, subject)
        counted.not_counted = str(error)
    return counted


def _count(counted: Count, device: str, *, vocab_size: int) -> None:
    run = counted.run
    # FlexAttention compiles itself and cannot be faked
    countable = without_documents(run).varied(attention=run.attention.countable())
    counted.as_run = countable.attention == run.attention and not run.data.document_mask
    with FakeTensorMode():
        with torch.device(device):
            model = build_model(countable, vocab_size=vocab_size)
        if counted.subject.of.generates:
            _count_text(counted, model.eval())
        else:
            _count_forward(counted, model)
    counted.parameters = memory.n_bytes(model.parameters())


def _count_forward(counted: Count, model: LanguageModel) -> None:
    """Count a micro-batch's forward, and in training its backward."""
    run = counted.run
    trains = counted.subject.of.trains
    device = next(model.parameters()).device
    shape = (run.trainer.micro_batch, run.model.seq_len)
    tokens = torch.zeros(shape, dtype=torch.long, device=device)
    with counted.ranges.around(model), counted, torch.set_grad_enabled(trains):
        parameters = list(model.parameters())
        saved = memory.saved_for_backward(parameters, on_save=counted.ranges.keep)
        with saved, autocast(run, run.trainer.precision):
            loss = model(tokens, tokens)
        if trains:
            loss.total.backward()


def _count_text(counted: Count, model: LanguageModel) -> None:
    """Count a prompt, or a token after it. The run itself says whether there is a cache, not what
    is counted in its place."""
    run = counted.run
    subject = counted.subject
    device = next(model.parameters()).device
    prompt = torch.zeros(1, subject.prompt, dtype=torch.long, device=device)
    engine: Engine = Recompute(model)
    if subject.cached:
        with suppress(UncachedError):
            engine = Cached(model, run, batch=subject.texts, capacity=run.model.seq_len)
    counted.cache = engine.cache_bytes
    if subject.of is SubjectKind.token:
        engine.prefill(prompt)
    with counted.ranges.around(model), counted.ranges.around_engine(engine), counted:
        if subject.of is SubjectKind.prefill:
            engine.prefill(prompt)
        else:
            engine.decode(torch.zeros(subject.texts, dtype=torch.long, device=device))


# Operations that read some rows of an argument: (argument, what it reads instead is as large as the
# output).
_GATHERS = {"embedding": "weight", "nll_loss_forward": "self", "nll_loss_backward": "self"}
# Operations that write some rows of an argument: what they write is as large as another one.
_SCATTERS = {"index_copy_": "source", "index_put_": "values", "copy_": "src"}
_VIEWS = {"_unsafe_view", "_reshape_alias"}  # views whose schema does not say so


def _is_view(func: Any) -> bool:
    if func._overloadpacket.__name__ in _VIEWS:
        return True
    aliases = [value.alias_info for value in func._schema.returns]
    return any(alias is not None and not alias.is_write for alias in aliases)


def _op(func: Any, args: Any, kwargs: Any, out: Any) -> Op:
    name = func._overloadpacket.__name__
    arguments = [argument.name for argument in func._schema.arguments]
    named = dict(zip(arguments, args, strict=False)) | kwargs
    gathered = _GATHERS.get(name)
    read: list[Tensor] = []
    for key, value in named.items():
        if key != gathered:
            read += _tensors(value)
    written = list(_tensors(out))
    if name in _GATHERS:
        read += written
    if name in _SCATTERS:
        written = list(_tensors(named[_SCATTERS[name]]))
        read = written
    distinct = {id(t): t for t in read}
    floats = [t.dtype for t in (*read, *written) if t.is_floating_point()]
    dtype = "fp32"
    if floats and floats[0] is torch.bfloat16:
        dtype = "bf16"
    flops = op_flops(func, args, kwargs, out)
    n_bytes = sum(map(_size, distinct.values())) + sum(map(_size, written))
    return Op(name, dtype, flops, n_bytes)


def _tensors(tree: Any) -> Iterable[Tensor]:
    return (t for t in tree_leaves(tree) if isinstance(t, Tensor))


def _size(t: Tensor) -> int:
    """Bytes behind a tensor; an expanded one has fewer than elements."""
    return min(t.numel() * t.element_size(), t.untyped_storage().nbytes())
