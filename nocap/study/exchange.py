"""The exchange rate between steps and loss, and what it makes of an arm that is faster and worse, or slower and better.

The baseline at several lengths, each with its own whole decay, gives the loss that a logarithm of steps buys. Between its two longest: the
curve flattens, and what an arm may trade is what the last steps are worth. A margin that is stated as a share of steps is translated by it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, replace
from statistics import fmean
from typing import Any

from nocap.judge import stats
from nocap.judge.claim import LEAST_PAIRS, Claim
from nocap.judge.margin import share_of_steps
from nocap.study.evidence import Evidence, steps_of
from nocap.study.spec import At, Study

BREAK_EVEN = 0.07  # the step that a third of key/value heads saves at d12, by arithmetic


@dataclass(frozen=True, kw_only=True, slots=True)
class ExchangeRate:
    """Nats that a run e times as long ends lower, with its 95% t-interval over seeds."""

    mean: float
    low: float
    high: float
    n: int
    steps: list[int]  # the two lengths it lies between

    def buys(self, faster: float) -> float:
        """The loss that a step so much faster (0.07: 7%) may cost at most."""
        return self.mean * math.log1p(faster)


def rate(study: Study, evidence: Evidence, *, seeds: Collection[int] | None = None) -> ExchangeRate | None:
    """`None`: fewer than two lengths or three seeds of the baseline. `seeds`: over these alone."""
    slopes: dict[tuple[int, int], list[float]] = {}
    for (arm, seed), run in evidence.runs.items():
        if arm != study.baseline or (seeds is not None and seed not in seeds):
            continue
        runs = [*evidence.shorter.get((arm, seed), {}).values(), run]
        ends = sorted((steps_of(r), r.val_loss) for r in runs if r.val_loss is not None and r.status == "finished")
        if len(ends) >= 2:
            (short, high), (long, low) = ends[-2:]
            slopes.setdefault((short, long), []).append((high - low) / math.log(long / short))
    if len(slopes) != 1:
        return None
    (steps, values), *_ = slopes.items()
    if len(values) < LEAST_PAIRS:
        return None
    found = stats.interval(values)
    return ExchangeRate(mean=found.mid, low=found.low, high=found.high, n=len(values), steps=list(steps))


def translated(claim: Claim, study: Study, at: str, evidence: Evidence) -> tuple[Claim, list[str]]:
    """The claim with every margin of this scale as a number, and what is missing for that: then shares of steps are worth nothing.

    A declared rate is used as declared. A measured one is that of the seeds of the claim's first look, so that a later look has the same
    margins.
    """
    shares, lacking = claim.shares_of_steps(at), list[str]()
    if not shares:
        return claim, lacking
    nats = _nats(claim, study, study.scales[at], evidence)
    if nats is None:
        lacking.append(f"the exchange rate of {study.baseline}, at three seeds and above 0, for a margin in steps")

    def number(margin: float | str) -> float:
        share = share_of_steps(margin)
        return float(margin) if share is None else (nats or 0.0) * math.log1p(share)

    def at_this(margins: Mapping[str, float | str]) -> dict[str, float | str]:
        return {name: number(margin) if name == at else margin for name, margin in margins.items()}

    guards = [replace(guard, margins=at_this(guard.margins)) for guard in claim.guards]
    return replace(claim, slack=at_this(claim.slack), guards=guards), lacking


def _nats(claim: Claim, study: Study, at: At, evidence: Evidence) -> float | None:
    """For e times the steps; `None`: not measured, or its interval holds 0."""
    if at.exchange is not None:
        return at.exchange
    found = rate(study, evidence, seeds=claim.at_look(1)[0])
    return found.mean if found is not None and found.low > 0 else None


def equivalent(study: Study, evidence: Evidence, found: ExchangeRate) -> dict[str, dict[str, Any]]:
    """Arm → its equivalent speedup: the baseline with so much faster steps would do as well.

    Steps count at the arm's measured pace, a sitting's, and loss, a seed's, at the exchange rate; the interval has the noise of all three.
    """
    if found.low <= 0:
        return {}
    speedups = {}
    for arm in study.trained:
        if arm == study.baseline:
            continue
        lower, speeds = _lower(study, evidence, arm), _speeds(evidence, arm, study.baseline)
        diverged = any(run.status == "diverged" for (name, _), run in evidence.runs.items() if name in (arm, study.baseline))
        if min(len(lower), len(speeds)) < LEAST_PAIRS or diverged:  # a diverged run is infinitely bad: it may not be left out
            continue
        gain, speed = stats.interval(lower), stats.interval(speeds)
        total = speed.plus(gain.over(stats.Estimate(mid=found.mean, low=found.low, high=found.high, n=found.n))).exp()
        speedups[arm] = {**total.ends(), "speed": speed.exp().mid, "worse": -gain.mid, "n": total.n}
    return speedups


def _lower(study: Study, evidence: Evidence, arm: str) -> list[float]:
    """By how many nats the arm ends lower than the baseline, a seed's."""
    sides = [[evidence.runs.get((name, seed)) for name in (study.baseline, arm)] for seed in study.seeds]
    return [a.val_loss - b.val_loss for a, b in sides if a and b and a.val_loss is not None and b.val_loss is not None]


def _speeds(evidence: Evidence, arm: str, baseline: str) -> list[float]:
    """The logarithm of its speed over the baseline's, a sitting's."""
    speeds: dict[int, list[float]] = {}
    theirs = {id(one.session): one.seen["tokens_per_s"] for one in evidence.held("pace", baseline)}
    for one in evidence.held("pace", arm):
        if one.seen["tokens_per_s"] and theirs.get(id(one.session)):
            speeds.setdefault(one.sitting, []).append(math.log(one.seen["tokens_per_s"] / theirs[id(one.session)]))
    return [fmean(of) for of in speeds.values()]


def exchange(study: Study, evidence: Evidence) -> Mapping[str, Any] | None:
    """As JSON: the rate, the break-even and each arm's equivalent speedup."""
    found = rate(study, evidence)
    if found is None:
        return None
    break_even = {"faster": BREAK_EVEN, "may_cost": found.buys(BREAK_EVEN)}
    return {"rate": asdict(found), "break_even": break_even, "equivalent": equivalent(study, evidence, found)}
