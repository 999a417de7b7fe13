"""The verdict on a claim, from measurements: the interval on the page decides.

Confirmed: the interval of the gain lies within what was stated, and each guard's within its margin.
Exceeded: the same, and it lies wholly above the stated top, where more is better. Refuted: it lies
wholly outside, or a guard's lies wholly beyond its margin. Inconclusive: all else, and wherever a
measurement is missing. Where nothing was stated: better, worse, or no difference shown.

Pairs are analysed at 3, 6, 12, … and at no other number (`interval.analyses`); between these the
last one stands. Each pair gives the least and the most that its gain can be. They differ where an
arm's shortest schedule reaches the target: its steps are at most that. A diverged run counts as
infinitely bad. A diverged baseline says nothing about the arm. Nor does what is there and was
refused: it makes the claim inconclusive, with the reason.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from statistics import fmean

import numpy as np

from nocap.config.keys import require
from nocap.judge import cautious_interval
from nocap.judge.cautious_interval import CLOCK_BIAS, Declared
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
from nocap.store.metrics import (
    METRICS,
    Better,
    Ending,
    Kind,
    Measurement,
    Metric,
    Per,
    Scale,
    is_log,
)

VERSION = 4  # of these rules: another number, other verdicts


class ClaimWord(Enum):
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
    """A metric's gain over the pairs of the last analysis, on its scale: what an arm is better
    by."""

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
        """Return the number of the analysis that it is of; 0: there are too few pairs for the
        first."""
        return analysis_of(len(self.least))

    @property
    def enough(self) -> bool:
        """Say whether it has an interval: one count, or the pairs of an analysis."""
        if self.per is Per.exact:
            return bool(self.least)
        return self.analysis > 0

    @property
    def measured(self) -> bool:
        """Say whether each pair's gain is a number, and not only bounded."""
        are_bounds_equal = tuple(self.least) == tuple(self.most)
        return are_bounds_equal and all(map(math.isfinite, self.least))

    def interval(self) -> Estimate:
        """Return its interval, whose middle is not a number where a run diverged, or steps are only
        bounded."""
        if self.per is Per.exact:
            value = self.least[0]
            return Estimate(mid=value, low=value, high=value, n=1, method="counted")
        if self.measured:
            return self._of(self.least)
        low = self._low()
        high = self._high()
        n = len(self.least)
        return Estimate(mid=math.nan, low=low, high=high, n=n, method="pairs, some without an end")

    def shown(self) -> Estimate | None:
        """Return its interval as it is told: a ratio where its scale has one, and of what is a
        ratio to the baseline's by itself, that ratio; `None`: there are too few pairs."""
        if not self.enough:
            return None
        interval = self.interval()
        if self.metric.relative:
            interval = replace(interval, mid=-interval.mid, low=-interval.high, high=-interval.low)
        if is_log(self.metric, self.scale):
            return interval.exp()
        return interval

    def _low(self) -> float:
        """Return the lower end where not all pairs are measured."""
        if -math.inf in self.least:
            return -math.inf
        # bounds that are equal say nothing of the noise
        if len(set(self.least)) == 1:
            return -math.inf
        return self._of(self.least).low

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
        """Return the interval of these values: Student's where a seed repeats them, else the
        cautious one. A declared noise narrows either."""
        if self.metric.kind is not Kind.seed:
            return cautious_interval.of_pairs(
                values, declared=self.declared, bias=self.bias, analysis=self.analysis
            )
        alone = of_pairs(values, look=self.analysis)
        if self.declared is None or alone.n < LEAST_PAIRS:
            return alone
        half, used = _width(self.metric, self.declared, alone.sd, alone.n, self.analysis)
        method = "pairs, noise declared" if used else PAIRS
        return around(alone.mid, half, n=alone.n, sd=alone.sd, method=method)

    def position(self) -> int:
        """Return where its interval lies to what was stated, as `Estimate.position` has it."""
        return self.interval().position(*self.ends)

    def more(self) -> int | None:
        """Return how many more pairs would decide, were mean and spread the true ones; None: no
        affordable number, or none can be said."""
        if not self.measured or not self.enough or self.position() != 2:
            return None
        estimate = self.interval()
        n = len(self.least)
        distance = self._distance(estimate.mid)
        width = width_of(self.metric, self.declared)
        pairs = pairs_to_decide(distance, sd=estimate.sd, n=n, width=width, bias=self.bias)
        if pairs is None:
            return None
        return pairs - n

    def _distance(self, mid: float) -> float:
        """Return how far a mean lies from what would decide: the end of the statement that it is
        beyond, or, where it lies within, the nearer end."""
        low, high = self.ends
        if mid < low:
            return abs(mid - low)
        if mid > high:
            return abs(mid - high)
        return min(abs(mid - low), abs(mid - high))


