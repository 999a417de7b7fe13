"""Memory in parts: what is held by arithmetic, what a step saves for its backward pass, and the
peak."""

from __future__ import annotations

import gc
import resource
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

MIB = 2**20


def parts_mib(
    parameters: Iterable[Tensor],
    optimizers: Iterable[torch.optim.Optimizer],
    around: Iterable[Tensor] = (),
) -> dict[str, float]:
    """Return the MiB of the parameters, their gradients (as large, in the same dtype) and the
    optimizer's state, with what ideas keep `around` it."""
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
    """Return the bytes of these tensors together."""
    return sum(t.numel() * t.element_size() for t in tensors)


@contextmanager
def saved_for_backward(
    parameters: Iterable[Tensor], *, on_save: Callable[[int], None] = lambda n: None
) -> Iterator[dict[int, int]]:
    """Yield storage → bytes of the tensors that a forward inside the block keeps for its backward,
    without parameters.

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
    """Return the most MiB at once: allocated on a GPU; on the CPU resident in this process, torch's
    libraries included."""
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
    """Give memory that nothing holds back to the device, so that the next peak is not that of a
    cache."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
