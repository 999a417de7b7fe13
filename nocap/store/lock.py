"""One writer a run directory. The kernel holds the lock, and frees it when the holder dies, however it dies."""

from __future__ import annotations

import fcntl
import os
import platform
import time
from pathlib import Path
from typing import IO

LOOK_S = 0.1  # longer than `is_held` looks


class HeldError(ValueError):
    """Another process has the lock; the message names it."""


def check(path: Path) -> None:
    """Refuse what is there in place of a lock's file.

    Errors:
        ValueError: a folder, a link or a pipe is there.
    """
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise ValueError(f"{path} must be a lock's file, or not be there, got something else")


def is_held(path: Path) -> bool:
    """Whether a process has the lock, for people to read: a moment later it may be otherwise."""
    try:
        with open(path, opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK | os.O_NOFOLLOW)) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False


def acquire(path: Path, *, wait_s: float = 0.0) -> IO[str]:
    """Take the lock and return its open file, which holds it until it is closed.

    Errors:
        HeldError: another process has it, and still has it after `wait_s`.
        ValueError: what is there is no file.
    """
    check(path)
    file = path.open("a+")
    deadline = time.monotonic() + max(wait_s, LOOK_S)
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if time.monotonic() >= deadline:
                file.seek(0)
                holder = file.read().strip() or "a process that has not written its name yet"
                file.close()
                raise HeldError(f"{path.parent} must have one writer, and {holder} is training there") from None
            time.sleep(0.05)
    file.truncate(0)
    file.write(f"process {os.getpid()} on {platform.node()} since {time.strftime('%Y-%m-%d %H:%M:%S')}")
    file.flush()
    return file
