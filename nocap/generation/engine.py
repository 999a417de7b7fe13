"""Two ways to the next token's logits: over cached keys and values, or by the whole prefix again. Both give the same tokens.

B: batch, T: tokens, V: vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any, Protocol

import torch
from torch import Tensor

from nocap import schema
from nocap.generation.cache import LayerCache
from nocap.model.attention import Mixer, build_mixer, is_local
from nocap.model.gpt import GPT


class Engine(Protocol):
    def prefill(self, tokens_BT: Tensor) -> Tensor:
        """Start over with these tokens; the logits (B, V) of the token after them."""

    def decode(self, tokens_B: Tensor) -> Tensor:
        """One more token a sequence; the logits (B, V) of the token after it."""


class Recompute:
    """The training model's own forward over the whole prefix, for each token: the reference, and what a cache saves."""

    def __init__(self, model: GPT) -> None:
        self.model = model

    @torch.no_grad()
    def prefill(self, tokens_BT: Tensor) -> Tensor:
        self.tokens_BT = tokens_BT
        return self.model.head.logits(self.model.trunk(tokens_BT)[:, -1:])[:, 0]

    def decode(self, tokens_B: Tensor) -> Tensor:
        prefix_BT = self.tokens_BT.expand(len(tokens_B), -1)
        return self.prefill(torch.cat([prefix_BT, tokens_B[:, None]], dim=1))


class Cached:
    """Prefill in one pass, then a token at a time over `LayerCache`s for `batch` sequences of up to `capacity` tokens.

    With `compiled`, decoding is one graph of static shapes (torch.compile), made at the first token for this model as it is then.
    """

    def __init__(self, model: GPT, run: schema.Run, *, batch: int, capacity: int, compiled: bool = False) -> None:
        assert capacity <= run.model.seq_len, "the model has no positions beyond its context"
        self.model, self.batch, self.capacity = model, batch, capacity
        weight = model.embedding.weight
        self.layers = [
            LayerCache(
                batch=batch,
                n_kv_heads=run.attention.n_kv_heads,
                slots=layer_slots(run.attention, layer, capacity),
                like=weight.detach(),
                d_head=run.model.d_model // run.model.n_head,
            )
            for layer in range(run.model.n_layer)
        ]
        self.mixers = [build_mixer(run.attention, layer) for layer in range(run.model.n_layer)]
        self.tokens_B = torch.zeros(batch, dtype=torch.long, device=weight.device)
        self.position = torch.zeros(1, dtype=torch.long, device=weight.device)
        self.length = 0
        self._static = _compiled(weight.device) if compiled else None

    @property
    def n_bytes(self) -> int:
        """Bytes of all keys and values that there is room for."""
        return sum(layer.n_bytes for layer in self.layers)

    @torch.no_grad()
    def prefill(self, tokens_BT: Tensor) -> Tensor:
        T = tokens_BT.shape[1]
        assert self.capacity >= T
        mixers = [layer.prefill(mixer) for layer, mixer in zip(self.layers, self.mixers, strict=True)]
        self.length = T
        self.position.fill_(T)
        return next_logits(self.model, tokens_BT, slice(0, T), mixers)

    @torch.no_grad()
    def decode(self, tokens_B: Tensor) -> Tensor:
        assert self.length < self.capacity
        assert len(tokens_B) == self.batch
        if self._static is not None:
            # Into the one tensor that the graph was made for: other strides would be read wrong.
            logits_BV: Tensor = self._static(self, self.tokens_B.copy_(tokens_B), self.position)
            self.position += 1
        else:
            mixers = [layer.decode(self.length) for layer in self.layers]
            logits_BV = next_logits(self.model, tokens_B[:, None], slice(self.length, self.length + 1), mixers)
        self.length += 1
        return logits_BV


def static_step(engine: Cached, tokens_B: Tensor, position: Tensor) -> Tensor:
    """`Cached.decode` in shapes that do not depend on the position, a tensor of one integer."""
    mixers = [layer.decode_static(position) for layer in engine.layers]
    return next_logits(engine.model, tokens_B[:, None], position, mixers)


def _compiled(device: torch.device) -> Callable[[Cached, Tensor, Tensor], Tensor]:
    """`static_step` as one graph, without the checks at each call that what it was made for still holds: an engine's shapes and modules do
    not change, and the checks, several for every module and weight, took 0.9 of 3.2 ms a token in a model of four layers."""
    # dynamo keeps its graphs by code object. One for each engine: none runs another's graph, and none counts as another's recompilation.
    own = FunctionType(static_step.__code__.replace(), globals())
    options: dict[str, Any] = {"guard_filter_fn": torch.compiler.skip_all_guards_unsafe, "cpp_wrapper": device.type == "cpu"}
    return torch.compile(own, fullgraph=True, dynamic=False, options=options)


def next_logits(model: GPT, tokens_BT: Tensor, positions: slice | Tensor, mixers: Sequence[Mixer]) -> Tensor:
    """`GPT.logits` of the last token, (B, V), for tokens at `positions` whose attention is `mixers`, one a layer."""
    x_BTC: Tensor = model.embedding(tokens_BT)
    if model.position is not None:
        x_BTC = x_BTC + model.position.weight[positions]
    rotary = (model.cos[positions], model.sin[positions]) if model.rope else None
    for block, mixer in zip(model.blocks, mixers, strict=True):
        x_BTC = block(x_BTC, rotary, mixer)
    return model.head.logits(x_BTC[:, -1:])[:, 0]


def layer_slots(spec: schema.Attention, layer: int, capacity: int) -> int:
    """Tokens that this layer's cache holds."""
    return min(spec.window, capacity) if isinstance(spec, schema.Sliding) and is_local(spec, layer) else capacity
