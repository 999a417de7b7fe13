"""Write a file whole or not at all, and remove what killed writers left. A text loses its secrets
on the way."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TextIO

from nocap.config.outgoing_text import redact, visible

# a file of `write_file`, or a checkpoint's folder
UNFINISHED = re.compile(r"\..+\.[0-9a-f]{12}\.tmp|(\.step-\d{8,18}\.tmp)")


def write_file(
    path: Path, *parts: bytes | memoryview, stage: Path | None = None, mode: int = 0o666
) -> None:
    """Write a file so that a reader sees the old one or the new one, whole: a temporary file beside
    it, or in the `stage` of a lease, synced, then renamed. `mode`: who may read and write it, less
    the umask.

    A symlink is replaced, not followed: a folder that somebody sent leads nowhere else.

    Errors:
        OSError: it cannot be written; or a device, pipe or folder has this name, which stays as it
            is.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if os.path.lexists(path) and not (path.is_symlink() or path.is_file()):
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    temporary = (stage or path.parent) / f".{path.name}.{secrets.token_hex(6)}.tmp"
    try:
        with open(temporary, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            for part in parts:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_text(path: Path, text: str) -> None:
    """Write a text for people, without its secrets."""
    write_file(path, redact(text).encode("utf-8", "surrogateescape"))


def append_text(path: Path, text: str) -> None:
    """Add lines to a log, without secrets or terminal control."""
    with to_append(path) as file:
        file.write(visible(redact(text)))


def to_append(path: Path) -> TextIO:
    """Open a file for more lines. A link in its place is removed; a pipe that nobody reads is an
    error, not a hang."""
    if path.is_symlink():
        path.unlink()
    return open(path, "a", encoding="utf-8", opener=open_without_link)


def open_without_link(name: str, flags: int) -> int:
    """Open a file to write to it. A link is an error: it is not followed to a place that somebody
    else chose."""
    return os.open(name, flags | os.O_NONBLOCK | os.O_NOFOLLOW, 0o666)


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file, in hex digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def unfinished(folder: Path, *, older_than_s: float = 0.0) -> list[Path]:
    """List what killed calls of `write_file` and killed saves left in a folder: `.NAME.….tmp` and
    `.step-….tmp`."""
    paths = list[Path]()
    for path in paths_in(folder):
        match = UNFINISHED.fullmatch(path.name)
        if match is None or path.is_symlink():
            continue
        is_checkpoint = match[1] is not None
        age_s = time.time() - path.stat().st_mtime
        if path.is_dir() == is_checkpoint and age_s >= older_than_s:
            paths.append(path)
    return paths


def delete(paths: Iterable[Path]) -> None:
    """Remove files, and folders with all that they hold."""
    for path in paths:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def paths_in(folder: Path) -> list[Path]:
    """List what a folder holds; nothing where there is no folder."""
    if not folder.is_dir():
        return []
    return list(folder.iterdir())
