"""The figures of an arm in a session: a type for each kind of session (`places` says which). No
torch."""

from __future__ import annotations

import msgspec

from nocap.measure.bench_result import ArmStatus

UNSET = msgspec.UNSET


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of an arm in a session."""

    @property
    def is_measured(self) -> bool:
        """Say whether the arm could be measured."""
        return True


class StepFigures(Figures, frozen=True, kw_only=True):
    """The figures of timed steps. None: a figure is not known, or could not be measured."""

    status: str = ArmStatus.measured.value
    reason: str | None = None
    tokens_per_s: float | None = None
    step_ms: float | None = None
    flops_per_token: int | float | None = None
    flops_basis: str | None = None
    params: int | None = None
    kernel: str | None = None
    memory_mib: dict[str, float | None] | None = None
    tokens_per_step: int | None = None
    component_flops: dict[str, float | None] | None = None
    kv_bytes: float | None = None

    @property
    def is_measured(self) -> bool:
        return self.status == ArmStatus.measured

    @property
    def peak_mib(self) -> float | None:
        return (self.memory_mib or {}).get("peak")


class RoundFigures(Figures, frozen=True, kw_only=True):
    """The figures of steps that were timed in rounds (--time)."""

    clock: str
    status: str
    reason: str | None
    seconds_per_token: list[float] | msgspec.UnsetType = UNSET


class PartFigures(Figures, frozen=True, kw_only=True):
    """The figures of a profile, by part of a step."""

    ms: dict[str, float]
    mib: dict[str, float] = {}  # kept for the backward
    memory_mib: dict[str, float | None] = {}  # held, by what it is
    params: dict[str, int] = {}
    step_ms: float
    unattributed_ms: float | None = None
    kernel: str | None = None
    component_flops: dict[str, float | None] | None = None


class LengthFigures(Figures, frozen=True, kw_only=True):
    """The figures of attention at several lengths."""

    T: list[int] = []
    attention_ms: list[float] = []
    exponent: float | None
    window: int | None = None
    params: int | None = None
    kernel: str | None = None


class DecodingFigures(Figures, frozen=True, kw_only=True):
    """The figures of decoding."""

    decode_tokens_per_s: float | None = None
    decode_ms: float | None = None
    decode_mb: float | None = None
    collections: float | None = None
    engine: str | None = None
    params: int | None = None
    kernel: str | None = None
