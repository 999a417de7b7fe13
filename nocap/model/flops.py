"""Floating-point operations of a training token, by arithmetic: forward and backward, 2 a multiply-add.

Matrix products count 6 a weight. Attention scores and values count 12·d a key that a query meets, and causal attention meets T/2 on
average: the convention in which GPT-2 124M at T=1024 costs 797.8M a token. `causal=False` counts all T, as FlopCounterMode does (854.4M).
"""

from __future__ import annotations

from nocap import schema
from nocap.model.attention import is_local


def flops_per_token(run: schema.Run, *, vocab_size: int, causal: bool = True) -> float:
    """FLOPs of one training token: the matrices, the attention products, the head; norms and activations are not counted."""
    return sum(component_flops(run, vocab_size=vocab_size, causal=causal).values())


def component_flops(run: schema.Run, *, vocab_size: int, causal: bool = True) -> dict[str, float]:
    """The same by component, in FLOPs a training token."""
    m, T = run.model, run.model.seq_len
    d_kv = m.d_model // m.n_head * run.attention.n_kv_heads
    n_matrix = 3 if run.mlp.activation is schema.Activation.swiglu else 2
    keys = sum(_keys_met(run.attention, layer, T, causal) for layer in range(m.n_layer))
    return {
        "qkv": 6.0 * m.n_layer * m.d_model * (m.d_model + 2 * d_kv),
        "scores": 12.0 * m.d_model * keys,
        "attention_out": 6.0 * m.n_layer * m.d_model**2,
        "mlp": 6.0 * m.n_layer * n_matrix * m.d_model * run.mlp.hidden(m.d_model),
        "head": 6.0 * m.d_model * vocab_size,
    }


def _keys_met(spec: schema.Attention, layer: int, T: int, causal: bool) -> float:
    """Keys a query meets on average in this layer: T/2 under the causal mask; with a window w < T, w - w²/2T."""
    if not causal:
        return T
    w = min(spec.window, T) if isinstance(spec, schema.Sliding) and is_local(spec, layer) else T
    return w - w * w / (2 * T)
