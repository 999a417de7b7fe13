"""Checkpoints that are whole or not there: tensors in safetensors, the rest in JSON, checksums last.

A folder `step-00000200` holds `model.safetensors`, `optimizer.safetensors`, `state.json`, and `manifest.json`, the files' SHA-256. It is
written beside its place under a temporary name, synced, and renamed. Nothing in it is executed when it is read.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import nn

from nocap.training.optimizer import Optimizers
from nocap.training.state import MODEL, OPTIMIZER, Shapes, Tensors, as_json, difference, put_weights, restore, shapes_of, snapshot, weights

STATE, MANIFEST = "state.json", "manifest.json"
UNREADABLE = (OSError, ValueError, TypeError, RecursionError, SafetensorError)  # what reading a damaged file can raise


def name_of(step: int) -> str:
    """A checkpoint folder's name."""
    return f"step-{step:08d}"


# --- saving ------------------------------------------------------------------------------------------------------------------------


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
        """Save, then delete all but the newest `keep` valid ones. Returns lines to log about this save and the one before.

        Where the disk refuses, older checkpoints but the newest valid one and the `always` ones are deleted for a second try. If that
        fails, too, those stand.

        Errors:
            OSError: the second try failed, and the checkpoint `must` be saved.
        """
        lines = self.settle()
        tensors, plain = snapshot(model, optimizers, copy=self._pool is not None)
        state = {"step": step, **state, "optimizer": plain}
        if self._pool is not None and not must:
            self._pending = self._pool.submit(self._save, tensors, state, keep, must)
            return lines
        return lines + self._save(tensors, state, keep, must)

    def settle(self) -> list[str]:
        """Wait for what is being written in the background; its lines."""
        pending, self._pending = self._pending, None
        return pending.result() if pending is not None else []

    def _save(self, tensors: Tensors, state: dict[str, Any], keep: int, must: bool) -> list[str]:
        for last_try in (False, True):
            try:
                _write(self.root, tensors=tensors, state=state)
                return prune(self.root, keep=keep, always=self._always)
            except (OSError, SafetensorError) as error:  # safetensors wraps its own
                shutil.rmtree(_temporary(self.root, state["step"]), ignore_errors=True)
                line = f"checkpoint of step {state['step']} not saved: {error}; those before it stand"
                if last_try and must:
                    raise OSError(line) from error
                prune(self.root, keep=1, always=self._always)
        return [line]


def prune(root: Path, *, keep: int, always: Collection[int] = ()) -> list[str]:
    """Delete all but the newest `keep` valid checkpoints, every checksum read again, and those of the steps in `always`.

    Invalid ones do not count, and go when they are older than a kept one. Returns a line for each that stays.
    """
    kept, lines, spared = 0, [], {name_of(step) for step in always}
    for path in newest_first(root):
        if kept >= keep:
            if path.name not in spared:
                shutil.rmtree(path)
        elif problem := _problem(path):
            lines.append(f"checkpoint not counted: {path}: {problem}")
        else:
            kept += 1
    return lines


def _write(root: Path, *, tensors: Tensors, state: dict[str, Any]) -> None:
    """Write the checkpoint of `state["step"]`; `state` holds JSON types only."""
    path, temporary = root / name_of(state["step"]), _temporary(root, state["step"])
    root.mkdir(exist_ok=True)
    for leftover in root.glob(".step-*.tmp"):
        shutil.rmtree(leftover)
    temporary.mkdir()
    for name, content in tensors.items():
        save_file(content, temporary / name)
    (temporary / STATE).write_text(as_json(state))
    sums = {file.name: _sha256(file) for file in sorted(temporary.iterdir())}
    (temporary / MANIFEST).write_text(json.dumps(sums))
    for name in (*sums, MANIFEST, "."):
        _sync(temporary / name)
    if path.exists():  # an invalid one: a valid one would have been resumed from
        shutil.rmtree(path)
    temporary.rename(path)
    _sync(root)


def _temporary(root: Path, step: int) -> Path:
    return root / f".{name_of(step)}.tmp"


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


# --- finding and loading -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class ValidCheckpoint:
    """The first valid checkpoint of several, and what is wrong with those before it. Step 0 and no path where there is none."""

    path: Path | None
    invalid: list[str]

    @property
    def step(self) -> int:
        return int(self.path.name.removeprefix("step-")) if self.path else 0


def find(root: Path, *, misfit: Callable[[Path], str | None] = lambda path: None) -> ValidCheckpoint:
    """The newest checkpoint below `root` whose files match their checksums, and which has no `misfit`."""
    return first_valid(newest_first(root), misfit=misfit)


def first_valid(paths: Iterable[Path], *, misfit: Callable[[Path], str | None]) -> ValidCheckpoint:
    invalid: list[str] = []
    for path in paths:
        problem = _problem(path) or misfit(path)
        if problem is None:
            return ValidCheckpoint(path=path, invalid=invalid)
        invalid.append(f"{path}: {problem}")
    return ValidCheckpoint(path=None, invalid=invalid)


def misfit(path: Path, *, model: nn.Module, optimizer_shapes: Shapes) -> str | None:
    """Why a valid checkpoint is not one of this model and of optimizers with such tensors. Reads names and shapes, no tensor."""
    files = {MODEL: shapes_of(weights(model)), OPTIMIZER: optimizer_shapes}
    problems = (difference(file, _shapes(path / file), expected) for file, expected in files.items())
    return next(filter(None, problems), None)


def load(path: Path, *, model: nn.Module, optimizers: Optimizers) -> dict[str, Any]:
    """Put a checkpoint's tensors into model and optimizers, which it must fit; return its state."""
    state: dict[str, Any] = json.loads((path / STATE).read_text())
    restore(model, optimizers, tensors={name: load_file(path / name) for name in (MODEL, OPTIMIZER)}, plain=state.get("optimizer", {}))
    return state


def load_model(path: Path, model: nn.Module) -> None:
    """Put a checkpoint's weights into the model.

    Errors:
        ValueError: they are another model's.
    """
    if problem := difference(MODEL, _shapes(path / MODEL), shapes_of(weights(model))):
        raise ValueError(f"{path}: {problem}")
    put_weights(model, load_file(path / MODEL))


def newest_first(root: Path) -> list[Path]:
    return sorted(root.glob("step-*"), reverse=True)


def _problem(path: Path) -> str | None:
    """Why the checkpoint cannot be used, or `None`."""
    try:
        sums = json.loads((path / MANIFEST).read_text())
        if set(sums) != {MODEL, OPTIMIZER, STATE}:
            return f"{MANIFEST} names {sorted(sums)}, not {sorted((MODEL, OPTIMIZER, STATE))}"
    except UNREADABLE as error:
        return f"{MANIFEST} cannot be read ({error})"
    return next(filter(None, (_file_problem(path / name, sums[name]) for name in sorted(sums))), None)


def _file_problem(file: Path, sha256: str) -> str | None:
    try:
        if not file.is_file():
            return f"{file.name} is missing"
        if _sha256(file) != sha256:
            return f"{file.name} does not match its checksum"
        if file.name != STATE:
            _shapes(file)
            return None
        state = json.loads(file.read_text())
        right = isinstance(state, dict) and file.parent.name == name_of(state.get("step", -1))
        return None if right else f"{file.name} must be of the step in the folder's name"
    except UNREADABLE as error:
        return f"{file.name} cannot be read ({error})"


def _shapes(path: Path) -> Shapes:
    with safe_open(path, framework="pt") as file:
        return {key: file.get_slice(key).get_shape() for key in file.keys()}  # noqa: SIM118  # it is no dict
