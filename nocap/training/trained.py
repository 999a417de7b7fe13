"""A trained run's model, read from its newest checkpoint or from a file of `nocap.export`: to generate from,
or to learn from.

That file is safetensors: the weights, and as metadata the config and what the run was.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save

from nocap.config.bounded import parse_json
from nocap.config.keys import InputError
from nocap.config.outward import redact
from nocap.config.paths import expanded
from nocap.config.plain import from_plain, load, to_plain
from nocap.config.run import Run
from nocap.model.gpt import build_model
from nocap.model.language_model import LanguageModel
from nocap.store.files import write_file
from nocap.store.identity import config_that_counts
from nocap.store.record import check_record, read_json
from nocap.store.runs import read
from nocap.training import checkpoint
from nocap.training.state import difference, put_weights, weights
from nocap.training.step import enter_step


def run_of(path: str | Path) -> Run:
    """The run in this folder, with attention kernels that run anywhere.

    Errors:
        ValueError: there is none, or its record is not what nocap wrote.
    """
    run = load((folder := expanded(path)) / "config.yaml")
    check_record(folder, config=config_that_counts(run))
    return replace(run, attention=run.attention.portable())


def trained(
    run_dir: Path, *, log: Callable[[str], None] = lambda line: None
) -> tuple[Run, LanguageModel, int]:
    """The run, its model on the CPU in evaluation with the weights that it is validated with, and the step of
    the checkpoint: the newest valid one. What is wrong with a newer one goes to the log.

    Errors:
        ValueError: no record or one that is not what nocap wrote, no checkpoint, none that is valid, or one
            whose weights are not finite.
    """
    run = run_of(run_dir)
    model = build_model(run, vocab_size=run.tokenizer.vocab_size)
    identity = (read_json(run_dir / "manifest.json") or {}).get("identity")
    newest = checkpoint.find(
        run_dir / "checkpoints", misfit=partial(checkpoint.misfit, model=model, identity=identity)
    )
    for problem in newest.invalid:
        log(f"checkpoint not used: {problem}")
    if newest.path is None:
        raise InputError(f"{run_dir} must hold a {'valid ' if newest.invalid else ''}checkpoint, got none")
    checkpoint.load_validated(newest.path, model, run)
    enter_step(model, max(newest.step - 1, 0))
    _check_finite(newest.path, model.parameters())
    return run, model.eval(), newest.step


def _check_finite(path: Path, tensors: Iterable[torch.Tensor]) -> None:
    if not all(bool(t.isfinite().all()) for t in tensors):
        raise ValueError(f"{path} must hold finite weights, got some that are not: the run diverged")


def export(run_dir: Path, path: Path, *, log: Callable[[str], None]) -> dict[str, Any]:
    """Write the model of the run's newest valid checkpoint, and return what the file says of the run.

    Errors:
        ValueError: as for `trained`.
        OSError: it cannot be written.
    """
    run, model, step = trained(run_dir, log=log)
    record = read(run_dir, rows=False)
    about = {"name": record.name, "identity": record.identity, "step": step, "val_loss": record.val_loss}
    config = to_plain(replace(run, output_dir="outputs", cache_dir=None))  # places on this machine
    metadata = {
        "format": "pt",
        "config": json.dumps(redact(config)),
        "run": json.dumps(redact(about), allow_nan=False),
    }
    write_file(path, save({name: t.detach().contiguous() for name, t in weights(model).items()}, metadata))
    return about


def exported(path: Path) -> tuple[Run, LanguageModel, int]:
    """As `trained`: the run, its model on the CPU in evaluation, and the step.

    Errors:
        ValueError: the file is no export, of another nocap's model, or its weights are not finite.
    """
    rule = f"{path} must be a file of nocap.export"
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        config, about = (parse_json(metadata[key]) for key in ("config", "run"))
        step = int(about["step"])
    except (KeyError, *checkpoint.UNREADABLE) as error:
        raise ValueError(f"{rule}, got {type(error).__name__}: {error}") from error
    run = from_plain(config, rule)
    run = replace(run, attention=run.attention.portable())
    model = build_model(run, vocab_size=run.tokenizer.vocab_size)
    if problem := difference({name: list(t.shape) for name, t in tensors.items()}, model):
        raise ValueError(f"{path}: {problem}")
    _check_finite(path, tensors.values())
    put_weights(model, tensors)
    enter_step(model, max(step - 1, 0))
    return run, model.eval(), step


def teacher_of(path: str, key: str, *, run: Run, device: torch.device) -> LanguageModel:
    """The model of the trained run in the folder of this key, on the device and without gradients, for this
    run's tokens.

    Errors:
        InputError: its tokens are others, or its context is shorter.
    """
    teacher_run, model, _ = trained(expanded(path))
    for rule, fits, value in (
        (
            f"of {run.tokenizer.name} tokens",
            teacher_run.tokenizer.name == run.tokenizer.name,
            teacher_run.tokenizer.name,
        ),
        (
            f"of model.seq_len={run.model.seq_len} or more",
            teacher_run.model.seq_len >= run.model.seq_len,
            teacher_run.model.seq_len,
        ),
    ):
        if not fits:
            raise InputError(f"{key} must be a run {rule}, got {value}")
    teacher_run.attention.prepare(teacher_run, device)
    return model.to(device).requires_grad_(False)
