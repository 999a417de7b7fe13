"""The verdict on a claim, from measurements.

Confirmed: the primary gain's one-sided bound at alpha lies inside what was expected, *and* every guard's lies within its margin. All tests
must pass, so a false confirmation stays below alpha without a correction. Refuted: the primary's two-sided interval lies outside, beyond
the slack, *or* a guard's one-sided bound lies beyond its margin. One test is enough, so each has alpha / (1 + guards). Equivalent: shown to
lie within the slack of the stated ends, and not within the ends. Inconclusive otherwise, and wherever a measurement is missing. A claim may
be judged at several looks while its pairs grow. The first that decides is the verdict, and the levels hold over all of them. Equivalent is
said at the last look only: before it the claim may still be confirmed.

Each pair gives the least and the most that its gain can be. They differ where a run never reached its target: its time is at least its
budget. A bound on the mean of the least is a bound on the mean gain, and so for the most. A diverged run counts as infinitely bad. A
diverged baseline gives no information about the arm, and confirms nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from statistics import fmean
from typing import Any

import numpy as np

from nocap.config.keys import require
from nocap.judge.claim import LEAST_PAIRS, TO_TARGET, Claim
from nocap.judge.gain import TIE, Gain, pairs_wanted, point
from nocap.judge.noise import Prior, is_log, noise_of
from nocap.judge.stats import Estimate
from nocap.store.measurement import METRICS, Better, Ending, Measurement, Metric, Per, Scale

VERSION = 2  # of these rules: another number, other verdicts


class Word(Enum):
    confirmed = "confirmed"
    refuted = "refuted"
    equivalent = "equivalent"  # within the slack of what was stated
    inconclusive = "inconclusive"


class Reason(Enum):
    below = "below"
    exceeded = "exceeded"
    guard = "guard"
    missing = "missing"  # a measurement
    sittings = "sittings"  # fewer than three: how much they differ is not known
    undecided = "undecided"


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    word: Word
    reason: Reason | None  # null where confirmed or equivalent
    failed: list[str]  # guards beyond their margins
    n: int  # pairs
    look: int  # of the declared ones, from 1
    interval: Estimate | None  # of the primary gain, two-sided at 1 - alpha over all looks; null where not all were measured
    exceeded: bool  # the gain is above the stated top
    beyond_bound: bool  # and above what arithmetic allows: a mistake, or a gain that the bound leaves out
    missing: list[str]
    diverged: list[str]
    censored: list[str]
    at_most: list[str]  # that reached their target in the shortest schedule there is
    per: Per = Per.seed  # what the pairs are


class Judge:
    """One claim at one scale of its study, with all measurements of its arm and of the arm it is compared with.

    `noise`: metric → the noise of a pair's gain that was declared at this scale. `lacking`: what else the verdict waits for.
    """

    def __init__(
        self,
        claim: Claim,
        measurements: Iterable[Measurement],
        *,
        against: str,
        at: str,
        noise: Mapping[str, Prior] | None = None,
        lacking: Sequence[str] = (),
    ) -> None:
        self.claim, self.against, self.at, self.noise, self.lacking = claim, against, at, dict(noise or {}), list(lacking)
        self.found = {(m.arm, m.metric.name, m.repeat): m for m in measurements}
        self.per = {m.metric.name: m.per for m in self.found.values()}

    def verdict(self, look: int | None = None) -> Verdict:
        """At the last declared look or an earlier one.

        Errors:
            ValueError: a guard has no margin for the scale; the look was not declared; a ratio of numbers that are not above 0.
        """
        claim, look = self.claim, len(self.claim.looks) if look is None else look
        seeds, alpha = claim.at_look(look)
        pairs, missing = self._complete(seeds)
        missing += self.lacking
        primary, *guards = self._gains(pairs)
        share = claim.alpha / (1 + len(guards))
        each, side = claim.level(look, share), claim.level(look, share / 2)  # a guard's test, and one of the primary's two
        failed = [metric.name for metric, guard in zip(claim.metrics[1:], guards, strict=True) if guard.enough and guard.below(each)]
        word, reason = Word.inconclusive, Reason.missing if missing else Reason.sittings
        if not missing and all(gain.enough for gain in (primary, *guards)):
            word, reason = _decide(primary, guards, alpha=alpha, side=side, failed=failed)
        if word is Word.equivalent and look < len(claim.looks):
            word = Word.inconclusive
        top, bound = (None if x is None else _scaled(claim.metrics[0], claim.scale, x) for x in (claim.expected[1], claim.mechanism.bound))
        gained = primary.at_least(side) if primary.enough else -math.inf
        shown = primary.interval(2 * claim.level(look, claim.alpha / 2)) if primary.enough and primary.measured else None
        return Verdict(
            word=word,
            reason=None if word in (Word.confirmed, Word.equivalent) else reason,
            failed=failed,
            n=len(primary.least),
            look=look,
            interval=shown.exp() if shown and is_log(claim.metrics[0], claim.scale) else shown,
            exceeded=top is not None and gained > top + TIE,
            beyond_bound=bound is not None and gained > bound + TIE,
            missing=missing,
            diverged=self._ended(seeds, Ending.diverged),
            censored=self._ended(seeds, Ending.censored),
            at_most=self._ended(seeds, Ending.at_most),
            per=primary.per,
        )

    def last_complete(self) -> Verdict:
        """At the first look that decided; else at the last that has all its seeds; else what the first one misses."""
        found = self.verdict(1)
        for look in range(2, len(self.claim.looks) + 1):
            if found.word is not Word.inconclusive or found.missing:
                break
            later = self.verdict(look)
            found = found if later.missing else later
        return found

    def more(self) -> dict[str, int] | None:
        """How many more seeds, sittings or both would decide what is inconclusive, with a power of 0.9, were the means and spreads of these
        the true ones: seeds up to a declared look where one has so many. A confirmation needs every test, a refutation one. `None`: no
        affordable number would, or none can be computed (a run is missing, diverged, or never reached its target)."""
        claim, found = self.claim, self.last_complete()
        gains = [] if found.missing else self._gains(self._complete(claim.at_look(found.look)[0])[0])
        if not gains or not all(gain.measured and gain.enough for gain in gains):
            return None
        wanted = pairs_wanted(gains, alpha=claim.alpha, level=lambda alpha: claim.level(len(claim.looks), alpha))
        if wanted is None:
            return None
        have = {gain.per: len(gain.least) for gain in gains}
        more = {per: next((look for look in claim.looks if look >= n and look > have[per]), n) - have[per] for per, n in wanted.items()}
        return {per.value: n for per, n in more.items() if n > 0} or None

    def declared(self, metric: str) -> dict[str, Any] | None:
        """The noise that was declared for a metric and is used, as JSON. One arm's own value has none."""
        prior = self.noise.get(metric)
        return None if prior is None or len(self._sides(METRICS[metric])) < 2 else prior.json()

    def worse(self, metric: Metric, scale: Scale) -> Estimate | None:
        """How much worse the arm is, with a two-sided 95% interval: a guard's figure. `None` below three pairs, or where one diverged."""
        repeats, per = self.repeats(metric, self.claim.seeds), self.per.get(metric.name, Per.seed)
        rows = [[self.found.get((arm, metric.name, repeat)) for arm in (self.claim.arm, self.against)] for repeat in repeats]
        pairs = [(a.value, b.value) for a, b in rows if a and b]
        values = [(x, y) for x, y in pairs if x is not None and y is not None]
        if len(values) < (1 if per is Per.exact else LEAST_PAIRS) or len(values) < len(pairs):
            return None
        gaps = [math.log(x / y) if scale is Scale.ratio else x - y for x, y in values]
        if per is Per.exact:
            found = point(gaps[0])
        else:
            noise = noise_of(metric, scale, self.noise.get(metric.name), level=fmean(abs(x) for pair in values for x in pair))
            found = noise.interval(np.array(gaps), 0.05)
        return found.exp() if scale is Scale.ratio else found

    # --- pairs ---------------------------------------------------------------------------------------------------------------------

    def _sides(self, metric: Metric) -> list[str]:
        """Whose measurements a metric needs: a claim about a value has no baseline, its guards have one."""
        alone = metric.name == self.claim.metric and self.claim.scale is Scale.value
        return [self.claim.arm] if alone else [self.claim.arm, self.against]

    def repeats(self, metric: Metric, seeds: Sequence[int]) -> list[int]:
        """Of a metric's pairs: the seeds; of what is timed, its sittings, at an earlier look as many as that has seeds; of a count one."""
        if self.per.get(metric.name, Per.seed) is Per.seed:
            return list(seeds)
        known = sorted({repeat for _, name, repeat in self.found if name == metric.name})
        return known if len(seeds) == len(self.claim.seeds) else known[: len(seeds)]

    def _needed(self, seeds: Sequence[int]) -> list[tuple[int, Metric, str]]:
        """By repeat, then by metric."""
        needed = [(n, metric, arm) for metric in self.claim.metrics for n in self.repeats(metric, seeds) for arm in self._sides(metric)]
        return sorted(needed, key=lambda one: one[0])

    def _complete(self, seeds: Sequence[int]) -> tuple[dict[str, list[int]], list[str]]:
        """Metric → the repeats that have all measurements of their kind, and each measurement that is missing."""
        gaps = [(n, metric, arm) for n, metric, arm in self._needed(seeds) if (arm, metric.name, n) not in self.found]
        per = {metric.name: self.per.get(metric.name, Per.seed) for metric in self.claim.metrics}
        holes = {(per[metric.name], n) for n, metric, _ in gaps}
        names = [f"{metric.name} of {self._name(arm)}, {per[metric.name].value} {n}" for n, metric, arm in gaps]
        whole = {m.name: [n for n in self.repeats(m, seeds) if (per[m.name], n) not in holes] for m in self.claim.metrics}
        return whole, list(dict.fromkeys(names))

    def _ended(self, seeds: Sequence[int], ending: Ending) -> list[str]:
        needed = [(self._name(arm), self.found.get((arm, metric.name, n))) for n, metric, arm in self._needed(seeds)]
        return list(dict.fromkeys(f"{arm}, {m.per.value} {m.repeat}" for arm, m in needed if m and m.ending is ending))

    def _name(self, arm: str) -> str:
        return arm if arm == self.claim.arm else "baseline"

    def _gains(self, repeats: Mapping[str, Sequence[int]]) -> list[Gain]:
        """The primary metric's, then the guards': not worse by the margin is a gain above minus the margin."""
        claim = self.claim
        metric = METRICS[claim.metric]
        ends, wide = (_ends(metric, claim.scale, *claim.judged(self.at, slack=slack)) for slack in (False, True))
        rows = [(metric, claim.scale, ends, wide)]
        for guard in claim.guards:
            metric = METRICS[guard.metric]
            margin = (-_scaled(metric, guard.scale, guard.margin(self.at)), math.inf)
            rows.append((metric, guard.scale, margin, margin))
        gains = []
        for metric, scale, ends, wide in rows:
            sides = self._sides(metric)
            pairs = [[self.found[arm, metric.name, n] for arm in sides] for n in repeats[metric.name]]
            ranges = [_pair(metric, scale, *pair) for pair in pairs]
            noise = noise_of(metric, scale, self.noise.get(metric.name), level=_level(pairs))
            least, most, per = [x for x, _ in ranges], [x for _, x in ranges], self.per.get(metric.name, Per.seed)
            gains.append(Gain(least=least, most=most, ends=ends, wide=wide, noise=noise, per=per))
        return gains


