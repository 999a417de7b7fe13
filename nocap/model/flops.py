"""Floating-point operations of a training token: forward and backward, 2 a multiply-add. By arithmetic where an option says it.

Matrix products count 6 a weight. Attention scores and values count 12·d a key that a query meets, and causal attention meets T/2 on
average: the convention in which GPT-2 124M at T=1024 costs 797.8M a token. `causal=False` counts all T, as FlopCounterMode does (854.4M).
What an option says nothing about is counted by running it on tensors without memory, and named in the basis.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from nocap.config.option import declared
from nocap.config.run import Run
from nocap.model.counted import counted
from nocap.model.gpt import Context, build_model
from nocap.options.attention import Attention
from nocap.options.model import Model


def flops_per_token(run: Run, *, vocab_size: int, causal: bool = True) -> tuple[float, str]:
    """FLOPs of one training token (the matrices, the attention products, the head; norms and activations are not counted), and how they
    are known: `arithmetic`, or with what was counted."""
    known, by_counting = _components(run, vocab_size=vocab_size, causal=causal)
    return sum(known.values()), "arithmetic" + (f"; counted: {', '.join(by_counting)}" if by_counting else "")


def component_flops(run: Run, *, vocab_size: int, causal: bool = True) -> dict[str, float]:
    """The same by component, in FLOPs a training token."""
    return _components(run, vocab_size=vocab_size, causal=causal)[0]


def _components(run: Run, *, vocab_size: int, causal: bool) -> tuple[dict[str, float], list[str]]:
    """By component, and the names of those that were counted."""
    m, T = run.model, run.model.seq_len
    if type(m).build is not Model.build or type(m).build_block is not Model.build_block:
        return {"model": _whole(run, vocab_size)}, ["model"]
    d_kv = m.d_model // m.n_head * run.attention.n_kv_heads
    found = {
        "qkv": 6.0 * m.n_layer * m.d_model * (m.d_model + 2 * d_kv),
        "scores": 0.0,
        "attention_out": 6.0 * m.n_layer * m.d_model**2,
        "mlp": 0.0,
        "head": 6.0 * m.d_model * vocab_size,
    }
    by_counting = []
    if keys_met := declared(run.attention, "keys_met", of=("build", "mixer")):
        found["scores"] = 12.0 * m.d_model * sum(keys_met(layer, T) if causal else T for layer in range(m.n_layer))
    else:
        found |= _attention(replace(run, attention=run.attention.countable()))
        by_counting.append(f"attention={run.attention.kind}")
    if mlp := declared(run.mlp, "flops_per_token", of="build"):
        found["mlp"] = m.n_layer * mlp(m.d_model)
    else:
        found["mlp"] = m.n_layer * counted(lambda: run.mlp.build(m.d_model), (1, T, m.d_model)) / T
        by_counting.append(f"mlp={run.mlp.kind}")
    if run.ideas:
        found["ideas"] = _whole(run, vocab_size) - _whole(replace(run, ideas={}), vocab_size)
        by_counting.append(f"ideas={'+'.join(run.ideas)}")
    return found, by_counting


def _attention(run: Run) -> dict[str, float]:
    """Of a mixer, or of an attention module, that does not say what it costs; a module's goes to the scores as a whole."""
    m, T = run.model, run.model.seq_len
    if type(run.attention).build is Attention.build:
        heads = (m.n_head, run.attention.n_kv_heads, run.attention.n_kv_heads)
        shapes = [(1, n, T, m.d_model // m.n_head) for n in heads]
        return {"scores": sum(counted(partial(run.attention.mixer, run, layer), *shapes) for layer in range(m.n_layer)) / T}
    whole = sum(counted(partial(_module, run, layer), (1, T, m.d_model)) for layer in range(m.n_layer))
    return {"qkv": 0.0, "scores": whole / T, "attention_out": 0.0}


def _module(run: Run, layer: int) -> Callable[[Tensor], Any]:
    """A layer's attention on the residual stream alone."""
    f, positions = run.attention.build(run, layer), run.position.build(run.model)

    def forward(x_BTC: Tensor) -> Any:
        tokens_BT = torch.zeros(x_BTC.shape[:2], dtype=torch.long)
        return f(x_BTC, Context(tokens_BT, x_BTC, run.position.tables(positions, slice(0, x_BTC.shape[1])), None))

    return forward


def _whole(run: Run, vocab_size: int) -> float:
    """FLOPs a token of the whole model, counted."""
    T = run.model.seq_len

    def make() -> Callable[[], Any]:
        model = build_model(replace(run, attention=run.attention.countable()), vocab_size=vocab_size)
        tokens_BT = torch.zeros(1, T, dtype=torch.long)
        return lambda: model(tokens_BT, tokens_BT).total

    return counted(make) / T
