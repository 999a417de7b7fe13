"""When an arm reaches a target loss. A run that never does is right-censored at its budget: counted, never dropped.

The curve is smoothed (running minimum of a three-point median) and interpolated linearly; `raw_median` is the first crossing of the
unsmoothed curve, for the doubtful. With a decaying learning rate a crossing in the middle of a run misleads: the honest form is the
shortest schedule that ends at the target.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from nocap.judge import estimates, stats
from nocap.judge.arms import Arm
from nocap.judge.stats import Estimate
from nocap.show.table import plural
from nocap.store.runs import Record, number

AXES = ("steps", "train_s")


@dataclass(frozen=True, kw_only=True, slots=True)
class Reach:
    """Steps or training seconds to the target."""

    median: float | None = None  # Kaplan and Meier's; None: beyond the budget
    raw_median: float | None = None
    censored: int = 0  # runs that never got there
    n: int = 0
    budget: float | None = None
    ratio: Estimate | None = None  # to the baseline's; only where every run of both arms got there
    logrank_p: float | None = None  # where some did not: of "at one pace"
    refused: str | None = None


def reach(arm: Arm, base: Arm, *, goal: float) -> dict[str, Reach]:
    """Steps and training seconds to `goal`. Seconds are refused across machines."""
    return {axis: _axis(arm, base, axis=axis, goal=goal) for axis in AXES}


def _axis(arm: Arm, base: Arm, *, axis: str, goal: float) -> Reach:
    mine, theirs = (_times(side, axis=axis, goal=goal) for side in (arm, base))
    times, reached = [t for t, _ in mine.values()], [ok for _, ok in mine.values()]
    base_times, base_reached = [t for t, _ in theirs.values()], [ok for _, ok in theirs.values()]
    censored, n = reached.count(False), len(reached)
    machines = arm.machines | base.machines
    if axis == "train_s" and len(machines) > 1:
        return Reach(censored=censored, n=n, refused=f"the runs are from {plural(len(machines), 'machine')}")
    raw = [x for run in arm.all if (x := stats.crossing(_x(run, axis), run.curve.val_loss, target=goal, smooth=False)) is not None]
    compared = arm.id != base.id and mine and theirs
    everybody, anybody = all([*reached, *base_reached]), any([*reached, *base_reached])
    ratio = p = None
    if compared and everybody:
        ratio = estimates.ratio(*({seed: time for seed, (time, _) in side.items()} for side in (mine, theirs)))
    elif compared and anybody and min(len(mine), len(theirs)) > 1:
        p = number(stats.logrank(times, reached, base_times, base_reached)[1])
    return Reach(
        median=stats.median_time(times, reached) if mine else None,
        raw_median=median(raw) if len(raw) == len(arm.all) else None,
        censored=censored,
        n=n,
        budget=max(times, default=None),
        ratio=ratio,
        logrank_p=p,
    )


def _x(run: Record, axis: str) -> list[float]:
    return [float(x) for x in (run.curve.step if axis == "steps" else run.curve.train_s)]


def _times(arm: Arm, *, axis: str, goal: float) -> dict[int, tuple[float, bool]]:
    """Seed → (where it reached the goal, True) or (its budget, False). A seed that ran twice counts with its first run."""
    found: dict[int, tuple[float, bool]] = {}
    for run in arm.all:
        x = _x(run, axis)
        if x and run.seed not in found:
            at = stats.crossing(x, run.curve.val_loss, target=goal)
            found[run.seed] = (max(x), False) if at is None else (at, True)
    # A run that diverged will never reach it: its budget is the arm's.
    longest = max((time for time, _ in found.values()), default=0.0)
    diverged = {run.seed for run in arm.diverged}
    return {seed: (longest, False) if seed in diverged and not ok else (time, ok) for seed, (time, ok) in found.items()}
