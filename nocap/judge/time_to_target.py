"""When an arm reaches a loss. A run that never does is right-censored at its budget: counted, never
dropped.

Two ways. On the curve of one run's validations, smoothed (running minimum of a three-point median)
and interpolated linearly: with a decaying learning rate a crossing in the middle of a run misleads.
Where between two validations the run was there, nobody saw: a ratio is widened by that. Or by
races, the honest form: the shortest schedule of each arm that ends at the loss, from runs of
several lengths over the same seeds.

In a race the loss is the one that both reach: the higher of the two arms' mean losses at their
whole lengths. The arm that ends there takes its whole length. The other one takes the length at
which its mean loss over the seeds meets that loss, log-linear between the two lengths around it.
Neither arm is treated as if its loss had no noise, and no minimum over noisy runs is taken: each is
biased (an arm against itself would come out up to 6% faster). Where a longer run ends higher on
average, the two lengths count as one (isotonic regression). Around the mean's crossing each seed
has a length of its own, by the delta method: its two losses there, less its loss in the other arm,
over the slope. Their mean is the crossing, and their spread has the noise of both arms' losses,
paired by seed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import fmean, median

import numpy as np
from numpy.typing import NDArray

from nocap.judge.arms import Arm
from nocap.judge.cautious_interval import CLOCK_BIAS, between
from nocap.judge.confounders import machines_differ
from nocap.judge.interval import Estimate
from nocap.store.measurement import Ending
from nocap.store.record import Record
from nocap.store.record_files import RunStatus

AXES = {"steps": "step", "train_s": "train_s"}  # what is counted → where a curve has it

Curve = Mapping[int, Sequence[float]]  # steps of a schedule → final losses, seed by seed
_Rows = NDArray[np.float64]  # (lengths or blocks, seeds)


@dataclass(frozen=True, kw_only=True, slots=True)
class Finish:
    """An arm's steps to the loss, seed by seed. `at_most`: its shortest schedule ends below it."""

    steps: list[float]
    ending: Ending = Ending.measured


def race(arm: Curve, baseline: Curve) -> tuple[Finish, Finish]:
    """Return both arms' finishes; their curves have the same seeds in the same order."""
    own = _final(arm)
    theirs = _final(baseline)
    if own.mean() <= theirs.mean():
        return _first(arm, theirs), _last(baseline)
    return _last(arm), _first(baseline, own)


def _final(curve: Curve) -> _Rows:
    """Return the losses of an arm's longest schedule, (seeds,)."""
    longest = max(curve)
    return np.asarray(curve[longest], dtype=np.float64)


def _last(curve: Curve) -> Finish:
    """Return the finish of the arm that takes its longest schedule."""
    longest = max(curve)
    return Finish(steps=[float(longest)] * len(curve[longest]))


def _first(curve: Curve, target: _Rows) -> Finish:
    """Return the finish of the arm that ends at the target or below. `target`: (seeds,), the other
    arm's final losses."""
    x, losses = _falling(curve)
    if len(x) == 1:  # its loss does not fall with its length
        return Finish(steps=[float(max(curve))] * len(target), ending=Ending.at_most)
    means = losses.mean(axis=1)
    goal = float(target.mean())
    after = max(1, int(np.argmax(means <= goal)))
    before = after - 1
    fall = means[before] - means[after]
    slope = fall / (x[after] - x[before])  # nats that a logarithm of steps buys
    share = min(1.0, (goal - means[after]) / fall)  # of the shorter schedule
    x_of_mean = share * x[before] + (1 - share) * x[after]
    above = share * losses[before] + (1 - share) * losses[after] - target
    excess = above - min(0.0, float(above.mean()))
    steps = np.exp(x_of_mean + excess / slope)
    ending = Ending.at_most if means[0] <= goal else Ending.measured
    return Finish(steps=steps.tolist(), ending=ending)


