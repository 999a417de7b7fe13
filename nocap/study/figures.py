"""The file of a session: what was asked, and the figures of each arm. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

import msgspec

from nocap.config.hardware import Fact
from nocap.config.keys import require
from nocap.store.record import read_json

UNSET = msgspec.UNSET


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of an arm in a session."""

    @property
    def is_measured(self) -> bool:
        """Say whether the arm could be measured."""
        return True


class StepFigures(Figures, frozen=True, kw_only=True):
    """The figures of timed steps. None: a figure is not known, or could not be measured."""

    status: str = "measured"
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
        return self.status == "measured"

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


# kind of a session → its figures
FIGURES: Mapping[str, type[Figures]] = {
    "steps": StepFigures,
    "rounds": RoundFigures,
    "parts": PartFigures,
    "lengths": LengthFigures,
    "decoding": DecodingFigures,
}


class AskedSession(msgspec.Struct, frozen=True, kw_only=True):
    """A session that is asked for."""

    kind: str
    place: str
    key: str
    number: int
    how: dict[str, object]
    started: str
    arms: dict[str, list[str]]  # overrides


class _Measured(msgspec.Struct, frozen=True, kw_only=True):
    arms: dict[str, dict[str, object] | None]


class SessionFile(AskedSession, frozen=True, kw_only=True, dict=True):
    """A session that has ended."""

    ended: str
    hardware: dict[str, Fact] = {}
    measured: _Measured

    @property
    def machine(self) -> str:
        """Return the fingerprint; empty: it is not known."""
        return str(self.hardware.get("fingerprint") or "")

    @property
    def on_cuda(self) -> bool:
        return self.hardware.get("device") == "cuda"

    @cached_property
    def figures(self) -> dict[str, Figures]:
        """Return the figures of each arm that has some."""
        kind = FIGURES[self.kind]
        known = {name: row for name, row in self.measured.arms.items() if row is not None}
        return {name: msgspec.convert(row, kind) for name, row in known.items()}


def read(path: Path) -> SessionFile | None:
    """Return a session's file; `None`: it is not there.

    Errors:
        ValueError: it is damaged.
    """
    content = read_json(path)
    if content is None:
        return None
    try:
        file = msgspec.convert(content, SessionFile)
        require(bool(file.figures), str(path), "have the figures of an arm", "none")
        return file
    except (KeyError, msgspec.ValidationError) as error:
        raise ValueError(f"{path} must be a session that nocap.study wrote, got {error}") from error
