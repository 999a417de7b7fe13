"""Checkpoints that are whole or not there: tensors in safetensors, the rest in JSON, checksums
last.

A folder `step-00000200` holds `model.safetensors`, `optimizer.safetensors`, `state.json`, the run's
rows so far as `metrics.jsonl`, and `manifest.json`, the files' SHA-256. It is written beside its
place under a temporary name, synced, and renamed. Nothing in it is executed when it is read.
"""

from __future__ import annotations

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

from nocap.config.bounded import parse_json, read_text
from nocap.config.keys import InputError
from nocap.config.run import Run
from nocap.model.language_model import LanguageModel
from nocap.options.optimizer import Optimizer
from nocap.store import lease
from nocap.store.checkpoints import MANIFEST, is_folder, name_of, newest_first, sha256, step_of
from nocap.store.record_files import SHAPES, check_shape, read_rows
from nocap.training.optimizer import Optimizers, build_optimizers
from nocap.training.state import (
    MODEL,
    OPTIMIZER,
    Tensors,
    as_json,
    difference,
    put_weights,
    restore,
    snapshot,
)

STATE = "state.json"
ROWS = "metrics.jsonl"
# what reading a damaged file can raise
UNREADABLE = (OSError, ValueError, TypeError, RecursionError, SafetensorError)


# --- saving ---------------------------------------------------------------------------------------


class Writer:
    """Saves checkpoints below `root`, and keeps the newest ones and those of the steps in `always`.
    They are made in `stage`, a folder of the lease: without it they cannot come to their place.

    In the background the caller waits for a copy of the tensors, not for the disk: for a device
    with memory of its own. On a CPU the copy would enter the run's memory, and the writing would
    take a core from the training.
    """

    def __init__(
        self,
        root: Path,
        *,
        background: bool,
        always: Collection[int] = (),
        stage: Path | None = None,
    ) -> None:
        self.root = root
        self._always = frozenset(always)
        self._stage = stage
        self._pool = ThreadPoolExecutor(1) if background else None
        self._pending: Future[list[str]] | None = None

    def save(
        self,
        *,
        step: int,
        model: nn.Module,
        optimizers: Optimizers,
        state: dict[str, Any],
        keep: int,
        must: bool,
        rows: bytes = b"",
    ) -> list[str]:
        """Save, with a copy of the rows before `step`, then delete all but the newest `keep` valid
        ones. Returns lines to log about this save and the one before.

        Where the disk refuses, older checkpoints but the newest valid one and the `always` ones are
        deleted for a second try. If that fails, too, those stand.

        Errors:
            LostError: another process has taken the run over. Nothing was saved or deleted.
            OSError: the second try failed, and the checkpoint `must` be saved.
        """
        lines = self.settle()
        tensors, plain = snapshot(model, optimizers, copy=self._pool is not None)
        state = {"step": step, **state, "optimizer": plain}
        if self._pool is not None and not must:
            self._pending = self._pool.submit(self._save, tensors, state, rows, keep, must)
            return lines
        return lines + self._save(tensors, state, rows, keep, must)

    def settle(self) -> list[str]:
        """Wait for what is being written in the background; its lines."""
        pending = self._pending
        self._pending = None
        if pending is None:
            return []
        return pending.result()

    def _save(
        self, tensors: Tensors, state: dict[str, Any], rows: bytes, keep: int, must: bool
    ) -> list[str]:
        for last_try in (False, True):
            try:
                _write(self.root, tensors=tensors, state=state, rows=rows, stage=self._stage)
                return prune(self.root, keep=keep, always=self._always)
            except (OSError, SafetensorError) as error:  # safetensors wraps its own
                temporary = _temporary(self.root / name_of(state["step"]), self._stage)
                shutil.rmtree(temporary, ignore_errors=True)
                lease.check(self._stage)
                step = state["step"]
                line = f"checkpoint of step {step} not saved: {error}; earlier checkpoints stay"
                if last_try and must:
                    raise OSError(line) from error
                prune(self.root, keep=1, always=self._always)
        return [line]


def prune(root: Path, *, keep: int, always: Collection[int] = ()) -> list[str]:
    """Delete all but the newest `keep` valid checkpoints, every checksum read again, and those of
    the steps in `always`.

    Invalid ones do not count, and go when they are older than one that stays. Returns a line for
    each of them that stays. What is no folder was made by somebody else, and stays.
    """
    n_valid = 0
    lines = []
    names_to_keep = {name_of(step) for step in always}
    for path in newest_first(root):
        if n_valid >= keep:
            if path.name not in names_to_keep and is_folder(path):
                shutil.rmtree(path)
            continue
        problem = _problem(path)
        if problem:
            lines.append(f"checkpoint not counted: {path}: {problem}")
        else:
            n_valid += 1
    return lines


def _temporary(path: Path, stage: Path | None) -> Path:
    if stage is not None:
        path = stage / path.name
    return path.with_name(f".{path.name}.tmp")


def _write(
    root: Path, *, tensors: Tensors, state: dict[str, Any], rows: bytes, stage: Path | None = None
) -> None:
    """Write the checkpoint of `state["step"]`; `state` holds JSON types only."""
    path = root / name_of(state["step"])
    temporary = _temporary(path, stage)
    root.mkdir(exist_ok=True)
    shutil.rmtree(temporary, ignore_errors=True)  # what a killed save of it left
    temporary.mkdir()
    (temporary / STATE).write_text(as_json(state))
    for name, content in tensors.items():
        save_file(content, temporary / name)
        # safetensors makes files for their owner alone, whatever the umask
        shutil.copymode(temporary / STATE, temporary / name)
    (temporary / ROWS).write_bytes(rows)
    sums = {file.name: sha256(file) for file in sorted(temporary.iterdir())}
    (temporary / MANIFEST).write_text(json.dumps(sums))
    for name in (*sums, MANIFEST, "."):
        _sync(temporary / name)
    if is_folder(path):  # an invalid one: a valid one would have been resumed from
        if stage is None:
            shutil.rmtree(path)
        else:  # or that of a process that has taken over: then there is no stage, and nothing moves
            path.rename(stage / f"invalid-{path.name}")
    temporary.rename(path)
    _sync(root)


