"""The verdict on a claim, from measurements: the interval on the page decides.

Confirmed: the interval of the gain lies within what was stated, and each guard's within its margin. Exceeded:
the same, and it lies wholly above the stated top, where more is better. Refuted: it lies wholly outside, or a
guard's lies wholly beyond its margin. Inconclusive: all else, and wherever a measurement is missing. Where
nothing was stated: better, worse, or no difference shown.

Pairs are analysed at 3, 6, 12, … and at no other number (`interval.analyses`); between these the last one
stands. Each pair gives the least and the most that its gain can be. They differ where an arm's shortest
schedule reaches the target: its steps are at most that. A diverged run counts as infinitely bad. A diverged
baseline says nothing about the arm. Nor does what is there and was refused: it makes the claim inconclusive,
with the reason.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from statistics import fmean

import numpy as np

from nocap.config.keys import require
from nocap.judge import cautious
from nocap.judge.cautious import CLOCK_BIAS, Declared
from nocap.judge.claim import TO_TARGET, Claim
from nocap.judge.equal_loss import NO_SLOPE
from nocap.judge.interval import (
    LEAST_PAIRS,
    PAIRS,
    ROUNDING,
    Estimate,
    Width,
    analyses,
    analysis_of,
    around,
    half_width,
    of_pairs,
    pairs_to_decide,
)
from nocap.store.metrics import METRICS, Better, Ending, Kind, Measurement, Metric, Per, Scale, is_log

VERSION = 4  # of these rules: another number, other verdicts


class Word(Enum):
    confirmed = "confirmed"
    exceeded = "exceeded"
    refuted = "refuted"
    inconclusive = "inconclusive"


class Reason(Enum):
    below = "below"
    above = "above"
    guard = "guard"
    missing = "missing"  # a measurement
    refused = "refused"  # what is there does not tell a gain
    undecided = "undecided"


@dataclass(frozen=True, kw_only=True, slots=True)
class Gain:
    """A metric's gain over the pairs of the last analysis, on its scale: what an arm is better by."""

    metric: Metric
    scale: Scale
    per: Per
    least: Sequence[float]  # of each pair, a logarithm where its scale has one
    most: Sequence[float]
    ends: tuple[float, float]  # of what was stated, so too
    declared: Declared | None = None
    bias: float = 0.0

    @property
    def analysis(self) -> int:
        return analysis_of(len(self.least))

    @property
    def enough(self) -> bool:
        return bool(self.least) if self.per is Per.exact else self.analysis > 0

    @property
    def measured(self) -> bool:
        return tuple(self.least) == tuple(self.most) and all(map(math.isfinite, self.least))

    def interval(self) -> Estimate:
        """Its middle is not a number where a run diverged, or steps are only bounded."""
        if self.per is Per.exact:
            value = self.least[0]
            return Estimate(mid=value, low=value, high=value, n=1, method="counted")
        if self.measured:
            return self._of(self.least)
        low = -math.inf if -math.inf in self.least or len(set(self.least)) == 1 else self._of(self.least).low
        return Estimate(
            mid=math.nan,
            low=low,
            high=self._high(),
            n=len(self.least),
            method="pairs, some without an end",
        )

    def shown(self) -> Estimate | None:
        """Return its interval as it is told: a ratio where its scale has one, and of what is a ratio to the
        baseline's by itself, that ratio; `None`: there are too few pairs."""
        if not self.enough:
            return None
        interval = self.interval()
        if self.metric.relative:
            interval = replace(interval, mid=-interval.mid, low=-interval.high, high=-interval.low)
        return interval.exp() if is_log(self.metric, self.scale) else interval

    def _high(self) -> float:
        """Return the upper end where not all pairs are measured."""
        if math.inf in self.most:
            return math.inf
        if -math.inf in self.most:
            return -math.inf  # whatever the others are
        # bounds that are equal say nothing of the noise
        if any(map(math.isnan, self.most)) or len(set(self.most)) == 1:
            return math.inf
        return self._of(self.most).high

    def _of(self, values: Sequence[float]) -> Estimate:
        """By Student where a seed repeats it, else by the cautious rule; a declared noise narrows either."""
        if self.metric.kind is not Kind.seed:
            return cautious.of_pairs(values, declared=self.declared, bias=self.bias, analysis=self.analysis)
        alone = of_pairs(values, look=self.analysis)
        if self.declared is None or alone.n < LEAST_PAIRS:
            return alone
        half, used = _width(self.metric, self.declared, alone.sd, alone.n, self.analysis)
        method = "pairs, noise declared" if used else PAIRS
        return around(alone.mid, half, n=alone.n, sd=alone.sd, method=method)

    def place(self) -> int:
        """Of its interval to what was stated."""
        return self.interval().place(*self.ends)

    def more(self) -> int | None:
        """How many more pairs would decide, were mean and spread the true ones; `None`: no affordable number,
        or none can be said."""
        if not self.measured or not self.enough or self.place() != 2:
            return None
        estimate = self.interval()
        outside = [
            end for end, side in zip(self.ends, (-1, 1), strict=True) if (estimate.mid - end) * side > 0
        ]
        distance = min(abs(estimate.mid - end) for end in (outside or self.ends))
        wanted = pairs_to_decide(
            distance,
            sd=estimate.sd,
            n=len(self.least),
            width=width_of(self.metric, self.declared),
            bias=self.bias,
        )
        return None if wanted is None else wanted - len(self.least)


