"""The verdict on a claim, from measurements.

Confirmed: the primary gain's one-sided bound at alpha lies inside what was expected, *and* every guard's lies within its margin. All tests
must pass, so a false confirmation stays below alpha without a correction. Refuted: the primary's two-sided interval lies outside, *or* a
guard's one-sided bound lies beyond its margin. One test is enough, so each has alpha / (1 + guards). Inconclusive otherwise, and wherever a
measurement is missing.

Each pair gives the least and the most that its gain can be. They differ where a run never reached its target: its time is at least its
budget. A bound on the mean of the least is a bound on the mean gain, and so for the most. A diverged run counts as infinitely bad. A
diverged baseline gives no information about the arm, and confirms nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from statistics import fmean, stdev

from nocap.config.keys import require
from nocap.judge.claim import LEAST_PAIRS, TO_TARGET, Claim
from nocap.judge.stats import Estimate, interval, lower_bound, n_required
from nocap.store.measurement import METRICS, Better, Ending, Measurement, Metric, Scale

POWER = 0.9  # of the seeds that would decide
TIE = 1e-12  # two runs can agree to the last bit, and their mean's rounding must not decide


class Word(Enum):
    confirmed = "confirmed"
    refuted = "refuted"
    inconclusive = "inconclusive"


class Reason(Enum):
    below = "below"
    exceeded = "exceeded"
    guard = "guard"
    missing = "missing"  # a measurement
    undecided = "undecided"


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    word: Word
    reason: Reason | None  # null where confirmed
    failed: list[str]  # guards beyond their margins
    n: int  # pairs
    interval: Estimate | None  # of the primary gain, two-sided at 1 - alpha; null below three pairs, or where not all were measured
    exceeded: bool  # the gain is above the stated top
    beyond_bound: bool  # and above what arithmetic allows: a mistake, or a gain that the bound leaves out
    missing: list[str]
    diverged: list[str]
    censored: list[str]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Gain:
    """A metric's gain over the pairs, as a logarithm for a ratio, and the ends it is judged by."""

    metric: Metric
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


class Judge:
    """One claim at one scale of its study, with all measurements of its arm and of the arm it is compared with."""

    def __init__(self, claim: Claim, measurements: Iterable[Measurement], *, against: str, at: str) -> None:
        self.claim, self.against, self.at = claim, against, at
        self.found = {(m.arm, m.metric.name, m.repeat): m for m in measurements}

    def verdict(self, look: int | None = None) -> Verdict:
        """At the last declared look or an earlier one.

        Errors:
            ValueError: a guard has no margin for the scale; the look was not declared; a ratio of numbers that are not above 0.
        """
        claim = self.claim
        seeds, alpha = claim.at_look(claim.looks if look is None else look)
        pairs, missing = self._complete(seeds)
        primary, *guards = self._gains(pairs)
        enough = len(pairs) >= LEAST_PAIRS
        each = alpha / (1 + len(guards))
        failed = [guard.metric.name for guard in guards if enough and guard.below(each)]
        word, reason = (Word.inconclusive, Reason.missing) if missing else _decide(primary, guards, alpha=alpha, each=each, failed=failed)
        top, bound = (None if x is None else _scaled(claim.scale, x) for x in (claim.expected[1], claim.mechanism.bound))
        gained = primary.at_least(each / 2) if enough else -math.inf
        return Verdict(
            word=word,
            reason=None if word is Word.confirmed else reason,
            failed=failed,
            n=len(pairs),
            interval=_stated(claim.scale, primary, alpha) if enough and primary.measured else None,
            exceeded=top is not None and gained > top + TIE,
            beyond_bound=bound is not None and gained > bound + TIE,
            missing=missing,
            diverged=self._ended(seeds, Ending.diverged),
            censored=self._ended(seeds, Ending.censored),
        )

    def last_complete(self) -> Verdict:
        """At the last declared look that has all its seeds."""
        verdict = self.verdict()
        if verdict.reason is Reason.missing and self.claim.looks == 2:
            first = self.verdict(look=1)
            return verdict if first.reason is Reason.missing else first
        return verdict

    def more_seeds(self) -> int | None:
        """How many more pairs would decide what is inconclusive, with a power of 0.9, were the means and spreads of these pairs the true
        ones. A confirmation needs every test, a refutation one. `None`: no affordable number would, or none can be computed (a run is
        missing, diverged, or never reached its target)."""
        pairs, missing = self._complete(self.claim.seeds)
        gains = [] if missing else self._gains(pairs)
        if missing or not all(gain.measured for gain in gains):
            return None
        _, alpha = self.claim.at_look(self.claim.looks)
        each = alpha / len(gains)
        beyond = [
            _needed(gain, to=gain.low if mean < gain.low else gain.high, alpha=each / 2 if gain is gains[0] else each)
            for gain in gains
            if not gain.low <= (mean := fmean(gain.least)) <= gain.high
        ]
        wanted = beyond or [_needed(g, to=end, alpha=alpha) for g in gains for end in (g.low, g.high) if math.isfinite(end)]
        counts = [n for n in wanted if n is not None]
        if beyond:
            return max(1, min(counts) - len(pairs)) if counts else None
        return max(1, max(counts) - len(pairs)) if len(counts) == len(wanted) else None

    def worse(self, metric: Metric, scale: Scale) -> Estimate | None:
        """How much worse the arm is, with a two-sided 95% interval: a guard's figure. `None` below three pairs, or where one diverged."""
        rows = [[self.found.get((arm, metric.name, seed)) for arm in (self.claim.arm, self.against)] for seed in self.claim.seeds]
        pairs = [(a.value, b.value) for a, b in rows if a and b]
        values = [(x, y) for x, y in pairs if x is not None and y is not None]
        if len(values) < LEAST_PAIRS or len(values) < len(pairs):
            return None
        found = interval([math.log(x / y) if scale is Scale.ratio else x - y for x, y in values])
        return found.exp() if scale is Scale.ratio else found

    # --- pairs ---------------------------------------------------------------------------------------------------------------------

    def _sides(self, metric: Metric) -> list[str]:
        """Whose measurements a metric needs: a claim about a value has no baseline, its guards have one."""
        alone = metric.name == self.claim.metric and self.claim.scale is Scale.value
        return [self.claim.arm] if alone else [self.claim.arm, self.against]

    def _needed(self, seeds: Sequence[int]) -> list[tuple[int, Metric, str]]:
        return [(seed, metric, arm) for seed in seeds for metric in self.claim.metrics for arm in self._sides(metric)]

    def _complete(self, seeds: Sequence[int]) -> tuple[list[int], list[str]]:
        """The seeds that have all measurements, and each measurement that is missing."""
        gaps = [(seed, metric, arm) for seed, metric, arm in self._needed(seeds) if (arm, metric.name, seed) not in self.found]
        holes = {seed for seed, *_ in gaps}
        names = [f"{metric.name} of {self._name(arm)}, seed {seed}" for seed, metric, arm in gaps]
        return [seed for seed in seeds if seed not in holes], list(dict.fromkeys(names))

    def _ended(self, seeds: Sequence[int], ending: Ending) -> list[str]:
        needed = [(self._name(arm), seed, self.found.get((arm, metric.name, seed))) for seed, metric, arm in self._needed(seeds)]
        return list(dict.fromkeys(f"{arm}, seed {seed}" for arm, seed, m in needed if m and m.ending is ending))

    def _name(self, arm: str) -> str:
        return arm if arm == self.claim.arm else "baseline"

    def _gains(self, seeds: Sequence[int]) -> list[_Gain]:
        """The primary metric's, then the guards': not worse by the margin is a gain above minus the margin."""
        claim = self.claim
        low, high = (None if end is None else _scaled(claim.scale, end) for end in claim.judged(self.at))
        rows = [(METRICS[claim.metric], claim.scale, -math.inf if low is None else low, math.inf if high is None else high)]
        rows += [(METRICS[g.metric], g.scale, -_scaled(g.scale, g.margin(self.at)), math.inf) for g in claim.guards]
        gains = []
        for metric, scale, floor, ceiling in rows:
            sides = self._sides(metric)
            ranges = [_pair(metric, scale, *(self.found[arm, metric.name, seed] for arm in sides)) for seed in seeds]
            gains.append(_Gain(metric=metric, least=[low for low, _ in ranges], most=[high for _, high in ranges], low=floor, high=ceiling))
        return gains


