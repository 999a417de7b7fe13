"""The judge of a bench: rounds in, a speed and a word for each arm out.

A round has the time of every instance, and gives one log ratio an arm, to the baseline's second
instance: what is built and timed first has come out 0.5 to 1% slow. The first instance, the
control, is only there to show it. The interval is that of all clocks
(`nocap.judge.cautious_interval`), over rounds, wider by what the baseline differs from itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from nocap.judge.cautious_interval import CLOCK_BIAS, of_pairs
from nocap.judge.differences import Difference, difference
from nocap.judge.interval import Array, Estimate


@dataclass(frozen=True, kw_only=True, slots=True)
class Speeds:
    """Tokens/s over the baseline's, as logarithms. None: an instance failed."""

    control: Difference | None
    arms: tuple[Difference | None, ...]  # without the baseline

    def are_narrow(self, limit: float) -> bool:
        """Say whether no interval reaches further than `limit` to each side."""
        known = [each for each in (self.control, *self.arms) if each is not None]
        return all(each.estimate.half_width <= limit for each in known)


def judge(seconds_RI: Array) -> Speeds:
    """Judge the seconds a token of rounds × instances: the control, the baseline, the other arms.
    NaN from where an instance failed."""
    logs_RI = np.log(seconds_RI)
    base_R = logs_RI[:, 1]
    control = of_pairs((base_R - logs_RI[:, 0]).tolist())
    # an arm must differ by more than the baseline does from itself
    bias = max(CLOCK_BIAS, abs(control.mid))
    others = logs_RI.T[2:]
    comparisons = max(1, len(others))
    arms = [
        of_pairs((base_R - own_R).tolist(), bias=bias, comparisons=comparisons) for own_R in others
    ]
    return Speeds(control=_known(control), arms=tuple(map(_known, arms)))


def _known(estimate: Estimate) -> Difference | None:
    if not math.isfinite(estimate.mid):
        return None
    return difference(estimate, metric="tokens_per_s")
