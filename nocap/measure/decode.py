"""Two ways to the next token's logits: over cached keys and values, or by the whole prefix again. Both give the same tokens.

B: batch, T: tokens, V: vocabulary, H: query heads, K: key/value heads, G: query heads a key/value head, S: slots, D: channels of a head.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType

import torch
import torch.nn.functional as F
from torch import Tensor

from nocap.config.option import declared
from nocap.config.run import Run
from nocap.model.attention import CausalSelfAttention, Mixer
from nocap.model.compiled import compiled as compile_
from nocap.model.gpt import GPT, Block
from nocap.model.language_model import LanguageModel

PROBED = 12  # tokens on which a cache is tried before it is trusted


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
    """The training model's own forward over the whole prefix, for each token: the reference, and what a cache saves.

    Of both engines: `prefill` starts over with some tokens, and gives the logits (B, V) of the token after them; `decode` takes one more
    token a sequence, and gives the logits of the token after that.
    """

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

    The position is a tensor, so that no shape depends on it: `compiled` makes decoding one graph at the first token.

    Errors:
        UncachedError: the model has no cached form.
    """

    def __init__(self, model: LanguageModel, run: Run, *, batch: int, capacity: int, compiled: bool = False) -> None:
        assert capacity <= run.model.seq_len, "the model has no positions beyond its context"
        self.model, parts = _parts(model, run, capacity)
        self.capacity, self.length = capacity, 0
        weight, heads, d_head = self.model.embedding.weight, run.attention.n_kv_heads, run.model.d_model // run.model.n_head
        self.tokens_B = torch.zeros(batch, dtype=torch.long, device=weight.device)
        self.position = torch.zeros(1, dtype=torch.long, device=weight.device)
        # Zeros: hidden slots are multiplied by 0, and 0 × uninitialised memory may be NaN.
        self.layers = [LayerCache(mixer, self.position, weight.new_zeros(2, batch, heads, slots, d_head)) for mixer, slots in parts]
        self._step = _compiled(weight.device) if compiled else step

    @torch.no_grad()
    def prefill(self, tokens_BT: Tensor) -> Tensor:
        self.length = tokens_BT.shape[1]
        assert self.length <= self.capacity
        self.position.fill_(self.length)
        trunk_BTC = self.model.trunk(tokens_BT, where=slice(0, self.length), mixers=[layer.prefill for layer in self.layers])
        return self.model.head.logits(trunk_BTC[:, -1:])[:, 0]

    @torch.no_grad()
    def decode(self, tokens_B: Tensor) -> Tensor:
        assert self.length < self.capacity
        # Into the one tensor that a graph was made for: other strides would be read wrong.
        logits_BV = self._step(self, self.tokens_B.copy_(tokens_B))
        self.position += 1
        self.length += 1
        return logits_BV


Engine = Recompute | Cached


def step(engine: Cached, tokens_B: Tensor) -> Tensor:
    """Logits (B, V) after one more token, which is stored."""
    trunk_B1C = engine.model.trunk(tokens_B[:, None], where=engine.position, mixers=[layer.decode for layer in engine.layers])
    return engine.model.head.logits(trunk_B1C)[:, 0]


def _compiled(device: torch.device) -> Callable[[Cached, Tensor], Tensor]:
    """`step` as one graph, without the checks at each call that what it was made for still holds: an engine's shapes and modules do
    not change, and the checks, several for every module and weight, took 0.9 of 3.2 ms a token in a model of four layers."""
    # dynamo keeps its graphs by code object. One for each engine: none runs another's graph, and none counts as another's recompilation.
    own = FunctionType(step.__code__.replace(), globals())
    return compile_(own, {"guard_filter_fn": torch.compiler.skip_all_guards_unsafe, "cpp_wrapper": device.type == "cpu"})


