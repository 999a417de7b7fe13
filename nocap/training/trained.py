"""A trained run's model, read from its newest checkpoint or from a file of `nocap.export`: to
generate from, or to learn from.

That file is safetensors: the weights, and as metadata the config and what the run was.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save

from nocap.config.bounded import parse_json, parse_yaml, read_text
from nocap.config.keys import InputError
from nocap.config.outward import redact
from nocap.config.paths import expanded
from nocap.config.plain import from_plain, load, to_plain
from nocap.config.run import Run
from nocap.model.gpt import build_model
from nocap.model.language_model import LanguageModel
from nocap.store.file_writing import write_file
from nocap.store.identity import config_that_counts
from nocap.store.record import read_record
from nocap.store.record_files import Metrics, check_record, read_json
from nocap.training import checkpoint
from nocap.training.state import difference, put_weights, weights
from nocap.training.step import enter_step

Log = Callable[[str], None]


def no_log(line: str) -> None:
    """Log nothing."""


def run_of(path: str | Path) -> Run:
    """Return the run in this folder, with attention kernels that run anywhere.

    Errors:
        ValueError: there is none, or its record is not what nocap wrote.
    """
    folder = expanded(path)
    run = load(folder / "config.yaml")
    written = parse_yaml(read_text(folder / "config.yaml"))
    check_record(folder, config=_shared(config_that_counts(run), written))
    return replace(run, attention=run.attention.portable())


def _shared(config: Any, written: Any) -> Any:
    """Return a config without the keys that are not written: an older nocap did not have them."""
    if not isinstance(config, dict) or not isinstance(written, dict):
        return config
    shared = {}
    for key, value in config.items():
        if key in written:
            shared[key] = _shared(value, written[key])
    return shared


def trained(run_dir: Path, *, log: Log = no_log) -> tuple[Run, LanguageModel, int]:
    """Return the run, its model on the CPU in evaluation with the weights that it is validated
    with, and the step of the checkpoint: the newest valid one. What is wrong with a newer one, and
    code that is not the run's, goes to the log.

    Errors:
        ValueError: no record or one that is not what nocap wrote, no checkpoint, none that is
            valid, or one whose weights are not finite.
    """
    run = run_of(run_dir)
    model = build_model(run, vocab_size=run.tokenizer.vocab_size)
    manifest = read_json(run_dir / "manifest.json") or {}
    identity = manifest.get("identity")
    _log_other_code(run, _code(manifest), log)
    misfit = partial(checkpoint.misfit, model=model, identity=identity)
    newest = checkpoint.find(run_dir / "checkpoints", misfit=misfit)
    for problem in newest.invalid:
        log(f"checkpoint not used: {problem}")
    if newest.path is None:
        attempts = manifest.get("attempts") or [{}]
        why = ""
        if attempts[-1].get("grid"):
            why = "; of a grid's cells only those of trainer.keep_steps stay"
        kind = "valid checkpoint" if newest.invalid else "checkpoint"
        raise InputError(f"{run_dir} must hold a {kind}, got none{why}")
    checkpoint.load_validated(newest.path, model, run)
    enter_step(run, model, max(newest.step - 1, 0))
    _check_finite(newest.path, model.parameters())
    return run, model.eval(), newest.step


def _code(manifest: Mapping[str, Any]) -> dict[tuple[str, str], str]:
    """Map group and name to the SHA-256 of the options from outside that a run was trained with."""
    return {(row["group"], row["name"]): row["sha256"] for row in manifest.get("outside") or ()}


def _log_other_code(run: Run, known: Mapping[tuple[str, str], str], log: Log) -> None:
    """Write a line for each option from outside that is not, byte for byte, the one that the run
    was trained with."""
    for file in run.outside_files():
        if known.get((file.group, file.name)) != file.sha256:
            log(
                f"{file.path} is not the code that this run was trained with; its record has a "
                "copy (--allow-code)"
            )


def _check_finite(path: Path, tensors: Iterable[torch.Tensor]) -> None:
    if not all(bool(t.isfinite().all()) for t in tensors):
        raise ValueError(
            f"{path} must hold finite weights, got some that are not: the run diverged"
        )


def export(run_dir: Path, path: Path, *, log: Log) -> dict[str, Any]:
    """Write the model of the run's newest valid checkpoint, and return what the file says of the
    run: its `val_loss` is of that checkpoint, or None where that was not validated.

    Errors:
        ValueError: as for `trained`.
        OSError: it cannot be written.
    """
    run, model, step = trained(run_dir, log=log)
    record = read_record(run_dir, rows=False)
    val_loss = None
    for row in Metrics(run_dir / "metrics.jsonl").rows():
        if row["step"] == step:
            val_loss = row.get("val/loss")
            break
    about = {
        "name": record.name,
        "identity": record.identity,
        "step": step,
        "val_loss": val_loss,
        "outside": record.manifest.get("outside") or [],
    }
    config = to_plain(replace(run, output_dir="outputs", cache_dir=None))  # places on this machine
    metadata = {
        "format": "pt",
        "config": json.dumps(redact(config)),
        "run": json.dumps(redact(about), allow_nan=False),
    }
    tensors = {name: t.detach().contiguous() for name, t in weights(model).items()}
    write_file(path, save(tensors, metadata))
    return about


def exported(path: Path, *, log: Log = no_log) -> tuple[Run, LanguageModel, int]:
    """Return the run of an exported file, its model on the CPU in evaluation, and the step.

    Errors:
        ValueError: the file is no export, of another nocap's model, or its weights are not finite.
    """
    rule = f"{path} must be a file of nocap.export"
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        config = parse_json(metadata["config"])
        about = parse_json(metadata["run"])
        step = int(about["step"])
        code = _code(about)
    except (KeyError, *checkpoint.UNREADABLE) as error:
        raise ValueError(f"{rule}, got {type(error).__name__}: {error}") from error
    run = from_plain(config, rule)
    _log_other_code(run, code, log)
    run = replace(run, attention=run.attention.portable())
    model = build_model(run, vocab_size=run.tokenizer.vocab_size)
    shapes = {name: list(t.shape) for name, t in tensors.items()}
    problem = difference(shapes, model)
    if problem:
        raise ValueError(f"{path}: {problem}")
    _check_finite(path, tensors.values())
    put_weights(model, tensors)
    enter_step(run, model, max(step - 1, 0))
    return run, model.eval(), step


def teacher_of(path: str, key: str, *, run: Run, device: torch.device) -> LanguageModel:
    """Return the model of the trained run in the folder of this key, on the device and without
    gradients, for this run's tokens.

    Errors:
        InputError: its tokens are others, or its context is shorter.
    """
    teacher_run, model, _ = trained(expanded(path))
    name = teacher_run.tokenizer.name
    if name != run.tokenizer.name:
        raise InputError(f"{key} must be a run of {run.tokenizer.name} tokens, got {name}")
    seq_len = teacher_run.model.seq_len
    if seq_len < run.model.seq_len:
        raise InputError(
            f"{key} must be a run of model.seq_len={run.model.seq_len} or more, got {seq_len}"
        )
    teacher_run.attention.prepare(teacher_run, device)
    return model.to(device).requires_grad_(False)
