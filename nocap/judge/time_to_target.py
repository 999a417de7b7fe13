"""When an arm reaches a loss. A run that never does is right-censored at its budget: counted, never dropped.

Two ways. On the curve of one run's validations, smoothed (running minimum of a three-point median) and
interpolated linearly: with a decaying learning rate a crossing in the middle of a run misleads. Where between
two validations the run was there, nobody saw: a ratio is widened by that. Or by races, the honest form: the
shortest schedule of each arm that ends at the loss, from runs of several lengths over the same seeds.

In a race the loss is the one that both reach: the higher of the two arms' mean losses at their whole lengths.
The arm that ends there takes its whole length. The other one takes the length at which its mean loss over the
seeds meets that loss, log-linear between the two lengths around it. Neither arm is treated as if its loss had
no noise, and no minimum over noisy runs is taken: each is biased (an arm against itself would come out up to
6% faster). Where a longer run ends higher on average, the two lengths count as one (isotonic regression).
Around the mean's crossing each seed has a length of its own, by the delta method: its two losses there, less
its loss in the other arm, over the slope. Their mean is the crossing, and their spread has the noise of both
arms' losses, paired by seed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import fmean, median

import numpy as np
from numpy.typing import NDArray

from nocap.judge.arms import Arm, machines_differ
from nocap.judge.cautious import CLOCK_BIAS, between
from nocap.judge.interval import Estimate
from nocap.store.metrics import Ending
from nocap.store.runs import Record

AXES = {"steps": "step", "train_s": "train_s"}  # what is counted → where a curve has it

Curve = Mapping[int, Sequence[float]]  # steps of a schedule → final losses, seed by seed
_Rows = NDArray[np.float64]  # (lengths or blocks, seeds)


@dataclass(frozen=True, kw_only=True, slots=True)
class Finish:
    """An arm's steps to the loss, seed by seed. `at_most`: its shortest schedule ends below it."""

    steps: list[float]
    ending: Ending = Ending.measured


def race(arm: Curve, baseline: Curve) -> tuple[Finish, Finish]:
    """Both arms' finishes; their curves have the same seeds in the same order."""
    ends = [np.asarray(curve[max(curve)], dtype=np.float64) for curve in (arm, baseline)]
    if ends[0].mean() <= ends[1].mean():
        return _first(arm, ends[1]), _last(baseline)
    return _last(arm), _first(baseline, ends[0])


def _last(curve: Curve) -> Finish:
    return Finish(steps=[float(max(curve))] * len(curve[max(curve)]))


def _first(curve: Curve, target: _Rows) -> Finish:
    """Of the arm that ends at the target or below. `target`: (seeds,), the other arm's final losses."""
    x, losses = _falling(curve)
    means, goal = losses.mean(axis=1), float(target.mean())
    if len(x) == 1:  # its loss does not fall with its length
        return Finish(steps=[float(max(curve))] * len(target), ending=Ending.at_most)
    after = max(1, int(np.argmax(means <= goal)))
    # nats that a logarithm of steps buys
    slope = (means[after - 1] - means[after]) / (x[after] - x[after - 1])
    share = min(1.0, (goal - means[after]) / (means[after - 1] - means[after]))  # of the shorter one
    there = share * losses[after - 1] + (1 - share) * losses[after] - target
    steps = np.exp(
        share * x[after - 1] + (1 - share) * x[after] + (there - min(0.0, float(there.mean()))) / slope
    )
    return Finish(steps=steps.tolist(), ending=Ending.at_most if means[0] <= goal else Ending.measured)


def _falling(curve: Curve) -> tuple[_Rows, _Rows]:
    """Logarithms of steps and losses, with neighbours merged until their mean losses fall."""
    from scipy.optimize import isotonic_regression

    order = sorted(curve)
    losses = np.array([curve[steps] for steps in order], dtype=np.float64)
    edges = isotonic_regression(losses.mean(axis=1), increasing=False).blocks
    merged = [slice(first, last) for first, last in pairwise(edges)]
    x = np.log(np.array(order, dtype=np.float64))
    return np.array([x[block].mean() for block in merged]), np.array(
        [losses[block].mean(axis=0) for block in merged]
    )


# --- on the curve -------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Reach:
    """Steps or training seconds to the target."""

    median: float | None = None  # over the seeds; None: beyond the budget
    reached: int = 0
    n: int = 0
    budget: float | None = None
    ratio: Estimate | None = None  # to the baseline's; only where every run of both arms got there
    refused: str | None = None  # why there is no median, or no ratio


def reach(arm: Arm, base: Arm, *, goal: float, arms: int = 1) -> dict[str, Reach]:
    """Return steps and training seconds to `goal`. Seconds are refused across machines. `arms`: how many
    share the error."""
    return {axis: _axis(arm, base, axis=axis, goal=goal, arms=arms) for axis in AXES}


