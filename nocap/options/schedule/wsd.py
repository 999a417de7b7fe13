"""Warm-up, stable, decay (arXiv:2404.06395)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nocap.config.keys import require
from nocap.options.schedule import Schedule

if TYPE_CHECKING:
    from nocap.config.run import Run


@dataclass(kw_only=True, slots=True)
class Wsd(Schedule):
    """Warm-up, stable, then over the last `decay_steps` a straight line that would reach `final` × the peak after the last update."""

    kind: str = "wsd"
    final: float
    decay_steps: int

    def __post_init__(self) -> None:
        Schedule.__post_init__(self)
        require(0 <= self.final <= 1, "schedule.final", "be in [0, 1]", self.final)
        require(self.decay_steps >= 0, "schedule.decay_steps", "be at least 0", self.decay_steps)

    def check(self, run: Run) -> None:
        Schedule.check(self, run)
        steps = run.trainer.steps
        rule = f"leave room for schedule.warmup_steps={self.warmup_steps} in trainer.steps={steps}"
        require(self.warmup_steps + self.decay_steps <= steps, "schedule.decay_steps", rule, self.decay_steps)

    def shape(self, *, step: int, steps: int) -> float:
        # Not `steps - decay_steps` in the divisor: the challenge's decay reaches 1/decay_steps, never 0, at its last update.
        left = steps - step
        return 1.0 if left > self.decay_steps else self.final + (1 - self.final) * left / self.decay_steps

    def free_until(self, steps: int) -> int:
        return steps - self.decay_steps
