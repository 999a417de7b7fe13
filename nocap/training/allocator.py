"""The allocator of a process that trains on a CPU. glibc gives each large block back to the kernel
when it is free, and the next step faults it in again, page by page, unless glibc is told to keep
it.

torch has a pool of its own for CUDA, and none for a CPU.
"""

from __future__ import annotations

import ctypes

from nocap.config.trainer import Malloc
from nocap.training.memory_limit import available_bytes

# of malloc.h: above how many free bytes at the end of the heap they are given back; from how many
# bytes on a block is mapped by itself, and unmapped when it is free
M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
KEEP = 2**31 - 1  # bytes: the most that an int holds
POOL = 1 << 30  # bytes
SHARE = 8  # of the memory that is available now, a part that the heap may keep
# what the thresholds come to by themselves, at most, in a process that frees large blocks
SYSTEM_POOL = 32 << 20
SYSTEM_KEEP = 64 << 20

_used = Malloc.system


def use(malloc: Malloc) -> None:
    """Allocate so from now on. A process that has never pooled keeps glibc's own thresholds, which
    move; one that has gets the largest that they move to.

    Errors:
        OSError: the C library does not take it.
    """
    global _used
    if malloc is _used:
        return
    libc = ctypes.CDLL(None)
    if malloc is Malloc.pooled:
        limit = _most()
        _set(libc, M_MMAP_THRESHOLD, min(POOL, limit))
        _set(libc, M_TRIM_THRESHOLD, min(KEEP, limit))
    else:
        _set(libc, M_MMAP_THRESHOLD, SYSTEM_POOL)
        _set(libc, M_TRIM_THRESHOLD, SYSTEM_KEEP)
        libc.malloc_trim(0)
    _used = malloc


def _most() -> int:
    """Return how many bytes the heap may keep."""
    available = available_bytes()
    if available is None:
        return SYSTEM_KEEP
    return max(SYSTEM_KEEP, available // SHARE)


def _set(libc: ctypes.CDLL, parameter: int, value: int) -> None:
    if libc.mallopt(parameter, value) != 1:
        raise OSError(
            f"mallopt({parameter}, {value}) failed; set trainer.malloc=system, which does "
            "not call mallopt"
        )