def _decide(primary: Gain, guards: Sequence[Gain], *, alpha: float, side: float, failed: Sequence[str]) -> tuple[Word, Reason]:
    if primary.below(side):
        return Word.refuted, Reason.below
    if primary.above(side):
        return Word.refuted, Reason.exceeded
    if failed:
        return Word.refuted, Reason.guard
    if all(guard.inside(alpha, ends=guard.ends) for guard in guards):
        if primary.inside(alpha, ends=primary.ends):
            return Word.confirmed, Reason.undecided
        if primary.inside(alpha, ends=primary.wide):
            return Word.equivalent, Reason.undecided
    return Word.inconclusive, Reason.undecided


def _pair(metric: Metric, scale: Scale, arm: Measurement, baseline: Measurement | None = None) -> tuple[float, float]:
    """The least and the most that one pair's gain can be."""
    endings = [one.ending for one in (arm, baseline) if one is not None]
    bounded = any(ending in (Ending.censored, Ending.at_most) for ending in endings)
    require(not bounded or metric.name in TO_TARGET, metric.name, "be about a target to be censored", arm.value)
    if baseline is None:
        if arm.value is None:
            return -math.inf, math.inf  # a value has no worst
        value = _scaled(metric, scale, arm.value)
        return -math.inf if arm.ending is Ending.at_most else value, math.inf if arm.ending is Ending.censored else value
    if baseline.value is None:
        return -math.inf, math.inf
    if arm.value is None:
        return -math.inf, -math.inf
    better, worse = (arm.value, baseline.value) if metric.better is Better.higher else (baseline.value, arm.value)
    gain = _scaled(metric, scale, better) - _scaled(metric, scale, worse)
    least_unknown = arm.ending is Ending.censored or baseline.ending is Ending.at_most
    most_unknown = arm.ending is Ending.at_most or baseline.ending is Ending.censored
    return -math.inf if least_unknown else gain, math.inf if most_unknown else gain


def _scaled(metric: Metric, scale: Scale, x: float) -> float:
    if not is_log(metric, scale):
        return x
    require(x > 0, metric.name, f"be above 0 for a {scale.value}", x)
    return math.log(x)


def _ends(metric: Metric, scale: Scale, low: float | None, high: float | None) -> tuple[float, float]:
    """An open end is endless."""
    return -math.inf if low is None else _scaled(metric, scale, low), math.inf if high is None else _scaled(metric, scale, high)


def _level(pairs: Sequence[Sequence[Measurement]]) -> float:
    """How large a metric is in these pairs; 1 where nothing was measured."""
    values = [abs(m.value) for pair in pairs for m in pair if m.value]
    return fmean(values) if values else 1.0
