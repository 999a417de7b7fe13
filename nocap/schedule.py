"""Learning-rate schedules: pure functions of the step, so that a step's rate needs no history."""

from __future__ import annotations

import math

from nocap import schema


def multiplier(spec: schema.Schedule, *, step: int, steps: int) -> float:
    """The factor on the peak learning rate for update `step` of `steps`, 0 ≤ step < steps."""
    if step < spec.warmup_steps:
        return (step + 1) / spec.warmup_steps
    if isinstance(spec, schema.Wsd):
        # Not `steps - decay_steps` in the divisor: the challenge's decay reaches 1/decay_steps, never 0, at its last update.
        left = steps - step
        return 1.0 if left > spec.decay_steps else spec.final + (1 - spec.final) * left / spec.decay_steps
    if isinstance(spec, schema.Linear):
        remaining = (steps - step) / (steps - spec.warmup_steps)
        shape = 0.5 - 0.5 * math.cos(math.pi * remaining) if isinstance(spec, schema.Cosine) else remaining
        return spec.final + (1 - spec.final) * shape
    return 1.0
