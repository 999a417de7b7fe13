"""Attention over a causal window, in all layers or in some: `sliding` and `hybrid` are its yamls."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Self

from nocap.config.keys import require
from nocap.config.trainer import Device, Precision
from nocap.options.attention.softmax import LOCAL_KERNELS, Kernel, Softmax

if TYPE_CHECKING:
    import torch

    from nocap.config.run import Run
    from nocap.model.attention import Mixer


@dataclass(kw_only=True, slots=True)
class Sliding(Softmax):
    """Each token attends to itself and the `window` - 1 tokens before it."""

    LOCAL: ClassVar[dict[str, bool]] = {"kernel": True}
    OF_WINDOWS: ClassVar[str] = "kernel"  # the key of the kernel of the layers that slide

    kind: str = "sliding"
    window: int  # tokens

    def __post_init__(self) -> None:
        Softmax.__post_init__(self)
        require(self.window >= 1, "attention.window", "be at least 1 token", self.window)

    @property
    def kernel_of_windows(self) -> Kernel:
        found: Kernel = getattr(self, self.OF_WINDOWS)
        return found

    def mixer(self, run: Run, layer: int) -> Mixer:
        from nocap.model.sliding import blocks, flex

        if self.window_of(layer) is None:
            return Softmax.mixer(self, run, layer)
        return flex(self.window) if self.kernel_of_windows is Kernel.flex else blocks(self.window)

    def prepare(self, run: Run, device: torch.device) -> None:
        if self.kernel_of_windows is Kernel.flex:
            from nocap.model.sliding import prepare_flex

            prepare_flex(self.window, seq_len=run.model.seq_len, device=device)

    def window_of(self, layer: int) -> int | None:
        return self.window

    # What Softmax says of a window, it says of this mixer too.
    keys_met = Softmax.keys_met
    cache_slots = Softmax.cache_slots

    def kernel_name(self, device: Device, precision: Precision) -> str:
        return self.kernel.value

    def at_window(self, window: int) -> Self:
        return replace(self, window=window)

    def portable(self) -> Self:
        return replace(self, kernel=Kernel.blocks)

    def countable(self) -> Self:
        blocks: dict[str, Kernel] = {self.OF_WINDOWS: Kernel.blocks}
        return replace(self, **blocks) if self.kernel_of_windows is Kernel.flex else self  # type: ignore[arg-type]


@dataclass(kw_only=True, slots=True)
class Hybrid(Sliding):
    """Layers take their kind from `pattern`, repeated: L is local (sliding, `local_kernel`), G is global (`kernel`)."""

    LOCAL: ClassVar[dict[str, bool]] = {"kernel": False, "local_kernel": True}
    OF_WINDOWS: ClassVar[str] = "local_kernel"

    kind: str = "hybrid"
    pattern: str
    local_kernel: Kernel

    def __post_init__(self) -> None:
        Sliding.__post_init__(self)
        rule = "mix the letters L (local) and G (global)"
        require(set(self.pattern) == {"L", "G"}, "attention.pattern", rule, repr(self.pattern))

    def window_of(self, layer: int) -> int | None:
        return self.window if self.pattern[layer % len(self.pattern)] == "L" else None

    def kernel_name(self, device: Device, precision: Precision) -> str:
        whole = Softmax.kernel_name(self, device, precision)
        return whole if self.kernel in LOCAL_KERNELS else f"{self.local_kernel.value}+{whole}"

    def portable(self) -> Self:
        whole = self.kernel if self.kernel is Kernel.materialized else Kernel.fused
        return replace(self, kernel=whole, local_kernel=Kernel.blocks)
