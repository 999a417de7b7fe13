"""The gains that a claim is about: from measurements to pairs, from pairs to gains.

Pairs are analysed at 3, 6, 12, … and at no other number (`interval.analyses`); between these the
last analysis stands. Each pair gives the least and the most that its gain can be. They differ where
an arm's shortest schedule reaches the target: its steps are at most that. A diverged run counts as
infinitely bad. A diverged baseline says nothing about the arm.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from nocap.config.keys import require
from nocap.judge.cautious_interval import CLOCK_BIAS, Declared
from nocap.judge.claim import TO_TARGET, Claim
from nocap.judge.gain import Gain
from nocap.judge.interval import LEAST_PAIRS, analyses, analysis_of
from nocap.metrics import METRICS, Better, Kind, Metric, Scale, is_log
from nocap.store.measurement import Ending, Measurement, Per


@dataclass(frozen=True, kw_only=True, slots=True)
class Missing:
    """A measurement that the next analysis needs."""

    metric: str
    arm: str
    per: str
    repeat: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ClaimGains:
    """The gains that a claim is about, and what they rest on."""

    primary: Gain
    guards: list[Gain]  # in the claim's order: the gain, which may be as far below 0 as the margin
    missing: list[Missing]
    used: list[Measurement]  # of the pairs of the last analysis


def gains_of(
    claim: Claim,
    measurements: Iterable[Measurement],
    *,
    against: str,
    at: str,
    noise: Mapping[str, Declared],
) -> ClaimGains:
    """Return the gains of a claim at one scale of its study, as `verdict.judge` has them.

    Errors:
        ValueError: a guard has no margin for the scale; a ratio of numbers that are not above 0.
    """
    known = {(m.arm, m.metric.name, m.repeat): m for m in measurements}
    gains = list[Gain]()
    missing = dict[Missing, None]()
    used = list[Measurement]()
    for statement in _statements(claim, against, at):
        pairs = _pairs(statement, claim.seeds, known)
        gains.append(_gain(statement, pairs, noise.get(statement.metric.name)))
        missing |= dict.fromkeys(pairs.missing)
        for row in pairs.rows:
            used += row
    primary, *guards = gains
    return ClaimGains(primary=primary, guards=guards, missing=list(missing), used=used)


# --- what is stated -------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class _Statement:
    """A gain that a claim states, or the most that a guard may lose."""

    metric: Metric
    scale: Scale
    ends: tuple[float, float]
    # the claim's, and the one it is compared with; of a value the claim's alone
    arms: Sequence[str]


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


def _ends(claim: Claim) -> tuple[float, float]:
    """Return the stated gain; an open end is endless."""
    metric = METRICS[claim.metric]
    low, high = claim.expected
    if metric.relative:  # of a time over the baseline's, the higher is the lower gain
        low, high = high, low
    least = -math.inf if low is None else stated(metric, claim.scale, low)
    most = math.inf if high is None else stated(metric, claim.scale, high)
    return least, most


def stated(metric: Metric, scale: Scale, x: float) -> float:
    """Return what a claim states as a gain on its scale."""
    gain = _scaled(metric, scale, x)
    return -gain if metric.relative else gain


def _scaled(metric: Metric, scale: Scale, x: float) -> float:
    """Return a number on a scale: its logarithm where gains are logarithms."""
    if not is_log(metric, scale):
        return x
    require(x > 0, metric.name, f"be above 0 for a {scale.value}", x)
    return math.log(x)


# --- pairs ----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class _Pairs:
    """The pairs of the last analysis, and what the next one misses."""

    per: Per
    rows: Sequence[Sequence[Measurement]]  # of each pair a measurement for each arm
    missing: Sequence[Missing]


# arm, metric and repeat → what was measured
_Known = Mapping[tuple[str, str, int], Measurement]


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


# --- gains ----------------------------------------------------------------------------------------


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
    require(
        fits,
        metric.name,
        "have an exact value (only a metric about a target can have an upper limit instead)",
        arm.value,
    )
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