def _axis(arm: Arm, base: Arm, *, axis: str, goal: float, arms: int) -> Reach:
    times = _times(arm, axis=axis, goal=goal)
    base_times = _times(base, axis=axis, goal=goal)
    reached = sum(time.there for time in times.values())
    refused = (machines_differ(arm, base) if axis == "train_s" else None) or _without_curve(arm, base, axis)
    if refused:
        return Reach(reached=reached, n=len(times), refused=refused)
    middle = median(time.at if time.there else np.inf for time in times.values()) if times else np.inf
    seen = Reach(
        median=float(middle) if np.isfinite(middle) else None,
        reached=reached,
        n=len(times),
        budget=max((time.at for time in times.values()), default=None),
    )
    both = [*times.values(), *base_times.values()]
    if arm is base or not times or not base_times or not all(time.there for time in both):
        return seen
    steps = _times(arm, axis="steps", goal=goal)
    base_steps = _times(base, axis="steps", goal=goal)
    in_steps = _ratio(steps, base_steps, arms=arms)
    if (why := too_coarse([*steps.values()], [*base_steps.values()], in_steps)) is not None:
        return replace(seen, refused=why)
    open_ = widening([*times.values()], [*base_times.values()])
    bias = open_ + (CLOCK_BIAS if axis == "train_s" else 0.0)
    return replace(seen, ratio=_ratio(times, base_times, arms=arms, bias=bias))


def _ratio(
    times: Mapping[int, TargetCrossing],
    base_times: Mapping[int, TargetCrossing],
    *,
    arms: int,
    bias: float = 0.0,
) -> Estimate | None:
    sides = [{seed: time.at for seed, time in side.items()} for side in (times, base_times)]
    return between(*sides, log=True, bias=bias, comparisons=arms)


@dataclass(frozen=True, kw_only=True, slots=True)
class TargetCrossing:
    """Where a run came to the target, between two of its validations; or the end of its budget."""

    at: float
    before: float
    after: float
    there: bool = True

    @classmethod
    def never(cls, budget: float) -> TargetCrossing:
        return cls(at=budget, before=budget, after=math.inf, there=False)


def widening(arm: Sequence[TargetCrossing], base: Sequence[TargetCrossing]) -> float:
    """Return how far the logarithm of a ratio may lie from where the crossings are drawn: each run was there
    somewhere between two validations. Endless where the first of them is the start."""
    early = [_apart([(time.before, time.at) for time in side]) for side in (arm, base)]
    late = [_apart([(time.at, time.after) for time in side]) for side in (arm, base)]
    return max(early[0] + late[1], late[0] + early[1])


def _apart(ends: Sequence[tuple[float, float]]) -> float:
    """Return the mean logarithm between two ends."""
    return fmean(math.log(high / low) if low > 0 else math.inf for low, high in ends)


def too_coarse(
    arm: Sequence[TargetCrossing], base: Sequence[TargetCrossing], ratio: Estimate | None
) -> str | None:
    """Say why a ratio says more of two arms' validations than of the arms. The crossings are in steps, and
    `ratio` is that of the steps."""
    if not math.isfinite(widening(arm, base)):
        return "a run came to the target between its start and its first validation"
    cadence, base_cadence = (fmean(time.after - time.before for time in side) for side in (arm, base))
    differ = abs(cadence - base_cadence) / fmean(time.at for time in (*arm, *base))
    width = math.log(ratio.high / ratio.low) if ratio is not None and ratio.low > 0 else math.inf
    if differ > width:
        return (
            f"validated every {cadence:,.4g} steps there, and the other every {base_cadence:,.4g}: "
            "the answer would be narrower than what lies between"
        )
    return None


def _without_curve(arm: Arm, base: Arm, axis: str) -> str | None:
    """Name the runs whose curve says nothing on this axis: they could not be seen to reach the target."""
    runs = [*arm.all, *base.all]
    without = [run.name for run in runs if run.status != "diverged" and not _curve(run, axis)]
    if not without or len(without) == len(runs):
        return None
    return f"no curve of {', '.join(without)}"


def _curve(run: Record, axis: str) -> list[float]:
    """Return where the run was validated, on an axis; empty where that is not known of each validation."""
    x = [float(at) for at in getattr(run.curve, AXES[axis]) if at is not None]
    return x if len(x) == len(run.curve.val_loss) else []


def crossing(x: Sequence[float], y: Sequence[float], *, target: float) -> TargetCrossing | None:
    """Return where a falling curve first reaches `target`, interpolated linearly; `None`: it never does.

    The curve is the running minimum of a three-point median, so that one lucky validation does not count.
    """
    curve = np.asarray(y, dtype=np.float64)
    wide = np.pad(curve, 1, mode="edge")
    curve = np.minimum.accumulate(np.median(np.stack([wide[:-2], wide[1:-1], wide[2:]]), axis=0))
    reached = np.flatnonzero(curve <= target)
    if not len(reached):
        return None
    i = int(reached[0])
    if i == 0:
        return TargetCrossing(at=float(x[0]), before=0.0, after=float(x[0]))
    at = float(np.interp(target, [curve[i], curve[i - 1]], [x[i], x[i - 1]]))
    return TargetCrossing(at=at, before=float(x[i - 1]), after=float(x[i]))


def _times(arm: Arm, *, axis: str, goal: float) -> dict[int, TargetCrossing]:
    """Return where each seed came to the goal, or that it never did. A seed that ran twice counts with its
    first run."""
    by_seed: dict[int, TargetCrossing] = {}
    for run in arm.all:
        x = _curve(run, axis)
        if x and run.seed not in by_seed:
            there = crossing(x, run.curve.val_loss, target=goal)
            by_seed[run.seed] = there or TargetCrossing.never(max(x))
    # A run that diverged will never reach it: its budget is the arm's. It may have no curve, either.
    longest = TargetCrossing.never(max((time.at for time in by_seed.values()), default=0.0))
    for run in arm.diverged:
        if not by_seed.get(run.seed, longest).there:
            by_seed[run.seed] = longest
    return by_seed
