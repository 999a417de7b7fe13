"""One measurement, whoever made it: train, bench, profile, generate or study."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Any

from nocap.config.keys import require
from nocap.store.metrics import Metric


class Ending(Enum):
    measured = "measured"
    censored = "censored"  # never reached its target: the value is the budget
    at_most = "at_most"  # reached its target in its shortest schedule: the value is more than was needed
    diverged = "diverged"


class Per(Enum):
    """What repeats a measurement."""

    seed = "seed"
    session = "session"  # of timing, apart from the others in time and in process
    exact = "exact"  # a count: any session has it


def now() -> str:
    """To the second, as records have their start."""
    return datetime.now().astimezone().isoformat(timespec="seconds")


@dataclass(frozen=True, kw_only=True, slots=True)
class Measurement:
    """What one arm did in one metric, once."""

    arm: str
    repeat: int  # the seed of a run, the number of a session, or the round of a bench
    metric: Metric
    value: float | None  # in the metric's unit; None where the run diverged
    ending: Ending = Ending.measured
    where: str = ""  # the hardware's fingerprint
    when: str = ""  # ISO 8601
    part: str = ""  # of the step, where a profile measured only that
    per: Per = Per.seed

    def json(self) -> dict[str, Any]:
        metric = {"metric": self.metric.name, "unit": self.metric.unit, "better": self.metric.better.value}
        part = {"part": self.part} if self.part else {}
        value = {"value": self.value, "ending": self.ending.value, "per": self.per.value, "where": self.where, "when": self.when}
        return {"arm": self.arm, "repeat": self.repeat, **metric, **part, **value}

    def __post_init__(self) -> None:
        diverged = self.ending is Ending.diverged
        ok = self.value is None if diverged else self.value is not None and math.isfinite(self.value)
        require(ok, f"a measurement of {self.metric.name}", "be a finite number, or null where the run diverged", self.value)
