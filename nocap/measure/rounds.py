"""The verdicts of a bench, from measurements of interleaved rounds: each arm's speed over the baseline's, and whether the control, which is
the baseline again, shows a machine quiet enough for a verdict.

A round gives one log ratio an arm, to the baseline's second instance: what is built and timed first has come out 0.5 to 1% slow, and the
first instance is only there to show it. Their centre and interval come from Wilcoxon's signed ranks: a round that the machine spoilt is an
outlier, and those are common; for equal arms the log ratio is symmetric because the two can be exchanged, which is all that the test asks
for. (To the mean of both instances it would not be: noise slows and never quickens.) All of this is of one sitting. Rounds go on
until the intervals are narrow enough. Their width does not depend on where they lie, so that stopping on it leaves the level nearly
alone; 99% instead of 95% pays for the rest, and for rounds that resemble their neighbours (`tests/test_speed.py` simulates both).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from nocap.config.trainer import Device
from nocap.judge.interval import Array, Estimate
from nocap.store.measurement import Measurement

LIMIT = {
    Device.cpu: 0.03,
    Device.cuda: 0.005,
}  # largest half-width of an interval that a verdict may rest on, and largest bias of the control


def speed_over(arm: Mapping[str, Any], other: Mapping[str, Any], *, confidence: float) -> Estimate:
    """Of two arms in a bench's JSON: tokens/s of one over the other's, round by round."""
    mine, theirs = (np.log(np.mean(one["seconds_per_token"], axis=1)) for one in (arm, other))
    return signed_rank(theirs - mine, confidence=confidence).exp()


def confidence_for(comparisons: int) -> float:
    """Of each interval: 99%, more where more than five comparisons share an error of 5% (Bonferroni); also where the baseline is alone."""
    return 1 - min(0.01, 0.05 / max(1, comparisons))


Rounds = Sequence[Sequence[Measurement]]  # of each arm its tokens/s, a value a round; the baseline and its control come first


@dataclass(frozen=True, kw_only=True)
class SpeedVerdict:
    """The verdict on an arm. `ratio` is a speed: above 1 the arm makes more tokens a second; `None` with too few rounds."""

    word: str
    ratio: Estimate | None
    half_width: float | None  # of the ratio's logarithm


@dataclass(frozen=True, kw_only=True)
class Judged:
    """The control first, then each arm that is not the baseline."""

    control: SpeedVerdict
    arms: list[SpeedVerdict]
    narrow: bool  # every interval is within the limit


class Narrow:
    """Whether the rounds so far make every interval narrow enough for a verdict. Looks again after a tenth more rounds."""

    def __init__(self, *, limit: float, confidence: float) -> None:
        self.limit, self.confidence = limit, confidence
        self._look = signed_rank_needs(confidence)

    def __call__(self, rounds: Rounds) -> bool:
        n = len(rounds[0])
        if n < self._look:
            return False
        self._look = math.ceil(1.1 * n)
        return judge(rounds, limit=self.limit, confidence=self.confidence).narrow


def judge(rounds: Rounds, *, limit: float, confidence: float) -> Judged:
    """Verdicts of the arms at index 2 and up against the baseline, whose two instances are at 0 and 1."""
    logs = -np.log(np.array([[one.value for one in arm] for arm in rounds], dtype=np.float64).T)  # of a token's time
    if len(logs) < signed_rank_needs(confidence):
        none = SpeedVerdict(
            word=f"no verdict: {len(logs)} rounds, and an interval needs {signed_rank_needs(confidence)}", ratio=None, half_width=None
        )
        return Judged(control=none, arms=[none] * (logs.shape[1] - 2), narrow=False)
    control = signed_rank(logs[:, 0] - logs[:, 1], confidence=confidence)
    problem = _problem(control, limit)
    measured = [signed_rank(logs[:, 1] - arm, confidence=confidence) for arm in logs.T[2:]]
    words = [problem or _word(interval, control=control, limit=limit) for interval in measured]
    return Judged(
        control=_verdict(problem or "in order", control),
        arms=[_verdict(word, interval) for word, interval in zip(words, measured, strict=True)],
        narrow=all(interval.half_width <= limit for interval in [control, *measured]),
    )


def _problem(control: Estimate, limit: float) -> str | None:
    """Why the same arm twice forbids any verdict."""
    if control.half_width > limit:
        return f"no verdict: the machine is too noisy (the baseline against itself ±{control.half_width:.1%}, the limit is ±{limit:.1%})"
    if abs(control.mid) > limit and not control.low <= 0 <= control.high:
        return f"no verdict: the machine is too noisy (the baseline against itself is off by {control.mid:+.1%}, the limit is {limit:.1%})"
    return None


def _word(log_ratio: Estimate, *, control: Estimate, limit: float) -> str:
    """An arm must differ by more than the baseline does from itself."""
    if log_ratio.half_width > limit:
        return f"no verdict: the machine is too noisy (±{log_ratio.half_width:.1%}, the limit is ±{limit:.1%})"
    bias = 0.0 if control.low <= 0 <= control.high else abs(control.mid)
    if log_ratio.low > bias:
        return "faster"
    return "slower" if log_ratio.high < -bias else "no difference shown"


def _verdict(word: str, log_ratio: Estimate) -> SpeedVerdict:
    ratio = log_ratio.exp()
    return SpeedVerdict(word=word, ratio=ratio, half_width=log_ratio.half_width)


# --- signed ranks -------------------------------------------------------------------------------------------------------------------


def signed_rank(values: Sequence[float] | Array, *, confidence: float = 0.95) -> Estimate:
    """The centre of symmetric noise, whatever its tails: the median of all pairs' means, and Wilcoxon's test turned into an interval.

    Exact at any size for independent values (Hodges & Lehmann 1963; Hollander, Wolfe & Chicken, 3.2–3.3). An outlier moves it by one rank.

    Errors:
        ValueError: so few values have no interval at this confidence.
    """
    array = np.asarray(values, dtype=np.float64)
    outside = _ranks_outside(len(array), confidence)
    if not outside:
        raise ValueError(f"an interval at {confidence:g} needs at least {signed_rank_needs(confidence)} values, got {len(array)}")
    means = np.sort(((array[:, None] + array) / 2)[np.triu_indices(len(array))])
    low, high = float(means[outside - 1]), float(means[-outside])
    return Estimate(mid=float(np.median(means)), low=low, high=high, n=len(array), method="signed ranks")


def signed_rank_needs(confidence: float) -> int:
    """The least number of values with an interval at this confidence: at n values the widest one misses with 2/2ⁿ."""
    return math.ceil(math.log2(2 / (1 - confidence)) - 1e-9)


@cache
def _ranks_outside(n: int, confidence: float) -> int:
    """How many of the pairs' means the interval leaves out at each end: the largest k with P(W < k) ≤ (1 − confidence)/2."""
    chances = np.ones(1)  # of the signed-rank sum W: each rank joins or not, evenly
    for rank in range(1, n + 1):
        chances = (np.pad(chances, (0, rank)) + np.pad(chances, (rank, 0))) / 2
    return int(np.searchsorted(np.cumsum(chances), (1 - confidence) / 2 + 1e-12, side="right"))
