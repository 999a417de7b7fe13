"""The verdict on a claim, by rule and nothing else.

Confirmed: the primary gain's one-sided bound at alpha lies inside what was expected, *and* every guard's lies within its margin: an
intersection of tests, so that a false confirmation stays below alpha without a correction. Refuted: the primary's two-sided interval lies
outside, *or* a guard's one-sided bound beyond its margin: a union, so that each has alpha / (1 + guards). Inconclusive otherwise, and
wherever a run is missing.

Each pair gives the least and the most that its gain can be. They differ where a run never reached its target: its time is at least its
budget. The mean of the least lies below the mean gain and the mean of the most above it, so that bounds of those two hold for the gain. A
diverged run is infinitely bad, and with it the arm's mean; a diverged baseline says nothing about the arm, and confirms nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from statistics import fmean, stdev

from nocap.config.keys import require
from nocap.judge.stats import Interval, interval, lower_bound, n_required
from nocap.study.claim import LEAST, MORE_IS_BETTER, TO_TARGET, Claim, Metric, Scale

POWER = 0.9  # of the seeds that would decide
TIE = 1e-12  # two runs can agree to the last bit, and their mean's rounding must not decide


class Ending(Enum):
    measured = "measured"
    censored = "censored"  # never reached its target: the value is the budget
    diverged = "diverged"


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What one run says about one metric."""

    value: float | None  # null where it diverged
    ending: Ending = Ending.measured

    def __post_init__(self) -> None:
        diverged = self.ending is Ending.diverged
        ok = self.value is None if diverged else self.value is not None and math.isfinite(self.value)
        require(ok, "an outcome", "be a finite number, or null where the run diverged", self.value)


Outcomes = Mapping[Metric, Mapping[int, Outcome]]  # of one arm: metric → seed → outcome


class Word(Enum):
    confirmed = "confirmed"
    refuted = "refuted"
    inconclusive = "inconclusive"


class Reason(Enum):
    below = "below"
    exceeded = "exceeded"
    guard = "guard"
    missing = "missing"  # a run
    undecided = "undecided"


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    word: Word
    reason: Reason | None  # null where confirmed
    failed: list[str]  # guards beyond their margins
    n: int  # pairs
    interval: Interval | None  # of the primary gain, two-sided at 1 - alpha; null where pairs are fewer than three, or not all measured
    exceeded: bool  # the gain is above the stated top
    beyond_bound: bool  # and above what arithmetic allows: look for a mistake, or for a gain that the bound leaves out
    missing: list[str]
    diverged: list[str]
    censored: list[str]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Gain:
    """A metric's gain over the pairs, as a logarithm for a ratio, and the ends it is judged by."""

    name: str
    least: list[float]  # a pair's gain is at least this much
    most: list[float]
    low: float
    high: float

    @property
    def measured(self) -> bool:
        return self.least == self.most and all(map(math.isfinite, self.least))

    def at_least(self, alpha: float) -> float:
        """One-sided confidence bound of the mean."""
        return -math.inf if -math.inf in self.least else lower_bound(self.least, alpha=alpha)

    def at_most(self, alpha: float) -> float:
        if math.inf in self.most:
            return math.inf
        return -math.inf if -math.inf in self.most else -lower_bound([-x for x in self.most], alpha=alpha)

    def inside(self, alpha: float) -> bool:
        """Shown to lie within the ends: each end is a test at alpha, and both must pass."""
        return self.at_least(alpha) >= self.low - TIE and (self.high == math.inf or self.at_most(alpha) <= self.high + TIE)

    def below(self, alpha: float) -> bool:
        return self.at_most(alpha) < self.low - TIE

    def above(self, alpha: float) -> bool:
        return self.high < math.inf and self.at_least(alpha) > self.high + TIE


