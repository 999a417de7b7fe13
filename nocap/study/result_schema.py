"""The types of a study's result as JSON, for programs and for its reader: its schema.
`result_writer` fills them, `result_reader` reads them.

A gain is a ratio (1.25: a quarter more tokens a second), a difference in the metric's unit, or a
value. A key with a default is not in files of an older nocap.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from nocap.config.hardware import Fact
from nocap.judge.comparison_schema import MeasurementJson
from nocap.metrics import Scale
from nocap.study.arm_facts import ArmFacts, Shape, TuningTrial

# --- a claim --------------------------------------------------------------------------------------


class IntervalJson(msgspec.Struct, frozen=True, kw_only=True):
    """A measured gain with its 95% interval."""

    mid: float
    low: float
    high: float


class NoiseJson(msgspec.Struct, frozen=True, kw_only=True):
    """The declared noise of a pair, which narrowed an interval."""

    sd: float
    df: float | None  # null: endless
    source: str


class GainJson(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured of a metric."""

    n: int
    per: str  # what the n are: seeds, sessions, or one exact count
    analysis: int  # the number of the look
    noise: NoiseJson | None
    measured: IntervalJson | None
    least: float | None = None  # the lower end of an interval that has no middle


class GuardJson(GainJson, frozen=True, kw_only=True):
    """Another metric, which may be worse by so much."""

    metric: str
    scale: Scale
    margin: float


class MissingJson(msgspec.Struct, frozen=True, kw_only=True):
    """A measurement that a claim lacks."""

    arm: str
    metric: str
    per: str
    repeat: int
    damaged: bool = False  # whether the run is there, and its record was changed


class ClaimJson(GainJson, frozen=True, kw_only=True):
    """A claim with its verdict."""

    id: str
    statement: str
    source: str
    arm: str
    baseline: str | None  # the arm that it is compared with; null: it is about a value
    metric: str
    parts: list[str]
    of: list[str]
    scale: Scale
    expected: list[float | None]
    threshold: str  # whose number it is
    two_sided: bool
    target: str | None = None
    bound: float | None  # what arithmetic allows
    bound_rule: str
    bound_formula: str
    word: str
    reason: str | None
    failed: list[str]  # guards
    guards: list[GuardJson]
    beyond_bound: bool
    missing: list[MissingJson] = []
    at_most: list[str] = []  # runs that needed at most what was measured
    diverged: list[str] = []
    refused: str | None = None  # why what is there tells no gain
    more: dict[str, int] | None  # seeds or sessions that would decide
    hash: str
    registered: str | None
    exploratory: str | None
    notes: list[str]
    where: dict[str, list[Shape]]  # timed or trained → the shapes of its sides that differ
    # the baseline's steps, of a claim about the time at equal loss
    lengths: list[int] | None = None


# --- the file -------------------------------------------------------------------------------------


class RowJson(MeasurementJson, frozen=True, kw_only=True):
    """A measurement with the claim that it is for."""

    claim: str


class NextSessions(msgspec.Struct, frozen=True, kw_only=True):
    """The command that times further sessions, which may decide what is open."""

    command: list[str]
    sessions: int  # in all
    minutes: float  # at most, with the time between sessions


class StudyFile(msgspec.Struct, frozen=True, kw_only=True):
    """A study's result at one scale on one machine."""

    schema_version: int
    kind: Literal["study"]
    study: str
    scale: str
    question: str
    date: str
    command: str
    commit: str | None
    hardware: dict[str, Fact]
    limitations: str
    baseline: str
    seeds: list[int]  # that the analyses needed
    claims: list[ClaimJson]
    measurements: list[RowJson]
    arms: list[ArmFacts]
    trials: list[TuningTrial]


class StudyAnswer(StudyFile, frozen=True, kw_only=True):
    """A study's result, as the command answers it."""

    next: NextSessions | None  # null: no number of sessions would decide more


def schema() -> dict[str, object]:
    """Return the JSON Schema of a file. `result.schema.json` beside this file has it, too."""
    return msgspec.json.schema(StudyFile)
