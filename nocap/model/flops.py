"""Floating-point operations of a training token: forward and backward, 2 a multiply-add.

Matrix products count 6 a weight. Attention scores and values count 12·d a key that a query meets, and causal
attention meets T/2 on average: in this convention GPT-2 124M at T=1024 costs 797.8M a token. `causal=False`
counts all T, as FlopCounterMode does (854.4M). An option without a formula is counted by running it on
tensors that have shapes and no memory, and is named in the basis.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from nocap.config.option import declared
from nocap.config.run import Run
from nocap.model.gpt import Context, build_model
from nocap.options.attention import Attention
from nocap.options.model import Model


def flops_per_token(run: Run, *, vocab_size: int, causal: bool = True) -> tuple[float, str]:
    """FLOPs of one training token (the matrices, the attention products, the head; norms and activations are
    not counted), and how they are known: `arithmetic`, or with what was counted."""
    known, by_counting = _components(run, vocab_size=vocab_size, causal=causal)
    return sum(known.values()), "arithmetic" + (f"; counted: {', '.join(by_counting)}" if by_counting else "")


def component_flops(run: Run, *, vocab_size: int, causal: bool = True) -> dict[str, float]:
    """The same by component, in FLOPs a training token."""
    return _components(run, vocab_size=vocab_size, causal=causal)[0]


def _components(run: Run, *, vocab_size: int, causal: bool) -> tuple[dict[str, float], list[str]]:
    """By component, and the names of those that were counted."""
    m, T = run.model, run.model.seq_len
    if type(m).build is not Model.build or type(m).build_block is not Model.build_block:
        return {"model": _model_flops(run, vocab_size)}, ["model"]
    d_kv = m.d_model // m.n_head * run.attention.n_kv_heads
    by_component = {
        "qkv": 6.0 * m.n_layer * m.d_model * (m.d_model + 2 * d_kv),
        "scores": 0.0,
        "attention_out": 6.0 * m.n_layer * m.d_model**2,
        "mlp": 0.0,
        "head": 6.0 * m.d_model * vocab_size,
    }
    by_counting = []
    if keys_met := declared(run.attention, "keys_met", of=("build", "mixer")):
        by_component["scores"] = (
            12.0 * m.d_model * sum(keys_met(layer, T) if causal else T for layer in range(m.n_layer))
        )
    else:
        by_component |= _attention_flops(run.varied(attention=run.attention.countable()))
        by_counting.append(f"attention={run.attention.kind}")
    if mlp := declared(run.mlp, "flops_per_token", of="build"):
        by_component["mlp"] = m.n_layer * mlp(m.d_model)
    else:
        by_component["mlp"] = m.n_layer * counted(lambda: run.mlp.build(m.d_model), (1, T, m.d_model)) / T
        by_counting.append(f"mlp={run.mlp.kind}")
    if run.ideas:
        by_component["ideas"] = _model_flops(run, vocab_size) - _model_flops(run.varied(ideas={}), vocab_size)
        by_component["ideas"] += sum(
            idea.flops_beside(run, vocab_size=vocab_size) for idea in run.ideas.values()
        )
        by_counting.append(f"ideas={'+'.join(run.ideas)}")
    return by_component, by_counting


def _attention_flops(run: Run) -> dict[str, float]:
    """Of a mixer, or of a whole attention module, all of whose FLOPs go to the scores."""
    m, T = run.model, run.model.seq_len
    if type(run.attention).build is Attention.build:
        heads = (m.n_head, run.attention.n_kv_heads, run.attention.n_kv_heads)
        shapes = [(1, n, T, m.d_model // m.n_head) for n in heads]
        return {
            "scores": sum(
                counted(partial(run.attention.mixer, run, layer), *shapes) for layer in range(m.n_layer)
            )
            / T
        }
    whole = sum(counted(partial(_attention_of, run, layer), (1, T, m.d_model)) for layer in range(m.n_layer))
    return {"qkv": 0.0, "scores": whole / T, "attention_out": 0.0}


def _attention_of(run: Run, layer: int) -> Callable[[Tensor], Any]:
    """A layer's attention as a function of the residual stream alone."""
    f, positions = run.attention.build(run, layer), run.position.build(run.model)

    def forward(x_BTC: Tensor) -> Any:
        tokens_BT = torch.zeros(x_BTC.shape[:2], dtype=torch.long)
        return f(
            x_BTC, Context(tokens_BT, x_BTC, run.position.tables(positions, slice(0, x_BTC.shape[1])), None)
        )

    return forward


def _model_flops(run: Run, vocab_size: int) -> float:
    """FLOPs a token of the whole model, counted."""
    T = run.model.seq_len

    def make() -> Callable[[], Any]:
        model = build_model(run.varied(attention=run.attention.countable()), vocab_size=vocab_size)
        tokens_BT = torch.zeros(1, T, dtype=torch.long)
        return lambda: model(tokens_BT, tokens_BT).total

    return counted(make) / T


# --- counting -----------------------------------------------------------------------------------------------


def counted(make: Callable[[], Callable[..., Any]], *shapes: tuple[int, ...], device: str = "cpu") -> float:
    """FLOPs of a forward and backward of what `make` builds, on inputs of these shapes that have
    gradients."""
    counter = _FlopCounter()
    with FakeTensorMode():
        with torch.device(device):
            module = make()
            inputs = [torch.zeros(shape, requires_grad=True) for shape in shapes]
        with counter:
            outputs = [t for t in tree_leaves(module(*inputs)) if isinstance(t, Tensor) and t.requires_grad]
            torch.autograd.backward(outputs, [torch.ones_like(t) for t in outputs])
    return counter.flops


class _FlopCounter(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.flops = 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        self.flops += op_flops(func, args, kwargs, out)
        return out


def op_flops(func: Any, args: Any, kwargs: Any, out: Any) -> float:
    """Matrix FLOPs of one operation as torch's dispatcher sees it, by FlopCounterMode's formulas.

    It misses the fused attention kernels on the CPU and counts them in full elsewhere: here they are
    4·Tq·Tk·D a head, half under the causal mask, and twice that in the backward.
    """
    name = func._overloadpacket.__name__
    if "scaled_dot_product" in name:
        named = dict(zip((a.name for a in func._schema.arguments), args, strict=False)) | kwargs
        B, H, T_query, D = named["query"].shape
        whole = 4.0 * B * H * T_query * named["key"].shape[2] * D * (2 if name.endswith("_backward") else 1)
        return whole / 2 if named.get("is_causal") else whole
    formula = flop_registry.get(func._overloadpacket)
    return float(formula(*args, **kwargs, out_val=out)) if formula else 0.0