def judge(claim: Claim, *, arm: Outcomes, baseline: Outcomes, at: str, look: int | None = None) -> Verdict:
    """The verdict at one scale of the study, at the last declared look or an earlier one.

    Errors:
        ValueError: a guard has no margin for the scale; the look was not declared; a ratio of numbers that are not above 0.
    """
    seeds, alpha = claim.at_look(claim.looks if look is None else look)
    pairs, missing = _complete(claim, arm=arm, baseline=baseline, seeds=seeds)
    told = {
        ending: [f"{name}, seed {seed}" for name, seed in _endings(claim, arm=arm, baseline=baseline, seeds=seeds, ending=ending)]
        for ending in (Ending.diverged, Ending.censored)
    }
    primary, *guards = _gains(claim, arm=arm, baseline=baseline, at=at, seeds=pairs)
    sure = len(pairs) >= LEAST
    each = alpha / (1 + len(guards))
    failed = [guard.name for guard in guards if sure and guard.below(each)]
    word, reason = Word.inconclusive, Reason.missing
    if not missing:
        word, reason = _decide(primary, guards, alpha=alpha, each=each, failed=failed)
    top, bound = (None if x is None else _scaled(claim.scale, x) for x in (claim.expected[1], claim.mechanism.bound))
    gained = primary.at_least(each / 2) if sure else -math.inf
    return Verdict(
        word=word,
        reason=None if word is Word.confirmed else reason,
        failed=failed,
        n=len(pairs),
        interval=_stated(claim.scale, primary, alpha) if sure and primary.measured else None,
        exceeded=top is not None and gained > top + TIE,
        beyond_bound=bound is not None and gained > bound + TIE,
        missing=missing,
        diverged=told[Ending.diverged],
        censored=told[Ending.censored],
    )


def _decide(primary: _Gain, guards: Sequence[_Gain], *, alpha: float, each: float, failed: Sequence[str]) -> tuple[Word, Reason]:
    if primary.below(each / 2):
        return Word.refuted, Reason.below
    if primary.above(each / 2):
        return Word.refuted, Reason.exceeded
    if failed:
        return Word.refuted, Reason.guard
    confirmed = all(gain.inside(alpha) for gain in (primary, *guards))
    return Word.confirmed if confirmed else Word.inconclusive, Reason.undecided


def more_seeds(claim: Claim, *, arm: Outcomes, baseline: Outcomes, at: str) -> int | None:
    """How many more pairs would decide what is inconclusive, with a power of 0.9, were the means and spreads of these pairs the true ones.

    A confirmation needs every test, a refutation one. `None`: no affordable number would, or none can be told (a run is missing,
    diverged, or never reached its target).
    """
    pairs, missing = _complete(claim, arm=arm, baseline=baseline, seeds=claim.seeds)
    if missing:
        return None
    gains = _gains(claim, arm=arm, baseline=baseline, at=at, seeds=pairs)
    if not all(gain.measured for gain in gains):
        return None
    _, alpha = claim.at_look(claim.looks)
    each = alpha / len(gains)
    beyond = [
        _needed(gain, to=gain.low if mean < gain.low else gain.high, alpha=each / 2 if gain is gains[0] else each)
        for gain in gains
        if not gain.low <= (mean := fmean(gain.least)) <= gain.high
    ]
    if beyond:
        counts = [n for n in beyond if n is not None]
        return max(1, min(counts) - len(pairs)) if counts else None
    within = [_needed(g, to=end, alpha=alpha) for g in gains for end in (g.low, g.high) if math.isfinite(end)]
    counts = [n for n in within if n is not None]
    return max(1, max(counts) - len(pairs)) if len(counts) == len(within) else None


def _needed(gain: _Gain, *, to: float, alpha: float) -> int | None:
    """Pairs for a one-sided test at alpha: the two-sided one at twice alpha, whose other side decides nothing."""
    spread = stdev(gain.least)
    if spread == 0:
        return None
    try:
        return n_required((fmean(gain.least) - to) / spread, power=POWER, alpha=2 * alpha, pairs=True)
    except ValueError:  # too many to count
        return None


def _metrics(claim: Claim) -> list[Metric]:
    return [claim.metric, *(guard.metric for guard in claim.guards)]


