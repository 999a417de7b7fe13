"""Memory in parts: what is held by arithmetic, what a step saves for its backward pass, and the peak."""

from __future__ import annotations

import re
import resource
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

MIB = 2**20


def parts_mib(parameters: Iterable[Tensor], optimizers: Iterable[torch.optim.Optimizer]) -> dict[str, float]:
    """MiB of the parameters, their gradients (as large, in the same dtype) and the optimizer's state."""
    held = _bytes(parameters)
    state = _bytes(t for o in optimizers for t in tree_leaves(list(o.state.values())) if isinstance(t, Tensor))
    return {"parameters": held / MIB, "gradients": held / MIB, "optimizer": state / MIB}


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)


@contextmanager
def saved_for_backward(parameters: Iterable[Tensor], *, on_save: Callable[[int], None] = lambda n: None) -> Iterator[dict[int, int]]:
    """Storage → bytes of the tensors that a forward inside the block keeps for its backward, parameters left out.

    `on_save` is told the bytes of each as it is kept, for who wants to know where.
    """
    own = {p.untyped_storage()._cdata for p in parameters}
    kept: dict[int, int] = {}
    alive: list[Tensor] = []  # a storage's address must not be used twice while we count

    def pack(t: Tensor) -> Tensor:
        storage = t.untyped_storage()
        if storage._cdata not in own and storage._cdata not in kept:
            kept[storage._cdata] = storage.nbytes()
            alive.append(t)
            on_save(storage.nbytes())
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        yield kept


def peak_mib(device: torch.device) -> float:
    """Most MiB at once: allocated on a GPU; resident in this process, torch's libraries included, on the CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / MIB
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / MIB if sys.platform == "darwin" else peak / 1024


def ran_out(error: BaseException) -> bool:
    """Whether this says that the device's or the host's memory was not enough; torch's CPU allocator has no type of its own for it."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and re.search(r"can't allocate memory|not enough memory|bad_alloc", str(error)) is not None


@contextmanager
def bounded() -> Iterator[None]:
    """Inside the block this process may not take more than the memory that is available now: asking for it fails, as `ran_out` knows.

    Linux would promise it, and kill the process when the promise falls due. Does nothing where /proc does not say how much there is.
    """
    try:
        facts = dict(re.findall(r"^(\w+):\s+(\d+) kB$", Path("/proc/meminfo").read_text() + Path("/proc/self/status").read_text(), re.M))
        most = 1024 * (int(facts["MemAvailable"]) + int(facts["VmSize"]))
    except (OSError, KeyError):
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (min([most, *(limit for limit in (soft, hard) if limit != resource.RLIM_INFINITY)]), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
