"""The result of a bench: what is known of each arm, and how it compares with the baseline. No
torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from nocap.config.hardware import Fact
from nocap.judge.differences import Difference
from nocap.judge.interval import LEAST_PAIRS, Estimate
from nocap.metrics import METRICS
from nocap.store.measurement import Measurement


class ArmStatus(StrEnum):
    """What came of timing an arm."""

    measured = "measured"
    not_measured = "not measured"  # the time was spent before its turn
    failed = "failed"
    does_not_fit = "does not fit"  # into memory


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """What is known of a step besides its times. None: it could not be built, or an arm from a file
    does not say."""

    tokens_per_step: int | None = None
    steps_per_block: int | None = None
    warm_up_s: float | None = None
    flops_per_token: float | None = None
    flops_basis: str | None = None
    params: int | None = None
    kernel: str | None = None
    memory_mib: Mapping[str, float] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class FlopPeak:
    """The FLOP/s that bound an arm."""

    nominal: float | None  # by the data sheet; None: there is none
    nominal_source: str
    measured: float  # of a large matrix product


@dataclass(frozen=True, kw_only=True, slots=True)
class Mfu:
    """The share of a peak that an arm uses. None: not known."""

    nominal: float | None = None
    measured: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchedArm:
    """An arm in the result. None: there is nothing to report."""

    label: str
    status: ArmStatus
    reason: str | None
    facts: Facts
    # the logarithm of its tokens/s over the baseline's; None: it is the baseline
    speed: Difference | None
    tokens_per_s: float | None  # the geometric mean over rounds, as its ratio is
    speed_by_flops: float | None  # what arithmetic alone would give
    mfu: Mfu
    config: Mapping[str, Mapping[str, object]]  # what its step executes, part by part
    seconds_per_token: Sequence[Sequence[float]] | None  # round by round, of its two blocks

    @property
    def step_ms(self) -> float | None:
        if self.tokens_per_s is None or self.facts.tokens_per_step is None:
            return None
        return self.facts.tokens_per_step / self.tokens_per_s * 1e3

    @property
    def ratio(self) -> Estimate | None:
        """Return its speed over the baseline's, where there are rounds enough for an interval."""
        if self.speed is None or self.speed.estimate.n < LEAST_PAIRS:
            return None
        return self.speed.estimate.exp()

    @property
    def word_with_reason(self) -> str | None:
        """Return the word for its speed; `None`: it is the baseline."""
        return None if self.speed is None else self.speed.word_with_reason

    def measurements(self, *, where: str, when: str) -> Iterator[Measurement]:
        """Yield its tokens/s round by round: the mean over the two blocks."""
        for number, blocks in enumerate(self.seconds_per_token or ()):
            yield Measurement(
                arm=self.label,
                repeat=number,
                metric=METRICS["tokens_per_s"],
                value=2 / sum(blocks),
                where=where,
                when=when,
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class Bench:
    """What a bench found, so far or at its end."""

    date: str
    started: str
    ended: str
    clock: str  # how work is timed
    peaks: Mapping[str, FlopPeak]  # precision and threads → what bounds them
    hardware: Mapping[str, Fact]
    limit: float  # half width of an interval, of the ratio's logarithm, that needs no more rounds
    rounds: int
    control: BenchedArm  # the baseline's first instance
    arms: Sequence[BenchedArm]  # the baseline first
    warm_up_s: float
    spent_s: float  # warm-up included
