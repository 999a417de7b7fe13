"""Two engines that give the logits of the next token: one over cached keys and values, one over the
whole prefix again. Both lead to the same tokens.

B: batch, T: tokens, V: vocabulary, H: query heads, K: key/value heads, G: query heads a key/value
head, S: slots of a cache, D: channels of a head.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from nocap.config.option import declared
from nocap.config.run import Run
from nocap.model.compiled import compiled as compile_
from nocap.model.context import Mixer
from nocap.model.gpt import GPT, Block
from nocap.model.language_model import LanguageModel
from nocap.model.self_attention import CausalSelfAttention

PROBED = 12  # tokens on which a cache is tried before it is trusted


class UncachedError(ValueError):
    """This model does not decode from a cache; the message gives the reason."""


def engine_for(
    model: LanguageModel,
    run: Run,
    *,
    batch: int,
    capacity: int,
    compiled: bool = False,
    log: Callable[[str], None],
) -> Engine:
    """Return an engine with a cache; where the model has none, one that recomputes the prefix, and
    write a line to the log."""
    try:
        check_cached(model, run)
    except UncachedError as error:
        log(f"no cache: {error}; nocap computes the prefix again for each token")
        return Recompute(model)
    return Cached(model, run, batch=batch, capacity=capacity, compiled=compiled)


class Recompute:
    """The training model's own forward over the whole prefix, for each token: the reference, and
    what a cache saves.

    Of both engines: `prefill` starts over with some tokens, and gives the logits (B, V) of the
    token after them; `decode` takes one more token a sequence, and gives the logits of the token
    after that; `rewind` forgets the tokens after the first so many.
    """

    cache_bytes = 0

    def __init__(self, model: LanguageModel) -> None:
        self.model = model
        self.tokens_BT = torch.zeros(1, 0, dtype=torch.long)

    def rewind(self, length: int) -> None:
        self.tokens_BT = self.tokens_BT[:, :length]

    @torch.no_grad()
    def prefill(self, tokens_BT: Tensor) -> Tensor:
        self.tokens_BT = tokens_BT
        return self.model.next_logits(tokens_BT)

    def decode(self, tokens_B: Tensor) -> Tensor:
        prefix_BT = self.tokens_BT.expand(len(tokens_B), -1)
        return self.prefill(torch.cat([prefix_BT, tokens_B[:, None]], dim=1))


class Cached:
    """Prefill in one pass, then a token at a time over `LayerCache`s for `batch` sequences of up to
    `capacity` tokens.

    The position is a tensor, so that no shape depends on it: `compiled` makes decoding one graph at
    the first token.

    Errors:
        UncachedError: the model has no cached form.
    """

    def __init__(
        self, model: LanguageModel, run: Run, *, batch: int, capacity: int, compiled: bool = False
    ) -> None:
        assert capacity <= run.model.seq_len, "the model has no positions beyond its context"
        self.model = _cacheable(model, run)
        self.capacity = capacity
        self.length = 0
        weight = self.model.embedding.weight
        self.tokens_B = torch.zeros(batch, dtype=torch.long, device=weight.device)
        self.position = torch.zeros(1, dtype=torch.long, device=weight.device)
        d_head = run.model.d_model // run.model.n_head
        shape = (batch, run.attention.n_kv_heads, capacity, d_head)
        self.layers = list[LayerCache]()
        blocks: list[Any] = list(self.model.blocks)
        for block, window in zip(blocks, _windows(run, capacity), strict=True):
            mixer: Mixer = block.attention.f.mixer
            # Zeros: hidden slots are multiplied by 0, and 0 × uninitialised memory may be NaN.
            k_BKSD = weight.new_zeros(shape).detach()
            v_BKSD = weight.new_zeros(shape).detach()
            self.layers.append(LayerCache(mixer, self.position, k_BKSD, v_BKSD, window=window))
        self._step = _compiled(weight.device) if compiled else step

    @property
    def cache_bytes(self) -> int:
        """Return the bytes of all keys and values that there is room for."""
        return sum(layer.k_BKSD.nbytes + layer.v_BKSD.nbytes for layer in self.layers)

    def rewind(self, length: int) -> None:
        """Forget the tokens after the first so many."""
        assert length <= self.length
        self.length = length
        self.position.fill_(length)

    @torch.no_grad()
    def prefill(self, tokens_BT: Tensor) -> Tensor:
        """Start over with these tokens. Return the logits (B, V) of the token after them."""
        self.length = tokens_BT.shape[1]
        assert self.length <= self.capacity
        self.position.fill_(self.length)
        mixers = [layer.prefill for layer in self.layers]
        trunk_BTC = self.model.trunk(tokens_BT, where=slice(0, self.length), mixers=mixers)
        return self.model.head.logits(trunk_BTC[:, -1:])[:, 0]

    @torch.no_grad()
    def decode(self, tokens_B: Tensor) -> Tensor:
        """Take one more token a sequence. Return the logits (B, V) of the token after it."""
        assert self.length < self.capacity
        # Into the one tensor that a graph was made for: other strides would be read wrong.
        logits_BV = self._step(self, self.tokens_B.copy_(tokens_B))
        self.position += 1
        self.length += 1
        return logits_BV


Engine = Recompute | Cached


def step(engine: Cached, tokens_B: Tensor) -> Tensor:
    """Return the logits (B, V) after one more token, and store its keys and values."""
    mixers = [layer.decode for layer in engine.layers]
    trunk_B1C = engine.model.trunk(tokens_B[:, None], where=engine.position, mixers=mixers)
    return engine.model.head.logits(trunk_B1C)[:, 0]


def _compiled(device: torch.device) -> Callable[[Cached, Tensor], Tensor]:
    """Return `step` as one graph, without the checks at each call that what it was made for still
    holds: an engine's shapes and modules do not change, and the checks, several for every module
    and weight, took 0.9 of 3.2 ms a token in a model of four layers."""
    # dynamo keeps its graphs by code object. One for each engine: none runs another's graph, and
    # none counts as another's recompilation.
    own = FunctionType(step.__code__.replace(), globals())
    options = {
        "guard_filter_fn": torch.compiler.skip_all_guards_unsafe,
        "cpp_wrapper": device.type == "cpu",
    }
    return compile_(own, options)


class LayerCache:
    """A layer's keys and values so far, allocated once: those of position p lie in slot p.

    `prefill` and `decode` take a mixer's place: they store the keys and values that they get, and
    attend.
    """

    def __init__(
        self, mixer: Mixer, position: Tensor, k_BKSD: Tensor, v_BKSD: Tensor, *, window: int
    ) -> None:
        """Keep them in these tensors. `window`: how many of the last keys a query sees, its own
        included."""
        self.mixer = mixer
        self.position = position
        self.k_BKSD = k_BKSD
        self.v_BKSD = v_BKSD
        self.window = window
        self.places_S = torch.arange(k_BKSD.shape[2], device=position.device)

    def prefill(self, q_BHTD: Tensor, k_BKTD: Tensor, v_BKTD: Tensor) -> Tensor:
        """Store positions from 0, and attend in one pass. A prompt that is one sequence serves
        every sequence of the cache."""
        T = k_BKTD.shape[2]
        self.k_BKSD[:, :, :T] = k_BKTD
        self.v_BKSD[:, :, :T] = v_BKTD
        return self.mixer(q_BHTD, k_BKTD, v_BKTD)

    def decode(self, q_BH1D: Tensor, k_BK1D: Tensor, v_BK1D: Tensor) -> Tensor:
        """Store one token at `position`, and attend to those that it sees. Queries that share a
        key/value head meet it together."""
        self.k_BKSD.index_copy_(2, self.position, k_BK1D)
        self.v_BKSD.index_copy_(2, self.position, v_BK1D)
        seen_S = self.places_S <= self.position
        if self.window < len(self.places_S):
            seen_S = seen_S & (self.places_S > self.position - self.window)
        q_BKGD = q_BH1D.unflatten(1, (self.k_BKSD.shape[1], -1)).squeeze(3)
        y_BKGD = F.scaled_dot_product_attention(
            q_BKGD, self.k_BKSD, self.v_BKSD, attn_mask=seen_S[None]
        )
        return y_BKGD.flatten(1, 2).unsqueeze(2)


# --- whether there is a cache


def knows_documents(run: Run) -> bool:
    """Return whether what a token gives depends on where its document began, which a cache does not
    keep."""
    return run.data.document_mask or run.position.restart


def windows(run: Run, capacity: int) -> list[int] | None:
    """Return how many of the last keys a query of each layer sees, at most `capacity`. None: the
    attention does not say that it is softmax over these alone, and has no cache."""
    cache_slots = declared(run.attention, "cache_slots", of=("build", "mixer"))
    if cache_slots is None or knows_documents(run):
        return None
    slots = list[int]()
    for layer in range(run.model.n_layer):
        of_layer = cache_slots(layer, capacity)
        if of_layer is None:
            return None
        slots.append(of_layer)
    return slots


def _windows(run: Run, capacity: int) -> list[int]:
    """Return `windows`.

    Errors:
        UncachedError: the attention has none.
    """
    slots = windows(run, capacity)
    if slots is None:
        attention = f"attention.kind={run.attention.kind}"
        raise UncachedError(f"{attention} defines no cache_slots for its settings")
    return slots


def _cacheable(model: LanguageModel, run: Run) -> GPT:
    """Return the model, where it is made of the blocks that a cache can enter and no idea in them
    looks across tokens.

    Errors:
        UncachedError: it is not.
    """
    attention = f"attention.kind={run.attention.kind}"
    has_own_layers = f"model.kind={run.model.kind} with {attention} has other layers than GPT"
    if type(model) is not GPT:
        raise UncachedError(has_own_layers)
    blocks: list[Any] = list(model.blocks)
    joined = list(model.joined)
    for block in blocks:
        if type(block) is not Block or type(block.attention.f) is not CausalSelfAttention:
            raise UncachedError(has_own_layers)
        joined += block.joined
    for name, idea, _ in joined:
        if not idea.PER_TOKEN:
            rule = "may mix tokens (its PER_TOKEN is False)"
            raise UncachedError(f"ideas.{name} {rule}")
    if knows_documents(run):
        keys = "data.document_mask, position.restart"
        raise UncachedError(f"a cache does not keep where a document began ({keys})")
    return model


@torch.no_grad()
def check_cached(model: LanguageModel, run: Run, *, most: int = PROBED) -> None:
    """Try the cache on a few tokens against the prefix computed again: what an option declares is
    believed when it is so.

    Errors:
        UncachedError: there is no cache, or it gives other logits.
    """
    T = min(most, run.model.seq_len)
    cached = Cached(model, run, batch=1, capacity=T)
    reference = Recompute(model)
    places_1T = torch.arange(T, device=cached.position.device)[None]
    tokens_1T = (places_1T * 31 + 7) % run.tokenizer.vocab_size
    for t in range(1, T):
        if t == 1:
            logits = cached.prefill(tokens_1T[:, :1])
        else:
            logits = cached.decode(tokens_1T[:, t - 1])
        expected = reference.prefill(tokens_1T[:, :t])
        limit = 1e-3 * float(expected.abs().max())
        if not torch.allclose(logits, expected, rtol=1e-3, atol=limit):
            raise UncachedError(
                f"with a cache the logits differ from those of the full prefix at token {t}: an "
                "option reads tokens that the cache does not hold"
            )
