"""Two ways to the next token's logits: over cached keys and values, or by the whole prefix again. Both give the same tokens.

B: batch, T: tokens, V: vocabulary, H: query heads, K: key/value heads, G: query heads a key/value head, S: slots, D: channels of a head.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from nocap.config.option import declared
from nocap.config.run import Run
from nocap.model.attention import CausalSelfAttention, Mixer
from nocap.model.compiled import compiled
from nocap.model.gpt import GPT, Block
from nocap.model.language_model import LanguageModel

PROBED = 12  # tokens on which a cache is tried before it is trusted


class Engine(Protocol):
    def prefill(self, tokens_BT: Tensor) -> Tensor:
        """Start over with these tokens; the logits (B, V) of the token after them."""

    def decode(self, tokens_B: Tensor) -> Tensor:
        """One more token a sequence; the logits (B, V) of the token after it."""


class UncachedError(ValueError):
    """This model does not decode from a cache; the message gives the reason."""


def engine_for(model: LanguageModel, run: Run, *, batch: int, capacity: int, compiled: bool = False, log: Callable[[str], None]) -> Engine:
    """An engine with a cache; where the model has none, one that recomputes the prefix, and a line in the log."""
    try:
        check_cached(model, run)
    except UncachedError as error:
        log(f"no cache: {error}; the prefix is computed again for each token")
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
        self.model, self.mixers = _parts(model, run)
        self.batch, self.capacity, self.length = batch, capacity, 0
        weight, heads, d_head = self.model.embedding.weight, run.attention.n_kv_heads, run.model.d_model // run.model.n_head
        self.layers = [
            LayerCache(batch=batch, n_kv_heads=heads, slots=slots, like=weight.detach(), d_head=d_head)
            for slots in _cache_slots(run, capacity)
        ]
        self.tokens_B = torch.zeros(batch, dtype=torch.long, device=weight.device)
        self.position = torch.zeros(1, dtype=torch.long, device=weight.device)
        self._static = _compiled(weight.device) if compiled else None

    @property
    def n_bytes(self) -> int:
        """Bytes of all keys and values that there is room for."""
        return sum(layer.k_BKSD.nbytes + layer.v_BKSD.nbytes for layer in self.layers)

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
    return compiled(own, {"guard_filter_fn": torch.compiler.skip_all_guards_unsafe, "cpp_wrapper": device.type == "cpu"})


def next_logits(model: GPT, tokens_BT: Tensor, where: slice | Tensor, mixers: Sequence[Mixer]) -> Tensor:
    """`GPT.logits` of the last token, (B, V), for tokens at these positions whose attention is `mixers`, one a layer."""
    return model.head.logits(model.trunk(tokens_BT, where=where, mixers=mixers)[:, -1:])[:, 0]


# --- the cache of a layer


class LayerCache:
    """Keys and values so far, allocated once, as a ring: position p lies in slot p mod S. A global layer has a slot for every position. A
    sliding layer has `window` slots, so that a new token takes the place of the one that it no longer sees.

    Each method gives a mixer, which stores the keys and values that it gets and attends.
    """

    def __init__(self, *, batch: int, n_kv_heads: int, slots: int, like: Tensor, d_head: int) -> None:
        # Zeros: a compiled step multiplies hidden slots by 0, and 0 × uninitialised memory may be NaN.
        self.k_BKSD = like.new_zeros(batch, n_kv_heads, slots, d_head)
        self.v_BKSD = torch.zeros_like(self.k_BKSD)
        self.slots = slots

    def prefill(self, mixer: Mixer) -> Mixer:
        """Positions from 0 in one pass through `mixer`. A prompt that is one sequence serves every sequence of the cache."""

        def mix(q_BHTD: Tensor, k_BKTD: Tensor, v_BKTD: Tensor) -> Tensor:
            T = k_BKTD.shape[2]
            kept = torch.arange(max(0, T - self.slots), T, device=k_BKTD.device)
            self.k_BKSD[:, :, kept % self.slots] = k_BKTD[:, :, kept]
            self.v_BKSD[:, :, kept % self.slots] = v_BKTD[:, :, kept]
            return mixer(q_BHTD, k_BKTD, v_BKTD)

        return mix

    def decode(self, position: int) -> Mixer:
        """One token at `position`, which reads no slot that is still empty."""
        slot, filled = position % self.slots, min(position + 1, self.slots)

        def mix(q_BH1D: Tensor, k_BK1D: Tensor, v_BK1D: Tensor) -> Tensor:
            self.k_BKSD[:, :, slot : slot + 1], self.v_BKSD[:, :, slot : slot + 1] = k_BK1D, v_BK1D
            return attend(q_BH1D, self.k_BKSD[:, :, :filled], self.v_BKSD[:, :, :filled])

        return mix

    def decode_static(self, position: Tensor) -> Mixer:
        """The same in shapes that do not depend on `position`, a tensor of one integer: empty slots are read and hidden."""

        def mix(q_BH1D: Tensor, k_BK1D: Tensor, v_BK1D: Tensor) -> Tensor:
            self.k_BKSD.index_copy_(2, position % self.slots, k_BK1D)
            self.v_BKSD.index_copy_(2, position % self.slots, v_BK1D)
            filled_S = torch.arange(self.slots, device=position.device) <= position
            return attend(q_BH1D, self.k_BKSD, self.v_BKSD, visible=filled_S[None, None, None])

        return mix


def attend(q_BH1D: Tensor, k_BKSD: Tensor, v_BKSD: Tensor, visible: Tensor | None = None) -> Tensor:
    """One query a head against every slot (where `visible`); queries that share a key/value head meet it together, unrepeated."""
    q_BKGD = q_BH1D.unflatten(1, (k_BKSD.shape[1], -1)).squeeze(3)
    y_BKGD = F.scaled_dot_product_attention(q_BKGD, k_BKSD, v_BKSD, attn_mask=visible)
    return y_BKGD.flatten(1, 2).unsqueeze(2)


# --- whether there is a cache


def _cache_slots(run: Run, capacity: int) -> list[int]:
    """Tokens that each layer's cache holds."""
    slots = declared(run.attention, "cache_slots", of=("build", "mixer"))
    if slots is None:
        raise UncachedError(f"attention.kind={run.attention.kind} defines no cache_slots of its mixer")
    found = [slots(layer, capacity) for layer in range(run.model.n_layer)]
    if None in found:
        raise UncachedError(f"attention.kind={run.attention.kind} has no cache beside its other keys")
    return found


