"""A claim: what an arm is expected to gain, with its guards. Written down before the runs, and
judged by `judge.verdict`.

An effect is always a gain: as a ratio, how many times better than the baseline the arm is; as a
difference, by how much. 1.25 is 25% more tokens/s, or a step in 80% of the time. Only what is a
ratio to the baseline's by itself, the time at equal loss, is stated as it is: 0.94 is a gain. A
guard's margin is how much worse the arm may be. A study has scales of its own (`cpu`, `gpu`), and
each has its own margins.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from enum import Enum

from nocap.config.keys import require
from nocap.judge.interval import LEAST_PAIRS
from nocap.metrics import METRICS, Better, Metric, Scale, is_log
from nocap.step_parts import HELD, PARTS

TO_TARGET = ("time_to_target_s", "steps_to_target")
AT_EQUAL_LOSS = "time_at_equal_loss"
BASELINE = "baseline"  # the one target
TEXTS = ("id", "statement", "source", "arm")  # of a claim
NOT_CLAIMABLE = ("clock", "command")  # of what makes a metric: neither takes turns with other arms
CLAIMABLE = [name for name, metric in METRICS.items() if metric.made_by not in NOT_CLAIMABLE]


@dataclass(kw_only=True, slots=True)
class Guard:
    """What the gain may not cost."""

    metric: str
    scale: Scale
    # scale of the study → how much worse the arm may be: 1.01 as a ratio, 0.005 as a difference
    margins: dict[str, float]

    def __post_init__(self) -> None:
        check_metric("guard metric", self.metric)
        metric = METRICS[self.metric]
        is_graded = metric.better is not Better.neither
        self._require(is_graded, "", "be about a metric that can be better or worse", self.metric)
        scale = self.scale
        self._require(scale is not Scale.value, ".scale", "be ratio or difference", scale.value)
        fits = scale is Scale.ratio or not metric.relative
        self._require(fits, ".scale", f"be ratio for {self.metric}", scale.value)
        form = "name a scale of the study, as in {cpu: 0.02}"
        self._require(bool(self.margins), ".margins", form, self.margins)
        least = 1.0 if scale is Scale.ratio else 0.0
        limit = f"be a finite number of at least {least:g} for a {scale.value}"
        for name, margin in self.margins.items():
            self._require(least <= margin < math.inf, f".margins.{name}", limit, margin)

    def _require(self, ok: bool, key: str, rule: str, value: object) -> None:
        require(ok, f"guard {self.metric}{key}", rule, value)

    def margin(self, at: str) -> float:
        """Return the margin for a scale of the study.

        Errors:
            ValueError: none was declared for it.
        """
        self._require(
            at in self.margins, ".margins", f"name the scale {at}", ", ".join(self.margins)
        )
        return self.margins[at]


class Rule(Enum):
    """How a bound is computed from the two arms; every bound is a ratio, baseline over arm."""

    given = "given"  # the number in the claim, or none
    flops = "flops"  # of a training token, or of the claim's `parts` of it
    params = "params"
    memory = "memory"  # parameters, gradients, optimizer state, and what a forward keeps
    kv = "kv"  # cache bytes per token
    amdahl = "amdahl"  # the measured step without the mechanism's parts: 1 / (1 - their share)


class Threshold(Enum):
    """Whose number `expected` is."""

    source = "source"  # the claim's own
    project = "project"  # this project's, where the source gives none


@dataclass(kw_only=True, slots=True)
class Mechanism:
    """Why the gain is possible: the most that arithmetic allows, on the primary metric's scale, and
    how that is computed."""

    rule: Rule = Rule.given
    # for `given`; null where arithmetic sets no bound, and the formula says why
    bound: float | None = None
    parts: list[str] = field(default_factory=list)  # for `amdahl`
    # of these parts: how much of one is saved, where it is not all of it
    saved: dict[str, float] = field(default_factory=dict)
    formula: str

    def __post_init__(self) -> None:
        bound = self.bound
        self._require(
            bound is None or math.isfinite(bound), "bound", "be a finite number or null", bound
        )
        fits = bound is None or self.rule is Rule.given
        self._require(
            fits, "bound", f"be null, because the rule {self.rule.value} computes the bound", bound
        )
        has_parts = bool(self.parts)
        needs_parts = self.rule is Rule.amdahl
        self._require(
            has_parts == needs_parts,
            "parts",
            "be set with the rule amdahl, and only with this rule",
            self.parts,
        )
        _require_known("mechanism.parts", self.parts, PARTS)
        _require_known("mechanism.saved", self.saved, self.parts)
        are_shares = all(0 < share < 1 for share in self.saved.values())
        share_rule = "be above 0 and below 1; a part that is not named is saved completely"
        self._require(are_shares, "saved", share_rule, self.saved)
        has_formula = bool(self.formula.strip())
        self._require(
            has_formula, "formula", "say in words where the bound comes from", repr(self.formula)
        )

    def _require(self, ok: bool, key: str, rule: str, value: object) -> None:
        require(ok, f"mechanism.{key}", rule, value)


@dataclass(kw_only=True, slots=True)
class Claim:
    """An expected gain with its guards. Seeds name pairs: of runs, or of timing sessions."""

    id: str
    statement: str
    source: str
    arm: str
    baseline: str | None = None  # another arm; null: the study's, or none for a value
    metric: str  # the primary one
    parts: list[str] = field(default_factory=list)  # of the step, for the metrics of a profile
    of: list[str] = field(default_factory=list)  # for a share: of these parts, not of the step
    scale: Scale
    expected: list[float | None]  # [low, high] as the source states it; null is open
    threshold: Threshold = Threshold.source
    two_sided: bool = False  # a gain above the stated top refutes; otherwise it exceeds
    # `baseline`, of time and steps to target: the loss that both arms' schedules end at
    target: str | None = None
    guards: list[Guard] = field(default_factory=list)
    mechanism: Mechanism
    seeds: list[int]

    def bounded(self, bound: float | None) -> Claim:
        """Return the claim with a mechanism that allows so much, however that was computed."""
        mechanism = replace(self.mechanism, rule=Rule.given, parts=[], saved={}, bound=bound)
        return replace(self, mechanism=mechanism)

    @property
    def metrics(self) -> list[Metric]:
        """List the primary metric, then those of the guards."""
        names = [self.metric, *(guard.metric for guard in self.guards)]
        return [METRICS[name] for name in names]

    @property
    def compares(self) -> bool:
        """Say whether it needs a baseline."""
        return self.scale is not Scale.value or bool(self.guards)

    @property
    def races(self) -> bool:
        """Say whether it is about the shortest schedule that ends at one loss."""
        return any(metric.name in TO_TARGET for metric in self.metrics)

    @property
    def at_equal_loss(self) -> bool:
        """Say whether it needs the baseline's other lengths."""
        return any(metric.name == AT_EQUAL_LOSS for metric in self.metrics)

    def __post_init__(self) -> None:
        check_metric(f"claim {self.id}: metric", self.metric)
        self._check_texts()
        self._check_scale_and_baseline()
        self._check_parts()
        self._check_mechanism()
        self._check_target()
        self._check_guards()
        self._check_seeds()
        self._check_expected()
        self.expected = [None if end is None else float(end) for end in self.expected]

    def _require(self, ok: bool, key: str, rule: str, value: object) -> None:
        require(ok, f"claim {self.id}: {key}", rule, value)

    def _check_texts(self) -> None:
        for key in TEXTS:
            text = getattr(self, key)
            self._require(bool(text.strip()), key, "not be empty", repr(text))

    def _check_scale_and_baseline(self) -> None:
        metric = METRICS[self.metric]
        scale = self.scale
        is_value = scale is Scale.value
        fits = is_value or metric.better is not Better.neither
        self._require(fits, "scale", f"be value for {self.metric}", scale.value)
        fits = scale is Scale.ratio or not metric.relative
        self._require(fits, "scale", f"be ratio for {self.metric}", scale.value)
        fits = not is_value or not self.baseline
        self._require(fits, "baseline", "be empty for a claim about a value", self.baseline)
        self._require(self.baseline != self.arm, "baseline", "be another arm", self.baseline)

    def _check_parts(self) -> None:
        """Refuse parts that the metric cannot have: a profile's metrics need them, others have
        none."""
        profiled = [name for name in CLAIMABLE if METRICS[name].made_by == "parts"]
        has_parts = bool(self.parts)
        needs_parts = self.metric in profiled
        only = f"be set for the metrics {', '.join(profiled)}, and only for these"
        self._require(has_parts == needs_parts, "parts", only, self.parts)
        fits = not self.of or self.metric == "share"
        self._require(fits, "of", "be set only for the metric share", self.of)
        known = HELD if self.metric == "held_mib" else PARTS
        _require_known(f"claim {self.id}: parts", [*self.parts, *self.of], known)

    def _check_mechanism(self) -> None:
        rule = self.mechanism.rule
        is_given = rule is Rule.given
        fits = is_given or self.scale is Scale.ratio
        self._require(
            fits, "mechanism.rule", "be 'given', because the scale is not a ratio", rule.value
        )
        fits = is_given or not METRICS[self.metric].relative
        why = f"be 'given' for {self.metric}, because the other rules are for the cost of a step"
        self._require(fits, "mechanism.rule", why, rule.value)

    def _check_target(self) -> None:
        needed = BASELINE if self.races else None
        rule = "be baseline for a claim about time or steps to target, and null for other claims"
        self._require(self.target == needed, "target", rule, self.target)

    def _check_guards(self) -> None:
        names = [metric.name for metric in self.metrics]
        differ = len(set(names)) == len(names)
        rule = "name each metric once, and not the claim's own metric"
        self._require(differ, "guards", rule, ", ".join(names[1:]))

    def _check_seeds(self) -> None:
        count = len(self.seeds)
        rule = f"hold at least {LEAST_PAIRS} seeds, because nocap gives no verdict with fewer"
        self._require(count >= LEAST_PAIRS, "seeds", rule, count)
        self._require(len(set(self.seeds)) == count, "seeds", "differ", self.seeds)

    def _check_expected(self) -> None:
        metric = METRICS[self.metric]
        expected = self.expected
        ends = [end for end in expected if end is not None]
        form = "be [low, high]; one of them may be null"
        self._require(len(expected) == 2 and bool(ends), "expected", form, expected)
        are_finite = all(map(math.isfinite, ends))
        self._require(are_finite, "expected", "be finite numbers or null", expected)
        is_logarithm = is_log(metric, self.scale)
        positive = "be above 0 for a ratio, a speed or a time"
        self._require(not is_logarithm or min(ends) > 0, "expected", positive, expected)
        ascend = len(ends) != 2 or ends[0] < ends[1]
        self._require(ascend, "expected", "have low below high", expected)
        low, high = expected
        may_be_open = metric.relative or self.scale is Scale.value
        low_rule = "have a low end; an end below 1, or below 0 of a difference, means worse"
        self._require(may_be_open or low is not None, "expected", low_rule, expected)
        high_rule = (
            "have a high end; the value is the time divided by the baseline's, so an end above 1 "
            "means worse"
        )
        self._require(not metric.relative or high is not None, "expected", high_rule, expected)
        bound = self.mechanism.bound
        fits = not is_logarithm or bound is None or bound > 0
        self._require(fits, "mechanism.bound", positive, bound)
        has_ends = len(ends) == 2
        self._require(
            has_ends or not self.two_sided,
            "two_sided",
            "be false, because only one end is stated",
            expected,
        )


def check_metric(key: str, name: str) -> None:
    """Refuse a metric about which no claim can be."""
    require(name in CLAIMABLE, key, f"be one of {', '.join(CLAIMABLE)}", name)


def _require_known(key: str, parts: Iterable[str], known: Collection[str]) -> None:
    unknown = [part for part in parts if part not in known]
    require(not unknown, key, f"be among {', '.join(known)}", ", ".join(unknown))
