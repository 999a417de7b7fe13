"""The rows of a comparison: an arm's means, its differences and its word."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from statistics import fmean

from nocap.judge import time_to_target, times_and_memory
from nocap.judge.arms import Arm, changes
from nocap.judge.comparison import ComparedArm
from nocap.judge.confounders import confounders
from nocap.judge.differences import Difference, DifferenceTable, DifferenceWord
from nocap.judge.equal_loss import TimeAtEqualLoss
from nocap.judge.interval import Estimate, shared
from nocap.judge.pace import TOKEN_US, Paces
from nocap.judge.pairing import Pairing


@dataclass(frozen=True, kw_only=True, slots=True)
class RowMaker:
    """What makes the rows: what they all rest on."""

    pairing: Pairing
    target_loss: float | None
    allow: Collection[str]
    table: DifferenceTable
    paces: Paces
    ratios: Mapping[str, Estimate]  # of times a token
    at_equal_loss: Mapping[str, TimeAtEqualLoss]

    def rows(self) -> list[ComparedArm]:
        """Return the row of each arm."""
        rows = list[ComparedArm]()
        for arm in self.pairing.arms:
            pair = self.pairing.pairs.get(arm.id)
            rows.append(self._row(arm, arm if pair is None else pair.base))
        return rows

    def _row(self, arm: Arm, base: Arm) -> ComparedArm:
        """Return an arm's means and differences, over the same seeds."""
        seeds = self._seeds(arm, base)
        pace = _mean(arm, TOKEN_US, seeds)
        means = {
            TOKEN_US: times_and_memory.of_pace(arm, base, pace, self.paces, self.ratios.get(arm.id))
        }
        for name in times_and_memory.SHOWN_METRICS:
            mean = _mean(arm, name, seeds)
            means[name] = times_and_memory.of_metric(arm, base, self.pairing.others, name, mean)
        against = None
        difference = None
        if arm is not base:
            against = base
            gap = self.table.by_arm[arm.id]
            difference = _confounded_or_same(gap, arm, base, allow=self.allow)
        to_target = None
        if self.target_loss is not None:
            to_target = time_to_target.reach(
                arm, base, goal=self.target_loss, arms=len(self.pairing.others)
            )
        changed = changes(arm, base)
        val_loss = _mean(arm, "val_loss", seeds)
        val_bpb = _mean(arm, "val_bpb", seeds)
        equal_loss = self.at_equal_loss.get(arm.id)
        return ComparedArm(
            arm=arm,
            against=against,
            seeds=seeds,
            changes=changed,
            val_loss=val_loss,
            val_bpb=val_bpb,
            difference=difference,
            times=means,
            equal_loss=equal_loss,
            to_target=to_target,
        )

    def _seeds(self, arm: Arm, base: Arm) -> list[int]:
        """Return the seeds of a row: those of the table, or those that an arm in none shares with
        the baseline where these are enough."""
        if arm is not base and arm.id not in self.table.members:
            metric = self.pairing.metric
            return shared(arm.values[metric], base.values[metric]) or arm.seeds
        return self.table.seeds or arm.seeds


def _mean(arm: Arm, metric: str, seeds: Collection[int]) -> float | None:
    """Return an arm's mean over those of these seeds that it has; `None`: it has none."""
    known = [value for seed, value in arm.values[metric].items() if seed in seeds]
    return fmean(known) if known else None


def _confounded_or_same(
    gap: Difference, arm: Arm, base: Arm, *, allow: Collection[str]
) -> Difference:
    """Return the difference with the word *confounded* where something confounds the two arms, else
    as it is."""
    reasons = confounders(arm, base, allowed=allow)
    if reasons:
        return replace(gap, word=DifferenceWord.confounded, reason=", ".join(reasons))
    return gap
