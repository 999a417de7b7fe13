"""Checkpoints that are whole or not there: tensors in safetensors, the rest in JSON, checksums last.

A folder `step-00000200` holds `model.safetensors`, `optimizer.safetensors`, `state.json` and `manifest.json`, the files' SHA-256. It is
written beside its place under a temporary name, synced, and renamed.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

Optimizers = list[torch.optim.Optimizer]


class NoneValidError(ValueError):
    """There are checkpoints, and none can be used."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """What a checkpoint folder has: its newest valid checkpoint, and what is wrong with those that are not."""

    step: int
    path: Path | None
    invalid: list[str]


def save(root: Path, *, step: int, model: nn.Module, optimizers: Optimizers, state: dict[str, Any]) -> Path:
    """Write the checkpoint of `step` and return its folder. `state` holds JSON types only."""
    path, temporary = root / f"step-{step:08d}", root / f".step-{step:08d}.tmp"
    root.mkdir(exist_ok=True)
    for leftover in root.glob(".step-*.tmp"):
        shutil.rmtree(leftover)
    temporary.mkdir()
    # A tied matrix has two names and one place in named_parameters: safetensors must see it once.
    save_file({name: p.detach().contiguous() for name, p in model.named_parameters()}, temporary / "model.safetensors")
    save_file(_optimizer_tensors(model, optimizers), temporary / "optimizer.safetensors")
    (temporary / "state.json").write_text(json.dumps({"step": step, **state}, allow_nan=False))
    sums = {file.name: _sha256(file) for file in sorted(temporary.iterdir())}
    for name in sums:
        _sync(temporary / name)
    (temporary / "manifest.json").write_text(json.dumps(sums))
    _sync(temporary / "manifest.json")
    _sync(temporary)
    if path.exists():  # an invalid one: a valid one would have been resumed from
        shutil.rmtree(path)
    temporary.rename(path)
    _sync(root)
    return path


def find(root: Path) -> Found:
    """The newest checkpoint whose files all match their checksums. Step 0 and no path where there is none."""
    invalid = []
    for path in sorted(root.glob("step-*"), reverse=True):
        if problem := _problem(path):
            invalid.append(f"{path}: {problem}")
        else:
            return Found(step=int(path.name.removeprefix("step-")), path=path, invalid=invalid)
    return Found(step=0, path=None, invalid=invalid)


def load(path: Path, *, model: nn.Module, optimizers: Optimizers) -> dict[str, Any]:
    """Put a checkpoint's tensors into model and optimizers; return its state."""
    load_model(path, model)
    names = dict(model.named_parameters())
    for key, tensor in load_file(path / "optimizer.safetensors").items():
        index, name, field = key.split("/")
        p = names[name]
        optimizers[int(index)].state[p][field] = tensor.to(p.device)
    state: dict[str, Any] = json.loads((path / "state.json").read_text())
    return state


def load_model(path: Path, model: nn.Module) -> None:
    """Put a checkpoint's weights into the model.

    Errors:
        ValueError: they are another model's.
    """
    saved, own = load_file(path / "model.safetensors"), dict(model.named_parameters())
    shapes = [{name: tuple(tensor.shape) for name, tensor in tensors.items()} for tensors in (saved, own)]
    apart = sorted({name for name, _ in shapes[0].items() ^ shapes[1].items()})
    if apart:
        raise ValueError(f"{path} must hold the weights of the run's own config.yaml, got other {apart[0]} ({len(apart)} tensors differ)")
    with torch.no_grad():
        for name, p in own.items():
            p.copy_(saved[name])


def prune(root: Path, *, keep: int) -> None:
    """Delete all but the newest `keep` valid checkpoints; invalid ones do not count, and go when they are older than a kept one."""
    kept = 0
    for path in sorted(root.glob("step-*"), reverse=True):
        if kept >= keep:
            shutil.rmtree(path)
        elif not _problem(path, checksums=False):
            kept += 1


def _optimizer_tensors(model: nn.Module, optimizers: Optimizers) -> dict[str, Tensor]:
    names: dict[Tensor, str] = {p: name for name, p in model.named_parameters()}
    return {
        f"{index}/{names[p]}/{field}": tensor.contiguous()
        for index, optimizer in enumerate(optimizers)
        for p, fields in optimizer.state.items()
        for field, tensor in fields.items()
    }


def _problem(path: Path, *, checksums: bool = True) -> str | None:
    """Why the checkpoint cannot be used, or `None`."""
    try:
        sums = json.loads((path / "manifest.json").read_text())
        expected = {"model.safetensors", "optimizer.safetensors", "state.json"}
        if set(sums) != expected:
            return f"manifest.json names {sorted(sums)}, not {sorted(expected)}"
        for name, expected_sum in sums.items():
            if not (path / name).is_file():
                return f"{name} is missing"
            if checksums and _sha256(path / name) != expected_sum:
                return f"{name} does not match its checksum"
    except (OSError, ValueError, TypeError) as error:
        return f"manifest.json cannot be read ({error})"
    return None


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(path: Path) -> None:
    """Force a file, or a folder's names, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
