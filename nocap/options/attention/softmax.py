"""Softmax attention over all earlier tokens: `mha`, `flash`, `gqa` and `mqa` are its yamls."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Self

from nocap.config.keys import key, require
from nocap.config.option import declared
from nocap.config.trainer import Device, Precision
from nocap.options.attention import Attention, causal_keys

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch
    from torch import Tensor

    from nocap.config.run import Run
    from nocap.model.attention import Documents, Mixer


class Kernel(Enum):
    """How attention is computed: global layers by one of the first five, sliding windows by one of
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


# Those that take documents. On CUDA one fused kernel takes a mask of all pairs, and flex alone
# leaves out what is hidden.
DOCUMENT_KERNELS = {
    Device.cpu: (Kernel.materialized, Kernel.fused, Kernel.flash, Kernel.blocks),
    Device.cuda: (Kernel.materialized, Kernel.efficient, Kernel.flex, Kernel.blocks),
}
LOCAL_KERNELS = (Kernel.flex, Kernel.blocks)
GLOBAL_KERNELS = tuple(kernel for kernel in Kernel if kernel not in LOCAL_KERNELS)


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
    # The token with which a document begins: attention stays inside a document. Positions go on.
    # null: there are no documents.
    document_start: int | None = key(ge=0, le=65535, default=None)

    def __post_init__(self) -> None:
        Attention.__post_init__(self)
        for name, allowed in self.KERNELS.items():
            kernel: Kernel = getattr(self, name)
            allowed = (
                allowed
                if self.document_start is None
                else tuple(dict.fromkeys((*allowed, Kernel.flex)))
            )
            rule = f"be one of {', '.join(k.value for k in allowed)} for this option"
            require(kernel in allowed, f"attention.{name}", rule, kernel.value)

    def check(self, run: Run) -> None:
        Attention.check(self, run)
        t, on_cpu = run.trainer, run.trainer.device is Device.cpu
        for name in self.KERNELS:
            kernel: Kernel = getattr(self, name)
            cuda_only = kernel in (Kernel.efficient, Kernel.cudnn, Kernel.flex)
            rule = "be one that trains on the CPU (materialized, flash; blocks for a window)"
            require(not (on_cpu and cuda_only), f"attention.{name}", rule, kernel.value)
            rule = (
                "be fused or efficient on CUDA where trainer.precision is fp32, which this kernel "
                "does not take"
            )
            half_only = kernel in (Kernel.flash, Kernel.cudnn)
            require(
                on_cpu or not (t.precision is Precision.fp32 and half_only),
                f"attention.{name}",
                rule,
                kernel.value,
            )
            takes = DOCUMENT_KERNELS[t.device]
            rule = (
                f"be one of {', '.join(k.value for k in takes)} beside attention.document_start on "
                f"trainer.device={t.device.value}"
            )
            require(
                self.document_start is None or kernel in takes,
                f"attention.{name}",
                rule,
                kernel.value,
            )
        start, size = self.document_start, run.tokenizer.vocab_size
        require(
            start is None or start < size,
            "attention.document_start",
            f"be a token, below {size}, or null",
            start,
        )
        known = start is None or declared(self, "documents", of=("build", "mixer")) is not None
        require(
            known,
            "attention.document_start",
            f"be null: the mixer of attention.kind={self.kind} takes no documents",
            start,
        )

    def mixer(self, run: Run, layer: int) -> Mixer:
        from nocap.model.attention import flex, fused, materialized

        if self.kernel is Kernel.flex:
            return flex(None)
        return materialized if self.kernel is Kernel.materialized else fused(self.kernel)

    def documents(self, run: Run) -> Callable[[Tensor], Documents] | None:
        """Return what makes, from a forward's tokens (B, T), the mixers' fourth argument; None:
        they have three."""
        from nocap.model.attention import Documents

        if self.document_start is None:
            return None
        layers = [
            (self.window_of(layer), self.kernel_of(layer)) for layer in range(run.model.n_layer)
        ]
        dense = any(kernel not in LOCAL_KERNELS for _, kernel in layers)
        return partial(
            Documents,
            start=self.document_start,
            dense=dense,
            flex_windows={w for w, kernel in layers if kernel is Kernel.flex},
        )

    def kernel_of(self, layer: int) -> Kernel:
        return self.kernel

    def prepare(self, run: Run, device: torch.device) -> None:
        from nocap.model.attention import prepare_flex

        for window in {
            self.window_of(layer)
            for layer in range(run.model.n_layer)
            if self.kernel_of(layer) is Kernel.flex
        }:
            prepare_flex(window, seq_len=run.model.seq_len, device=device)

    def keys_met(self, layer: int, T: int) -> float:
        return causal_keys(self.window_of(layer), T)

    def cache_slots(self, layer: int, capacity: int) -> int | None:
        return (
            None
            if self.document_start is not None
            else min(self.window_of(layer) or capacity, capacity)
        )

    def kernel_name(self, run: Run, precision: Precision) -> str:
        if self.kernel in (Kernel.materialized, Kernel.flex):
            return self.kernel.value
        kernels = sdpa_kernels(
            self.kernel, run.trainer.device, precision, masked=self.document_start is not None
        )
        if len(kernels) == 1:
            return kernels[0].value
        from nocap.model.attention import torchs_choice

        return torchs_choice(run, self.n_kv_heads, kernels).value

    def portable(self) -> Self:
        return self if self.kernel is Kernel.materialized else replace(self, kernel=Kernel.fused)

    def countable(self) -> Self:
        return (
            self if self.document_start is None else replace(self.portable(), document_start=None)
        )
