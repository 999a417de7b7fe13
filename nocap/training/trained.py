"""A trained run's model, read from its newest checkpoint: to generate from, or to learn from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from nocap.config.keys import InputError
from nocap.config.paths import expanded
from nocap.config.plain import load
from nocap.config.run import Run
from nocap.config.untrusted_files import parse_yaml, read_text
from nocap.model.build import build_model
from nocap.model.language_model import LanguageModel
from nocap.store.checkpoints import FOLDER
from nocap.store.identity import config_that_counts
from nocap.store.record_files import CONFIG, MANIFEST, check_record, read_json
from nocap.training.loading import load_validated, misfit, newest_valid
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
    run = load(folder / CONFIG)
    written = parse_yaml(read_text(folder / CONFIG))
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


class TrainedModel(NamedTuple):
    """Hold a run, its model on the CPU in evaluation, and the step that its weights are of."""

    run: Run
    model: LanguageModel
    step: int


def trained(run_dir: Path, *, log: Log = no_log) -> TrainedModel:
    """Return the run, its model on the CPU in evaluation with the weights that it is validated
    with, and the step of the checkpoint: the newest valid one. What is wrong with a newer one, and
    code that is not the run's, goes to the log.

    Errors:
        ValueError: no record or one that is not what nocap wrote, no checkpoint, none that is
            valid, or one whose weights are not finite.
    """
    run = run_of(run_dir)
    model = build_model(run, vocab_size=run.tokenizer.vocab_size)
    manifest = read_json(run_dir / MANIFEST) or {}
    identity = manifest.get("identity")
    log_other_code(run, code_of(manifest), log)
    of_run = partial(misfit, model=model, identity=identity)
    newest = newest_valid(run_dir / FOLDER, misfit=of_run)
    for problem in newest.invalid:
        log(f"checkpoint not used: {problem}")
    if newest.path is None:
        attempts = manifest.get("attempts") or [{}]
        why = ""
        if attempts[-1].get("grid"):
            why = "; a grid keeps only the checkpoints of trainer.keep_steps"
        kind = "valid checkpoint" if newest.invalid else "checkpoint"
        raise InputError(f"{run_dir} must hold a {kind}, got none{why}")
    load_validated(newest.path, model, run)
    enter_step(run, model, max(newest.step - 1, 0))
    check_finite(newest.path, model.parameters())
    return TrainedModel(run, model.eval(), newest.step)


def code_of(manifest: Mapping[str, Any]) -> dict[tuple[str, str], str]:
    """Map group and name to the SHA-256 of the options from outside that a run was trained with."""
    return {(row["group"], row["name"]): row["sha256"] for row in manifest.get("outside") or ()}


def log_other_code(run: Run, known: Mapping[tuple[str, str], str], log: Log) -> None:
    """Write a line for each option from outside that is not, byte for byte, the one that the run
    was trained with."""
    for file in run.outside_files():
        if known.get((file.group, file.name)) != file.sha256:
            log(
                f"{file.path} differs from the code that trained this run; --allow-code uses the "
                "copy in the run's record"
            )


def check_finite(path: Path, tensors: Iterable[torch.Tensor]) -> None:
    """Refuse weights that are not finite.

    Errors:
        ValueError: some are not.
    """
    if not all(bool(t.isfinite().all()) for t in tensors):
        raise ValueError(
            f"{path} must hold finite weights, got weights that are not finite, because the "
            "run diverged"
        )


def teacher_of(path: str, key: str, *, run: Run, device: torch.device) -> LanguageModel:
    """Return the model of the trained run in the folder of this key, on the device and without
    gradients, for this run's tokens.

    Errors:
        InputError: its tokens are others, or its context is shorter.
    """
    teacher = trained(expanded(path))
    name = teacher.run.tokenizer.name
    if name != run.tokenizer.name:
        raise InputError(
            f"{key} must be a run that was trained on {run.tokenizer.name} tokens, got {name}"
        )
    seq_len = teacher.run.model.seq_len
    if seq_len < run.model.seq_len:
        raise InputError(
            f"{key} must be a run with model.seq_len={run.model.seq_len} or more, got {seq_len}"
        )
    teacher.run.attention.prepare(teacher.run, device)
    return teacher.model.to(device).requires_grad_(False)
