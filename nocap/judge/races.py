"""The judge of a race: rows of anybody's commands and a question in, a word for each arm out.

Each repeat ran every arm once, with one seed. The arms are judged after 3, 6, 12, … repeats and at
no other number. What the commands print has the textbook's interval for all arms together
(`nocap.judge.interval`). What they cost is compared as a ratio and has the cautious interval
(`nocap.judge.cautious_interval`); where the repeats lie in several sessions, a session is what
repeats it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from nocap.judge import cautious_interval
from nocap.judge.arm_mean import ArmMean
from nocap.judge.cautious_interval import CLOCK_BIAS
from nocap.judge.claim import TO_TARGET
from nocap.judge.differences import Difference, DifferenceWord, word_of_interval
from nocap.judge.interval import (
    LEAST_PAIRS,
    ROUNDING,
    Estimate,
    Position,
    alike,
    analyses,
    analysis_of,
    of_arms,
    of_arms_apart,
    subtract,
)
from nocap.judge.time_to_target import TargetCrossing, too_coarse, widening
from nocap.judge.verdict import ClaimWord, Reason, word_of_positions
from nocap.metrics import METRICS, Better, Kind, Metric
from nocap.store.measurement import Measurement

NOT_REACHED = "a run never reached the target, or was there at its start"
IGNORES_SEED = "n=1: all repeats give the same number, so the commands seem to ignore the seed"


@dataclass(frozen=True, kw_only=True, slots=True)
class Limit:
    """A metric that may be worse than the baseline's by no more than `margin`, in its unit."""

    metric: Metric
    margin: float


@dataclass(frozen=True, kw_only=True, slots=True)
class RaceQuestion:
    """What is asked of arms that took turns."""

    arms: Sequence[str]  # the baseline first
    metrics: Sequence[Metric]  # that the commands print; the first one decides
    limits: Sequence[Limit] = ()
    costs: Sequence[Metric] = ()
    expect: tuple[float, float] | None = None  # what the gain in the first metric is said to be
    paired: bool = True  # the commands take the seed
    repeats: int  # that are planned
    sessions: int = 1  # in which they lie

    @property
    def baseline(self) -> str:
        return self.arms[0]

    @property
    def printed(self) -> list[Metric]:
        """List all that is read from what the commands print: what is compared, and what has a
        limit."""
        return [*self.metrics, *(limit.metric for limit in self.limits)]

    def session(self, repeat: int) -> int:
        """Return the session of a repeat; both count from 0."""
        return repeat * self.sessions // self.repeats

    def has_verdict(self, cost: Metric) -> bool:
        """Say whether a cost gets a word: a clock's needs three sessions."""
        return cost.kind is not Kind.clock or self.sessions >= LEAST_PAIRS


@dataclass(frozen=True, kw_only=True, slots=True)
class RaceRows:
    """What the arms did. Each arm's measurements stand in the order of its repeats."""

    measurements: Sequence[Measurement]  # one that is refused never came to the target
    # arm and metric → of each repeat, between which points of its curve it came to the target
    crossings: Mapping[tuple[str, str], Sequence[TargetCrossing]] = field(default_factory=dict)

    def values(self, arm: str, metric: Metric) -> list[float]:
        """Return a number for each repeat; infinite where it never came to the target."""
        name = metric.name
        return [
            _number(each)
            for each in self.measurements
            if each.arm == arm and each.metric.name == name
        ]

    def ignores_seed(self, question: RaceQuestion) -> bool:
        """Say whether the repeats of all arms are equal to rounding: the commands take no seed, and
        more of them would say nothing. Two may be equal in the digits that were printed, so a third
        decides."""
        repeats = [self.values(arm, question.metrics[0]) for arm in question.arms]
        return all(len(values) >= LEAST_PAIRS and alike(values) for values in repeats)


def _number(measurement: Measurement) -> float:
    return math.inf if measurement.value is None else measurement.value


@dataclass(frozen=True, kw_only=True, slots=True)
class RacedArm:
    """An arm beside the baseline."""

    name: str
    word: DifferenceWord | ClaimWord
    reason: Reason | None  # None: the interval of the gain says it all
    guard: str  # the first metric that is beyond its limit, or else that may be; "": none
    gain: Estimate  # in the first metric, over all repeats of the last analysis
    guards: Mapping[str, Estimate]  # metric that has a limit → gain in it, over the same repeats
    # metric → ratio, over the same repeats; above 1 the arm costs less
    costs: Mapping[str, Difference]
    # metric → over the repeats that count: a gain, of a cost such a ratio
    measured: Mapping[str, ArmMean]
    ignores_seed: bool  # of its repeats only one counts

    @property
    def reason_text(self) -> str:
        """Say why it has its word; nothing where its gain says it."""
        if self.ignores_seed:
            return IGNORES_SEED
        if self.word is DifferenceWord.undecided:
            return f"n={self.gain.n}"
        if self.guard:
            return f"guard {self.guard}"
        return "" if self.reason is None else self.reason.value

    @property
    def word_with_reason(self) -> str:
        """Return the word with its reason."""
        reason = self.reason_text
        return f"{self.word.value} ({reason})" if reason else self.word.value

    @property
    def is_decided(self) -> bool:
        return not self.word.may_change


