"""When two arms reach one loss: the shortest schedule of each that ends there, from runs of several lengths over the same seeds.

The loss is the one that both reach: the higher of the two arms' mean losses at their whole lengths. The arm that ends there takes its whole
length. The other one takes the length at which its mean loss over the seeds meets that loss, log-linear between the two lengths around it.
Neither arm is treated as if its loss had no noise, and no minimum over noisy runs is taken: each is biased (an arm against itself would
come out up to 6% faster). Where a longer run ends higher on average, the two lengths count as one (isotonic regression).

Around the mean's crossing each seed has a length of its own, by the delta method: its two losses there, less its loss in the other arm,
over the slope. Their mean is the crossing, and their spread has the noise of both arms' losses, paired by seed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from nocap.store.measurement import Ending

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
    slope = (means[after - 1] - means[after]) / (x[after] - x[after - 1])  # nats that a logarithm of steps buys
    share = min(1.0, (goal - means[after]) / (means[after - 1] - means[after]))  # of the shorter one
    there = share * losses[after - 1] + (1 - share) * losses[after] - target
    steps = np.exp(share * x[after - 1] + (1 - share) * x[after] + (there - min(0.0, float(there.mean()))) / slope)
    return Finish(steps=steps.tolist(), ending=Ending.at_most if means[0] <= goal else Ending.measured)


def _falling(curve: Curve) -> tuple[_Rows, _Rows]:
    """Logarithms of steps and losses, with neighbours merged until their mean losses fall."""
    from scipy.optimize import isotonic_regression

    order = sorted(curve)
    losses = np.array([curve[steps] for steps in order], dtype=np.float64)
    edges = isotonic_regression(losses.mean(axis=1), increasing=False).blocks
    merged = [slice(first, last) for first, last in pairwise(edges)]
    x = np.log(np.array(order, dtype=np.float64))
    return np.array([x[of].mean() for of in merged]), np.array([losses[of].mean(axis=0) for of in merged])