def _width(metric: Metric, declared: Declared | None, sd: float, n: int, analysis: int) -> tuple[float, bool]:
    """Return the half width of so many pairs with this spread; and whether the declared noise made it."""
    spread = np.float64(sd)
    if metric.kind is Kind.seed:
        own = np.float64(half_width(sd, n, analysis))
        half, used = cautious.narrowed(own, spread, n, declared=declared, share=analysis**2)
    else:
        half, used = cautious.half_width(spread, n, declared=declared, analysis=analysis)
    return float(half), bool(used)


def width_of(metric: Metric, declared: Declared | None) -> Width:
    """Return how wide the interval of a gain in this metric is, for any spread, number of pairs and look."""
    return lambda sd, n, look: _width(metric, declared, sd, n, look)[0]


@dataclass(frozen=True, kw_only=True, slots=True)
class Missing:
    """A measurement that the next analysis needs."""

    metric: str
    arm: str
    per: str
    repeat: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    word: Word
    reason: Reason | None  # null where confirmed or exceeded
    primary: Gain
    guards: list[Gain]  # in the claim's order: the gain, which may be as far below 0 as the margin
    beyond_bound: bool  # above what arithmetic allows: a mistake, or a gain that the bound leaves out
    missing: list[Missing]
    endings: dict[Ending, list[str]]  # diverged or at_most → which measurements
    refused: str | None = None  # why what is there tells no gain

    @property
    def n(self) -> int:
        return len(self.primary.least)

    @property
    def is_open(self) -> bool:
        """Say whether more pairs may decide. Of what was refused they may tell the baseline's slope."""
        return self.reason is Reason.undecided or self.refused == NO_SLOPE

    @property
    def failed(self) -> list[str]:
        return [guard.metric.name for guard in self.guards if guard.enough and guard.place() == -1]

    def more(self) -> dict[str, int] | None:
        """What would decide: seeds, sessions or both."""
        wanted: dict[str, int] = {}
        for gain in (self.primary, *self.guards) if self.word is Word.inconclusive else ():
            if gain.enough and gain.place() == 2:
                if (n := gain.more()) is None:
                    return None
                wanted[gain.per.value] = max(n, wanted.get(gain.per.value, 0))
        return wanted or None