def _falling(curve: Curve) -> tuple[_Rows, _Rows]:
    """Return logarithms of steps, and losses, with neighbours merged until their mean losses
    fall."""
    from scipy.optimize import isotonic_regression

    steps = sorted(curve)
    x = np.log(np.array(steps, dtype=np.float64))
    losses = np.array([curve[length] for length in steps], dtype=np.float64)
    edges = isotonic_regression(losses.mean(axis=1), increasing=False).blocks
    blocks = [slice(first, last) for first, last in pairwise(edges)]
    merged_x = [x[block].mean() for block in blocks]
    merged_losses = [losses[block].mean(axis=0) for block in blocks]
    return np.array(merged_x), np.array(merged_losses)


# --- on the curve ---------------------------------------------------------------------------------


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
    """Return steps and training seconds to `goal`. Seconds are refused across machines. `arms`: how
    many share the error."""
    return {axis: _axis(arm, base, axis=axis, goal=goal, arms=arms) for axis in AXES}


def _axis(arm: Arm, base: Arm, *, axis: str, goal: float, arms: int) -> Reach:
    """Return what one of the axes says."""
    crossings = _crossings(arm, axis=axis, goal=goal)
    base_crossings = _crossings(base, axis=axis, goal=goal)
    own = [*crossings.values()]
    theirs = [*base_crossings.values()]
    refused = _refused(arm, base, axis)
    if refused is not None:
        reached = sum(crossing.is_reached for crossing in own)
        return Reach(reached=reached, n=len(own), refused=refused)
    alone = _alone(own)
    is_one_sided = arm is base or not own or not theirs
    if is_one_sided or not all(crossing.is_reached for crossing in (*own, *theirs)):
        return alone
    steps = _crossings(arm, axis="steps", goal=goal)
    base_steps = _crossings(base, axis="steps", goal=goal)
    in_steps = _ratio(steps, base_steps, arms=arms)
    refused = too_coarse([*steps.values()], [*base_steps.values()], in_steps)
    if refused is not None:
        return replace(alone, refused=refused)
    bias = widening(own, theirs)
    if axis == "train_s":
        bias += CLOCK_BIAS
    return replace(alone, ratio=_ratio(crossings, base_crossings, arms=arms, bias=bias))


def _refused(arm: Arm, base: Arm, axis: str) -> str | None:
    """Say why nothing is said on this axis; `None`: something is."""
    if axis == "train_s":
        why = machines_differ(arm, base)
        if why is not None:
            return why
    return _without_curve(arm, base, axis)


def _alone(crossings: Sequence[TargetCrossing]) -> Reach:
    """Return what the crossings of an arm say without a baseline."""
    if not crossings:
        return Reach()
    reached = [crossing.at for crossing in crossings if crossing.is_reached]
    n = len(crossings)
    never = [math.inf] * (n - len(reached))
    middle = median([*reached, *never])
    known = middle if math.isfinite(middle) else None
    budget = max(crossing.at for crossing in crossings)
    return Reach(median=known, reached=len(reached), n=n, budget=budget)


def _ratio(
    crossings: Mapping[int, TargetCrossing],
    base_crossings: Mapping[int, TargetCrossing],
    *,
    arms: int,
    bias: float = 0.0,
) -> Estimate | None:
    own = {seed: crossing.at for seed, crossing in crossings.items()}
    theirs = {seed: crossing.at for seed, crossing in base_crossings.items()}
    return between(own, theirs, log=True, bias=bias, comparisons=arms)


@dataclass(frozen=True, kw_only=True, slots=True)
class TargetCrossing:
    """Where a run came to the target, between two of its validations; or the end of its budget."""

    at: float
    before: float
    after: float
    is_reached: bool = True

    @classmethod
    def never(cls, budget: float) -> TargetCrossing:
        """Return that of a run which did not come to the target."""
        return cls(at=budget, before=budget, after=math.inf, is_reached=False)


def widening(arm: Sequence[TargetCrossing], base: Sequence[TargetCrossing]) -> float:
    """Return how far the logarithm of a ratio may lie from where the crossings are drawn: each run
    was there somewhere between two validations. Endless where the first of them is the start."""
    below = _early(arm) + _late(base)
    above = _late(arm) + _early(base)
    return max(below, above)


def _early(crossings: Sequence[TargetCrossing]) -> float:
    """Return how much earlier than they are drawn runs may have crossed: a mean logarithm."""
    return fmean(_log_ratio(crossing.at, crossing.before) for crossing in crossings)


