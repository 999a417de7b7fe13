"""Write the result of a bench as JSON. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import msgspec

from nocap.judge.comparison_json import measurement_json
from nocap.judge.comparison_schema import MeasurementJson
from nocap.judge.interval import CONFIDENCE, Estimate
from nocap.measure.bench_result import Bench, BenchedArm
from nocap.measure.bench_schema import (
    BenchArmJson,
    BenchFile,
    ControlJson,
    LimitJson,
    MfuJson,
    PeakJson,
    Seconds,
    SpeedJson,
    SpentJson,
)


def written(bench: Bench) -> dict[str, Any]:
    """Return a bench as its file has it, in JSON's types."""
    return dict(msgspec.to_builtins(file_of(bench)))


def file_of(bench: Bench) -> BenchFile:
    """Return a bench as its file has it."""
    fingerprint = str(bench.hardware["fingerprint"])
    measurements = list[MeasurementJson]()
    for arm in bench.arms:
        for each in arm.measurements(where=fingerprint, when=bench.ended):
            measurements.append(measurement_json(each))
    return BenchFile(
        date=bench.date,
        started=bench.started,
        clock=bench.clock,
        peak_flops={name: PeakJson(**asdict(peak)) for name, peak in bench.peaks.items()},
        hardware=dict(bench.hardware),
        limit=LimitJson(half_width=bench.limit, confidence=CONFIDENCE),
        rounds=bench.rounds,
        control=_control(bench.control),
        arms=list(map(_arm, bench.arms)),
        measurements=measurements,
        ended=bench.ended,
        spent_s=SpentJson(warm_up=bench.warm_up_s, all=bench.spent_s),
    )


def _arm(arm: BenchedArm) -> BenchArmJson:
    return BenchArmJson(
        **asdict(arm.facts),
        label=arm.label,
        status=arm.status,
        reason=arm.reason,
        verdict=arm.word_with_reason,
        speed=_speed(arm.ratio),
        tokens_per_s=arm.tokens_per_s,
        step_ms=arm.step_ms,
        speed_by_flops=arm.speed_by_flops,
        mfu=MfuJson(nominal=arm.mfu.nominal, measured=arm.mfu.measured),
        config={part: dict(keys) for part, keys in arm.config.items()},
        seconds_per_token=_seconds(arm.seconds_per_token),
    )


def _control(control: BenchedArm) -> ControlJson:
    return ControlJson(
        verdict=control.word_with_reason,
        speed=_speed(control.ratio),
        tokens_per_s=control.tokens_per_s,
        warm_up_s=control.facts.warm_up_s,
        seconds_per_token=_seconds(control.seconds_per_token),
    )


def _speed(ratio: Estimate | None) -> SpeedJson | None:
    if ratio is None:
        return None
    # numpy's numbers are not JSON's
    return SpeedJson(ratio=float(ratio.mid), low=float(ratio.low), high=float(ratio.high))


def _seconds(rounds: Sequence[Sequence[float]] | None) -> Seconds | None:
    if rounds is None:
        return None
    return [list(blocks) for blocks in rounds]
