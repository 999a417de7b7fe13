"""Heartbeats: the last moment and step of each rank, in a small file that the parent process watches.

The file is memory-mapped: a heartbeat costs about a microsecond, and it is there even after the rank was killed or got stuck in a kernel.
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

NAME = ".heartbeat"
START_UP = -1  # the step before the first one


class Heartbeat:
    """A row a rank: heartbeats so far, its step, and `time.monotonic()` of the last one (one clock for all processes of a machine)."""

    def __init__(self, run_dir: Path) -> None:
        """Map the file that `create` made; OSError or ValueError where there is none."""
        self._rows = np.memmap(run_dir / NAME, dtype=np.float64, mode="r+").reshape(-1, 3)

    @staticmethod
    def create(run_dir: Path, *, ranks: int) -> Heartbeat:
        """A new file, in which every rank starts up now."""
        path = run_dir / NAME
        path.unlink(missing_ok=True)  # a process of an earlier attempt may still have that one mapped
        path.write_bytes(np.tile([0.0, START_UP, time.monotonic()], (ranks, 1)).tobytes())
        return Heartbeat(run_dir)

    def beat(self, rank: int, step: int) -> None:
        self._rows[rank] = self._rows[rank, 0] + 1, step, time.monotonic()

    def silent_s(self) -> float:
        """Seconds since the last heartbeat of any rank: where one hangs, the others soon wait for it and are silent, too."""
        return time.monotonic() - float(self._rows[:, 2].max())

    def where(self, rank: int) -> str:
        step = float(self._rows[rank, 1])
        return "in its start-up" if step == START_UP else f"at step {step:.0f}"

    def behind(self) -> str:
        """The ranks with the fewest heartbeats and their steps: all ranks, if they stopped together."""
        counts = self._rows[:, 0]
        return ", ".join(f"rank {rank} {self.where(int(rank))}" for rank in np.flatnonzero(counts == counts.min()))
