"""What is known of a study's arms beside their verdicts: the shapes, speeds and losses by which a
reader judges a comparison's fairness. A result's file has them as they stand here."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """The shape at which a verdict's figures were measured."""

    layers: int
    width: int
    T: list[int]  # sequence lengths: of a curve several, else one
    tokenizer: str | None  # None in an old file
    batch_tokens: int | None  # of a step; None: no step was taken
    precision: str | None  # None in an old file
    device: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Speed:
    """The speed of an arm, one value for each session."""

    memory_mib: float | None
    tokens_per_s: list[float | None]
    step_ms: list[float | None]


@dataclass(frozen=True, kw_only=True, slots=True)
class FinalLosses:
    """The losses of the runs that finished."""

    mean: float
    all: list[float]


@dataclass(frozen=True, kw_only=True, slots=True)
class ArmFacts:
    """An arm, with the facts by which a reader judges whether it had equal chances."""

    arm: str
    words: list[str]
    tuned: list[str]  # the overrides that its search picked
    n_trials: int
    params: int | float | None
    flops_per_token: int | float | None
    flops_basis: str | None = None
    kernel: str | None
    tokens: int | float | None
    val_loss: FinalLosses | None
    diverged: list[int]  # seeds
    pace: Speed | None  # at the shape that is trained
    bench: Speed | None  # at the shape that is timed
    runs: list[str]  # identities


@dataclass(frozen=True, kw_only=True, slots=True)
class TuningTrial:
    """An arm's overrides that the search before the study tried."""

    arm: str
    words: list[str]
    seeds: list[int]
    val_loss: float | None  # mean over the seeds; None where one diverged or was not run
    picked: bool
