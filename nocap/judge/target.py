"""When an arm reaches a target loss. A run that never does is right-censored at its budget: counted, never dropped.

The curve is smoothed (running minimum of a three-point median) and interpolated linearly; `raw_median` is the first crossing of the
unsmoothed curve, for the doubtful. With a decaying learning rate a crossing in the middle of a run misleads: the honest form is the
shortest schedule that ends at the target.
"""

from __future__ import annotations

from statistics import median
from typing import Any

from nocap.judge import estimates, stats
from nocap.judge.arms import Arm
from nocap.store.runs import Record

AXES = ("steps", "train_s")


def reach(arm: Arm, base: Arm, *, goal: float) -> dict[str, Any]:
    """Steps and training seconds to `goal`: Kaplan and Meier's median, how many never got there, and the ratio to the baseline.

    A ratio needs every run of both arms to have reached it; otherwise `logrank_p` says whether the pace differs. Seconds are refused across
    machines.
    """
    return {axis: _axis(arm, base, axis=axis, goal=goal) for axis in AXES}


def _axis(arm: Arm, base: Arm, *, axis: str, goal: float) -> dict[str, Any]:
    mine, theirs = _times(arm, axis=axis, goal=goal), _times(base, axis=axis, goal=goal)
    reached = [ok for _, ok in mine.values()]
    raw = [x for run in arm.all if (x := stats.crossing(_x(run, axis), run.curve.val_loss, target=goal, smooth=False)) is not None]
    found: dict[str, Any] = {
        "median": None,
        "raw_median": median(raw) if len(raw) == len(arm.all) else None,
        "censored": reached.count(False),
        "n": len(reached),
        "budget": max((time for time, _ in mine.values()), default=None),
        "ratio": None,
        "logrank_p": None,
        "refused": None,
    }
    if axis == "train_s" and (why := _apart(arm, base)):
        return {**found, "raw_median": None, "budget": None, "refused": why}
    if mine:
        found["median"] = stats.median_time([time for time, _ in mine.values()], reached)
    if arm.id == base.id or not mine or not theirs:
        return found
    if all(reached) and all(ok for _, ok in theirs.values()):
        found["ratio"] = estimates.ratio(*({seed: time for seed, (time, _) in side.items()} for side in (mine, theirs)))
    elif any(reached) or any(ok for _, ok in theirs.values()):
        sides = [([t for t, _ in side.values()], [ok for _, ok in side.values()]) for side in (mine, theirs)]
        found["logrank_p"] = stats.logrank(*sides[0], *sides[1])[1] if min(len(mine), len(theirs)) > 1 else None
    return found


def _apart(arm: Arm, base: Arm) -> str | None:
    machines = {**arm.machines, **base.machines}
    return f"the runs are from {len(machines)} machines" if len(machines) > 1 else None


def _x(run: Record, axis: str) -> list[float]:
    return [float(x) for x in (run.curve.step if axis == "steps" else run.curve.train_s)]


def _times(arm: Arm, *, axis: str, goal: float) -> dict[int, tuple[float, bool]]:
    """Seed → (where it reached the goal, True) or (its budget, False). A seed that ran twice counts with its first run."""
    found: dict[int, tuple[float, bool]] = {}
    for run in arm.all:
        x = _x(run, axis)
        if not x or run.seed in found:
            continue
        at = stats.crossing(x, run.curve.val_loss, target=goal)
        # A run that diverged will never reach it: its budget is the arm's.
        found[run.seed] = (max(x), False) if at is None else (at, True)
    longest = max((time for time, _ in found.values()), default=0.0)
    diverged = {run.seed for run in arm.diverged}
    return {seed: (longest, False) if seed in diverged and not ok else (time, ok) for seed, (time, ok) in found.items()}
