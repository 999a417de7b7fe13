"""A trained model as one safetensors file: its weights, and as the file's metadata the config and what the run was. And the way back."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import save

from nocap.config.bounded import parse_json
from nocap.config.outward import redact
from nocap.config.plain import from_plain, to_plain
from nocap.config.run import Run
from nocap.model.gpt import build_model
from nocap.model.language_model import LanguageModel
from nocap.store.files import write_file
from nocap.store.runs import read
from nocap.training.checkpoint import UNREADABLE
from nocap.training.state import difference, put_weights, weights
from nocap.training.trained import trained


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
    metadata = {"format": "pt", "config": json.dumps(redact(config)), "run": json.dumps(redact(about), allow_nan=False)}
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
    except (KeyError, *UNREADABLE) as error:
        raise ValueError(f"{rule}, got {type(error).__name__}: {error}") from error
    run = from_plain(config, rule)
    run = replace(run, attention=run.attention.portable())
    model = build_model(run, vocab_size=run.tokenizer.vocab_size)
    if problem := difference({name: list(t.shape) for name, t in tensors.items()}, model):
        raise ValueError(f"{path}: {problem}")
    if not all(bool(t.isfinite().all()) for t in tensors.values()):
        raise ValueError(f"{path} must hold finite weights")
    put_weights(model, tensors)
    return run, model.eval(), step
