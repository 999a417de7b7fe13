"""From a run's folder to its trained model and its vocabulary."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from nocap.data import tokenizer
from nocap.model.gpt import GPT, build_model
from nocap.paths import cache_root
from nocap.run import checkpoint, config
from nocap.schema import Attention, Hybrid, Kernel, Run, Sliding

if TYPE_CHECKING:
    import tiktoken


@dataclass(frozen=True, kw_only=True, slots=True)
class Trained:
    """A checkpoint's model in fp32, ready to read, with the run that it belongs to."""

    run: Run
    model: GPT
    encoding: tiktoken.Encoding
    step: int


def load(run_dir: Path, *, device: torch.device, say: Callable[[str], None]) -> Trained:
    """The newest valid checkpoint of the run, on `device`. What is wrong with a newer one is said.

    Errors:
        ValueError: no config, no checkpoint, none that is valid, or one that is another model's or holds no numbers.
    """
    run = config.load(run_dir / "config.yaml")
    run = replace(run, attention=portable(run.attention))
    found = checkpoint.find(run_dir / "checkpoints")
    for problem in found.invalid:
        say(f"checkpoint not used: {problem}")
    if found.path is None:
        raise checkpoint.NoneValidError(f"{run_dir} must hold a {'valid ' if found.invalid else ''}checkpoint, got none")
    encoding = tokenizer.load(run.tokenizer.vocabulary, cache_dir=cache_root(run.cache_dir))
    model = build_model(run, vocab_size=encoding.n_vocab)
    checkpoint.load_model(found.path, model)
    if not all(bool(p.isfinite().all()) for p in model.parameters()):
        raise ValueError(f"{found.path} must hold finite weights, got some that are no numbers: the run diverged")
    return Trained(run=run, model=model.to(device).eval(), encoding=encoding, step=found.step)


def portable(spec: Attention) -> Attention:
    """The same attention by kernels that take any device, fp32 and any length: a named CUDA kernel may not be here, and FlexAttention
    is compiled for one length."""
    if isinstance(spec, Sliding) and not isinstance(spec, Hybrid):
        return replace(spec, kernel=Kernel.blocks)
    kernel = spec.kernel if spec.kernel is Kernel.materialized else Kernel.fused
    return replace(spec, kernel=kernel, local_kernel=Kernel.blocks) if isinstance(spec, Hybrid) else replace(spec, kernel=kernel)
