"""What attention and a step cost as sequences grow: measured at some lengths, with the exponent of the power law through them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from nocap.config.run import Run
from nocap.config.trainer import Precision
from nocap.measure.roof import least_ms
from nocap.options.attention import first_window
from nocap.profiling.ceilings import at_length
from nocap.profiling.measure import measurable, random_tokens
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


def curve(arms: Mapping[str, Callable[[int], Run]], lengths: Sequence[int], *, vocab_size: int) -> list[dict[str, Any]]:
    """Milliseconds of attention alone (scores and weighted sum of one layer, forward and backward) and of a step, by arm and length."""
    found = []
    for name, at in arms.items():
        runs = [at(T) for T in lengths]
        alone = [attention_ms(run) for run in runs]
        row: dict[str, Any] = {"name": name, "T": list(lengths), "attention_ms": alone, "attention": exponent(lengths, alone)}
        if (window := first_window(runs[0])) is not None:
            row["window"] = window
        row["step_ms"] = [step_ms(run, vocab_size=vocab_size) for run in runs]
        row["step"] = exponent(lengths, row["step_ms"])
        found.append(row)
    return found


def attention_ms(run: Run) -> float:
    """Forward and backward of a layer's mixer on random queries, keys and values of the run's shape; a hybrid's, on average."""
    windows = [run.attention.window_of(layer) for layer in range(run.model.n_layer)]
    return sum(_mixer_ms(run, windows.index(kind)) * windows.count(kind) for kind in set(windows)) / len(windows)


def _mixer_ms(run: Run, layer: int) -> float:
    device, m = run.trainer.device, run.model
    torch.set_num_threads(run.trainer.threads)
    run.attention.prepare(run, torch.device(device.value))
    mixer = run.attention.mixer(run, layer)
    shape = (run.trainer.micro_batch, m.seq_len, m.d_model // m.n_head)

    def heads(n: int) -> torch.Tensor:
        """As the projections leave them: (B, T, H, D) in memory."""
        made = torch.randn(shape[0], shape[1], n, shape[2], device=device.value).transpose(1, 2)
        return made.requires_grad_()

    q, k, v = heads(m.n_head), heads(run.attention.n_kv_heads), heads(run.attention.n_kv_heads)
    if run.trainer.precision is Precision.bf16:
        v = v.detach().bfloat16().requires_grad_()
    grad = torch.ones_like(_mix(run, mixer, q, k, v))

    def once() -> None:
        torch.autograd.grad(_mix(run, mixer, q, k, v), (q, k, v), grad)

    return least_ms(once, device)


def _mix(run: Run, mixer: Callable[..., torch.Tensor], *qkv: torch.Tensor) -> torch.Tensor:
    with autocast(run, run.trainer.precision):
        return mixer(*qkv)


def step_ms(run: Run, *, vocab_size: int) -> float:
    """A training step of one micro-batch, eager."""
    one = measurable(run)
    with random_tokens(one, vocab_size) as job:
        trainee, ledger = build(job), Ledger(started=job.started)
        take_step(job, trainee, ledger, step=0)
        return least_ms(lambda: take_step(job, trainee, ledger, step=0), run.trainer.device, repeats=1)


def with_window(run: Run, T: int, *, window: int) -> Run:
    """The run with sequences of T tokens, and a window that does not grow with them."""
    return at_length(replace(run, attention=run.attention.at_window(window)), T)
