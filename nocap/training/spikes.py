"""Say how far a loss lies above those before it."""

from __future__ import annotations

import math
from collections.abc import Collection

WINDOW = 128  # steps, whose losses a new one is held against
ENOUGH = 32  # steps before the first verdict
SIGMAS = 6.0  # OLMo-core's threshold for its skip-step optimizer


def above(losses: Collection[float], loss: float) -> float:
    """Return how many standard deviations a loss lies above the mean of those before it; 0 before
    there are enough."""
    n = len(losses)
    if n < ENOUGH:
        return 0.0
    mean = math.fsum(losses) / n
    spread = math.dist(losses, [mean] * n) / math.sqrt(n)
    if not spread:
        return 0.0
    return (loss - mean) / spread
