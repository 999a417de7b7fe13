"""What a comparison compares with what: the arms of its runs, the baseline among them, and the pair
that each arm is in."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nocap.display import shorten
from nocap.judge import grouping
from nocap.judge.arm_labels import choose_baseline, labelled
from nocap.judge.arms import Arm, starts, vocabularies
from nocap.judge.differences import ArmPair, pair_of
from nocap.judge.equal_loss import lengths_around, shows_a_length
from nocap.judge.question import PREVIOUS
from nocap.store.runs import Found


@dataclass(frozen=True, kw_only=True, slots=True)
class Pairing:
    """The arms of a comparison, and what each is compared with."""

    arms: list[Arm]  # in a chain in the order of time
    base: Arm
    pairs: Mapping[str, ArmPair]  # by the arm's id, of each arm but the baseline
    metric: str  # of all verdicts
    lengths: list[Arm]  # that were only trained to show the baseline at other lengths: no row
    ends: tuple[Arm, Arm] | None  # the baseline's shorter and longer length; None: it has none
    stepwise: bool  # each is compared with the one before it

    @property
    def others(self) -> list[Arm]:
        """List the arms without the baseline."""
        return [pair.arm for pair in self.pairs.values()]


def pair_arms(
    runs: Found, *, baseline: str | None, target_loss: float | None, against: str
) -> Pairing:
    """Make arms of runs, choose the baseline, and pair the others with it, or in a chain each with
    the one before it."""
    stepwise = against == PREVIOUS
    every = grouping.group(runs.records)
    arms = labelled([arm for arm in every if not shows_a_length(arm)])
    _check_finished(arms, runs)
    if stepwise:
        arms = _in_time(arms)
    if target_loss is not None:
        _check_target(arms, target_loss)
    base = choose_baseline(arms, baseline)
    metric = _metric(arms)
    # a chain has no one baseline, which has other lengths
    ends = None if stepwise else lengths_around(base, every)
    return Pairing(
        arms=arms,
        base=base,
        pairs=_pairs(arms, base, metric, stepwise=stepwise),
        metric=metric,
        lengths=[arm for arm in every if shows_a_length(arm)],
        ends=ends,
        stepwise=stepwise,
    )


def _metric(arms: Sequence[Arm]) -> str:
    """Return the metric of all verdicts: bits per byte where vocabularies differ, or no run has a
    loss."""
    has_loss = any(arm.values["val_loss"] for arm in arms)
    if has_loss and vocabularies(arms) == 1:
        return "val_loss"
    return "val_bpb"


def _pairs(arms: Sequence[Arm], base: Arm, metric: str, *, stepwise: bool) -> dict[str, ArmPair]:
    """Return each arm but the baseline with what it is compared with: that, or the arm before
    it."""
    pairs = dict[str, ArmPair]()
    before = base
    for arm in arms:
        if arm is not base:
            pairs[arm.id] = pair_of(arm, before, metric)
        if stepwise:
            before = arm
    return pairs


def _check_finished(arms: Sequence[Arm], runs: Found) -> None:
    if any(arm.runs for arm in arms):
        return
    unreadable = [f"{name}: {why}" for name, why in runs.unreadable.items()]
    unfinished = [f"{record.folder.name}: {record.status}" for record in runs.records]
    have = shorten([*unreadable, *unfinished]) or "no run"
    raise ValueError(f"a comparison needs a finished run with a validation loss, got none ({have})")


def _in_time(arms: Sequence[Arm]) -> list[Arm]:
    """Sort arms by the start of their first run; as they are listed where one does not say it."""
    began = {arm.id: starts(arm) for arm in arms}
    if not all(began.values()):
        return list(arms)
    return sorted(arms, key=lambda arm: min(began[arm.id]))


def _check_target(arms: Sequence[Arm], target: float) -> None:
    if not any(arm.values["val_loss"] for arm in arms):
        raise ValueError(
            f"--target needs runs with a loss in nats per token, got {target:g} for runs that "
            "have only bits per byte"
        )
    first = math.inf
    for arm in arms:
        firsts = [run.curve.val_loss[0] for run in arm.all if run.curve.val_loss]
        first = min([first, *firsts])
    if target >= first:
        raise ValueError(
            "--target must be below each run's first validation loss (the lowest is "
            f"{first:.4f}; a run reaches a higher target at once), got {target:g}"
        )
