"""A `Measurement`: a value of a metric, of one arm in one repeat, whoever made it: train, bench,
profile, generate or study."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

from nocap.config.keys import require
from nocap.metrics import Metric


class Ending(Enum):
    measured = "measured"
    # reached its target in its shortest schedule: the value is more than was needed
    at_most = "at_most"
    diverged = "diverged"
    refused = "refused"  # there is a value, but it says nothing: `why`


class Per(Enum):
    """What repeats a measurement."""

    seed = "seed"
    session = "session"  # of timing, apart from the others in time and in process
    exact = "exact"  # a count: any session has it


@dataclass(frozen=True, kw_only=True, slots=True)
class Measurement:
    """What one arm did in one metric, once."""

    arm: str
    repeat: int  # the seed of a run, the number of a session, or the round of a bench
    metric: Metric
    value: float | None  # in the metric's unit; None where the run diverged, or it is refused
    ending: Ending = Ending.measured
    where: str = ""  # the hardware's fingerprint
    when: str = ""  # ISO 8601
    part: str = ""  # of the step, where a profile measured only that
    per: Per = Per.seed
    why: str = ""  # it is refused

    def __post_init__(self) -> None:
        needs_none = self.ending in (Ending.diverged, Ending.refused)
        has_none = self.value is None
        is_finite = math.isfinite(self.value or 0.0)
        rule = "be a finite number, or null if the run diverged or was refused"
        name = f"a measurement of {self.metric.name}"
        require(has_none == needs_none and is_finite, name, rule, self.value)
