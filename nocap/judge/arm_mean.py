"""An arm's number in one metric beside the baseline's, whoever measured it."""

from __future__ import annotations

from dataclasses import dataclass

from nocap.judge.interval import Estimate


@dataclass(frozen=True, kw_only=True, slots=True)
class ArmMean:
    """The mean of an arm in a metric, and how it compares with the baseline's; or why it does
    not."""

    mean: float | None  # None: not known, or a run never came to the target
    # a ratio or a difference; None: it is the baseline, or is not compared
    estimate: Estimate | None = None
    refused: str | None = None  # why it is not compared
