"""Save checkpoints, each whole or not at all: tensors in safetensors, the rest in JSON, checksums
last.

A checkpoint is written beside its place under a temporary name, synced, and renamed.
`nocap.store.checkpoints` says what it holds.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Collection
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import nn

from nocap.store import lease
from nocap.store.checkpoints import CHECKSUMS, STATE, is_folder, name_of, newest_first, problem_of
from nocap.store.file_writing import sha256
from nocap.store.record_files import ROWS
from nocap.training.build_optimizers import Optimizers
from nocap.training.state import Tensors, as_json, snapshot


class CheckpointWriter:
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
                write_checkpoint(
                    self.root, tensors=tensors, state=state, rows=rows, stage=self._stage
                )
                return prune(self.root, keep=keep, always=self._always)
            except (OSError, SafetensorError) as error:  # safetensors wraps its own
                temporary = _temporary(self.root / name_of(state["step"]), self._stage)
                shutil.rmtree(temporary, ignore_errors=True)
                lease.check(self._stage)
                step = state["step"]
                line = (
                    f"checkpoint of step {step} not saved: {error}; nocap keeps the newest "
                    "checkpoint before it"
                )
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
        problem = problem_of(path)
        if problem:
            lines.append(f"checkpoint not counted: {path}: {problem}")
        else:
            n_valid += 1
    return lines


def _temporary(path: Path, stage: Path | None) -> Path:
    if stage is not None:
        path = stage / path.name
    return path.with_name(f".{path.name}.tmp")


def write_checkpoint(
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
    (temporary / CHECKSUMS).write_text(json.dumps(sums))
    for name in (*sums, CHECKSUMS, "."):
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
