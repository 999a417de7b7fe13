"""The types of a bench's JSON, for programs and for a study whose sessions are benches: its schema.
`bench_json` fills them, `study.bench_sessions` reads them. No torch.

Every arm has the same keys; null where there is nothing to report.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from nocap.config.hardware import Fact
from nocap.judge.comparison_schema import MeasurementJson
from nocap.measure.bench_result import ArmStatus

KIND: Final = "bench"
Seconds = list[list[float]]  # a token, round by round, of the two blocks of each
StepConfig = dict[str, dict[str, object]]  # what a step executes, part by part


class Object(msgspec.Struct, frozen=True, kw_only=True):
    """An object of JSON."""


class PeakJson(Object, frozen=True, kw_only=True):
    """The FLOP/s that bound an arm."""

    nominal: float | None  # by the data sheet
    nominal_source: str
    measured: float  # of a large matrix product


class LimitJson(Object, frozen=True, kw_only=True):
    """The interval that needs no more rounds, of the ratio's logarithm."""

    half_width: float
    confidence: float


class SpeedJson(Object, frozen=True, kw_only=True):
    """A speed over the baseline's, with its interval."""

    ratio: float
    low: float
    high: float


class MfuJson(Object, frozen=True, kw_only=True):
    """The share of a peak that an arm uses."""

    nominal: float | None
    measured: float | None


class ControlJson(Object, frozen=True, kw_only=True):
    """The baseline's first instance: what differs from the second, which is the same step."""

    verdict: str | None
    speed: SpeedJson | None
    tokens_per_s: float | None
    warm_up_s: float | None
    seconds_per_token: Seconds | None


class BenchArmJson(Object, frozen=True, kw_only=True):
    """An arm with its facts and its speed."""

    tokens_per_step: int | None
    steps_per_block: int | None
    warm_up_s: float | None
    flops_per_token: int | float | None
    flops_basis: str | None
    params: int | None
    kernel: str | None
    memory_mib: dict[str, float | None] | None
    label: str
    status: ArmStatus
    reason: str | None
    verdict: str | None  # null: it is the baseline
    speed: SpeedJson | None
    tokens_per_s: float | None
    step_ms: float | None
    speed_by_flops: float | None  # what arithmetic alone would give
    mfu: MfuJson
    config: StepConfig
    seconds_per_token: Seconds | None


class SpentJson(Object, frozen=True, kw_only=True):
    """The seconds that a bench took."""

    warm_up: float
    all: float


class BenchFile(Object, frozen=True, kw_only=True):
    """A bench, so far or at its end."""

    kind: Literal["bench"] = KIND
    date: str
    started: str
    clock: str  # how work is timed
    peak_flops: dict[str, PeakJson]  # precision and threads → what bounds them
    hardware: dict[str, Fact]
    limit: LimitJson
    rounds: int
    control: ControlJson
    arms: list[BenchArmJson]  # the baseline first
    measurements: list[MeasurementJson]
    ended: str
    spent_s: SpentJson
