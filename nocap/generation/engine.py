"""Two ways to the next token's logits: over cached keys and values, or by the whole prefix again. Both give the same tokens.

B: batch, T: tokens, V: vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any, Protocol

import torch
from torch import Tensor

from nocap.config.option import declared
from nocap.config.run import Run
from nocap.generation.cache import LayerCache
from nocap.model.attention import CausalSelfAttention, Mixer
from nocap.model.gpt import GPT, Block
from nocap.model.language_model import LanguageModel

PROBED = 12  # tokens on which a cache is tried before it is trusted


class Engine(Protocol):
    def prefill(self, tokens_BT: Tensor) -> Tensor:
        """Start over with these tokens; the logits (B, V) of the token after them."""

    def decode(self, tokens_B: Tensor) -> Tensor:
        """One more token a sequence; the logits (B, V) of the token after it."""


class UncachedError(ValueError):
    """This model does not decode from a cache; the message says why."""


def engine_for(model: LanguageModel, run: Run, *, batch: int, capacity: int, compiled: bool = False, say: Callable[[str], None]) -> Engine:
    """An engine with a cache; where the model has none, one that recomputes the prefix, with one line that says so."""
    try:
        check_cached(model, run)
    except UncachedError as error:
        say(f"no cache: {error}; the prefix is computed again for each token")
        return Recompute(model)
    return Cached(model, run, batch=batch, capacity=capacity, compiled=compiled)


class Recompute:
    """The training model's own forward over the whole prefix, for each token: the reference, and what a cache saves."""

    def __init__(self, model: LanguageModel) -> None:
        self.model = model

    @torch.no_grad()
    def prefill(self, tokens_BT: Tensor) -> Tensor:
        self.tokens_BT = tokens_BT
        return self.model.next_logits(tokens_BT)

    def decode(self, tokens_B: Tensor) -> Tensor:
        prefix_BT = self.tokens_BT.expand(len(tokens_B), -1)
        return self.prefill(torch.cat([prefix_BT, tokens_B[:, None]], dim=1))


class Cached:
    """Prefill in one pass, then a token at a time over `LayerCache`s for `batch` sequences of up to `capacity` tokens.

    With `compiled`, decoding is one graph of static shapes (torch.compile), made at the first token for this model as it is then.

    Errors:
        UncachedError: the model has no cached form.
    """

    def __init__(self, model: LanguageModel, run: Run, *, batch: int, capacity: int, compiled: bool = False) -> None:
        assert capacity <= run.model.seq_len, "the model has no positions beyond its context"
        self.model, self.mixers = usual(model, run)
        self.batch, self.capacity = batch, capacity
        weight = self.model.embedding.weight
        self.layers = [
            LayerCache(
                batch=batch,
                n_kv_heads=run.attention.n_kv_heads,
                slots=slots,
                like=weight.detach(),
                d_head=run.model.d_model // run.model.n_head,
            )
            for slots in cache_slots(run, capacity)
        ]
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


def next_logits(model: GPT, tokens_BT: Tensor, where: slice | Tensor, mixers: Sequence[Mixer]) -> Tensor:
    """`GPT.logits` of the last token, (B, V), for tokens at these positions whose attention is `mixers`, one a layer."""
    return model.head.logits(model.trunk(tokens_BT, where=where, mixers=mixers)[:, -1:])[:, 0]


# --- whether there is a cache ------------------------------------------------------------------------------------------------------


def cache_slots(run: Run, capacity: int) -> list[int]:
    """Tokens that each layer's cache holds.

    Errors:
        UncachedError: the attention option does not say.
    """
    slots = declared(run.attention, "cache_slots", of=("build", "mixer"))
    if slots is None:
        raise UncachedError(f"attention.kind={run.attention.kind} says no cache_slots of its mixer")
    return [slots(layer, capacity) for layer in range(run.model.n_layer)]


def usual(model: LanguageModel, run: Run) -> tuple[GPT, list[Mixer]]:
    """The model and its layers' mixers, where it is made of the blocks that a cache can enter.

    Errors:
        UncachedError: it is not, or an idea looks across tokens.
    """
    across = [name for name, idea in run.ideas.items() if not idea.PER_TOKEN and name in model_places(model)]
    if across:
        raise UncachedError(f"ideas.{across[0]} does not say that it takes each token by itself (PER_TOKEN)")
    if type(model) is not GPT:
        raise UncachedError(f"model.kind={run.model.kind} is a model of its own")
    layers = [block.attention.f for block in model.blocks if type(block) is Block]
    mixers = [attention.mixer for attention in layers if type(attention) is CausalSelfAttention]
    if len(mixers) < run.model.n_layer:
        raise UncachedError(f"model.kind={run.model.kind} with attention.kind={run.attention.kind} has layers of its own")
    return model, mixers


def model_places(model: LanguageModel) -> set[str]:
    """The ideas that have a part in the model's forward."""
    return {words[-1] for path, _ in model.named_modules() if (words := path.split("."))[-2:-1] == ["ideas"]}


@torch.no_grad()
def check_cached(model: LanguageModel, run: Run) -> None:
    """Try the cache on a few tokens against the prefix computed again: what an option says of itself is believed when it is so.

    Errors:
        UncachedError: there is no cache, or it gives other logits.
    """
    T = min(PROBED, run.model.seq_len)
    cached, again = Cached(model, run, batch=1, capacity=T), Recompute(model)
    weight = next(model.parameters())
    tokens_T = (torch.arange(T, device=weight.device) * 31 + 7) % run.tokenizer.vocab_size
    for t in range(1, T):
        mine = cached.prefill(tokens_T[None, :t]) if t == 1 else cached.decode(tokens_T[t - 1 : t])
        theirs = again.prefill(tokens_T[None, :t])
        if not torch.allclose(mine, theirs, rtol=1e-3, atol=1e-3 * float(theirs.abs().max())):
            raise UncachedError(f"its logits differ from the whole prefix's at token {t}: some option looks across tokens")
