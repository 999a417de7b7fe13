"""Attention over a causal window, in all layers or in some: `sliding` and `hybrid` are its
yamls."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Self

from nocap.config.keys import key, require
from nocap.options.attention.kernel import GLOBAL_KERNELS, LOCAL_KERNELS, Kernel
from nocap.options.attention.softmax import Softmax

if TYPE_CHECKING:
    from nocap.config.run import Run
    from nocap.config.trainer import Precision
    from nocap.model.context import Mixer


@dataclass(kw_only=True, slots=True)
class Sliding(Softmax):
    """Each token attends to itself and the `window` - 1 tokens before it."""

    KERNELS: ClassVar[dict[str, tuple[Kernel, ...]]] = {"kernel": LOCAL_KERNELS}

    kind: str = "sliding"
    window: int = key(ge=1, le=2**24)  # number of tokens that a query sees, with its own

    @property
    def window_kernel(self) -> Kernel:
        """Return the kernel of the layers with a window."""
        return self.kernel

    def mixer(self, run: Run, layer: int) -> Mixer:
        from nocap.model.attention import flex
        from nocap.model.sliding import blocks

        if self.window_of(layer) is None:
            return Softmax.mixer(self, run, layer)
        if self.window_kernel is Kernel.flex:
            return flex(self.window)
        return blocks(self.window)

    def kernel_of(self, layer: int) -> Kernel:
        if self.window_of(layer) is None:
            return self.kernel
        return self.window_kernel

    def window_of(self, layer: int) -> int | None:
        return self.window

    # Softmax's methods follow `window_of`, so they are right for this mixer too: see
    # `nocap.config.option.declared`.
    documents = Softmax.documents
    keys_met = Softmax.keys_met
    cache_slots = Softmax.cache_slots

    def kernel_name(self, run: Run, precision: Precision) -> str:
        return self.kernel.value

    def at_window(self, window: int) -> Self:
        return replace(self, window=window)

    def portable(self) -> Self:
        return replace(self, kernel=Kernel.blocks)

    def countable(self) -> Self:
        return self.portable()


@dataclass(kw_only=True, slots=True)
class Hybrid(Sliding):
    """Layers take their kind from `pattern`, repeated: L is local (sliding, `local_kernel`), G is
    global (`kernel`)."""

    KERNELS: ClassVar[dict[str, tuple[Kernel, ...]]] = {
        "kernel": GLOBAL_KERNELS,
        "local_kernel": LOCAL_KERNELS,
    }

    kind: str = "hybrid"
    pattern: str  # one letter for each layer, repeated: L has the window, G sees all tokens
    local_kernel: Kernel  # of the layers with a window

    def __post_init__(self) -> None:
        Sliding.__post_init__(self)
        rule = "hold both letters L (local) and G (global), and no other"
        require(set(self.pattern) == {"L", "G"}, "attention.pattern", rule, repr(self.pattern))

    def check(self, run: Run) -> None:
        Sliding.check(self, run)
        n_layer = run.model.n_layer
        letters = set(self.pattern[:n_layer])
        rule = f"have an L and a G among its first {n_layer} letters (model.n_layer={n_layer})"
        require(letters == {"L", "G"}, "attention.pattern", rule, self.pattern)

    @property
    def window_kernel(self) -> Kernel:
        return self.local_kernel

    def window_of(self, layer: int) -> int | None:
        letter = self.pattern[layer % len(self.pattern)]
        if letter == "G":
            return None
        return self.window

    def kernel_name(self, run: Run, precision: Precision) -> str:
        return f"{self.local_kernel.value}+{Softmax.kernel_name(self, run, precision)}"

    def portable(self) -> Self:
        kernel = self.kernel
        if kernel is not Kernel.materialized:
            kernel = Kernel.fused
        return replace(self, kernel=kernel, local_kernel=Kernel.blocks)
