"""The types of a comparison's JSON, for programs, pages and trackers: its schema.
`judge.comparison_json` fills them.

Losses are nats per token, times seconds of training and data wait (`train_s`) or ms, memory MiB.
Intervals are those that decide: of losses for all arms together (`judge.differences`), of times and
memory the cautious one (`judge.cautious_interval`). Nothing of it was registered.
"""

from __future__ import annotations

from typing import Any

import msgspec

from nocap.config.hardware import Fact
from nocap.metrics import METRICS, Better
from nocap.store.measurement import Ending, Measurement, Per
from nocap.store.record import Curve


class Schema(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An object of JSON."""


class IntervalJson(Schema, frozen=True, kw_only=True):
    """A difference or a ratio with its interval. An end that is infinite or unknown is null."""

    mean: float | None
    low: float | None
    high: float | None
    sd: float | None  # of the pairs
    n: int  # pairs; of two samples the smaller number
    method: str


class DifferenceJson(IntervalJson, frozen=True, kw_only=True):
    """An arm's or a level's loss minus the baseline's, with the verdict."""

    outcome: str  # the word
    verdict: str  # the word with its reason


class TimeAtEqualLossJson(Schema, frozen=True, kw_only=True):
    """The time that an arm takes for its loss over the time that the baseline takes for that
    loss."""

    ratio: IntervalJson | None
    refused: str | None  # why there is none
    outcome: str
    # that would show a ratio as far from 1; null: it is shown, or too many
    seeds_to_show: int | None


class MeasuredJson(Schema, frozen=True, kw_only=True):
    """An arm's mean over runs of one machine, and its ratio to the baseline's."""

    mean: float | None
    ratio: IntervalJson | None
    refused: str | None  # why it is not compared


class ReachJson(Schema, frozen=True, kw_only=True):
    """Steps or training seconds to the target loss."""

    median: float | None  # over the seeds; null: beyond the budget
    reached: int
    n: int
    budget: float | None
    ratio: IntervalJson | None  # to the baseline's, where every run of both arms got there
    refused: str | None


class ArmJson(Schema, frozen=True, kw_only=True):
    """An arm beside the baseline, or beside the arm before it."""

    arm: str  # id
    label: str
    against: str | None  # id; null: it is the baseline
    changes: dict[str, object]  # config keys in which it differs from that, with its own values
    n: int
    seeds: list[int]  # that the row is over
    diverged: list[int]  # seeds
    val_loss: float | None
    val_bpb: float | None
    difference: DifferenceJson | None
    token_us: MeasuredJson
    tokens_per_s: MeasuredJson
    step_ms: MeasuredJson
    model_mib: MeasuredJson
    train_s: MeasuredJson
    equal_loss: TimeAtEqualLossJson | None  # null: it is the baseline, or that has no other lengths
    params: dict[str, int | float | None]
    flops_per_token: int | float | None
    flops_basis: str | None
    tokens: int | None
    steps: int | None
    kernel: dict[str, str | None]
    hardware: list[str]  # fingerprints
    to_target: dict[str, ReachJson] | None  # by what is counted: steps, train_s
    clock_s: dict[str, float]
    runs: list[str]  # identities
    logged: dict[str, float] = {}  # name → the last value that modules logged, mean over the runs


class RunJson(Schema, frozen=True, kw_only=True):
    """A run, with its validation curve."""

    identity: str
    name: str
    arm: str
    label: str
    seed: int
    status: str
    steps: int | None
    tokens: int | None
    val_loss: float | None
    val_bpb: float | None
    tokens_per_s: float | None
    train_s: float | None
    curve: Curve
    clock_s: dict[str, float | None]
    hardware: dict[str, Fact]
    # of a log that another trainer wrote: its format, what named arm and seed
    imported: dict[str, object] | None


class MeasurementJson(msgspec.Struct, frozen=True, kw_only=True):
    """A measurement as JSON has it, with its unit and which way is better."""

    arm: str
    repeat: int
    metric: str
    unit: str
    better: Better
    part: str | msgspec.UnsetType = msgspec.UNSET
    why: str | msgspec.UnsetType = msgspec.UNSET
    value: float | None
    ending: Ending
    per: Per
    where: str
    when: str

    @property
    def measurement(self) -> Measurement:
        """Return what it is of."""
        return Measurement(
            arm=self.arm,
            repeat=self.repeat,
            metric=METRICS[self.metric],
            value=self.value,
            ending=self.ending,
            where=self.where,
            when=self.when,
            part="" if self.part is msgspec.UNSET else self.part,
            per=self.per,
            why="" if self.why is msgspec.UNSET else self.why,
        )


class LevelJson(Schema, frozen=True, kw_only=True):
    """A level of a key compared with the baseline's level, over all levels of the other keys."""

    level: str
    difference: DifferenceJson
    speed: IntervalJson | None
    equal_loss: TimeAtEqualLossJson | None


class FactorJson(Schema, frozen=True, kw_only=True):
    """A key that the grid crosses with others."""

    key: str
    baseline: str
    over: dict[str, int]  # the other keys, and how many levels each has
    levels: list[LevelJson]


class InteractionJson(IntervalJson, frozen=True, kw_only=True):
    """The loss of an arm beyond the sum of its single changes."""

    arm: str  # label
    keys: list[str]
    shown: bool


class FactorsJson(Schema, frozen=True, kw_only=True):
    """A full crossing of two keys or more, read by factor."""

    seeds: list[int]
    factors: list[FactorJson]
    interactions: list[InteractionJson]


class FindingJson(Schema, frozen=True, kw_only=True):
    """A finding about a level or an arm."""

    name: str
    over: dict[str, int]
    difference: DifferenceJson
    seeds_to_show: int | None  # null: it is shown, or more than 96, or not known
    equal_loss: TimeAtEqualLossJson | None


class NextJson(Schema, frozen=True, kw_only=True):
    """A key with its values to add to the same command, which may then decide what is open."""

    key: str
    values: list[int]
    # of the runs that are then missing, one after the other; null: no time is known
    minutes: float | None


class FindingsJson(Schema, frozen=True, kw_only=True):
    """The findings by level or by arm. Those that are shown come first, the largest before the
    others."""

    found: list[FindingJson]
    next: NextJson | None  # null: nothing is open, or the runs are no command's of nocap


class TimingJson(Schema, frozen=True, kw_only=True):
    """The arms timed in turns (--time)."""

    started: str
    machine: str  # fingerprint
    machine_name: str
    clock: str
    rounds: int
    seconds_per_token: dict[str, list[float]]
    left_out: dict[str, str]  # arm's id, and why it was not measured


class LengthJson(Schema, frozen=True, kw_only=True):
    """The baseline at another length, from which nocap computes a time at equal loss."""

    arm: str
    steps: int
    runs: list[str]


class NotComparedJson(Schema, frozen=True, kw_only=True):
    """A run that is not finished or cannot be read."""

    name: str
    status: str


class Result(Schema, frozen=True, kw_only=True):
    """A comparison."""

    schema_version: int
    baseline: str  # the arm's id
    confidence: float
    least_seeds: int
    exploratory: bool
    imported: bool  # whether the runs are of logs that another trainer wrote
    target: float | None  # nats per token
    metric: (
        str  # of the verdicts: val_loss, or val_bpb where vocabularies differ or no run has losses
    )
    against: str  # baseline, or previous: each arm is compared with the one before it
    look: int  # how often the arms were looked at with more seeds: the k-th look errs in 5%/k²
    cautious: bool  # whether losses have the cautious interval
    swept: list[str]  # config keys that differ between arms
    findings: FindingsJson
    by_factor: FactorsJson | None  # null: the arms are no full crossing of two keys or more
    timing: TimingJson | None  # that all speeds are of; null: they are the runs' own
    lengths: list[LengthJson]  # of the baseline
    arms: list[ArmJson]  # in the order in which they were asked for
    runs: list[RunJson]
    measurements: list[MeasurementJson]
    problems: list[str]  # lines for people: what was skipped, declared or should be doubted
    not_compared: list[NotComparedJson]


def to_json(result: Schema) -> dict[str, Any]:
    """Return a result, or a part of one, in JSON's types."""
    return dict(msgspec.to_builtins(result))
