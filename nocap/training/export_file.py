"""A run's model in a file of `nocap.export`: safetensors of the weights, and as metadata the config
and what the run was."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from nocap.config.outgoing_text import redact
from nocap.config.plain import from_plain, to_plain
from nocap.config.untrusted_files import parse_json
from nocap.model.build import build_model
from nocap.row_keys import VAL_LOSS
from nocap.store.checkpoints import UNREADABLE
from nocap.store.file_writing import write_file
from nocap.store.record import read_record
from nocap.store.record_files import ROWS
from nocap.store.rows_file import RowsFile
from nocap.training.state import difference, put_weights, weights
from nocap.training.step import enter_step
from nocap.training.trained import (
    Log,
    TrainedModel,
    check_finite,
    code_of,
    log_other_code,
    no_log,
    trained,
)


def write_export(run_dir: Path, path: Path, *, log: Log) -> dict[str, Any]:
    """Write the model of the run's newest valid checkpoint, and return what the file says of the
    run: its `val_loss` is of that checkpoint, or None where that was not validated.

    Errors:
        ValueError: as for `trained`.
        OSError: it cannot be written.
    """
    run, model, step = trained(run_dir, log=log)
    record = read_record(run_dir, rows=False)
    val_loss = None
    for row in RowsFile(run_dir / ROWS).rows():
        if row["step"] == step:
            val_loss = row.get(VAL_LOSS)
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


def read_export(path: Path, *, log: Log = no_log) -> TrainedModel:
    """Return the run of an exported file, its model on the CPU in evaluation, and the step.

    Errors:
        ValueError: the file is no export, of another nocap's model, or its weights are not finite.
    """
    rule = f"{path} must be a file that nocap.export wrote"
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        config = parse_json(metadata["config"])
        about = parse_json(metadata["run"])
        step = int(about["step"])
        code = code_of(about)
    except (KeyError, SafetensorError, *UNREADABLE) as error:
        raise ValueError(f"{rule}, got {type(error).__name__}: {error}") from error
    run = from_plain(config, rule)
    log_other_code(run, code, log)
    run = replace(run, attention=run.attention.portable())
    model = build_model(run, vocab_size=run.tokenizer.vocab_size)
    shapes = {name: list(t.shape) for name, t in tensors.items()}
    problem = difference(shapes, model)
    if problem:
        raise ValueError(f"{path}: {problem}")
    check_finite(path, tensors.values())
    put_weights(model, tensors)
    enter_step(run, model, max(step - 1, 0))
    return TrainedModel(run, model.eval(), step)
