"""Spikes of the loss are reported, never skipped: a skipped batch would be another experiment."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import numpy as np

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
        window = np.array(self._losses)
        spread = float(window.std()) if window.size >= ENOUGH else 0.0
        sigmas = (loss - float(window.mean())) / spread if spread else 0.0
        self._losses.append(loss)
        return sigmas if sigmas > SIGMAS else None
