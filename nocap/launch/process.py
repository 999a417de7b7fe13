"""The name of a process, and its end: at once, and not after its parent's."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from typing import NoReturn


def leave(code: int) -> NoReturn:
    """End this process now, after its output is out. Python's own exit would run gloo's teardown,
    which may abort."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def die_with_parent(parent: int) -> None:
    """Have the kernel SIGKILL this process when its parent dies, however it dies."""
    if sys.platform == "linux":
        PR_SET_PDEATHSIG = 1
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before the line above
            os._exit(1)
    else:
        watch_parent(parent)


def rename(name: str) -> None:
    """Give this process the name that `ps -o comm` and `top` show, of at most 15 characters. Linux
    only."""
    PR_SET_NAME = 15
    ctypes.CDLL(None).prctl(PR_SET_NAME, name.encode())


def watch_parent(parent: int) -> None:
    """End this process soon after its parent; for a parent that may have started it from a thread,
    whose end would count as death above."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
