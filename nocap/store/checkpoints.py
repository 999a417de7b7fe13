"""The names of checkpoints, and what a killed process may leave of its own. Only names that nocap makes are
ever touched. No torch."""

from __future__ import annotations

import hashlib
import re
import shutil
import time
from collections.abc import Iterable
from pathlib import Path

from nocap.config.bounded import parse_json, read_text

FOLDER = "checkpoints"  # in a run's folder
MANIFEST = "manifest.json"  # in a checkpoint: the files' SHA-256
# a file of `write_file`, or a checkpoint's folder
UNFINISHED = re.compile(r"\..+\.[0-9a-f]{12}\.tmp|(\.step-\d{8,18}\.tmp)")


def name_of(step: int) -> str:
    """A checkpoint folder's name."""
    return f"step-{step:08d}"


def step_of(path: Path) -> int | None:
    """The step that a checkpoint's name has; `None` for any other name."""
    match = re.fullmatch(r"step-(\d{8,18})", path.name)
    return int(match[1]) if match and path.name == name_of(int(match[1])) else None


def newest_first(root: Path) -> list[Path]:
    """All that is named as a checkpoint, also what is no folder: it is in the way of one."""
    steps = {path: step for path in _inside(root) if (step := step_of(path)) is not None}
    return sorted(steps, key=lambda path: steps[path], reverse=True)


def saved_steps(run_dir: Path) -> list[int]:
    """The steps of a run's checkpoints, the newest first."""
    return [
        step
        for path in newest_first(run_dir / FOLDER)
        if is_folder(path) and (step := step_of(path)) is not None
    ]


def is_folder(path: Path) -> bool:
    """A folder itself, no link to one."""
    return path.is_dir() and not path.is_symlink()


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# --- what a killed process leaves ---------------------------------------------------------------------------


def unfinished(folder: Path, *, older_than_s: float = 0.0) -> list[Path]:
    """What killed calls of `write_file` and killed saves left in a folder: `.NAME.….tmp` and
    `.step-….tmp`."""
    return [
        path
        for path in _inside(folder)
        if (match := UNFINISHED.fullmatch(path.name))
        and not path.is_symlink()
        and path.is_dir() == bool(match[1])
        and time.time() - path.stat().st_mtime >= older_than_s
    ]


def any_whole(run_dir: Path) -> bool:
    """Whether a run has a checkpoint that matches its checksums."""
    return any(is_folder(path) and _is_whole(path) for path in newest_first(run_dir / FOLDER))


def delete(paths: Iterable[Path]) -> None:
    for path in paths:
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def _inside(folder: Path) -> list[Path]:
    return list(folder.iterdir()) if folder.is_dir() else []


def _is_whole(path: Path) -> bool:
    try:
        sums = parse_json(read_text(path / MANIFEST))
        # a pipe would be waited for
        return all((path / name).is_file() and sha256(path / name) == digest for name, digest in sums.items())
    except (OSError, ValueError, AttributeError):
        return False
