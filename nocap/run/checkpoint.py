"""Checkpoints that are whole or not there: tensors in safetensors, the rest in JSON, checksums last.

A folder `step-00000200` holds `model.safetensors`, `optimizer.safetensors`, `state.json` and `manifest.json`, the files' SHA-256. It is
written beside its place under a temporary name, synced, and renamed.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Collection
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

Optimizers = list[torch.optim.Optimizer]
Tensors = dict[str, dict[str, Tensor]]
STATE = {torch.optim.AdamW: ("step", "exp_avg", "exp_avg_sq"), torch.optim.Muon: ("momentum_buffer",)}  # what torch keeps of a parameter


class NoneValidError(ValueError):
    """There are checkpoints, or there should be one, and none can be used."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """What a checkpoint folder has: its newest valid checkpoint, and what is wrong with those that are not."""

    step: int
    path: Path | None
    invalid: list[str]


class Writer:
    """Saves checkpoints below `root`, and keeps the newest ones and those of the steps in `always`.

    In the background the caller waits for a copy of the tensors, not for the disk: for a device with memory of its own. On a CPU the copy
    would enter the run's memory, and the writing would take a core from the training.
    """

    def __init__(self, root: Path, *, background: bool, always: Collection[int] = ()) -> None:
        self.root, self._always = root, frozenset(always)
        self._pool = ThreadPoolExecutor(1) if background else None
        self._pending: Future[list[str]] | None = None

    def save(self, *, step: int, model: nn.Module, optimizers: Optimizers, state: dict[str, Any], keep: int, must: bool) -> list[str]:
        """Save, then delete all but the newest `keep` valid ones; what a person should know of it and of the save before, line by line.

        A disk that does not take it gets room (of the older ones only the newest valid one stays, and those that always do) and a second
        try. If that fails, too, the older ones stand.

        Errors:
            OSError: that, where the checkpoint `must` be saved.
        """
        said = self.settle()
        tensors = snapshot(model, optimizers, copy=self._pool is not None)
        state = {"step": step, **state}
        if self._pool is not None and not must:
            self._pending = self._pool.submit(self._save, tensors, state, keep, must)
            return said
        return said + self._save(tensors, state, keep, must)

    def settle(self) -> list[str]:
        """Wait for what is being written in the background; its lines."""
        pending, self._pending = self._pending, None
        return pending.result() if pending is not None else []

    def _save(self, tensors: Tensors, state: dict[str, Any], keep: int, must: bool) -> list[str]:
        for last_try in (False, True):
            try:
                write(self.root, tensors=tensors, state=state)
                return prune(self.root, keep=keep, always=self._always)
            except (OSError, SafetensorError) as error:  # safetensors wraps its own
                shutil.rmtree(_temporary(self.root, state["step"]), ignore_errors=True)
                line = f"checkpoint of step {state['step']} not saved: {error}; those before it stand"
                if last_try and must:
                    raise OSError(line) from error
                prune(self.root, keep=1, always=self._always)
        return [line]


def snapshot(model: nn.Module, optimizers: Optimizers, *, copy: bool) -> Tensors:
    """File → name → tensor on the CPU; with `copy`, as it is now whatever the next step does."""
    # A tied matrix has two names and one place in named_parameters: safetensors must see it once.
    weights = {name: p.detach() for name, p in model.named_parameters()}
    names: dict[Tensor, str] = {p: name for name, p in model.named_parameters()}
    moments = {
        f"{index}/{names[p]}/{field}": tensor
        for index, optimizer in enumerate(optimizers)
        for p, fields in optimizer.state.items()
        for field, tensor in fields.items()
    }
    files = {"model.safetensors": weights, "optimizer.safetensors": moments}
    return {file: {name: t.to("cpu", copy=copy).contiguous() for name, t in tensors.items()} for file, tensors in files.items()}


def write(root: Path, *, tensors: Tensors, state: dict[str, Any]) -> Path:
    """Write the checkpoint of `state["step"]` and return its folder. `state` holds JSON types only."""
    path, temporary = root / name_of(state["step"]), _temporary(root, state["step"])
    root.mkdir(exist_ok=True)
    for leftover in root.glob(".step-*.tmp"):
        shutil.rmtree(leftover)
    temporary.mkdir()
    for name, content in tensors.items():
        save_file(content, temporary / name)
    (temporary / "state.json").write_text(json.dumps(state, allow_nan=False))
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


def name_of(step: int) -> str:
    """A checkpoint folder's name."""
    return f"step-{step:08d}"