def _width(
    metric: Metric, declared: Declared | None, sd: float, n: int, analysis: int
) -> tuple[float, bool]:
    """Return the half width of so many pairs with this spread; and whether the declared noise made
    it."""
    spread = np.float64(sd)
    if metric.kind is Kind.seed:
        own = np.float64(half_width(sd, n, analysis))
        half, used = cautious_interval.narrowed(
            own, spread, n, declared=declared, share=analysis**2
        )
    else:
        half, used = cautious_interval.half_width(spread, n, declared=declared, analysis=analysis)
    return float(half), bool(used)


def width_of(metric: Metric, declared: Declared | None) -> Width:
    """Return how wide the interval of a gain in this metric is, for any spread, number of pairs and
    look."""

    def width(sd: float, n: int, look: int) -> float:
        half, _ = _width(metric, declared, sd, n, look)
        return half

    return width


@dataclass(frozen=True, kw_only=True, slots=True)
class Missing:
    """A measurement that the next analysis needs."""

    metric: str
    arm: str
    per: str
    repeat: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    word: ClaimWord
    reason: Reason | None  # null where confirmed or exceeded
    primary: Gain
    guards: list[Gain]  # in the claim's order: the gain, which may be as far below 0 as the margin
    beyond_bound: (
        bool  # above what arithmetic allows: a mistake, or a gain that the bound leaves out
    )
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
            guard.metric.name for guard in self.guards if guard.enough and guard.position() == -1
        ]

    def more(self) -> dict[str, int] | None:
        """Return how many more seeds, sessions or both would decide; `None`: it is decided, or no
        number would."""
        if self.word is not ClaimWord.inconclusive:
            return None
        by_unit: dict[str, int] = {}
        for gain in (self.primary, *self.guards):
            if not gain.enough or gain.position() != 2:
                continue
            more = gain.more()
            if more is None:
                return None
            repeats = gain.per.value
            by_unit[repeats] = max(more, by_unit.get(repeats, 0))
        return by_unit or None


@dataclass(frozen=True, kw_only=True, slots=True)
class _Statement:
    """A gain that a claim states, or the most that a guard may lose."""

    metric: Metric
    scale: Scale
    ends: tuple[float, float]
    arms: Sequence[
        str
    ]  # the claim's, and the one it is compared with; of a value the claim's alone


@dataclass(frozen=True, kw_only=True, slots=True)
class _Pairs:
    """The pairs of the last analysis, and what the next one misses."""

    per: Per
    rows: Sequence[Sequence[Measurement]]  # of each pair a measurement for each arm
    missing: Sequence[Missing]


# arm, metric and repeat → what was measured
_Known = Mapping[tuple[str, str, int], Measurement]


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
    known = {(m.arm, m.metric.name, m.repeat): m for m in measurements}
    declared = noise or {}
    gains = list[Gain]()
    missing = dict[Missing, None]()
    used = list[Measurement]()
    for statement in _statements(claim, against, at):
        pairs = _pairs(statement, claim.seeds, known)
        gains.append(_gain(statement, pairs, declared.get(statement.metric.name)))
        missing |= dict.fromkeys(pairs.missing)
        for row in pairs.rows:
            used += row
    primary, *guards = gains
    why = _why_refused(used)
    word, reason = _word_of_gains(claim, primary, guards)
    if why is not None and reason is Reason.undecided:
        reason = Reason.refused
    return Verdict(
        word=word,
        reason=reason,
        primary=primary,
        guards=guards,
        beyond_bound=_is_beyond_bound(claim, primary),
        missing=list(missing) if reason is Reason.missing else [],
        endings={
            ending: _with_ending(used, ending) for ending in (Ending.at_most, Ending.diverged)
        },
        refused=why if reason is Reason.refused else None,
    )


