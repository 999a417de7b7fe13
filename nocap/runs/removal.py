"""Remove runs, or only their checkpoints: never one that a process is training, never through a link, nothing outside `outputs/runs`."""

from __future__ import annotations

import shutil
from pathlib import Path

from nocap.runs.columns import Listed, size_of
from nocap.store import lease
from nocap.store.checkpoints import FOLDER, delete, is_folder
from nocap.store.runs import glance
from nocap.store.verify import ENDED


def freed(run: Listed, *, checkpoints: bool) -> int:
    """Bytes that go with it; with `checkpoints` only those of an ended run, whose record stays."""
    if not checkpoints:
        return run.size
    folder = run.folder / FOLDER
    return size_of(folder) if run.record.status in ENDED and is_folder(folder) else 0


def remove(run: Listed, *, root: Path, checkpoints: bool) -> str | None:
    """Remove it, while nobody else can begin to train it. Why it stays, else None."""
    if (reason := _outside(run.folder, root)) is not None:
        return reason
    try:
        with lease.acquire(run.folder):
            now = glance(run.folder, sound=False)
            if (now.manifest, now.summary) != (run.record.manifest, run.record.summary):
                return "it has gone on since it was listed"
            if checkpoints:
                shutil.rmtree(run.folder / FOLDER)  # links in it are removed, and not followed
            else:
                gone = run.folder.rename(run.folder.with_name(f".{run.folder.name}.removed"))
        if not checkpoints:
            shutil.rmtree(gone)  # after the lease, whose file is open
    except (OSError, ValueError) as error:  # held by another process, another user's, or no folder of leases
        return str(error)
    return None


def _outside(folder: Path, root: Path) -> str | None:
    if folder.is_symlink() or folder.absolute().parent.resolve() != root.resolve():
        return f"it is no folder of its own right in {root}"
    return None


def sweep(root: Path) -> None:
    """Remove what killed removals left."""
    delete(folder for folder in root.glob(".*.removed") if is_folder(folder))
