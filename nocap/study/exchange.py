"""The exchange rate between steps and loss, and what it makes of an arm that is faster and worse, or slower and better.

The baseline at several lengths, each with its own whole decay, gives the loss that a logarithm of steps buys. Between its two longest: the
curve flattens, and what an arm may trade is what the last steps are worth.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from nocap.judge import stats
from nocap.judge.claim import LEAST_PAIRS
from nocap.study.evidence import Evidence, steps_of
from nocap.study.spec import Study

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


def rate(study: Study, evidence: Evidence) -> ExchangeRate | None:
    """`None`: fewer than two lengths or three seeds of the baseline."""
    slopes: dict[tuple[int, int], list[float]] = {}
    for (arm, seed), run in evidence.runs.items():
        if arm != study.baseline:
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


def equivalent(study: Study, evidence: Evidence, found: ExchangeRate) -> dict[str, dict[str, Any]]:
    """Arm → its equivalent speedup: the baseline with so much faster steps would do as well.

    Steps count at the arm's measured pace, loss at the exchange rate; the interval has the noise of both, the rate's by the delta method.
    """
    if found.low <= 0:
        return {}
    speedups = {}
    for arm in study.trained:
        if arm == study.baseline:
            continue
        pairs = [pair for seed in study.seeds if (pair := _pair(study, evidence, arm, seed)) is not None]
        diverged = any(run.status == "diverged" for (name, _), run in evidence.runs.items() if name in (arm, study.baseline))
        if len(pairs) < LEAST_PAIRS or diverged:  # a diverged run is infinitely bad: it may not be left out
            continue
        gains = stats.interval([speed - worse / found.mean for speed, worse in pairs])
        worse = fmean(worse for _, worse in pairs)
        half = math.hypot(gains.high - gains.mid, abs(worse) / found.mean**2 * (found.high - found.mean))
        speedups[arm] = {
            "mid": math.exp(gains.mid),
            "low": math.exp(gains.mid - half),
            "high": math.exp(gains.mid + half),
            "speed": math.exp(fmean(speed for speed, _ in pairs)),
            "worse": worse,
            "n": len(pairs),
        }
    return speedups


def _pair(study: Study, evidence: Evidence, arm: str, seed: int) -> tuple[float, float] | None:
    """Log of the arm's speed over the baseline's, and by how many nats it ends higher."""
    mine, theirs = (evidence.runs.get((name, seed)) for name in (arm, study.baseline))
    seen = [evidence.seen("pace", name, seed) for name in (arm, study.baseline)]
    speeds = [one["tokens_per_s"] for one in seen if one and one["tokens_per_s"]]
    if mine is None or theirs is None or mine.val_loss is None or theirs.val_loss is None or len(speeds) < 2:
        return None
    return math.log(speeds[0] / speeds[1]), mine.val_loss - theirs.val_loss


def exchange(study: Study, evidence: Evidence) -> Mapping[str, Any] | None:
    """As JSON: the rate, the break-even and each arm's equivalent speedup."""
    found = rate(study, evidence)
    if found is None:
        return None
    break_even = {"faster": BREAK_EVEN, "may_cost": found.buys(BREAK_EVEN)}
    return {"rate": asdict(found), "break_even": break_even, "equivalent": equivalent(study, evidence, found)}
