"""The limit of this machine's memory: how much is available, a process that may not take more, and
errors that mean that it was not enough."""

from __future__ import annotations

import re
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def proc_bytes(path: str) -> dict[str, int]:
    """Return bytes by name, from the lines `Name: 123 kB` of a file in /proc; nothing where there
    is no such file."""
    try:
        text = Path(path).read_text()
    except OSError:
        return {}
    rows = re.findall(r"^(\w+):\s+(\d+) kB$", text, re.M)
    return {name: 1024 * int(kib) for name, kib in rows}


def available_bytes() -> int | None:
    """Return the memory that is available now; None: there is no /proc."""
    return proc_bytes("/proc/meminfo").get("MemAvailable")


def ran_out(error: BaseException) -> bool:
    """Say whether an error means that the device's or the host's memory was not enough; torch's CPU
    allocator has no type of its own for it."""
    import torch

    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    if not isinstance(error, RuntimeError):
        return False
    match = re.search(r"can't allocate memory|not enough memory|bad_alloc", str(error))
    return match is not None


@contextmanager
def within_memory() -> Iterator[None]:
    """Limit this process, inside the block, to the memory that is available now: an allocation
    beyond it fails (see `ran_out`).

    Without the limit Linux grants it, and kills the process when the memory is used. Does nothing
    where there is no /proc.
    """
    available = available_bytes()
    size = proc_bytes("/proc/self/status").get("VmSize")
    if available is None or size is None:
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = available + size
    for other in (soft, hard):
        if other != resource.RLIM_INFINITY:
            limit = min(limit, other)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
