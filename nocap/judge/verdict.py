"""The verdict on a claim, from measurements: the interval on the page decides.

Confirmed: the interval of the gain lies within what was stated, and each guard's within its margin.
Exceeded: the same, and it lies wholly above the stated top, where more is better. Refuted: it lies
wholly outside, or a guard's lies wholly beyond its margin. Inconclusive: all else, and wherever a
measurement is missing. Where nothing was stated: better, worse, or no difference shown.
What is there and was refused says nothing: it makes the claim inconclusive, with the reason. Which
pairs count, and what each of them gains, is said in `claim_gains`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from nocap.judge.cautious_interval import Declared
from nocap.judge.claim import Claim
from nocap.judge.claim_gains import Missing, gains_of, stated
from nocap.judge.equal_loss import NO_SLOPE
from nocap.judge.gain import Gain
from nocap.judge.interval import ROUNDING, Position
from nocap.metrics import METRICS, Better, Scale
from nocap.store.measurement import Ending, Measurement

VERSION = 4  # of these rules: another number, other verdicts
ENDINGS = (Ending.at_most, Ending.diverged)  # those that a verdict names


class ClaimWord(Enum):
    """The word for a claim."""

    confirmed = "confirmed"
    exceeded = "exceeded"
    refuted = "refuted"
    inconclusive = "inconclusive"

    @property
    def is_gain(self) -> bool:
        """Say whether at least the gain that was stated is shown."""
        return self in (ClaimWord.confirmed, ClaimWord.exceeded)

    @property
    def may_change(self) -> bool:
        """Say whether more repeats of a race may change the word."""
        return self is ClaimWord.inconclusive


class Reason(Enum):
    """Why a claim is refuted or inconclusive."""

    below = "below"
    above = "above"
    guard = "guard"
    missing = "missing"  # a measurement
    refused = "refused"  # what is there does not tell a gain
    undecided = "undecided"


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """The word for a claim, and what it rests on."""

    word: ClaimWord
    reason: Reason | None  # None: it is confirmed or exceeded
    primary: Gain
    guards: list[Gain]  # in the claim's order: the gain, which may be as far below 0 as the margin
    # above what arithmetic allows: a mistake, or a gain that the bound leaves out
    beyond_bound: bool
    missing: list[Missing]
    endings: dict[Ending, list[str]]  # diverged or at_most → which measurements
    refused: str | None = None  # why what is there tells no gain

    @property
    def n(self) -> int:
        """Return the number of pairs."""
        return len(self.primary.least)

    @property
    def is_open(self) -> bool:
        """Say whether more pairs may decide. Of what was refused they may tell the baseline's
        slope."""
        return self.reason is Reason.undecided or self.refused == NO_SLOPE

    @property
    def failed(self) -> list[str]:
        """List the metrics of the guards whose margin is exceeded."""
        return [
            guard.metric.name
            for guard in self.guards
            if guard.enough and guard.position() is Position.below
        ]

    def more(self) -> dict[str, int] | None:
        """Return how many more seeds, sessions or both would decide; `None`: it is decided, or no
        number would."""
        if self.word is not ClaimWord.inconclusive:
            return None
        by_unit: dict[str, int] = {}
        for gain in (self.primary, *self.guards):
            if not gain.enough or gain.position() is not Position.across:
                continue
            more = gain.more()
            if more is None:
                return None
            repeats = gain.per.value
            by_unit[repeats] = max(more, by_unit.get(repeats, 0))
        return by_unit or None


def judge(
    claim: Claim,
    measurements: Iterable[Measurement],
    *,
    against: str,
    at: str,
    noise: Mapping[str, Declared] | None = None,
) -> Verdict:
    """Return the verdict on a claim at one scale of its study, from all measurements of its arm and
    of the arm it is compared with. `noise`: metric → the noise of a pair's gain that was declared
    at this scale.

    Errors:
        ValueError: a guard has no margin for the scale; a ratio of numbers that are not above 0.
    """
    gains = gains_of(claim, measurements, against=against, at=at, noise=noise or {})
    refusal = _refusal(gains.used)
    word, reason = _word_of_gains(claim, gains.primary, gains.guards)
    if refusal is not None and reason is Reason.undecided:
        reason = Reason.refused
    return Verdict(
        word=word,
        reason=reason,
        primary=gains.primary,
        guards=gains.guards,
        beyond_bound=_is_beyond_bound(claim, gains.primary),
        missing=gains.missing if reason is Reason.missing else [],
        endings={ending: _with_ending(gains.used, ending) for ending in ENDINGS},
        refused=refusal if reason is Reason.refused else None,
    )


def _refusal(used: Sequence[Measurement]) -> str | None:
    """Return why the first measurement that is refused is so; `None`: none is."""
    for measurement in used:
        if measurement.ending is Ending.refused:
            return measurement.why
    return None


def _word_of_gains(
    claim: Claim, primary: Gain, guards: Sequence[Gain]
) -> tuple[ClaimWord, Reason | None]:
    if not all(gain.enough for gain in (primary, *guards)):
        return ClaimWord.inconclusive, Reason.missing
    more_is_better = claim.scale is not Scale.value or METRICS[claim.metric].better is Better.higher
    positions = [guard.position() for guard in guards]
    return word_of_positions(
        primary.position(), positions, above_refutes=claim.two_sided or not more_is_better
    )


def word_of_positions(
    position: Position, guards: Sequence[Position], *, above_refutes: bool = False
) -> tuple[ClaimWord, Reason | None]:
    """Return the word for where the interval of the gain lies to what was stated, and that of each
    guard to its margin."""
    if Position.below in guards:
        return ClaimWord.refuted, Reason.guard
    if position is Position.below:
        return ClaimWord.refuted, Reason.below
    if position is Position.above and above_refutes:
        return ClaimWord.refuted, Reason.above
    if position is Position.across or Position.across in guards:
        return ClaimWord.inconclusive, Reason.undecided
    if position is Position.above:
        return ClaimWord.exceeded, None
    return ClaimWord.confirmed, None


def _is_beyond_bound(claim: Claim, primary: Gain) -> bool:
    """Say whether the gain lies wholly above what arithmetic allows."""
    bound = claim.mechanism.bound
    if bound is None or not primary.enough:
        return False
    limit = stated(METRICS[claim.metric], claim.scale, bound)
    return primary.interval().low > limit + ROUNDING


def _with_ending(used: Sequence[Measurement], ending: Ending) -> list[str]:
    """Name the measurements that ended so, each once."""
    names = dict[str, None]()
    for measurement in used:
        if measurement.ending is ending:
            names[f"{measurement.arm}, {measurement.per.value} {measurement.repeat}"] = None
    return list(names)