@dataclass(frozen=True, kw_only=True, slots=True)
class RaceResult:
    """What arms that took turns show."""

    n: int  # repeats that count: those of the last analysis, or 1 where a command ignores its seed
    ignores_seed: bool
    baseline: Mapping[str, ArmMean]  # metric → its mean
    arms: tuple[RacedArm, ...]  # without the baseline

    @property
    def is_decided(self) -> bool:
        return all(arm.is_decided for arm in self.arms)


def judge(rows: RaceRows, question: RaceQuestion) -> RaceResult:
    """Judge each arm at the last analysis that the repeats allow. Too few for one have gains
    without an interval."""
    repeats = len(rows.values(question.baseline, question.metrics[0]))
    look = analysis_of(repeats)
    n_judged = analyses()[look - 1] if look else repeats
    ignores_seed = rows.ignores_seed(question)
    full = _Repeats(rows=rows, question=question, n=n_judged)
    # equal repeats are one value: means and gains are then shown of the first alone
    independent = _Repeats(rows=rows, question=question, n=1) if ignores_seed else full
    arms = list[RacedArm]()
    for name in question.arms[1:]:
        arms.append(_judge_arm(name, full, independent))
    return RaceResult(
        n=independent.n,
        ignores_seed=ignores_seed,
        baseline=independent.means(question.baseline),
        arms=tuple(arms),
    )


def _judge_arm(name: str, full: _Repeats, independent: _Repeats) -> RacedArm:
    """Judge an arm. `full`: the repeats of the analysis; `independent`: those that count."""
    question = full.question
    metric = question.metrics[0]
    gain = full.gain(name, metric)
    guards = {limit.metric.name: full.gain(name, limit.metric) for limit in question.limits}
    costs = {cost.name: full.judged_cost(name, cost) for cost in question.costs}
    ignores_seed = independent.n < full.n
    if ignores_seed:
        word, reason, guard = _without_interval()
    else:
        sizes = map(abs, [*full.values(name, metric), *full.values(question.baseline, metric)])
        word, reason, guard = _word_of_gain(question, gain, guards, tie=ROUNDING * max(sizes))
    return RacedArm(
        name=name,
        word=word,
        reason=reason,
        guard=guard,
        gain=gain,
        guards=guards,
        costs=costs,
        measured=independent.measured(name),
        ignores_seed=ignores_seed,
    )


# --- the word -------------------------------------------------------------------------------------

# a word, its reason, and the metric that is beyond its limit
_Judgement = tuple[DifferenceWord | ClaimWord, Reason | None, str]


def _without_interval() -> _Judgement:
    return DifferenceWord.undecided, None, ""


def _word_of_gain(
    question: RaceQuestion, gain: Estimate, guards: Mapping[str, Estimate], *, tie: float
) -> _Judgement:
    """Return the word for a gain. It is *better* only where each guard clears its limit."""
    if not math.isfinite(gain.high):
        return _without_interval()
    positions = [
        guards[limit.metric.name].position(-limit.margin, math.inf) for limit in question.limits
    ]
    guard = _first_at(question.limits, positions, Position.below) or _first_at(
        question.limits, positions, Position.across
    )
    if question.expect is not None:
        position = gain.position(*question.expect, tie=tie)
        claim_word, reason = word_of_positions(position, positions)
        return claim_word, reason, guard
    if Position.below in positions:
        return DifferenceWord.worse, Reason.guard, guard
    word = word_of_interval(gain, tie=tie)
    if guard and word is DifferenceWord.better:
        return DifferenceWord.unclear, Reason.guard, guard
    return word, None, ""


def _first_at(limits: Sequence[Limit], positions: Sequence[Position], side: Position) -> str:
    """Name the first metric whose gain lies there to its limit; nothing where none does."""
    for limit, position in zip(limits, positions, strict=True):
        if position is side:
            return limit.metric.name
    return ""


