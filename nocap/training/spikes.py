"""Spikes of the loss are reported, never skipped: a skipped batch would be another experiment."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable

WINDOW = 128  # steps
ENOUGH = 32  # steps before the first verdict
SIGMAS = 6.0  # OLMo-core's threshold for its skip-step optimizer


class Spikes:
    """The losses of the last steps, which a checkpoint keeps: a resumed run must see the same spikes."""

    def __init__(self, losses: Iterable[float] = ()) -> None:
        self._losses = deque(losses, maxlen=WINDOW)

    @property
    def losses(self) -> list[float]:
        return list(self._losses)

    def add(self, loss: float) -> float | None:
        """Add a step's loss. If it is a spike: by how many standard deviations it lies above the mean of the steps before."""
        window, n = list(self._losses), len(self._losses)
        self._losses.append(loss)
        if n < ENOUGH:
            return None
        mean = math.fsum(window) / n
        spread = math.dist(window, [mean] * n) / math.sqrt(n)
        sigmas = (loss - mean) / spread if spread else 0.0
        return sigmas if sigmas > SIGMAS else None