def judge(
    claim: Claim,
    measurements: Iterable[Measurement],
    *,
    against: str,
    at: str,
    noise: Mapping[str, Declared] | None = None,
) -> Verdict:
    """A claim at one scale of its study, with all measurements of its arm and of the arm it is compared with.
    `noise`: metric → the noise of a pair's gain that was declared at this scale.

    Errors:
        ValueError: a guard has no margin for the scale; a ratio of numbers that are not above 0.
    """
    known = {(m.arm, m.metric.name, m.repeat): m for m in measurements}
    stated = [(METRICS[claim.metric], claim.scale, _ends(claim))]
    for guard in claim.guards:
        metric, margin = METRICS[guard.metric], guard.margin(at)
        stated.append((metric, guard.scale, (-_scaled(metric, guard.scale, margin), math.inf)))
    gains, missing, used = list[Gain](), list[Missing](), list[Measurement]()
    for metric, scale, ends in stated:
        # a claim about a value has no baseline, its guards have one
        alone = metric.name == claim.metric and claim.scale is Scale.value
        sides = [claim.arm] if alone else [claim.arm, against]
        pairs, lost, per = _pairs(metric, sides, claim, known)
        missing += lost
        used += [m for pair in pairs for m in pair]
        ranges = [_range(metric, scale, *pair) for pair in pairs]
        gains.append(_gain(metric, scale, per, ranges, ends, pairs, (noise or {}).get(metric.name)))
    primary, *guards = gains
    refused = next((m.why for m in used if m.ending is Ending.refused), None)
    if all(gain.enough for gain in gains):
        word, reason = _decide(claim, primary, guards)
    else:
        word, reason = Word.inconclusive, Reason.missing
    if refused is not None and reason is Reason.undecided:
        reason = Reason.refused
    bound = claim.mechanism.bound
    limit = math.inf if bound is None else _stated(METRICS[claim.metric], claim.scale, bound)
    return Verdict(
        word=word,
        reason=reason,
        primary=primary,
        guards=guards,
        beyond_bound=primary.enough and primary.interval().low > limit + ROUNDING,
        missing=list(dict.fromkeys(missing)) if reason is Reason.missing else [],
        endings={
            ending: list(
                dict.fromkeys(f"{m.arm}, {m.per.value} {m.repeat}" for m in used if m.ending is ending)
            )
            for ending in (Ending.at_most, Ending.diverged)
        },
        refused=refused if reason is Reason.refused else None,
    )


def _decide(claim: Claim, primary: Gain, guards: Sequence[Gain]) -> tuple[Word, Reason | None]:
    more_is_better = claim.scale is not Scale.value or METRICS[claim.metric].better is Better.higher
    return decide(
        primary.place(),
        [guard.place() for guard in guards],
        above_refutes=claim.two_sided or not more_is_better,
    )


def decide(place: int, guards: Sequence[int], *, above_refutes: bool = False) -> tuple[Word, Reason | None]:
    """The word for where an interval lies to what was stated (`Estimate.place`), and each guard's to its
    margin."""
    if -1 in guards:
        return Word.refuted, Reason.guard
    if place == -1:
        return Word.refuted, Reason.below
    if place == 1 and above_refutes:
        return Word.refuted, Reason.above
    if place in (0, 1) and all(guard in (0, 1) for guard in guards):
        return (Word.exceeded if place == 1 else Word.confirmed), None
    return Word.inconclusive, Reason.undecided


# --- pairs --------------------------------------------------------------------------------------------------


