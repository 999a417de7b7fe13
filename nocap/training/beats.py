"""Signs of life: what each rank of a run did last, in a small file that its parent watches.

The file is mapped, so a sign costs about a microsecond and is there whatever becomes of the rank: stopped, stuck in a kernel, killed.
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

NAME = ".beats"
START_UP = -1  # the step before the first one


class Beats:
    """A row a rank: signs so far, the step it is in, and `time.monotonic()` of the last sign (one clock for all processes of a machine)."""

    def __init__(self, run_dir: Path) -> None:
        """Map the file that `create` made.

        Errors:
            OSError, ValueError: there is none.
        """
        self._rows = np.memmap(run_dir / NAME, dtype=np.float64, mode="r+").reshape(-1, 3)

    @staticmethod
    def create(run_dir: Path, *, ranks: int) -> Beats:
        """A new file, in which every rank is in its start-up since now."""
        path = run_dir / NAME
        path.unlink(missing_ok=True)  # a process of an earlier attempt may still have that one
        path.write_bytes(np.tile([0.0, START_UP, time.monotonic()], (ranks, 1)).tobytes())
        return Beats(run_dir)

    def beat(self, rank: int, step: int) -> None:
        self._rows[rank] = self._rows[rank, 0] + 1, step, time.monotonic()

    def silent_s(self) -> float:
        """Seconds since the last sign of any rank: where one hangs, the others soon wait for it and are silent, too."""
        return time.monotonic() - float(self._rows[:, 2].max())

    def step(self, rank: int) -> str:
        """Where a rank is, in words."""
        step = float(self._rows[rank, 1])
        return "in its start-up" if step == START_UP else f"at step {step:.0f}"

    def behind(self) -> str:
        """The ranks with the fewest signs, and where they are: all of them, where they stopped together."""
        counts = self._rows[:, 0]
        ranks = [int(rank) for rank in np.flatnonzero(counts == counts.min())]
        return ", ".join(f"rank {rank} {self.step(rank)}" for rank in ranks)
