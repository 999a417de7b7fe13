"""A micro-batch's forward and backward as one CUDA graph: one launch in place of hundreds, which
pays where the host is the slower one."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from nocap.config.keys import InputError
from nocap.model.loss import Loss
from nocap.training import memory
from nocap.training.memory_limit import ran_out


class MicroBatchGraph:
    """`work`, whose launches are recorded once and replayed on each later micro-batch's tokens.

    Gradients are added up in the tensors that they have here: `zero` them, never replace them. The
    graph keeps the memory that a micro-batch needs for as long as it lives; torch's allocator
    counts that as free, so `unseen_mib` is what to add to its peaks.

    Errors:
        InputError: `work` does what no graph can hold: it reads from the device, waits for it, or
            copies to it.
    """

    def __init__(
        self, work: Callable[[Tensor], Loss], tokens: Tensor, parameters: list[nn.Parameter]
    ) -> None:
        self._tokens = tokens
        self._graph = torch.cuda.CUDAGraph()
        try:
            with _no_waits():
                # makes the gradients; parameters that get none have none in the graph either
                work(tokens)
            self._gradients = [p.grad for p in parameters if p.grad is not None]
            self.zero()
            memory.reset_peak(tokens.device)
            with torch.cuda.graph(self._graph):
                allocated_bytes = torch.cuda.memory_allocated()
                self._loss = work(tokens)
        except RuntimeError as error:
            if ran_out(error):
                raise
            cause = next(iter(str(error).splitlines()), "")
            rule = (
                "be false for a model that reads from the device, waits for it or copies to it in "
                "its forward or backward"
            )
            raise InputError(f"trainer.cuda_graphs must {rule}, got true ({cause})") from error
        self.unseen_mib = memory.peak_mib(tokens.device) - allocated_bytes / memory.MIB
        memory.reset_peak(tokens.device)

    def zero(self) -> None:
        """Set the gradients to zero, in their place."""
        torch._foreach_zero_(self._gradients)

    def __call__(self, tokens: Tensor) -> Loss:
        """Return the loss of these tokens, until the next call; its gradients are added."""
        self._tokens.copy_(tokens)
        self._graph.replay()
        return self._loss


@contextmanager
def _no_waits() -> Iterator[None]:
    """Raise RuntimeError where something waits for the device. So it is found before a capture,
    which a wait would break off, with traces in torch's state."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Synchronization debug mode")
        torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode("default")