def _statements(claim: Claim, against: str, at: str) -> list[_Statement]:
    """List what the claim states: its gain, then what its guards allow at a scale of the study. A
    claim about a value has no baseline, its guards have one."""
    both = [claim.arm, against]
    arms = [claim.arm] if claim.scale is Scale.value else both
    metric = METRICS[claim.metric]
    statements = [_Statement(metric=metric, scale=claim.scale, ends=_ends(claim), arms=arms)]
    for guard in claim.guards:
        metric = METRICS[guard.metric]
        margin = _scaled(metric, guard.scale, guard.margin(at))
        ends = (-margin, math.inf)
        statements.append(_Statement(metric=metric, scale=guard.scale, ends=ends, arms=both))
    return statements


def _why_refused(used: Sequence[Measurement]) -> str | None:
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
    position: int, guards: Sequence[int], *, above_refutes: bool = False
) -> tuple[ClaimWord, Reason | None]:
    """Return the word for where an interval lies to what was stated (`Estimate.position`), and each
    guard's to its margin."""
    if -1 in guards:
        return ClaimWord.refuted, Reason.guard
    if position == -1:
        return ClaimWord.refuted, Reason.below
    if position == 1 and above_refutes:
        return ClaimWord.refuted, Reason.above
    if position == 2 or 2 in guards:
        return ClaimWord.inconclusive, Reason.undecided
    if position == 1:
        return ClaimWord.exceeded, None
    return ClaimWord.confirmed, None


def _is_beyond_bound(claim: Claim, primary: Gain) -> bool:
    """Say whether the gain lies wholly above what arithmetic allows."""
    bound = claim.mechanism.bound
    if bound is None or not primary.enough:
        return False
    limit = _stated(METRICS[claim.metric], claim.scale, bound)
    return primary.interval().low > limit + ROUNDING


def _with_ending(used: Sequence[Measurement], ending: Ending) -> list[str]:
    """Name the measurements that ended so, each once."""
    names = dict[str, None]()
    for measurement in used:
        if measurement.ending is ending:
            names[f"{measurement.arm}, {measurement.per.value} {measurement.repeat}"] = None
    return list(names)


# --- pairs ----------------------------------------------------------------------------------------


def _pairs(statement: _Statement, seeds: Sequence[int], known: _Known) -> _Pairs:
    """Return the pairs of the last analysis and what the next one misses. Pairs count in their
    order, none is passed over."""
    metric = statement.metric
    per = _per_of(metric, known)
    repeats = seeds if per is Per.seed else _sessions(statement, known)
    rows = list[list[Measurement]]()
    missing = list[Missing]()
    for repeat in repeats:
        keys = [(arm, metric.name, repeat) for arm in statement.arms]
        row = [known[key] for key in keys if key in known]
        if len(row) < len(statement.arms):
            missing = [each for each in _needed(statement, per, repeat) if _key(each) not in known]
            break
        rows.append(row)
    if per is Per.exact:
        return _Pairs(per=per, rows=rows[:1], missing=missing)
    if not missing:
        for repeat in range(len(rows) + 1, LEAST_PAIRS + 1):
            missing += _needed(statement, per, repeat)
    analysis = analysis_of(len(rows))
    if analysis:
        rows = rows[: analyses()[analysis - 1]]
    return _Pairs(per=per, rows=rows, missing=missing)


def _per_of(metric: Metric, known: _Known) -> Per:
    """Return what repeats a metric: a seed where nothing of it was measured yet."""
    for measurement in known.values():
        if measurement.metric is metric:
            return measurement.per
    return Per.seed


def _sessions(statement: _Statement, known: _Known) -> list[int]:
    """List the sessions, in their order, in which one of the arms was measured."""
    name = statement.metric.name
    sessions = {repeat for arm, metric, repeat in known if metric == name and arm in statement.arms}
    return sorted(sessions)


def _needed(statement: _Statement, per: Per, repeat: int) -> list[Missing]:
    """List the measurements that a pair needs."""
    name = statement.metric.name
    return [Missing(metric=name, arm=arm, per=per.value, repeat=repeat) for arm in statement.arms]


def _key(missing: Missing) -> tuple[str, str, int]:
    return missing.arm, missing.metric, missing.repeat