def _parts(model: LanguageModel, run: Run) -> tuple[GPT, list[Mixer]]:
    """The model and its layers' mixers, where it is made of the blocks that a cache can enter and no idea looks across tokens."""
    paths = (path.split(".") for path, _ in model.named_modules())
    ideas = {names[-1] for names in paths if names[-2:-1] == ["ideas"]}
    across = [name for name, idea in run.ideas.items() if not idea.PER_TOKEN and name in ideas]
    if across:
        raise UncachedError(f"ideas.{across[0]} does not declare that it takes each token by itself (PER_TOKEN)")
    layers = [block.attention.f for block in model.blocks if type(block) is Block] if type(model) is GPT else []
    mixers = [attention.mixer for attention in layers if type(attention) is CausalSelfAttention]
    if type(model) is not GPT or len(mixers) < run.model.n_layer:
        raise UncachedError(f"model.kind={run.model.kind} with attention.kind={run.attention.kind} has layers of its own")
    return model, mixers


@torch.no_grad()
def check_cached(model: LanguageModel, run: Run, *, most: int = PROBED, static: bool = False) -> None:
    """Try the cache on a few tokens against the prefix computed again: what an option declares is believed when it is so. `static`: with
    positions as a tensor, as the compiled decoder has them.

    Errors:
        UncachedError: there is no cache, or it gives other logits.
    """
    T = min(most, run.model.seq_len)
    cached, again = Cached(model, run, batch=1, capacity=T), Recompute(model)
    weight = next(model.parameters())
    tokens_T = (torch.arange(T, device=weight.device) * 31 + 7) % run.tokenizer.vocab_size
    for t in range(1, T):
        if t == 1:
            mine = cached.prefill(tokens_T[None, :t])
        elif static:
            mine = static_step(cached, tokens_T[t - 1 : t], cached.position)
            cached.position += 1
        else:
            mine = cached.decode(tokens_T[t - 1 : t])
        theirs = again.prefill(tokens_T[None, :t])
        if not torch.allclose(mine, theirs, rtol=1e-3, atol=1e-3 * float(theirs.abs().max())):
            raise UncachedError(f"its logits differ from the whole prefix's at token {t}: some option looks across tokens")
