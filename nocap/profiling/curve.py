"""What attention and a step cost as sequences grow: measured at some lengths, with the exponent of the power law through them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from nocap.loop import build, take_step
from nocap.model.attention import build_mixer, prepare_flex
from nocap.profiling.clock import least_ms
from nocap.profiling.measure import measurable, random_tokens
from nocap.run.evaluate import autocast
from nocap.run.ledger import Ledger
from nocap.schema import Run


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


def curve(arms: dict[str, Callable[[int], Run]], lengths: Sequence[int], *, vocab_size: int, steps: bool) -> list[dict[str, Any]]:
    """Milliseconds of attention alone (scores and weighted sum of one layer, forward and backward) and of a step, by arm and length."""
    found = []
    for name, at in arms.items():
        runs = [at(T) for T in lengths]
        alone = [attention_ms(run) for run in runs]
        row: dict[str, Any] = {"name": name, "T": list(lengths), "attention_ms": alone, "attention": exponent(lengths, alone)}
        if hasattr(runs[0].attention, "window"):
            row["window"] = runs[0].attention.window
        if steps:
            row["step_ms"] = [step_ms(run, vocab_size=vocab_size) for run in runs]
            row["step"] = exponent(lengths, row["step_ms"])
        found.append(row)
    return found


def attention_ms(run: Run) -> float:
    """Forward and backward of the first layer's mixer on random queries, keys and values of the run's shape."""
    device, m = run.trainer.device, run.model
    torch.set_num_threads(run.trainer.threads)
    prepare_flex(run.attention, seq_len=m.seq_len, device=torch.device(device.value))
    mixer = build_mixer(run.attention, 0)
    shape = (run.trainer.micro_batch, m.seq_len, m.d_model // m.n_head)

    def heads(n: int) -> torch.Tensor:
        """As the projections leave them: (B, T, H, D) in memory."""
        made = torch.randn(shape[0], shape[1], n, shape[2], device=device.value).transpose(1, 2)
        return made.requires_grad_()

    q, k, v = heads(m.n_head), heads(run.attention.n_kv_heads), heads(run.attention.n_kv_heads)
    if run.trainer.precision.value == "bf16":
        v = v.detach().bfloat16().requires_grad_()
    grad = torch.ones_like(mix(run, mixer, q, k, v))

    def once() -> None:
        torch.autograd.grad(mix(run, mixer, q, k, v), (q, k, v), grad)

    return least_ms(once, device)


def mix(run: Run, mixer: Callable[..., torch.Tensor], *qkv: torch.Tensor) -> torch.Tensor:
    with autocast(run, run.trainer.precision):
        return mixer(*qkv)


def step_ms(run: Run, *, vocab_size: int) -> float:
    """A training step of one micro-batch, eager."""
    one = measurable(run)
    with random_tokens(one, vocab_size) as job:
        trainee, ledger = build(job), Ledger(started=job.started)
        take_step(job, trainee, ledger, step=0)
        return least_ms(lambda: take_step(job, trainee, ledger, step=0), run.trainer.device, repeats=1)


def at_length(run: Run, T: int, *, window: int) -> Run:
    """The run with sequences of T tokens, one micro-batch a step, and a window that does not grow."""
    t = run.trainer
    tokens = t.micro_batch * T
    spec = run.attention
    if hasattr(spec, "window"):
        spec = replace(spec, window=window)
    return replace(
        run,
        attention=spec,
        model=replace(run.model, seq_len=T),
        trainer=replace(t, batch_tokens=tokens * t.devices, val_tokens=tokens),
    )
