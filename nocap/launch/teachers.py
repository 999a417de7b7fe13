"""The finished runs that a run learns from: their weights are a part of its identity, and their training of its time. No torch here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nocap.config.keys import require
from nocap.config.paths import expanded
from nocap.config.run import Run
from nocap.store.checkpoints import FOLDER, newest_first, step_of
from nocap.store.record import read_json
from nocap.store.runs import read

WEIGHTS = "model.safetensors"


@dataclass(frozen=True, kw_only=True, slots=True)
class Teacher:
    path: Path  # the run's folder
    identity: str
    weights: str  # SHA-256 of its last checkpoint's weights
    train_s: float  # of its training, its own teachers' included

    @property
    def part(self) -> dict[str, Any]:
        """Of the identity."""
        return {"identity": self.identity, "weights": self.weights}

    @property
    def record(self) -> dict[str, Any]:
        return {"path": str(self.path), "identity": self.identity, "train_s": self.train_s}


def teachers(run: Run) -> dict[str, Teacher]:
    """By the option that learns from it. The weights are not read here: the worker does.

    Errors:
        ValueError: an option names no finished run with a checkpoint.
    """
    named = ((name, option.learns_from()) for name, option in run.options())
    return {name: _read(f"{name}.run", path) for name, path in named if path is not None}


def _read(key: str, path: str) -> Teacher:
    folder = expanded(path).absolute()
    require(folder.is_dir(), key, "be the folder of a finished run, as outputs/runs/RUN", path)
    try:
        record = read(folder, problems=[])
        found = newest_first(folder / FOLDER)
        sums = (read_json(found[0] / "manifest.json") if found else None) or {}
    except ValueError as error:
        raise ValueError(f"{key} must be the folder of a finished run, got {path} ({error})") from error
    require(record.status == "finished", key, "be the folder of a finished run", f"{path}, which is {record.status}")
    steps, weights = record.summary.get("steps"), sums.get(WEIGHTS)
    whole = isinstance(weights, str) and step_of(found[0]) == steps
    require(whole, key, f"hold the checkpoint of its last step, {steps}", path)
    return Teacher(path=folder, identity=record.identity, weights=str(weights), train_s=record.train_s or 0.0)
