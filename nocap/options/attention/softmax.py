"""Softmax attention over all earlier tokens: `mha`, `flash`, `gqa` and `mqa` are its yamls."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Self

from nocap.config.keys import key, require
from nocap.options.attention import Attention, causal_keys
from nocap.options.attention.kernel import (
    GLOBAL_KERNELS,
    LOCAL_KERNELS,
    Kernel,
    broken_rule,
    names,
    sdpa_kernels,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch
    from torch import Tensor

    from nocap.config.run import Run
    from nocap.config.trainer import Precision
    from nocap.model.context import Mixer
    from nocap.model.documents import Documents


@dataclass(kw_only=True, slots=True)
class Softmax(Attention):
    """Causal attention over all earlier tokens; fewer key/value heads make it grouped-query or
    multi-query. `attention=mha`, `flash`, `gqa` and `mqa` choose it, by a yaml each, and differ in
    `kernel` and `n_kv_heads` alone: all heads, a part of them (`gqa`) or one (`mqa`). The `kind` of
    all four is `global`."""

    # key → kernels that it may name
    KERNELS: ClassVar[dict[str, tuple[Kernel, ...]]] = {"kernel": GLOBAL_KERNELS}

    kind: str = "global"
    kernel: Kernel  # kernel of the attention; nocap never takes another kernel instead
    # old name of data.document_mask; it must be null
    document_start: int | None = key(default=None, ge=0, le=2**32)

    def __post_init__(self) -> None:
        Attention.__post_init__(self)
        rule = "be null (set data.document_mask=true instead)"
        is_null = self.document_start is None
        require(is_null, "attention.document_start", rule, self.document_start)

    def check(self, run: Run) -> None:
        Attention.check(self, run)
        for name, allowed in self.KERNELS.items():
            place = f"attention.{name}"
            kernel = getattr(self, name)
            rule = f"be one of {names(allowed)} with attention.kind={self.kind}"
            require(kernel in allowed, place, rule, kernel.value)
            masked = run.data.document_mask
            broken = broken_rule(kernel, run.trainer.device, run.trainer.precision, masked=masked)
            require(broken is None, place, broken or "", kernel.value)

    def mixer(self, run: Run, layer: int) -> Mixer:
        from nocap.model.attention import flex, fused, materialized

        if self.kernel is Kernel.flex:
            return flex(None)
        if self.kernel is Kernel.materialized:
            return materialized
        return fused(self.kernel)

    def documents(self, run: Run) -> Callable[[Tensor], Documents]:
        """Return what makes, from a forward's tokens (B, T), the mixers' fourth argument."""
        from nocap.model.documents import Documents

        start = run.document_token
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
        window = self.window_of(layer)
        if window is None:
            return capacity
        return min(window, capacity)

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
        if self.kernel is Kernel.materialized:
            return self
        return replace(self, kernel=Kernel.fused)

    def countable(self) -> Self:
        if self.kernel is Kernel.flex:
            return self.portable()
        return self
