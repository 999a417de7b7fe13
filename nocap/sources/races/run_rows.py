"""From the folder of a raced run to the judge's rows: what the run measured, and where it came to
the target of the race."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nocap.judge.claim import TO_TARGET
from nocap.judge.time_to_target import TargetCrossing, target_crossing
from nocap.metrics import Better, Metric
from nocap.sources.races.command_output import MetricReader, result
from nocap.store.measurement import Ending, Measurement

NOT_REACHED = "the run never reached the target"


@dataclass(frozen=True, kw_only=True, slots=True)
class RunRows:
    """What is known of a run that ended."""

    measurements: Sequence[Measurement]
    crossings: Mapping[str, TargetCrossing]  # by the names of `TO_TARGET`; empty without a target


def read_rows(
    folder: Path,
    *,
    arm: str,
    seed: int,
    readers: Sequence[MetricReader],
    costs: Sequence[Metric],
    target: float | None,
) -> RunRows:
    """Return what a run measured. `target`: of the first metric."""
    content = result(folder) or {}
    when = str(content.get("started", ""))
    crossings = dict[str, TargetCrossing]()
    if target is not None:
        crossings = _to_target(folder, readers[0], target)
    values = {reader.metric: reader.value(folder) for reader in readers}
    for cost in costs:
        point = crossings.get(cost.name)
        values[cost] = float(content[cost.name]) if point is None else point.at
    measurements = [_measurement(arm, seed, metric, x, when) for metric, x in values.items()]
    return RunRows(measurements=measurements, crossings=crossings)


def _to_target(folder: Path, reader: MetricReader, target: float) -> dict[str, TargetCrossing]:
    """Return where a run came to the target, on the curve of a metric. Its seconds are those at
    which it printed that it was there."""
    points = [(step, value, at) for step, value, at in reader.curve(folder) if step is not None]
    steps = [step for step, _, _ in points]
    seconds = [at for _, _, at in points]
    sign = -1 if reader.better is Better.higher else 1  # the curve that is read falls
    values = [sign * value for _, value, _ in points]
    point = target_crossing(steps, values, target=sign * target) if points else None
    if point is None:
        return dict.fromkeys(TO_TARGET, TargetCrossing.never(math.inf))
    after = next(i for i, step in enumerate(steps) if step >= point.at)
    seconds_at = TargetCrossing(
        at=seconds[after], before=seconds[max(after - 1, 0)], after=seconds[after]
    )
    return dict(zip(TO_TARGET, (seconds_at, point), strict=True))


def _measurement(arm: str, seed: int, metric: Metric, value: float, when: str) -> Measurement:
    """Return a measurement of a run; refused where the value is endless, as of a target that was
    not met."""
    if math.isinf(value):
        return Measurement(
            arm=arm,
            repeat=seed,
            metric=metric,
            value=None,
            ending=Ending.refused,
            when=when,
            why=NOT_REACHED,
        )
    return Measurement(arm=arm, repeat=seed, metric=metric, value=value, when=when)
