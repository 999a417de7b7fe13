"""Softmax attention over all earlier tokens: `mha`, `flash`, `gqa` and `mqa` are its yamls."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Self

from nocap.config.keys import key, require
from nocap.config.trainer import Device, Precision
from nocap.options.attention import Attention, causal_keys

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch
    from torch import Tensor

    from nocap.config.run import Run
    from nocap.model.attention import Documents, Mixer


class Kernel(Enum):
    """How attention is computed: global layers by one of the first six, sliding windows by one of
    the last two."""

    materialized = "materialized"  # softmax over a T×T matrix that exists in memory
    # torch's own choice of a fused kernel for the device and dtype; on the CPU that is flash
    fused = "fused"
    # one named kernel, or an error; products in fp32, which flash and cudnn do not take on CUDA,
    # are efficient's
    flash = "flash"
    efficient = "efficient"
    cudnn = "cudnn"
    flex = "flex"  # FlexAttention, CUDA only (its CPU version has no backward)
    blocks = "blocks"  # chunks of at least one window, each looking at itself and the chunk before


# Those that take documents. On CUDA `fused` is efficient then, which alone takes a mask of all
# pairs, and flex alone leaves out what is hidden.
DOCUMENT_KERNELS = {
    Device.cpu: (Kernel.materialized, Kernel.fused, Kernel.flash, Kernel.blocks),
    Device.cuda: (
        Kernel.materialized,
        Kernel.fused,
        Kernel.efficient,
        Kernel.flex,
        Kernel.blocks,
    ),
}
LOCAL_KERNELS = (Kernel.flex, Kernel.blocks)
GLOBAL_KERNELS = tuple(kernel for kernel in Kernel if kernel is not Kernel.blocks)


def sdpa_kernels(
    kernel: Kernel, device: Device, precision: Precision, *, masked: bool = False
) -> tuple[Kernel, ...]:
    """Return the fused kernels that may run here, `masked` with a mask of all pairs: torch takes
    the first that it prefers on this chip, or raises."""
    if device is Device.cpu:
        return (Kernel.flash,)
    if precision is Precision.fp32 or masked:
        return (Kernel.efficient,)
    return (Kernel.cudnn, Kernel.flash, Kernel.efficient) if kernel is Kernel.fused else (kernel,)


@dataclass(kw_only=True, slots=True)
class Softmax(Attention):
    """Causal attention over all earlier tokens; fewer key/value heads make it grouped-query or
    multi-query."""

    # key → kernels that it may name
    KERNELS: ClassVar[dict[str, tuple[Kernel, ...]]] = {"kernel": GLOBAL_KERNELS}

    kind: str = "global"
    kernel: Kernel  # what computes it; never replaced by another silently
    # the name that data.document_mask had. Records have it, and identities: it stays null
    document_start: int | None = key(default=None, ge=0, le=2**32)

    def __post_init__(self) -> None:
        Attention.__post_init__(self)
        rule = "be left out: data.document_mask=true is its successor"
        is_null = self.document_start is None
        require(is_null, "attention.document_start", rule, self.document_start)

    def check(self, run: Run) -> None:
        Attention.check(self, run)
        for name, allowed in self.KERNELS.items():
            kernel: Kernel = getattr(self, name)
            for rule, holds in self._rules(run, kernel, allowed).items():
                require(holds, f"attention.{name}", rule, kernel.value)

    def _rules(self, run: Run, kernel: Kernel, allowed: tuple[Kernel, ...]) -> dict[str, bool]:
        """Return what a kernel must be, and whether it is that. `allowed`: those of the option."""
        device = run.trainer.device
        masked = run.data.document_mask
        takes = DOCUMENT_KERNELS[device]
        on_cpu = device is Device.cpu
        cuda_only = kernel in (Kernel.efficient, Kernel.cudnn, Kernel.flex)
        half_only = kernel in (Kernel.flash, Kernel.cudnn)
        in_fp32 = run.trainer.precision is Precision.fp32
        on_device = f"beside data.document_mask=true on trainer.device={device.value}"
        return {
            f"be one of {_names(allowed)} for this option": kernel in allowed,
            "be one that trains on the CPU (materialized, flash; blocks for a window)": (
                not (on_cpu and cuda_only)
            ),
            "be fused or efficient on CUDA where trainer.precision is fp32, which this kernel "
            "does not take": on_cpu or not (in_fp32 and half_only),
            f"be one of {_names(takes)} {on_device}": not masked or kernel in takes,
        }

    def mixer(self, run: Run, layer: int) -> Mixer:
        from nocap.model.attention import flex, fused, materialized

        if self.kernel is Kernel.flex:
            return flex(None)
        return materialized if self.kernel is Kernel.materialized else fused(self.kernel)

    def documents(self, run: Run) -> Callable[[Tensor], Documents]:
        """Return what makes, from a forward's tokens (B, T), the mixers' fourth argument."""
        from nocap.model.attention import Documents

        start = run.document_start
        assert start is not None, "Run refuses the mask where there are no documents"
        kernels = map(self.kernel_of, range(run.model.n_layer))
        dense = any(kernel not in LOCAL_KERNELS for kernel in kernels)
        windows = self._flex_windows(run)
        return partial(Documents, start=start, dense=dense, flex_windows=windows)

    def kernel_of(self, layer: int) -> Kernel:
        return self.kernel

    def prepare(self, run: Run, device: torch.device) -> None:
        from nocap.model.attention import prepare_flex

        for window in self._flex_windows(run):
            prepare_flex(window, seq_len=run.model.seq_len, device=device)

    def _flex_windows(self, run: Run) -> set[int | None]:
        """Return the windows of the layers that FlexAttention computes."""
        windows = set[int | None]()
        for layer in range(run.model.n_layer):
            if self.kernel_of(layer) is Kernel.flex:
                windows.add(self.window_of(layer))
        return windows

    def keys_met(self, layer: int, T: int) -> float:
        return causal_keys(self.window_of(layer), T)

    def cache_slots(self, layer: int, capacity: int) -> int:
        return min(self.window_of(layer) or capacity, capacity)

    def kernel_name(self, run: Run, precision: Precision) -> str:
        if self.kernel in (Kernel.materialized, Kernel.flex):
            return self.kernel.value
        masked = run.data.document_mask
        kernels = sdpa_kernels(self.kernel, run.trainer.device, precision, masked=masked)
        if len(kernels) == 1:
            return kernels[0].value
        from nocap.model.attention import torchs_choice

        return torchs_choice(run, self.n_kv_heads, kernels).value

    def portable(self) -> Self:
        return self if self.kernel is Kernel.materialized else replace(self, kernel=Kernel.fused)

    def countable(self) -> Self:
        return self.portable() if self.kernel is Kernel.flex else self


def _names(kernels: tuple[Kernel, ...]) -> str:
    return ", ".join(kernel.value for kernel in kernels)