def _sides(claim: Claim, metric: Metric, *, arm: Outcomes, baseline: Outcomes) -> list[tuple[str, Mapping[int, Outcome]]]:
    """Whose runs a metric needs: a claim about a value has no baseline, its guards have."""
    sides = [(claim.arm, arm.get(metric, {})), ("baseline", baseline.get(metric, {}))]
    return sides[:1] if metric is claim.metric and claim.scale is Scale.value else sides


def _complete(claim: Claim, *, arm: Outcomes, baseline: Outcomes, seeds: Sequence[int]) -> tuple[list[int], list[str]]:
    """The seeds that have all outcomes, and each outcome that is missing."""
    gaps = [
        (seed, f"{metric.value} of {name}, seed {seed}")
        for seed in seeds
        for metric in _metrics(claim)
        for name, outcomes in _sides(claim, metric, arm=arm, baseline=baseline)
        if seed not in outcomes
    ]
    holes = {seed for seed, _ in gaps}
    return [seed for seed in seeds if seed not in holes], list(dict.fromkeys(text for _, text in gaps))


def _endings(claim: Claim, *, arm: Outcomes, baseline: Outcomes, seeds: Sequence[int], ending: Ending) -> list[tuple[str, int]]:
    found = [
        (name, seed)
        for metric in _metrics(claim)
        for name, outcomes in _sides(claim, metric, arm=arm, baseline=baseline)
        for seed in seeds
        if seed in outcomes and outcomes[seed].ending is ending
    ]
    return list(dict.fromkeys(found))


def _gains(claim: Claim, *, arm: Outcomes, baseline: Outcomes, at: str, seeds: Sequence[int]) -> list[_Gain]:
    """The primary metric's, then the guards': not worse by the margin is a gain above minus the margin."""
    low, high = (None if end is None else _scaled(claim.scale, end) for end in claim.judged(at))
    rows = [(claim.metric, claim.scale, -math.inf if low is None else low, math.inf if high is None else high)]
    rows += [(guard.metric, guard.scale, -_scaled(guard.scale, guard.margin(at)), math.inf) for guard in claim.guards]
    found = []
    for metric, scale, floor, ceiling in rows:
        sides = [outcomes for _, outcomes in _sides(claim, metric, arm=arm, baseline=baseline)]
        ranges = [_pair(metric, scale, *(outcomes[seed] for outcomes in sides)) for seed in seeds]
        least, most = [low for low, _ in ranges], [high for _, high in ranges]
        found.append(_Gain(name=metric.value, least=least, most=most, low=floor, high=ceiling))
    return found


def _pair(metric: Metric, scale: Scale, arm: Outcome, baseline: Outcome | None = None) -> tuple[float, float]:
    """The least and the most that one pair's gain can be."""
    censored = Ending.censored in (arm.ending, baseline.ending if baseline else None)
    require(not censored or metric in TO_TARGET, metric.value, "be about a target to be censored", arm.value)
    if baseline is None:
        if arm.value is None:
            return -math.inf, math.inf  # a value has no worst
        return arm.value, math.inf if arm.ending is Ending.censored else arm.value
    if baseline.value is None:
        return -math.inf, math.inf
    if arm.value is None:
        return -math.inf, -math.inf
    better, worse = (arm.value, baseline.value) if metric in MORE_IS_BETTER else (baseline.value, arm.value)
    if scale is Scale.ratio:
        require(min(better, worse) > 0, metric.value, "be above 0 for a ratio", min(better, worse))
    gain = math.log(better / worse) if scale is Scale.ratio else better - worse
    return -math.inf if arm.ending is Ending.censored else gain, math.inf if baseline.ending is Ending.censored else gain


def _scaled(scale: Scale, x: float) -> float:
    return math.log(x) if scale is Scale.ratio else x


def _stated(scale: Scale, primary: _Gain, alpha: float) -> Interval:
    found = interval(primary.least, confidence=1 - alpha)
    found = found.exp() if scale is Scale.ratio else found
    return Interval(mid=found.mean, low=found.low, high=found.high)
