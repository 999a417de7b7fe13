"""Name checkpoints, find them, and say what is wrong with one. Only names that nocap makes are ever
touched. No torch.

A folder `step-00000200` holds `model.safetensors`, `optimizer.safetensors`, `state.json`, the run's
rows so far as `metrics.jsonl`, and `manifest.json`, the files' SHA-256.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from nocap.config.untrusted_files import parse_json, read_text
from nocap.store.file_writing import paths_in, sha256
from nocap.store.json_shapes import check_shape
from nocap.store.record_files import ROWS
from nocap.store.rows_file import read_rows

FOLDER = "checkpoints"  # in a run's folder
# in a checkpoint, beside the rows so far
MODEL = "model.safetensors"
OPTIMIZER = "optimizer.safetensors"
STATE = "state.json"
STATE_SHAPE = {
    "step": int,
    "run": str,
    "clock_s": {...: float},
    "losses": [float],
    "optimizer": dict,
}
CHECKSUMS = "manifest.json"  # the SHA-256 of the other files
# what reading a damaged file can raise
UNREADABLE = (OSError, ValueError, TypeError, RecursionError)


def name_of(step: int) -> str:
    """Return the name of a checkpoint's folder."""
    return f"step-{step:08d}"


def step_of(path: Path) -> int | None:
    """Return the step that a checkpoint's name has; None for any other name."""
    match = re.fullmatch(r"step-(\d{8,18})", path.name)
    if match is None:
        return None
    step = int(match[1])
    if path.name != name_of(step):
        return None
    return step


def newest_first(root: Path) -> list[Path]:
    """List all paths with a checkpoint's name, also one that is no folder: it is in the way of
    one."""
    steps = dict[Path, int]()
    for path in paths_in(root):
        step = step_of(path)
        if step is not None:
            steps[path] = step
    return sorted(steps, key=lambda path: steps[path], reverse=True)


def saved_steps(run_dir: Path) -> list[int]:
    """List the steps of a run's checkpoints, the newest first."""
    steps = list[int]()
    for path in newest_first(run_dir / FOLDER):
        step = step_of(path)
        if step is not None and is_folder(path):
            steps.append(step)
    return steps


def is_folder(path: Path) -> bool:
    """Say whether a path is a folder itself, and no link to one."""
    return path.is_dir() and not path.is_symlink()


# --- what is wrong with one -----------------------------------------------------------------------


def any_valid(run_dir: Path) -> bool:
    """Say whether a run has a checkpoint that it can go on from."""
    return any(problem_of(path) is None for path in newest_first(run_dir / FOLDER))


def problem_of(path: Path) -> str | None:
    """Return why the checkpoint cannot be used, or `None`."""
    if not is_folder(path):
        return "the checkpoint must be a folder, and not a link"
    try:
        sums = dict[str, str](parse_json(read_text(path / CHECKSUMS)))
        if set(sums) != {MODEL, OPTIMIZER, STATE, ROWS}:
            own = sorted((MODEL, OPTIMIZER, STATE, ROWS))
            return f"{CHECKSUMS} must name {own}, got {sorted(sums)}"
    except UNREADABLE as error:
        return f"{CHECKSUMS} cannot be read ({error})"
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
                return f"{file.name} must have the step of the folder's name"
        else:
            tensor_shapes(file)
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
    check_shape(state, STATE_SHAPE, file)
    return {"step": -1, **state}


def tensor_shapes(path: Path) -> dict[str, list[int]]:
    """Return the name and shape of each tensor in a file; reads no tensor.

    Errors:
        OSError, ValueError: it cannot be read.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            # it is no dict
            return {key: file.get_slice(key).get_shape() for key in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(str(error)) from error