def _pairs(
    metric: Metric, sides: Sequence[str], claim: Claim, known: Mapping[tuple[str, str, int], Measurement]
) -> tuple[list[list[Measurement]], list[Missing], Per]:
    """The pairs of the last analysis, what the next one misses, and what they are. Pairs count in their
    order, none is passed over."""
    per = next((m.per for m in known.values() if m.metric is metric), Per.seed)
    timed = sorted({repeat for arm, name, repeat in known if name == metric.name and arm in sides})
    repeats = claim.seeds if per is Per.seed else timed
    whole = list[list[Measurement]]()
    missing = list[Missing]()
    for repeat in repeats:
        row = [known.get((arm, metric.name, repeat)) for arm in sides]
        missing = [
            Missing(metric=metric.name, arm=arm, per=per.value, repeat=repeat)
            for arm, m in zip(sides, row, strict=True)
            if m is None
        ]
        if missing:
            break
        whole.append([m for m in row if m is not None])
    if per is Per.exact:
        return whole[:1], missing, per
    if not missing and len(whole) < LEAST_PAIRS:
        wanted = range(len(whole) + 1, LEAST_PAIRS + 1)
        missing = [
            Missing(metric=metric.name, arm=arm, per=per.value, repeat=n) for n in wanted for arm in sides
        ]
    size = analysis_of(len(whole))
    return (whole[: analyses()[size - 1]] if size else whole), missing, per


def _gain(
    metric: Metric,
    scale: Scale,
    per: Per,
    ranges: Sequence[tuple[float, float]],
    ends: tuple[float, float],
    pairs: Sequence[Sequence[Measurement]],
    declared: Declared | None,
) -> Gain:
    """With what narrows and what widens its interval. A declared noise is a difference for losses and a log
    ratio for the rest; the metric's own size in these pairs translates one into the other. It says nothing of
    one arm's own value."""
    values = [abs(m.value) for pair in pairs for m in pair if m.value]
    level = fmean(values) if values else 1.0
    unit = level if scale is Scale.difference else 1 / level
    as_difference = metric.made_by == "train" and metric.unit.startswith(("nats", "bits"))
    if declared is not None and as_difference is not (scale is Scale.difference):
        declared = Declared(sd=declared.sd * unit, df=declared.df, source=declared.source)
    clock = metric.kind is Kind.clock and scale is not Scale.value
    bias = CLOCK_BIAS * (level if scale is Scale.difference else 1) if clock else 0.0
    least, most = [x for x, _ in ranges], [x for _, x in ranges]
    narrowed = None if scale is Scale.value else declared
    return Gain(
        metric=metric, scale=scale, per=per, least=least, most=most, ends=ends, declared=narrowed, bias=bias
    )


def _range(
    metric: Metric, scale: Scale, arm: Measurement, baseline: Measurement | None = None
) -> tuple[float, float]:
    """The least and the most that one pair's gain can be."""
    bounded = Ending.at_most in [m.ending for m in (arm, baseline) if m is not None]
    require(
        not bounded or metric.name in TO_TARGET, metric.name, "be about a target to have a most", arm.value
    )
    if baseline is None:
        if arm.value is None:
            return -math.inf, math.inf  # a value has no worst
        value = _scaled(metric, scale, arm.value)
        return -math.inf if bounded else value, value
    if baseline.value is None:
        return -math.inf, math.inf
    if arm.ending is Ending.refused:
        return -math.inf, math.nan  # finite, and not known
    if arm.value is None:
        return -math.inf, -math.inf
    better, worse = (
        (arm.value, baseline.value) if metric.better is Better.higher else (baseline.value, arm.value)
    )
    gain = _scaled(metric, scale, better) - _scaled(metric, scale, worse)
    return (
        -math.inf if baseline.ending is Ending.at_most else gain,
        math.inf if arm.ending is Ending.at_most else gain,
    )


def _scaled(metric: Metric, scale: Scale, x: float) -> float:
    if not is_log(metric, scale):
        return x
    require(x > 0, metric.name, f"be above 0 for a {scale.value}", x)
    return math.log(x)


def _stated(metric: Metric, scale: Scale, x: float) -> float:
    """Return what a claim states as a gain on its scale."""
    return -_scaled(metric, scale, x) if metric.relative else _scaled(metric, scale, x)


def _ends(claim: Claim) -> tuple[float, float]:
    """Return the stated gain; an open end is endless."""
    metric = METRICS[claim.metric]
    low, high = reversed(claim.expected) if metric.relative else claim.expected
    return (
        -math.inf if low is None else _stated(metric, claim.scale, low),
        math.inf if high is None else _stated(metric, claim.scale, high),
    )