# --- gains ----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class _Repeats:
    """The first `n` repeats of all arms."""

    rows: RaceRows
    question: RaceQuestion
    n: int

    def values(self, arm: str, metric: Metric) -> list[float]:
        return self.rows.values(arm, metric)[: self.n]

    def gain(self, arm: str, metric: Metric) -> Estimate:
        """Return by how much an arm is better in what it prints, in the metric's unit, with an
        interval for all arms together."""
        others = self.question.arms[1:]
        base = self._ascending(self.question.baseline, metric)
        own = [self._ascending(name, metric) for name in others]
        look = max(1, analysis_of(self.n))
        if self.question.paired:
            estimates = of_arms([subtract(row, base) for row in own], look=look)
        else:
            estimates = of_arms_apart(base, own, look=look)
        return estimates[others.index(arm)]

    def _ascending(self, arm: str, metric: Metric) -> list[float]:
        """Return an arm's values, with the sign by which more is better."""
        sign = _sign(metric)
        return [sign * x for x in self.values(arm, metric)]

    def judged_cost(self, arm: str, cost: Metric) -> Difference:
        """Return the ratio of a cost with its word."""
        gain = self.cost(arm, cost)
        word = (
            word_of_interval(gain) if self.question.has_verdict(cost) else DifferenceWord.undecided
        )
        return Difference(estimate=gain.exp(), word=word)

    def cost(self, arm: str, cost: Metric) -> Estimate:
        """Return how much less an arm costs than the baseline: the logarithm of the ratio. It has
        no middle where that is not known, and its method says why."""
        base = self.question.baseline
        if not _have_logarithms([*self.values(arm, cost), *self.values(base, cost)]):
            return self._unknown(NOT_REACHED)
        bias = CLOCK_BIAS if cost.kind is Kind.clock else 0.0
        if cost.name in TO_TARGET:
            steps = METRICS["steps_to_target"]
            own_steps = self._crossings(arm, steps)
            base_steps = self._crossings(base, steps)
            if not _have_logarithms([*_crossing_points(own_steps), *_crossing_points(base_steps)]):
                return self._unknown(NOT_REACHED)
            in_steps = self._log_ratio(
                _crossing_points(own_steps), _crossing_points(base_steps), steps
            ).exp()
            why = too_coarse(own_steps, base_steps, in_steps)
            if why is not None:
                return self._unknown(why)
            bias += widening(self._crossings(arm, cost), self._crossings(base, cost))
        return self._log_ratio(self.values(arm, cost), self.values(base, cost), cost, bias=bias)

    def _crossings(self, arm: str, metric: Metric) -> Sequence[TargetCrossing]:
        return self.rows.crossings[arm, metric.name][: self.n]

    def _unknown(self, why: str) -> Estimate:
        return Estimate(mid=math.nan, low=-math.inf, high=math.inf, n=self.n, method=why)

    def _log_ratio(
        self, own: Sequence[float], base: Sequence[float], cost: Metric, *, bias: float = 0.0
    ) -> Estimate:
        """Return the logarithm of the ratio of two sides, above 0 where the arm's is better."""
        sign = _sign(cost)
        differences = subtract(self._by_session(own), self._by_session(base))
        pairs = [sign * each for each in differences]
        return cautious_interval.of_pairs(
            pairs,
            bias=bias,
            analysis=max(1, analysis_of(len(pairs))),
            comparisons=len(self.question.arms) - 1,
        )

    def _by_session(self, values: Sequence[float]) -> list[float]:
        """Return the logarithms of values, repeat by repeat; where there are several sessions the
        mean of each."""
        logs = [math.log(x) for x in values]
        if self.question.sessions == 1:
            return logs
        by_session: dict[int, list[float]] = {}
        for repeat, log in enumerate(logs):
            by_session.setdefault(self.question.session(repeat), []).append(log)
        return [fmean(each) for each in by_session.values()]

    # --- as they are shown

    def means(self, arm: str) -> dict[str, ArmMean]:
        """Return an arm's mean in each metric."""
        metrics = [*self.question.printed, *self.question.costs]
        return {metric.name: ArmMean(mean=self._mean(arm, metric)) for metric in metrics}

    def measured(self, arm: str) -> dict[str, ArmMean]:
        """Return an arm's mean in each metric, and what it gains over the baseline; of a cost that
        gets a word its ratio."""
        rows = self.means(arm)
        for metric in self.question.printed:
            rows[metric.name] = ArmMean(
                mean=rows[metric.name].mean, estimate=self.gain(arm, metric)
            )
        for cost in self.question.costs:
            if self.question.has_verdict(cost):
                rows[cost.name] = _shown(rows[cost.name].mean, self.cost(arm, cost))
        return rows

    def _mean(self, arm: str, metric: Metric) -> float | None:
        mean = fmean(self.values(arm, metric))
        return mean if math.isfinite(mean) else None


def _shown(mean: float | None, gain: Estimate) -> ArmMean:
    if math.isnan(gain.mid):
        return ArmMean(mean=mean, refused=gain.method)
    return ArmMean(mean=mean, estimate=gain.exp())


def _sign(metric: Metric) -> int:
    """Return what makes more of it better."""
    return 1 if metric.better is Better.higher else -1


def _have_logarithms(values: Sequence[float]) -> bool:
    return min(values) > 0 and all(map(math.isfinite, values))


def _crossing_points(crossings: Sequence[TargetCrossing]) -> list[float]:
    return [crossing.at for crossing in crossings]