class LayerCache:
    """Keys and values so far, allocated once, as a ring: position p lies in slot p mod S. A global layer has a slot for every position. A
    sliding layer has `window` slots, so that a new token takes the place of the one that it no longer sees.

    `prefill` and `decode` take a mixer's place: they store the keys and values that they get, and attend.
    """

    def __init__(self, mixer: Mixer, position: Tensor, kv_2BKSD: Tensor) -> None:
        self.mixer, self.position, self.slots = mixer, position, kv_2BKSD.shape[3]
        self.k_BKSD, self.v_BKSD = kv_2BKSD.detach()
        self.places_S = torch.arange(self.slots, device=position.device)

    def prefill(self, q_BHTD: Tensor, k_BKTD: Tensor, v_BKTD: Tensor) -> Tensor:
        """Positions from 0 in one pass. A prompt that is one sequence serves every sequence of the cache."""
        T = k_BKTD.shape[2]
        kept = torch.arange(max(0, T - self.slots), T, device=k_BKTD.device)
        self.k_BKSD[:, :, kept % self.slots] = k_BKTD[:, :, kept]
        self.v_BKSD[:, :, kept % self.slots] = v_BKTD[:, :, kept]
        return self.mixer(q_BHTD, k_BKTD, v_BKTD)

    def decode(self, q_BH1D: Tensor, k_BK1D: Tensor, v_BK1D: Tensor) -> Tensor:
        """One token at `position`. Slots that are still empty are hidden; queries that share a key/value head meet it together."""
        place = self.position % self.slots
        self.k_BKSD.index_copy_(2, place, k_BK1D)
        self.v_BKSD.index_copy_(2, place, v_BK1D)
        q_BKGD = q_BH1D.unflatten(1, (self.k_BKSD.shape[1], -1)).squeeze(3)
        y_BKGD = F.scaled_dot_product_attention(q_BKGD, self.k_BKSD, self.v_BKSD, attn_mask=self.places_S[None] <= self.position)
        return y_BKGD.flatten(1, 2).unsqueeze(2)


# --- whether there is a cache


def _parts(model: LanguageModel, run: Run, capacity: int) -> tuple[GPT, list[tuple[Mixer, int]]]:
    """The model, and its layers' mixers with the tokens that each one's cache holds, where it is made of the blocks that a cache can
    enter and no idea looks across tokens."""
    paths = (path.split(".") for path, _ in model.named_modules())
    ideas = {names[-1] for names in paths if names[-2:-1] == ["ideas"]}
    across = [name for name, idea in run.ideas.items() if not idea.PER_TOKEN and name in ideas]
    if across:
        raise UncachedError(f"ideas.{across[0]} does not declare that it takes each token by itself (PER_TOKEN)")
    layers = [block.attention.f for block in model.blocks if type(block) is Block] if type(model) is GPT else []
    mixers = [attention.mixer for attention in layers if type(attention) is CausalSelfAttention]
    if type(model) is not GPT or len(mixers) < run.model.n_layer:
        raise UncachedError(f"model.kind={run.model.kind} with attention.kind={run.attention.kind} has layers of its own")
    slots = declared(run.attention, "cache_slots", of=("build", "mixer"))
    if slots is None:
        raise UncachedError(f"attention.kind={run.attention.kind} defines no cache_slots of its mixer")
    sizes = [slots(layer, capacity) for layer in range(run.model.n_layer)]
    if None in sizes:
        raise UncachedError(f"attention.kind={run.attention.kind} has no cache beside its other keys")
    return model, list(zip(mixers, sizes, strict=True))


@torch.no_grad()
def check_cached(model: LanguageModel, run: Run, *, most: int = PROBED) -> None:
    """Try the cache on a few tokens against the prefix computed again: what an option declares is believed when it is so.

    Errors:
        UncachedError: there is no cache, or it gives other logits.
    """
    T = min(most, run.model.seq_len)
    cached, again = Cached(model, run, batch=1, capacity=T), Recompute(model)
    tokens_1T = (torch.arange(T, device=cached.position.device)[None] * 31 + 7) % run.tokenizer.vocab_size
    for t in range(1, T):
        logits = cached.decode(tokens_1T[:, t - 1]) if t > 1 else cached.prefill(tokens_1T[:, :1])
        expected = again.prefill(tokens_1T[:, :t])
        if not torch.allclose(logits, expected, rtol=1e-3, atol=1e-3 * float(expected.abs().max())):
            raise UncachedError(f"its logits differ from the whole prefix's at token {t}: some option looks across tokens")