def _sync(path: Path) -> None:
    """Force a file, or a folder's names, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# --- finding and loading --------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class ValidCheckpoint:
    """The first valid checkpoint of several, and what is wrong with those before it. Step 0 and no
    path where there is none."""

    path: Path | None
    invalid: list[str]

    @property
    def step(self) -> int:
        if self.path is None:
            return 0
        return step_of(self.path) or 0


def find(
    root: Path, *, misfit: Callable[[Path], str | None] = lambda path: None
) -> ValidCheckpoint:
    """Return the newest checkpoint below `root` whose files match their checksums, and which has no
    `misfit`."""
    return first_valid(newest_first(root), misfit=misfit)


def first_valid(paths: Iterable[Path], *, misfit: Callable[[Path], str | None]) -> ValidCheckpoint:
    """Return the first of these checkpoints that is whole. `misfit`: says why a whole one is not of
    the run, or None."""
    invalid: list[str] = []
    for path in paths:
        problem = _problem(path) or misfit(path)
        if problem is None:
            return ValidCheckpoint(path=path, invalid=invalid)
        invalid.append(f"{path}: {problem}")
    return ValidCheckpoint(path=None, invalid=invalid)


def misfit(path: Path, *, model: nn.Module, identity: str | None = None) -> str | None:
    """Return why a valid checkpoint is not one of this model, and of the run with this identity,
    where that is given. Reads names and shapes, no tensor."""
    saved_by = state_of(path).get("run")
    if saved_by and identity and not saved_by.endswith(f"-{identity}"):
        return f"it is of another run, {saved_by}"
    return difference(_shapes(path / MODEL), model)


def load(path: Path, *, model: nn.Module, optimizers: Optimizers) -> dict[str, Any]:
    """Put a checkpoint's tensors into model and optimizers, which it must fit; return its state."""
    state = state_of(path)
    tensors = {name: load_file(path / name) for name in (MODEL, OPTIMIZER)}
    try:
        restore(model, optimizers, tensors=tensors, plain=state.get("optimizer") or {})
    # its checksums are right: somebody made them so
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"{path} must hold this run's optimizer state, got {type(error).__name__}: {error}"
        ) from error
    return state


def load_validated(path: Path, model: LanguageModel, run: Run) -> None:
    """Put the weights into the model with which a checkpoint's run validates. The model must be of
    that run."""
    optimizers: Optimizers = []
    needs_state = type(run.optimizer).validating is not Optimizer.validating
    if needs_state:
        optimizers = build_optimizers(run, model)
        load(path, model=model, optimizers=optimizers)
    else:
        put_weights(model, load_file(path / MODEL))
    with run.optimizer.validating(optimizers), model.validating():
        validated = [p.detach().clone() for p in model.parameters()]
    for p, tensor in zip(model.parameters(), validated, strict=True):
        p.data.copy_(tensor)


def _problem(path: Path) -> str | None:
    """Return why the checkpoint cannot be used, or `None`."""
    if not is_folder(path):
        return "it must be a folder, and no link to one"
    try:
        sums = parse_json(read_text(path / MANIFEST))
        if set(sums) != {MODEL, OPTIMIZER, STATE, ROWS}:
            own = sorted((MODEL, OPTIMIZER, STATE, ROWS))
            return f"{MANIFEST} names {sorted(sums)}, not {own}"
    except UNREADABLE as error:
        return f"{MANIFEST} cannot be read ({error})"
    for name in sorted(sums):
        problem = _file_problem(path / name, sums[name])
        if problem:
            return problem
    return None


def _file_problem(file: Path, expected: str) -> str | None:
    try:
        if not file.is_file():
            return f"{file.name} is missing"
        if sha256(file) != expected:
            return f"{file.name} does not match its checksum"
        if file.name == ROWS:
            if not _has_all_rows(file):
                return f"{ROWS} must hold the rows before the step in the folder's name"
        elif file.name == STATE:
            if state_of(file.parent)["step"] != step_of(file.parent):
                return f"{file.name} must be of the step in the folder's name"
        else:
            _shapes(file)
        return None
    except UNREADABLE as error:
        return f"{file.name} cannot be read ({error})"


def _has_all_rows(file: Path) -> bool:
    """Say whether each line of a checkpoint's rows can be read, and the last is before its step."""
    content = file.read_bytes()
    rows = read_rows(content)
    if len(rows) != len(content.splitlines()):
        return False
    return not rows or rows[-1]["step"] < (step_of(file.parent) or 0)


def state_of(path: Path) -> dict[str, Any]:
    """Read what a checkpoint keeps beside its tensors and rows."""
    file = path / STATE
    state: dict[str, Any] = parse_json(read_text(file))
    check_shape(state, SHAPES[STATE], file)
    return {"step": -1, **state}


def _shapes(path: Path) -> dict[str, list[int]]:
    with safe_open(path, framework="pt") as file:
        # it is no dict
        return {key: file.get_slice(key).get_shape() for key in file.keys()}  # noqa: SIM118
