"""A layer's attention by itself, and what it costs against the sequence length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from nocap.config.run import Run
from nocap.config.trainer import Precision
from nocap.measure.clock import Clock
from nocap.training.build import autocast


def exponent(lengths: Sequence[float], costs: Sequence[float]) -> float:
    """Return of the power law of cost in T: the slope of log cost on log T by least squares."""
    return float(np.polyfit(np.log(lengths), np.log(costs), 1)[0])


def attention_ms(run: Run) -> float:
    """Forward and backward of a layer's mixer on random queries, keys and values of the run's
    shape; a hybrid's, on average."""
    windows = [run.attention.window_of(layer) for layer in range(run.model.n_layer)]
    alike_ms = [_mixer_ms(run, windows.index(w)) * windows.count(w) for w in set(windows)]
    return sum(alike_ms) / len(windows)


def _mixer_ms(run: Run, layer: int) -> float:
    device = run.trainer.device
    m = run.model
    torch.set_num_threads(run.trainer.threads)
    run.attention.prepare(run, torch.device(device.value))
    mixer = run.attention.mixer(run, layer)
    B = run.trainer.micro_batch
    T = m.seq_len
    D = m.d_model // m.n_head

    def random(heads: int) -> torch.Tensor:
        # As the projections leave them: (B, T, H, D) in memory.
        x_BTHD = torch.randn(B, T, heads, D, device=device.value)
        return x_BTHD.transpose(1, 2).requires_grad_()

    q = random(m.n_head)
    k = random(run.attention.n_kv_heads)
    v = random(run.attention.n_kv_heads)
    if run.trainer.precision is Precision.bf16:
        v = v.detach().bfloat16().requires_grad_()

    def mixed() -> torch.Tensor:
        with autocast(run, run.trainer.precision):
            return mixer(q, k, v)

    grad = torch.ones_like(mixed())
    clock = Clock.of(device, run.trainer.threads)
    return clock.least_ms(lambda: torch.autograd.grad(mixed(), (q, k, v), grad))


def at_length(run: Run, T: int) -> Run:
    """Return the run with sequences of T tokens, one micro-batch a step, and nothing else
    changed."""
    tokens = run.trainer.micro_batch * T
    trainer = replace(run.trainer, batch_tokens=tokens * run.trainer.devices, val_tokens=tokens)
    model = replace(run.model, seq_len=T)
    optimizer = run.optimizer.at_batch(trainer.batch_tokens)
    return replace(run, model=model, trainer=trainer, optimizer=optimizer)


def with_window(run: Run, T: int, *, window: int) -> Run:
    """Return the run with sequences of T tokens, and a window that does not grow with them."""
    attention = run.attention.at_window(window)
    return at_length(replace(run, attention=attention), T)