def _temporary(root: Path, step: int) -> Path:
    return root / f".{name_of(step)}.tmp"


def find(root: Path, *, fits: Callable[[Path], str | None] = lambda path: None) -> Found:
    """The newest checkpoint whose files all match their checksums, and which `fits`. Step 0 and no path where there is none."""
    invalid: list[str] = []
    for path in sorted(root.glob("step-*"), reverse=True):
        found = given(path, fits=fits)
        if found.path is not None:
            return Found(step=found.step, path=path, invalid=invalid)
        invalid += found.invalid
    return Found(step=0, path=None, invalid=invalid)


def given(path: Path, *, fits: Callable[[Path], str | None]) -> Found:
    """The checkpoint in this folder, as `find` finds one: valid, or with what is wrong with it."""
    if problem := _problem(path) or fits(path):
        return Found(step=0, path=None, invalid=[f"{path}: {problem}"])
    return Found(step=int(path.name.removeprefix("step-")), path=path, invalid=[])


def misfit(path: Path, *, model: nn.Module, optimizers: Optimizers) -> str | None:
    """Why a checkpoint that is whole is not one of this model and these optimizers, or `None`. Reads names and shapes, no tensor."""
    names = {p: name for name, p in model.named_parameters()}
    moments = {
        f"{index}/{names[p]}/{field}": [] if field == "step" else list(p.shape)
        for index, optimizer in enumerate(optimizers)
        for group in optimizer.param_groups
        for p in group["params"]
        for field in STATE[type(optimizer)]
    }
    return _differ(path / "model.safetensors", _weights(model)) or _differ(path / "optimizer.safetensors", moments)


def _weights(model: nn.Module) -> dict[str, list[int]]:
    return {name: list(p.shape) for name, p in model.named_parameters()}


def _differ(path: Path, expected: dict[str, list[int]]) -> str | None:
    """Where a file's names and shapes are not the expected ones."""
    found = _shapes(path)
    differing = sorted(name for name in found.keys() | expected.keys() if found.get(name) != expected.get(name))
    return f"{path.name} must hold what this run's model has, and differs in {differing[0]}" if differing else None


def load(path: Path, *, model: nn.Module, optimizers: Optimizers) -> dict[str, Any]:
    """Put a checkpoint's tensors into model and optimizers, which it must fit; return its state."""
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
    if problem := _differ(path / "model.safetensors", _weights(model)):
        raise ValueError(f"{path}: {problem}")
    saved = load_file(path / "model.safetensors")
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(saved[name])


def prune(root: Path, *, keep: int, always: Collection[int] = ()) -> list[str]:
    """Delete all but the newest `keep` valid checkpoints, every checksum read again, and those of the steps in `always`.

    Invalid ones do not count, and go when they are older than a kept one. Returns a line for each that stays.
    """
    kept, said, spared = 0, [], {name_of(step) for step in always}
    for path in sorted(root.glob("step-*"), reverse=True):
        if kept >= keep:
            if path.name not in spared:
                shutil.rmtree(path)
        elif problem := _problem(path):
            said.append(f"checkpoint not counted: {path}: {problem}")
        else:
            kept += 1
    return said


def _shapes(path: Path) -> dict[str, list[int]]:
    with safe_open(path, framework="pt") as file:
        return {key: file.get_slice(key).get_shape() for key in file.keys()}  # noqa: SIM118  # it is no dict


def _problem(path: Path) -> str | None:
    """Why the checkpoint cannot be used, or `None`. Nothing in it is executed: tensors are read as safetensors, the rest as JSON."""
    try:
        sums = json.loads((path / "manifest.json").read_text())
        expected = {"model.safetensors", "optimizer.safetensors", "state.json"}
        if set(sums) != expected:
            return f"manifest.json names {sorted(sums)}, not {sorted(expected)}"
    except (OSError, ValueError, TypeError, RecursionError) as error:
        return f"manifest.json cannot be read ({error})"
    for name in sorted(sums):
        try:
            if not (path / name).is_file():
                return f"{name} is missing"
            if _sha256(path / name) != sums[name]:
                return f"{name} does not match its checksum"
            if name == "state.json":
                state = json.loads((path / name).read_text())
                if not isinstance(state, dict) or path.name != name_of(state.get("step", -1)):
                    return f"{name} must be of the step in the folder's name"
            else:
                _shapes(path / name)
        except (OSError, ValueError, TypeError, RecursionError, SafetensorError) as error:
            return f"{name} cannot be read ({error})"
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
