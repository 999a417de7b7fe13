"""The schedules of the learning rate: pure functions of the step, so that a step's rate needs no
history."""

from __future__ import annotations

from dataclasses import dataclass

from nocap.config.keys import key, require
from nocap.config.option import AnyRun, Option
from nocap.options.run_parts import RunParts


@dataclass(kw_only=True, slots=True)
class Schedule(Option):
    """A warm-up in a straight line to the peak, then the option's `shape`."""

    warmup_steps: int = key(ge=0, le=10**9)  # steps in which the learning rate rises to its peak

    def check(self, run: AnyRun) -> None:
        parts: RunParts = run
        steps = parts.trainer.steps
        rule = f"be at most trainer.steps={steps}"
        require(self.warmup_steps <= steps, "schedule.warmup_steps", rule, self.warmup_steps)

    def multiplier(self, *, step: int, steps: int) -> float:
        """Return the factor on the peak learning rate for update `step` of `steps`, 0 ≤ step <
        steps."""
        if step < self.warmup_steps:
            return (step + 1) / self.warmup_steps
        return self.shape(step=step, steps=steps)

    def shape(self, *, step: int, steps: int) -> float:
        """Return `multiplier` after the warm-up."""
        raise NotImplementedError(f"schedule.kind={self.kind} must define the method shape")

    def free_until(self, steps: int) -> int:
        """Return the step up to which no rate depends on `steps`, so that a longer run has the same
        ones. 0: unknown."""
        return 0
