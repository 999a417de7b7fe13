"""How much time an arm trains for a token, beside the baseline. Each run has its own: the median
step's, on a CPU in CPU time, which other work on the machine changes less than a clock. Where the
arms were timed in turns (`--time`), the rounds of that count and the runs' own times do not. The
intervals are those of losses, on logarithms: one for all arms of a table together. They are of one
session: what holds on other days takes a study."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from nocap.judge.arms import Arm
from nocap.judge.confounders import machines_differ
from nocap.judge.differences import ArmPair, DifferenceTable, common_seeds, estimates
from nocap.judge.interval import Estimate, of_arms, subtract
from nocap.store.grid_timing import Timing

TOKEN_US = "token_us"
NO_TIMES = "a run's record has no time a token"


@dataclass(frozen=True, kw_only=True, slots=True)
class Paces:
    """The times a token of the arms that are compared."""

    timing: Timing | None  # None: those of the runs

    @classmethod
    def of(cls, arms: Sequence[Arm], timings: Sequence[Timing]) -> Paces:
        """Take the first timing that has all of the arms, else the times of the runs."""
        names = {arm.id for arm in arms}
        for timing in timings:
            if names <= {*timing.arms}:
                return cls(timing=timing)
        return cls(timing=None)

    def refusal(self, arm: Arm, base: Arm) -> str | None:
        """Say why an arm's time a token is not compared; `None`: it is."""
        if self.timing is not None:
            for side in (arm, base):
                if side.id in self.timing.left_out:
                    return f"not timed in turns: {self.timing.left_out[side.id]}"
            return None
        why = machines_differ(arm, base)
        if why is not None:
            return why
        if _has_times(arm) and _has_times(base):
            return None
        return NO_TIMES

    def has_times(self, arm: Arm, base: Arm, seeds: Collection[int]) -> bool:
        """Say whether the time of each of these seeds is known, on the baseline's machine."""
        if self.timing is not None:
            return self.refusal(arm, base) is None
        return set(seeds) <= arm.values[TOKEN_US].keys() and machines_differ(arm, base) is None

    def logarithms(self, arm: Arm, seeds: Sequence[int]) -> list[float]:
        """Return the logarithms of an arm's times: a value a round, or a value a seed."""
        if self.timing is not None:
            return [math.log(seconds) for seconds in self.timing.seconds[arm.id]]
        return [math.log(arm.values[TOKEN_US][seed]) for seed in seeds]

    def mean(self, arm: Arm) -> float | None:
        """Return an arm's µs a token in the timing; `None`: there is none."""
        if self.timing is None:
            return None
        seconds = self.timing.seconds.get(arm.id)
        return 1e6 * fmean(seconds) if seconds else None

    def ratios(self, pairs: Mapping[str, ArmPair], table: DifferenceTable) -> dict[str, Estimate]:
        """Return the ratio of the time a token of each arm of the table, for all of them together.
        `pairs`: by the arm's id, of the metric `TOKEN_US`."""
        members = dict[str, ArmPair]()
        for name, pair in pairs.items():
            if name in table.members and self.refusal(pair.arm, pair.base) is None:
                members[name] = pair
        ratios = dict[str, Estimate]()
        ratio_logs = self._estimates([*members.values()], look=table.look)
        for name, estimate in zip(members, ratio_logs, strict=True):
            if math.isfinite(estimate.high):
                ratios[name] = estimate.exp()
        return ratios

    def _estimates(self, pairs: Sequence[ArmPair], *, look: int) -> list[Estimate]:
        if self.timing is None:
            return estimates(pairs, common_seeds(pairs), look)
        sides = [(self.logarithms(pair.arm, ()), self.logarithms(pair.base, ())) for pair in pairs]
        return of_arms([subtract(arm, base) for arm, base in sides])


def _has_times(arm: Arm) -> bool:
    """Say whether the time a token of each of an arm's seeds is known."""
    return arm.values[TOKEN_US].keys() == {*arm.seeds}
