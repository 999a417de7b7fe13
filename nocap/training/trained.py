"""A trained run's model, read from its newest checkpoint: to generate from, or to learn from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from nocap.config.keys import InputError
from nocap.config.paths import expanded
from nocap.config.plain import load
from nocap.config.run import Run
from nocap.model.gpt import build_model
from nocap.model.language_model import LanguageModel
from nocap.store.identity import config_that_counts
from nocap.store.record import check_record, read_json
from nocap.training import checkpoint


def run_of(path: str | Path) -> Run:
    """The run in this folder, with attention kernels that run anywhere.

    Errors:
        ValueError: there is none, or its record is not what nocap wrote.
    """
    run = load((folder := expanded(path)) / "config.yaml")
    check_record(folder, config=config_that_counts(run))
    return replace(run, attention=run.attention.portable())


def trained(run_dir: Path, *, log: Callable[[str], None] = lambda line: None) -> tuple[Run, LanguageModel, int]:
    """The run, its model on the CPU in evaluation with the weights that it is validated with, and the step of the checkpoint: the newest
    valid one. What is wrong with a newer one goes to the log.

    Errors:
        ValueError: no record or one that is not what nocap wrote, no checkpoint, none that is valid, or one whose weights are not finite.
    """
    run = run_of(run_dir)
    model = build_model(run, vocab_size=run.tokenizer.vocab_size)
    identity = (read_json(run_dir / "manifest.json") or {}).get("identity")
    found = checkpoint.find(run_dir / "checkpoints", misfit=partial(checkpoint.misfit, model=model, identity=identity))
    for problem in found.invalid:
        log(f"checkpoint not used: {problem}")
    if found.path is None:
        raise InputError(f"{run_dir} must hold a {'valid ' if found.invalid else ''}checkpoint, got none")
    checkpoint.load_validated(found.path, model, run)
    if not all(bool(p.isfinite().all()) for p in model.parameters()):
        raise ValueError(f"{found.path} must hold finite weights, got some that are not: the run diverged")
    return run, model.eval(), found.step


def teacher_of(path: str, key: str, *, run: Run, device: torch.device) -> LanguageModel:
    """The model of the trained run in the folder of this key, on the device and without gradients, for this run's tokens.

    Errors:
        InputError: its tokens are others, or its context is shorter.
    """
    theirs, model, _ = trained(expanded(path))
    for rule, fits, value in (
        (f"of {run.tokenizer.name} tokens", theirs.tokenizer.name == run.tokenizer.name, theirs.tokenizer.name),
        (f"of model.seq_len={run.model.seq_len} or more", theirs.model.seq_len >= run.model.seq_len, theirs.model.seq_len),
    ):
        if not fits:
            raise InputError(f"{key} must be a run {rule}, got {value}")
    theirs.attention.prepare(theirs, device)
    return model.to(device).requires_grad_(False)