def _late(crossings: Sequence[TargetCrossing]) -> float:
    """Return how much later than they are drawn runs may have crossed: a mean logarithm."""
    return fmean(_log_ratio(crossing.after, crossing.at) for crossing in crossings)


def _log_ratio(high: float, low: float) -> float:
    return math.log(high / low) if low > 0 else math.inf


def too_coarse(
    arm: Sequence[TargetCrossing], base: Sequence[TargetCrossing], ratio: Estimate | None
) -> str | None:
    """Say why a ratio says more of two arms' validations than of the arms. The crossings are in
    steps, and `ratio` is that of the steps."""
    if not math.isfinite(widening(arm, base)):
        return "a run reached the target before its first validation"
    cadence = _cadence(arm)
    base_cadence = _cadence(base)
    middle = fmean(crossing.at for crossing in (*arm, *base))
    uncertainty = abs(cadence - base_cadence) / middle
    width = math.inf if ratio is None else _log_ratio(ratio.high, ratio.low)
    if uncertainty > width:
        return (
            f"one arm was validated every {cadence:,.4g} steps there, and the other every "
            f"{base_cadence:,.4g}: this is too coarse for the interval"
        )
    return None


def _cadence(crossings: Sequence[TargetCrossing]) -> float:
    """Return the mean distance of the validations around these crossings."""
    return fmean(crossing.after - crossing.before for crossing in crossings)


def _without_curve(arm: Arm, base: Arm, axis: str) -> str | None:
    """Name the runs whose curve says nothing on this axis: they could not be seen to reach the
    target."""
    runs = [*arm.all, *base.all]
    without = [
        run.name for run in runs if run.status != RunStatus.diverged and not _curve(run, axis)
    ]
    if not without or len(without) == len(runs):
        return None
    return f"these runs have no curve: {', '.join(without)}"


def _curve(run: Record, axis: str) -> list[float]:
    """Return where the run was validated, on an axis; empty where that is not known of each
    validation."""
    x = [float(at) for at in getattr(run.curve, AXES[axis]) if at is not None]
    return x if len(x) == len(run.curve.val_loss) else []


def target_crossing(
    x: Sequence[float], y: Sequence[float], *, target: float
) -> TargetCrossing | None:
    """Return where a falling curve first reaches `target`, interpolated linearly; `None`: it never
    does.

    The curve is the running minimum of a three-point median, so that one lucky validation does not
    count.
    """
    curve = _smooth(y)
    reached = np.flatnonzero(curve <= target)
    if not len(reached):
        return None
    i = int(reached[0])
    if i == 0:
        return TargetCrossing(at=float(x[0]), before=0.0, after=float(x[0]))
    at = np.interp(target, [curve[i], curve[i - 1]], [x[i], x[i - 1]])
    return TargetCrossing(at=float(at), before=float(x[i - 1]), after=float(x[i]))


def _smooth(y: Sequence[float]) -> _Rows:
    """Return the running minimum of a three-point median."""
    padded = np.pad(np.asarray(y, dtype=np.float64), 1, mode="edge")
    triples = np.stack([padded[:-2], padded[1:-1], padded[2:]])
    return np.minimum.accumulate(np.median(triples, axis=0))


def _crossings(arm: Arm, *, axis: str, goal: float) -> dict[int, TargetCrossing]:
    """Return where each seed came to the goal, or that it never did. A seed that ran twice counts
    with its first run."""
    by_seed: dict[int, TargetCrossing] = {}
    for run in arm.all:
        x = _curve(run, axis)
        if x and run.seed not in by_seed:
            reached = target_crossing(x, run.curve.val_loss, target=goal)
            by_seed[run.seed] = reached or TargetCrossing.never(max(x))
    # A run that diverged will never reach it: its budget is the arm's. It may have no curve,
    # either.
    budget = max((each.at for each in by_seed.values()), default=0.0)
    never = TargetCrossing.never(budget)
    for run in arm.diverged:
        if not by_seed.get(run.seed, never).is_reached:
            by_seed[run.seed] = never
    return by_seed
