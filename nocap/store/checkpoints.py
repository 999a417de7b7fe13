"""Name checkpoints, and find what a killed process left. Only names that nocap makes are ever
touched. No torch."""

from __future__ import annotations

import hashlib
import re
import shutil
import time
from collections.abc import Iterable
from pathlib import Path

from nocap.config.untrusted_files import parse_json, read_text

FOLDER = "checkpoints"  # in a run's folder
MANIFEST = "manifest.json"  # in a checkpoint: the files' SHA-256
# a file of `write_file`, or a checkpoint's folder
UNFINISHED = re.compile(r"\..+\.[0-9a-f]{12}\.tmp|(\.step-\d{8,18}\.tmp)")


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
    for path in _inside(root):
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


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file, in hex digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# --- what a killed process leaves -----------------------------------------------------------------


def unfinished(folder: Path, *, older_than_s: float = 0.0) -> list[Path]:
    """List what killed calls of `write_file` and killed saves left in a folder: `.NAME.….tmp` and
    `.step-….tmp`."""
    paths = list[Path]()
    for path in _inside(folder):
        match = UNFINISHED.fullmatch(path.name)
        if match is None or path.is_symlink():
            continue
        is_checkpoint = match[1] is not None
        age_s = time.time() - path.stat().st_mtime
        if path.is_dir() == is_checkpoint and age_s >= older_than_s:
            paths.append(path)
    return paths


def any_sound(run_dir: Path) -> bool:
    """Say whether a run has a checkpoint that matches its checksums."""
    return any(is_folder(path) and _is_sound(path) for path in newest_first(run_dir / FOLDER))


def delete(paths: Iterable[Path]) -> None:
    """Remove files, and folders with all that they hold."""
    for path in paths:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def _inside(folder: Path) -> list[Path]:
    """List what a folder holds; nothing where there is no folder."""
    if not folder.is_dir():
        return []
    return list(folder.iterdir())


def _is_sound(path: Path) -> bool:
    """Say whether a checkpoint's files match its checksums."""
    try:
        sums = parse_json(read_text(path / MANIFEST))
        for name, checksum in sums.items():
            file = path / name
            # a pipe would be waited for
            if not file.is_file() or sha256(file) != checksum:
                return False
    except (OSError, ValueError, AttributeError):
        return False
    return True
