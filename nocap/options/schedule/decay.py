"""Decay from the end of the warm-up on: `linear` and `cosine` are its yamls."""

from __future__ import annotations

import math
from dataclasses import dataclass

from nocap.config.keys import require
from nocap.options.schedule import Schedule


@dataclass(kw_only=True, slots=True)
class Linear(Schedule):
    """Warm-up, then a straight line that would reach `final` × the peak after the last update."""

    kind: str = "linear"
    final: float

    def __post_init__(self) -> None:
        Schedule.__post_init__(self)
        require(0 <= self.final <= 1, "schedule.final", "be in [0, 1]", self.final)

    def shape(self, *, step: int, steps: int) -> float:
        return self.final + (1 - self.final) * self.remaining(step=step, steps=steps)

    def remaining(self, *, step: int, steps: int) -> float:
        """What is left of the decay, from 1 to 0."""
        return (steps - step) / (steps - self.warmup_steps)


@dataclass(kw_only=True, slots=True)
class Cosine(Linear):
    """Warm-up, then half a cosine that would reach `final` × the peak after the last update."""

    kind: str = "cosine"

    def remaining(self, *, step: int, steps: int) -> float:
        return 0.5 - 0.5 * math.cos(math.pi * Linear.remaining(self, step=step, steps=steps))