def _decide(primary: _Gain, guards: Sequence[_Gain], *, alpha: float, each: float, failed: Sequence[str]) -> tuple[Word, Reason]:
    if primary.below(each / 2):
        return Word.refuted, Reason.below
    if primary.above(each / 2):
        return Word.refuted, Reason.exceeded
    if failed:
        return Word.refuted, Reason.guard
    confirmed = all(gain.inside(alpha) for gain in (primary, *guards))
    return Word.confirmed if confirmed else Word.inconclusive, Reason.undecided


def _pair(metric: Metric, scale: Scale, arm: Measurement, baseline: Measurement | None = None) -> tuple[float, float]:
    """The least and the most that one pair's gain can be."""
    censored = Ending.censored in (arm.ending, baseline.ending if baseline else None)
    require(not censored or metric.name in TO_TARGET, metric.name, "be about a target to be censored", arm.value)
    if baseline is None:
        if arm.value is None:
            return -math.inf, math.inf  # a value has no worst
        return arm.value, math.inf if arm.ending is Ending.censored else arm.value
    if baseline.value is None:
        return -math.inf, math.inf
    if arm.value is None:
        return -math.inf, -math.inf
    better, worse = (arm.value, baseline.value) if metric.better is Better.higher else (baseline.value, arm.value)
    if scale is Scale.ratio:
        require(min(better, worse) > 0, metric.name, "be above 0 for a ratio", min(better, worse))
    gain = math.log(better / worse) if scale is Scale.ratio else better - worse
    return -math.inf if arm.ending is Ending.censored else gain, math.inf if baseline.ending is Ending.censored else gain


def _needed(gain: _Gain, *, to: float, alpha: float) -> int | None:
    """Pairs for a one-sided test at alpha: the two-sided one at twice alpha, whose other side decides nothing."""
    spread = stdev(gain.least)
    if spread == 0:
        return None
    try:
        return n_required((fmean(gain.least) - to) / spread, power=POWER, alpha=2 * alpha, pairs=True)
    except ValueError:  # too many to count
        return None


def _scaled(scale: Scale, x: float) -> float:
    return math.log(x) if scale is Scale.ratio else x


def _stated(scale: Scale, primary: _Gain, alpha: float) -> Estimate:
    found = interval(primary.least, confidence=1 - alpha)
    return found.exp() if scale is Scale.ratio else found
