"""Memory in parts: what is held by arithmetic, what a step saves for its backward pass, and the
peak."""

from __future__ import annotations

import gc
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


def parts_mib(
    parameters: Iterable[Tensor],
    optimizers: Iterable[torch.optim.Optimizer],
    around: Iterable[Tensor] = (),
) -> dict[str, float]:
    """MiB of the parameters, their gradients (as large, in the same dtype) and the optimizer's
    state, with what ideas keep `around` it."""
    parameter_bytes = n_bytes(parameters)
    state_bytes = 0
    for optimizer in optimizers:
        leaves = tree_leaves(list(optimizer.state.values()))
        state_bytes += n_bytes(t for t in leaves if isinstance(t, Tensor))
    return {
        "parameters": parameter_bytes / MIB,
        "gradients": parameter_bytes / MIB,
        "optimizer": (state_bytes + n_bytes(around)) / MIB,
    }


def n_bytes(tensors: Iterable[Tensor]) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)


@contextmanager
def saved_for_backward(
    parameters: Iterable[Tensor], *, on_save: Callable[[int], None] = lambda n: None
) -> Iterator[dict[int, int]]:
    """Storage → bytes of the tensors that a forward inside the block keeps for its backward,
    parameters left out.

    `on_save` gets the bytes of each as it is kept.
    """
    of_parameters = {p.untyped_storage()._cdata for p in parameters}
    sizes: dict[int, int] = {}
    alive: list[Tensor] = []  # a storage's address must not be used twice while we count

    def pack(t: Tensor) -> Tensor:
        storage = t.untyped_storage()
        address = storage._cdata
        if address not in of_parameters and address not in sizes:
            sizes[address] = storage.nbytes()
            alive.append(t.detach())
            on_save(storage.nbytes())
        # an operation that keeps its own output would keep itself: graphs without a backward would
        # stay for good
        return t.detach()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        yield sizes


def peak_mib(device: torch.device) -> float:
    """Most MiB at once: allocated on a GPU; resident in this process, torch's libraries included,
    on the CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / MIB
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    unit = 1 if sys.platform == "darwin" else 1024  # bytes
    return peak * unit / MIB


def reset_peak(device: torch.device) -> None:
    """Measure the peak of a GPU's allocator from now on."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def give_back(device: torch.device) -> None:
    """Memory that nothing holds any more: to the device, so that the next peak is not that of a
    cache."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def _proc(path: str) -> dict[str, int]:
    """Bytes by name, from the lines `Name: 123 kB` of a file in /proc; empty where there is no such
    file."""
    try:
        text = Path(path).read_text()
    except OSError:
        return {}
    rows = re.findall(r"^(\w+):\s+(\d+) kB$", text, re.M)
    return {name: 1024 * int(kib) for name, kib in rows}


def ran_out(error: BaseException) -> bool:
    """Say whether an error means that the device's or the host's memory was not enough; torch's CPU
    allocator has no type of its own for it."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    if not isinstance(error, RuntimeError):
        return False
    match = re.search(r"can't allocate memory|not enough memory|bad_alloc", str(error))
    return match is not None


@contextmanager
def bounded() -> Iterator[None]:
    """Inside the block this process may not take more than the memory that is available now: an
    allocation beyond it fails (see `ran_out`).

    Without the limit Linux grants it, and kills the process when the memory is used. Does nothing
    where there is no /proc.
    """
    available = _proc("/proc/meminfo").get("MemAvailable")
    size = _proc("/proc/self/status").get("VmSize")
    if available is None or size is None:
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = available + size
    for other in (soft, hard):
        if other != resource.RLIM_INFINITY:
            limit = min(limit, other)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
