"""Heartbeats: how many each rank has sent, and its step, in a small file that the parent process
watches.

The file is memory-mapped: a heartbeat costs under a microsecond, and is there even after the rank
was killed or got stuck in a kernel.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

NAME = ".heartbeat"
START_UP = -1  # the step before the first one
CHECK_S = 0.2  # between checks of the heartbeats
# the most that counts between two looks: what is longer was a pause of this process, as Ctrl-Z or
# Slurm's suspend give it
AWAKE_S = 1.0


class Heartbeat:
    """A row a rank: heartbeats so far, and its step."""

    def __init__(self, run_dir: Path) -> None:
        """Map the file that `create` made; OSError or ValueError where there is none."""
        rows = np.memmap(run_dir / NAME, dtype=np.float64, mode="r+").reshape(-1, 2)
        self._rows = np.asarray(rows)  # the same memory; memmap's own indexing is slow

    @staticmethod
    def create(run_dir: Path, *, ranks: int) -> Heartbeat:
        """Return a new file, in which every rank starts up now."""
        path = run_dir / NAME
        # a process of an earlier attempt may still have that one mapped
        path.unlink(missing_ok=True)
        path.write_bytes(np.tile([0.0, START_UP], (ranks, 1)).tobytes())
        return Heartbeat(run_dir)

    def beat(self, rank: int, step: int) -> None:
        """Count a heartbeat of this rank, at this step."""
        self._rows[rank, 0] += 1
        self._rows[rank, 1] = step

    def count(self) -> float:
        """Count the heartbeats of all ranks so far: where one hangs, the others soon wait for it
        and send none, too."""
        return float(self._rows[:, 0].sum())

    def where(self, rank: int) -> str:
        """Say at which step a rank is."""
        step = float(self._rows[rank, 1])
        if step == START_UP:
            return "while it started"
        return f"at step {step:.0f}"

    def behind(self) -> str:
        """Return the ranks with the fewest heartbeats and their steps: all ranks, if they stopped
        together."""
        counts = self._rows[:, 0]
        fewest = np.flatnonzero(counts == counts.min())
        return ", ".join(f"rank {rank} {self.where(int(rank))}" for rank in fewest)


class HangWatch:
    """Finds that no rank sends a heartbeat any more. What this process has slept counts little."""

    def __init__(self, heartbeat: Heartbeat, *, limit_s: float, begin: float) -> None:
        """Watch from `begin` on, a `time.monotonic()`. `limit_s`: `trainer.hang_timeout_s`."""
        self._heartbeat = heartbeat
        self._limit_s = limit_s
        self._last_look = begin
        self._count = 0.0
        self._silent_s = 0.0

    def look(self, now: float) -> str | None:
        """Return which ranks hang; None: none does."""
        since_s = now - self._last_look
        if since_s < CHECK_S:
            return None
        self._last_look = now
        count = self._heartbeat.count()
        if count == self._count:
            self._silent_s += min(since_s, AWAKE_S)
        else:
            self._silent_s = 0.0
        self._count = count
        if self._silent_s <= self._limit_s:
            return None
        return (
            f"{self._heartbeat.behind()} hung: no heartbeat for {self._limit_s:g} s "
            f"(trainer.hang_timeout_s)"
        )
