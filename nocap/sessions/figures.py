"""Where sessions measure, and the file of one: its question and the figures of each arm. No
torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import msgspec

from nocap.config.hardware import Fact
from nocap.config.keys import require
from nocap.store.metrics import Metric
from nocap.store.record_files import read_json

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


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """A place of sessions: what is measured there, at which shape."""

    kind: str  # of its sessions, and what metrics of it are made by
    figures: type[Figures]
    setting: str  # the key of a scale with its settings
    logged: str = ""  # the figure of an arm that a study's log keeps

    @property
    def as_trained(self) -> bool:
        """Say whether arms have the shape there that they are trained with."""
        return self.setting == TRAIN


TRAIN = "train"  # where metrics of runs are made, and the key of a scale with their settings
PACE = "pace"
PLACES: Mapping[str, Place] = {
    "bench": Place(kind="steps", figures=StepFigures, setting="bench", logged="tokens_per_s"),
    PACE: Place(kind="steps", figures=StepFigures, setting=TRAIN, logged="tokens_per_s"),
    "rounds": Place(kind="rounds", figures=RoundFigures, setting=TRAIN),
    "parts": Place(kind="parts", figures=PartFigures, setting="bench", logged="step_ms"),
    "curve": Place(kind="lengths", figures=LengthFigures, setting="curve", logged="exponent"),
    "decoding": Place(
        kind="decoding", figures=DecodingFigures, setting="decode", logged="decode_tokens_per_s"
    ),
}


def place_of(metric: Metric) -> str:
    """Return where a claim's metric is measured: `train`, or the first place of sessions of its
    kind."""
    if metric.made_by == TRAIN:
        return TRAIN
    return next(name for name, place in PLACES.items() if place.kind == metric.made_by)


def setting_of(metric: Metric) -> str:
    """Return the key of a scale with the settings that a claim's metric needs."""
    place = place_of(metric)
    return PLACES[place].setting if place in PLACES else place


class SessionRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A session that is to be held."""

    kind: str
    place: str
    key: str
    number: int
    how: dict[str, object]
    started: str
    arms: dict[str, list[str]]  # overrides


class _Measured(msgspec.Struct, frozen=True, kw_only=True):
    arms: dict[str, dict[str, object] | None]


class SessionFile(SessionRequest, frozen=True, kw_only=True, dict=True):
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
        kind = PLACES[self.place].figures
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