def _gain(statement: _Statement, pairs: _Pairs, declared: Declared | None) -> Gain:
    """Return the gain with what narrows and what widens its interval."""
    metric = statement.metric
    scale = statement.scale
    least = list[float]()
    most = list[float]()
    for row in pairs.rows:
        low, high = _range(metric, scale, *row)
        least.append(low)
        most.append(high)
    size = _mean_size(pairs)
    noise = None
    bias = 0.0
    if scale is not Scale.value:  # a noise of pairs says nothing of one arm's own value
        noise = _in_unit_of(statement, declared, size)
        if metric.kind is Kind.clock:
            bias = CLOCK_BIAS * (size if scale is Scale.difference else 1)
    return Gain(
        metric=metric,
        scale=scale,
        per=pairs.per,
        least=least,
        most=most,
        ends=statement.ends,
        declared=noise,
        bias=bias,
    )


def _mean_size(pairs: _Pairs) -> float:
    """Return the mean size of what was measured in these pairs; 1 where nothing was."""
    sizes = list[float]()
    for row in pairs.rows:
        sizes += [abs(measurement.value) for measurement in row if measurement.value]
    return fmean(sizes) if sizes else 1.0


def _in_unit_of(statement: _Statement, declared: Declared | None, size: float) -> Declared | None:
    """Return a declared noise in the unit of the statement. It is a difference for losses and a log
    ratio for the rest; the metric's own size translates one into the other."""
    if declared is None:
        return None
    metric = statement.metric
    needs_difference = statement.scale is Scale.difference
    is_difference = metric.made_by == "train" and metric.unit.startswith(("nats", "bits"))
    if is_difference is needs_difference:
        return declared
    factor = size if needs_difference else 1 / size
    return Declared(sd=declared.sd * factor, df=declared.df, source=declared.source)


def _range(
    metric: Metric, scale: Scale, arm: Measurement, baseline: Measurement | None = None
) -> tuple[float, float]:
    """Return the least and the most that one pair's gain can be."""
    is_at_most = arm.ending is Ending.at_most
    is_base_at_most = baseline is not None and baseline.ending is Ending.at_most
    fits = metric.name in TO_TARGET or not (is_at_most or is_base_at_most)
    require(fits, metric.name, "be about a target to have a most", arm.value)
    if baseline is None:
        return _range_of_value(metric, scale, arm)
    if baseline.value is None:
        return -math.inf, math.inf
    if arm.ending is Ending.refused:
        return -math.inf, math.nan  # finite, and not known
    if arm.value is None:
        return -math.inf, -math.inf
    if metric.better is Better.higher:
        gain = _scaled(metric, scale, arm.value) - _scaled(metric, scale, baseline.value)
    else:
        gain = _scaled(metric, scale, baseline.value) - _scaled(metric, scale, arm.value)
    least = -math.inf if is_base_at_most else gain
    most = math.inf if is_at_most else gain
    return least, most


def _range_of_value(metric: Metric, scale: Scale, arm: Measurement) -> tuple[float, float]:
    """Return the least and the most that an arm's own value can be."""
    if arm.value is None:
        return -math.inf, math.inf  # a value has no worst
    value = _scaled(metric, scale, arm.value)
    if arm.ending is Ending.at_most:
        return -math.inf, value
    return value, value


# --- what was stated ------------------------------------------------------------------------------


def _ends(claim: Claim) -> tuple[float, float]:
    """Return the stated gain; an open end is endless."""
    metric = METRICS[claim.metric]
    low, high = claim.expected
    if metric.relative:  # of a time over the baseline's, the higher is the lower gain
        low, high = high, low
    least = -math.inf if low is None else _stated(metric, claim.scale, low)
    most = math.inf if high is None else _stated(metric, claim.scale, high)
    return least, most


def _stated(metric: Metric, scale: Scale, x: float) -> float:
    """Return what a claim states as a gain on its scale."""
    gain = _scaled(metric, scale, x)
    return -gain if metric.relative else gain


def _scaled(metric: Metric, scale: Scale, x: float) -> float:
    """Return a number on a scale: its logarithm where gains are logarithms."""
    if not is_log(metric, scale):
        return x
    require(x > 0, metric.name, f"be above 0 for a {scale.value}", x)
    return math.log(x)
