"""The attention options: how a token gathers from those before it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Self

from nocap.config.keys import key, require
from nocap.config.option import AnyRun, Option
from nocap.options.run_parts import RunParts

if TYPE_CHECKING:
    import torch
    from torch import nn

    from nocap.model.context import Mixer


@dataclass(kw_only=True, slots=True)
class Attention(Option):
    """Causal self-attention. An option has a `mixer`, or replaces the whole module by `build`.

    Optional methods about a mixer, defined by the class that defines the mixer or by a later one
    (see `nocap.config.option.declared`):

        keys_met(layer, T) -> float         keys a query meets on average: all that its FLOPs
                                            depend on, 12·d_model a key; without it they are
                                            counted
        cache_slots(layer, capacity) -> int it is softmax over the last so many keys, and decodes
                                            from a cache; without it, or where it is None, the
                                            prefix is recomputed for each token
        documents(run) -> function          with `data.document_mask`, makes the mixer's fourth
                                            argument of a forward's tokens; without it the mask is
                                            refused
        kernel_name(run, precision) -> str  for the record; without it the option's kind

    And about the module of `build`:

        flops_per_token(run, layer) -> float of forward and backward of the whole module, of pairs
                                            of tokens those that are seen; without it they are
                                            counted
        rows() -> dict                      the row of the profile for each module inside by its
                                            name (see `nocap.metrics`); without it the
                                            module is one row
    """

    READ_BY: ClassVar[dict[str, tuple[str, ...]]] = {
        "build": ("attention.merge_qkv", "model.qk_norm")
    }

    n_kv_heads: int = key(ge=1, le=65536)  # number of key/value heads; it must divide model.n_head
    # compute queries, keys and values in one product; nocap then rounds the input gradient once
    # instead of three times
    merge_qkv: bool = False

    def check(self, run: AnyRun) -> None:
        parts: RunParts = run
        n_head = parts.model.n_head
        divides = n_head % self.n_kv_heads == 0
        rule = f"divide model.n_head={n_head}"
        require(divides, "attention.n_kv_heads", rule, self.n_kv_heads)

    def build(self, run: AnyRun, layer: int) -> nn.Module:
        """Return a layer's attention: a module from x_BTC and the forward's
        `nocap.model.context.Context` to BTC."""
        from nocap.model.first_weights import keyed
        from nocap.model.self_attention import CausalSelfAttention

        parts: RunParts = run
        with keyed(parts.seed, f"blocks.{layer}.attention.mixer"):
            mixer = self.mixer(run, layer)
        return CausalSelfAttention(
            parts.model,
            parts.position,
            mixer,
            n_kv_heads=self.n_kv_heads,
            merge_qkv=self.merge_qkv,
        )

    def rows(self) -> dict[str, str]:
        projections = dict.fromkeys(("q_proj", "k_proj", "v_proj", "merged"), "qkv")
        return {**projections, "": "rotary", "mixer": "scores", "out_proj": "attention_out"}

    def mixer(self, run: AnyRun, layer: int) -> Mixer:
        """Return a layer's function from q_BHTD, k_BKTD, v_BKTD to BHTD, K being `n_kv_heads`; a
        module where it has parameters."""
        raise NotImplementedError(
            f"attention.kind={self.kind} must define the method mixer, or build"
        )

    def prepare(self, run: AnyRun, device: torch.device) -> None:
        """Make what mixers look up, before the first forward on this device."""

    def window_of(self, layer: int) -> int | None:
        """Return the layer's window in tokens, the query's own included; None: all earlier tokens.
        One that has a window defines `at_window`, too: so its FLOPs can be counted."""
        return None

    def at_window(self, window: int) -> Self:
        """Return the same with this window, where it has one: for costs over a length that the
        window does not follow."""
        return self

    def portable(self) -> Self:
        """Return the same mathematics by kernels that take any device, fp32 and any length, for
        decoding."""
        return self

    def countable(self) -> Self:
        """Return the same mathematics by kernels that run on tensors without memory, for
        counting."""
        return self


def causal_keys(window: int | None, T: int) -> float:
    """Return how many keys a query meets on average, its own counted as half: T/2 under the causal
    mask; with a window w < T, w - w²/2T."""
    w = min(window or T, T)
    return w - w * w / (2 * T)
