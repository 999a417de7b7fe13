"""Times and memory of an arm beside the baseline's: means of runs on one machine, with ratios where
they are compared."""

from __future__ import annotations

import math
from collections.abc import Sequence

from nocap.display import shorten
from nocap.judge.arm_mean import ArmMean
from nocap.judge.arms import Arm
from nocap.judge.cautious_interval import CLOCK_BIAS, between, pooled
from nocap.judge.confounders import machines_differ, steps_alike
from nocap.judge.interval import BySeed, Estimate
from nocap.judge.pace import Paces
from nocap.metrics import METRICS, Kind

# of one machine only; a run's wall clock has no ratio, for it holds what else the machine did
SHOWN_METRICS = ("tokens_per_s", "step_ms", "model_mib", "train_s")
PEAK_ONLY = "a run's record has no figure for the model's memory, or only the peak of the process"


def difference_among(
    arm: Arm, base: Arm, others: Sequence[Arm], metric: str, *, log: bool
) -> Estimate | None:
    """Return an arm's difference from the baseline, of `log` the logarithm of its ratio: with an
    interval for all arms together, which the noise of the other arms narrows."""
    groups = list[list[float]]()
    for other in others:
        if other is not arm:
            groups.append(_paired(other, base, metric, log=log))
    noise = pooled(groups)
    bias = CLOCK_BIAS if METRICS[metric].kind is Kind.clock else 0.0
    return between(
        arm.values[metric],
        base.values[metric],
        log=log,
        bias=bias,
        declared=noise,
        comparisons=len(others),
    )


def _paired(arm: Arm, base: Arm, metric: str, *, log: bool) -> list[float]:
    """Return an arm's differences from the baseline, or the logarithms of its ratios, seed by seed;
    none where the seeds are not the same, or a value has no logarithm."""
    values: BySeed = arm.values[metric]
    base_values: BySeed = base.values[metric]
    if values.keys() != base_values.keys():
        return []
    if not log:
        return [values[seed] - base_values[seed] for seed in values]
    if min([*values.values(), *base_values.values()], default=0) <= 0:
        return []
    return [math.log(values[seed] / base_values[seed]) for seed in values]


def of_pace(
    arm: Arm, base: Arm, mean: float | None, paces: Paces, ratio: Estimate | None
) -> ArmMean:
    """Return an arm's time a token: that of a timing, or of its own runs where these are of one
    machine."""
    if paces.timing is not None:
        mean = paces.mean(arm)
    elif len(arm.machines) != 1:
        mean = None
    return ArmMean(mean=mean, estimate=ratio, refused=paces.refusal(arm, base))


def of_metric(
    arm: Arm, base: Arm, others: Sequence[Arm], metric: str, mean: float | None
) -> ArmMean:
    """Return an arm's mean of a time or of memory, where its runs are of one machine, with the
    ratio."""
    if len(arm.machines) != 1:
        mean = None
    refused = _refused(arm, base, metric)
    ratio = None
    if refused is None and arm is not base and _has_ratio(arm, metric):
        ratio = difference_among(arm, base, others, metric, log=True)
    return ArmMean(mean=mean, estimate=ratio, refused=refused)


def _has_ratio(arm: Arm, metric: str) -> bool:
    """Say whether a metric is compared: memory is, and of a log its seconds, which are all that it
    has."""
    if metric == "train_s":
        return any(run.imported for run in arm.all)
    return metric == "model_mib"


def _refused(arm: Arm, base: Arm, metric: str) -> str | None:
    """Say why a time or memory of an arm is not compared; `None`: it is."""
    why = machines_differ(arm, base)
    if why is not None:
        return why
    is_known = bool(arm.values[metric] and base.values[metric])
    if metric == "model_mib" and not is_known:
        return PEAK_ONLY
    if metric == "train_s":
        return _other_lengths(arm, base)
    return None


def _other_lengths(arm: Arm, base: Arm) -> str | None:
    """Say why times of whole runs are no speed: they did not train for as many steps."""
    if steps_alike(arm, base):
        return None
    return f"the numbers of steps differ: {_steps(arm)} and {_steps(base)}"


def _steps(arm: Arm) -> str:
    """Return after how many steps an arm's runs ended, as a person reads it."""
    steps = {run.steps for run in arm.runs if run.steps is not None}
    return shorten(f"{count:,}" for count in sorted(steps))
