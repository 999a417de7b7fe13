"""A layer's attention by itself, and what it costs against the sequence length."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch

from nocap.config.keys import require
from nocap.config.run import Run
from nocap.config.trainer import Precision
from nocap.measure.timed import Clock
from nocap.training.step import autocast


def exponent(lengths: Sequence[float], costs: Sequence[float]) -> dict[str, float]:
    """The exponent of the power law of cost in T: the slope of log cost on log T by least squares, with its 95% t-interval.

    Errors:
        ValueError: fewer than three lengths, through which no interval can be put.
    """
    from scipy import stats

    require(len(lengths) >= 3, "the curve of an exponent", "have at least 3 lengths", len(lengths))
    fit = stats.linregress([math.log(T) for T in lengths], [math.log(cost) for cost in costs])
    half = float(stats.t.ppf(0.975, len(lengths) - 2)) * float(fit.stderr)
    return {"exponent": float(fit.slope), "low": float(fit.slope) - half, "high": float(fit.slope) + half}


def attention_ms(run: Run) -> float:
    """Forward and backward of a layer's mixer on random queries, keys and values of the run's shape; a hybrid's, on average."""
    windows = [run.attention.window_of(layer) for layer in range(run.model.n_layer)]
    return sum(_mixer_ms(run, windows.index(window)) * windows.count(window) for window in set(windows)) / len(windows)


def _mixer_ms(run: Run, layer: int) -> float:
    device, m = run.trainer.device, run.model
    torch.set_num_threads(run.trainer.threads)
    run.attention.prepare(run, torch.device(device.value))
    mixer = run.attention.mixer(run, layer)
    B, T, D = run.trainer.micro_batch, m.seq_len, m.d_model // m.n_head
    # As the projections leave them: (B, T, H, D) in memory.
    heads = (m.n_head, run.attention.n_kv_heads, run.attention.n_kv_heads)
    q, k, v = (torch.randn(B, T, n, D, device=device.value).transpose(1, 2).requires_grad_() for n in heads)
    if run.trainer.precision is Precision.bf16:
        v = v.detach().bfloat16().requires_grad_()

    def mixed() -> torch.Tensor:
        with autocast(run, run.trainer.precision):
            return mixer(q, k, v)

    grad = torch.ones_like(mixed())
    return Clock.of(device, run.trainer.threads).least_ms(lambda: torch.autograd.grad(mixed(), (q, k, v), grad))


def at_length(run: Run, T: int) -> Run:
    """The run with sequences of T tokens, one micro-batch a step, and nothing else changed."""
    tokens = run.trainer.micro_batch * T
    trainer = replace(run.trainer, batch_tokens=tokens * run.trainer.devices, val_tokens=tokens)
    return replace(run, model=replace(run.model, seq_len=T), trainer=trainer, optimizer=run.optimizer.at_batch(trainer.batch_tokens))


def with_window(run: Run, T: int, *, window: int) -> Run:
    """The run with sequences of T tokens, and a window that does not grow with them."""
    return at_length(replace(run, attention=run.attention.at_window(window)), T)
