"""What attention and a step cost as sequences grow: measured at some lengths, with the exponent of the power law through them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from nocap.config.run import Run
from nocap.config.trainer import Precision
from nocap.measure.clock import Clock
from nocap.measure.contestant import random_tokens
from nocap.measure.steps import measurable
from nocap.options.attention import first_window
from nocap.training.ledger import Ledger
from nocap.training.step import autocast, build, take_step


def exponent(lengths: Sequence[float], costs: Sequence[float]) -> dict[str, float]:
    """The slope of log cost on log T by least squares, with its 95% t-interval.

    Errors:
        ValueError: fewer than three lengths, through which no interval can be put.
    """
    from scipy import stats

    if len(lengths) < 3:
        raise ValueError(f"--curve must have at least 3 lengths for an exponent with an interval, got {len(lengths)}")
    fit = stats.linregress([math.log(T) for T in lengths], [math.log(cost) for cost in costs])
    half = float(stats.t.ppf(0.975, len(lengths) - 2)) * float(fit.stderr)
    return {"exponent": float(fit.slope), "low": float(fit.slope) - half, "high": float(fit.slope) + half}


def curve(arms: Mapping[str, Callable[[int], Run]], lengths: Sequence[int]) -> list[dict[str, Any]]:
    """Milliseconds of attention alone (scores and weighted sum of one layer, forward and backward) and of a step, by arm and length."""
    found = []
    for name, at in arms.items():
        runs = [at(T) for T in lengths]
        alone = [attention_ms(run) for run in runs]
        row: dict[str, Any] = {"name": name, "T": list(lengths), "attention_ms": alone, "attention": exponent(lengths, alone)}
        if (window := first_window(runs[0])) is not None:
            row["window"] = window
        row["step_ms"] = [step_ms(run) for run in runs]
        row["step"] = exponent(lengths, row["step_ms"])
        found.append(row)
    return found


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


def step_ms(run: Run) -> float:
    """A training step of one micro-batch, eager."""
    with random_tokens(measurable(run)) as job:
        trainee, ledger = build(job), Ledger(started=job.started)
        take_step(job, trainee, ledger, step=0)
        clock = Clock.of(run.trainer.device, torch.get_num_threads())
        return clock.least_ms(lambda: take_step(job, trainee, ledger, step=0), repeats=1)


def at_length(run: Run, T: int) -> Run:
    """The run with sequences of T tokens, one micro-batch a step, and nothing else changed."""
    t = run.trainer
    tokens = t.micro_batch * T
    return replace(run, model=replace(run.model, seq_len=T), trainer=replace(t, batch_tokens=tokens * t.devices, val_tokens=tokens))


def with_window(run: Run, T: int, *, window: int) -> Run:
    """The run with sequences of T tokens, and a window that does not grow with them."""
    return at_length(replace(run, attention=run.attention.at_window(window)), T)
