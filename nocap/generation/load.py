"""From a run's folder to its trained model and its vocabulary."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from nocap import outside
from nocap.config import compose
from nocap.config.keys import InputError
from nocap.config.paths import cache_root
from nocap.config.run import Run
from nocap.model.gpt import build_model
from nocap.model.language_model import LanguageModel
from nocap.store.record import read_json
from nocap.training import checkpoint

if TYPE_CHECKING:
    import tiktoken


@dataclass(frozen=True, kw_only=True, slots=True)
class Trained:
    """A checkpoint's model in fp32, ready to read, with the run that it belongs to."""

    run: Run
    model: LanguageModel
    encoding: tiktoken.Encoding
    step: int


def load(run_dir: Path, *, device: torch.device, say: Callable[[str], None]) -> Trained:
    """The newest valid checkpoint of the run, on `device`. What is wrong with a newer one is said.

    Errors:
        ValueError: no config, no checkpoint, none that is valid, or one that is another model's or holds no numbers.
    """
    run = compose.load(run_dir / "config.yaml")
    run = replace(run, attention=run.attention.portable())
    for line in other_code(run_dir):
        say(line)
    found = checkpoint.find(run_dir / "checkpoints")
    for problem in found.invalid:
        say(f"checkpoint not used: {problem}")
    if found.path is None:
        raise InputError(f"{run_dir} must hold a {'valid ' if found.invalid else ''}checkpoint, got none")
    encoding = run.tokenizer.load(cache_dir=cache_root(run.cache_dir))
    model = build_model(run, vocab_size=encoding.n_vocab)
    checkpoint.load_model(found.path, model)
    if not all(bool(p.isfinite().all()) for p in model.parameters()):
        raise ValueError(f"{found.path} must hold finite weights, got some that are no numbers: the run diverged")
    model = model.to(device).eval()
    model.validating().__enter__()  # to stay
    return Trained(run=run, model=model, encoding=encoding, step=found.step)


def other_code(run_dir: Path) -> list[str]:
    """A line for each option from outside that is not, byte for byte, the one that the run was trained with."""
    trained = {(row["group"], row["name"]): row["sha256"] for row in (read_json(run_dir / "manifest.json") or {}).get("outside", ())}
    changed = [file for file in outside.files() if trained.get((file.group, file.name), file.sha256) != file.sha256]
    return [f"{file.path} is not the code that this run was trained with; its record has a copy (--allow-code)" for file in changed]
