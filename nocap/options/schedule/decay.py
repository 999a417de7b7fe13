"""What follows the warm-up: `constant`, `linear`, `cosine` and `wsd`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nocap.config.keys import key, require
from nocap.options.schedule import Schedule

if TYPE_CHECKING:
    from nocap.config.run import Run


@dataclass(kw_only=True, slots=True)
class Constant(Schedule):
    """Warm-up, then constant."""

    kind: str = "constant"

    def shape(self, *, step: int, steps: int) -> float:
        return 1.0


@dataclass(kw_only=True, slots=True)
class Linear(Schedule):
    """Warm-up, then a straight line that would reach `final` × the peak after the last update."""

    kind: str = "linear"
    final: float = key(ge=0, le=1)  # share of the peak at the end of the decay

    def shape(self, *, step: int, steps: int) -> float:
        return self.final + (1 - self.final) * self.remaining(step=step, steps=steps)

    def remaining(self, *, step: int, steps: int) -> float:
        """Return what is left of the decay, from 1 to 0."""
        return (steps - step) / (steps - self.warmup_steps)


@dataclass(kw_only=True, slots=True)
class Cosine(Linear):
    """Warm-up, then half a cosine that would reach `final` × the peak after the last update."""

    kind: str = "cosine"

    def remaining(self, *, step: int, steps: int) -> float:
        return 0.5 - 0.5 * math.cos(math.pi * Linear.remaining(self, step=step, steps=steps))


@dataclass(kw_only=True, slots=True)
class Wsd(Linear):
    """Warm-up, stable, then a straight line over the last `decay_steps` (arXiv:2404.06395)."""

    kind: str = "wsd"
    decay_steps: int = key(ge=0, le=10**9)  # number of last steps in which the learning rate falls

    def check(self, run: Run) -> None:
        Schedule.check(self, run)
        steps = run.trainer.steps
        rule = f"be at most trainer.steps={steps} minus schedule.warmup_steps={self.warmup_steps}"
        fits = self.warmup_steps + self.decay_steps <= steps
        require(fits, "schedule.decay_steps", rule, self.decay_steps)

    def shape(self, *, step: int, steps: int) -> float:
        # Not `steps - decay_steps` in the divisor: the challenge's decay reaches 1/decay_steps,
        # never 0, at its last update.
        left = steps - step
        if left > self.decay_steps:
            return 1.0
        return self.final + (1 - self.final) * left / self.decay_steps

    def free_until(self, steps: int) -> int:
        return steps - self.decay_steps
