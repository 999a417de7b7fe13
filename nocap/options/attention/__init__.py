"""The attention options: how a token gathers from those before it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from nocap.config.keys import require
from nocap.config.option import Option

if TYPE_CHECKING:
    import torch
    from torch import nn

    from nocap.config.run import Run
    from nocap.config.trainer import Device, Precision
    from nocap.model.attention import Mixer


@dataclass(kw_only=True, slots=True)
class Attention(Option):
    """Causal self-attention. An option has a `mixer`, or replaces the whole module by `build`.

    What else may be declared of a mixer, by the class that brings it or a later one (see `nocap.config.option.declared`):

        keys_met(layer, T) -> float              keys a query meets on average; else FLOPs are counted
        cache_slots(layer, capacity) -> int      it is softmax over the last so many keys, and decodes from a cache of them; else the
                                                 prefix is recomputed for each token
        kernel_name(device, precision) -> str    for the record; else the option's kind

    And of the module that `build` makes: rows() -> dict, the row of the profile for each module inside by its name (see
    `nocap.measure.names`); else it is one row.
    """

    n_kv_heads: int

    def __post_init__(self) -> None:
        require(self.n_kv_heads >= 1, "attention.n_kv_heads", "be at least 1", self.n_kv_heads)

    def check(self, run: Run) -> None:
        n_head = run.model.n_head
        require(n_head % self.n_kv_heads == 0, "attention.n_kv_heads", f"divide model.n_head={n_head}", self.n_kv_heads)

    def build(self, run: Run, layer: int) -> nn.Module:
        """A layer's attention, called with x_BTC and the forward's `nocap.model.gpt.Context`; returns BTC."""
        from nocap.model.attention import CausalSelfAttention

        return CausalSelfAttention(run, layer)

    def rows(self) -> dict[str, str]:
        projections = dict.fromkeys(("q_proj", "k_proj", "v_proj"), "qkv")
        return {**projections, "": "rotary", "mixer": "scores", "out_proj": "attention_out"}

    def mixer(self, run: Run, layer: int) -> Mixer:
        """What a layer's queries, keys and values become: called with q_BHTD, k_BKTD, v_BKTD, it returns BHTD. A function, or a module
        where it has parameters. K, the key/value heads, is `n_kv_heads`."""
        raise NotImplementedError(f"attention.kind={self.kind} must define mixer, or build")

    def prepare(self, run: Run, device: torch.device) -> None:
        """Make what mixers look up, before the first forward on this device."""

    def window_of(self, layer: int) -> int | None:
        """Tokens that the layer looks back on, itself included; None: all."""
        return None

    def at_window(self, window: int) -> Self:
        """The same with this window, where it has one: for costs over a length that the window does not follow."""
        return self

    def portable(self) -> Self:
        """The same mathematics by kernels that take any device, fp32 and any length, for decoding."""
        return self

    def countable(self) -> Self:
        """The same mathematics by kernels that run on tensors without memory, for counting."""
        return self


def first_window(run: Run) -> int | None:
    """Of the first layer that has one."""
    return next((w for layer in range(run.model.n_layer) if (w := run.attention.window_of(layer)) is not None), None)


def kernel_name(attention: Attention, device: Device, precision: Precision) -> str:
    """The attention kernel that runs, for the record."""
    from nocap.config.option import declared

    named = declared(attention, "kernel_name", of=("build", "mixer"))
    return str(named(device, precision)) if named else attention.kind
