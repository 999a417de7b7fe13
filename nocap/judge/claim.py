"""A claim: what an arm is expected to gain, with its guards. Written down before the runs, and judged by
`judge.verdict`.

An effect is always a gain: as a ratio, how many times better than the baseline the arm is; as a difference,
by how much. 1.25 is 25% more tokens/s, or a step in 80% of the time. Only what is a ratio to the baseline's
by itself, the time at equal loss, is stated as it is: 0.94 is a gain. A guard's margin is how much worse the
arm may be. A study has scales of its own (`cpu`, `gpu`), and each has its own margins.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from nocap.config.keys import require
from nocap.judge.interval import LEAST_PAIRS
from nocap.store.metrics import HELD, METRICS, PARTS, Better, Metric, Scale, is_log

TO_TARGET = ("time_to_target_s", "steps_to_target")
AT_EQUAL_LOSS = "time_at_equal_loss"
BASELINE = "baseline"  # the one target
TEXTS = ("id", "statement", "source", "arm")  # of a claim
Check = tuple[bool, str, str, Any]  # whether it holds, key, rule and value
CLAIMABLE = [name for name, metric in METRICS.items() if metric.made_by not in ("clock", "command")]


@dataclass(kw_only=True, slots=True)
class Guard:
    """What the gain may not cost."""

    metric: str
    scale: Scale
    # scale of the study → how much worse the arm may be: 1.01 as a ratio, 0.005 as a difference
    margins: dict[str, float]

    def __post_init__(self) -> None:
        check_metric("guard metric", self.metric)
        least = 1.0 if self.scale is Scale.ratio else 0.0
        limit = f"be a finite number of at least {least:g} for a {self.scale.value}"
        rules: list[Check] = [
            (
                METRICS[self.metric].better is not Better.neither,
                "",
                "be about a metric that can be better or worse",
                self.metric,
            ),
            (self.scale is not Scale.value, ".scale", "be ratio or difference", self.scale.value),
            (
                self.scale is Scale.ratio or not METRICS[self.metric].relative,
                ".scale",
                f"be ratio for {self.metric}",
                self.scale.value,
            ),
            (bool(self.margins), ".margins", "name a scale of the study, as in {cpu: 0.02}", self.margins),
            *(
                (least <= margin < math.inf, f".margins.{name}", limit, margin)
                for name, margin in self.margins.items()
            ),
        ]
        for ok, key, rule, value in rules:
            require(ok, f"guard {self.metric}{key}", rule, value)

    def margin(self, at: str) -> float:
        """For a scale of the study.

        Errors:
            ValueError: none was declared for it.
        """
        require(
            at in self.margins,
            f"guard {self.metric}.margins",
            f"name the scale {at}",
            ", ".join(self.margins),
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
    """Why the gain is possible: the most that arithmetic allows, on the primary metric's scale, and how that
    is computed."""

    rule: Rule = Rule.given
    bound: float | None = None  # for `given`; null where arithmetic sets no bound, and the formula says why
    parts: list[str] = field(default_factory=list)  # for `amdahl`
    # of these parts: how much of one is saved, where it is not all of it
    saved: dict[str, float] = field(default_factory=dict)
    formula: str

    def __post_init__(self) -> None:
        whole = "be above 0 and below 1: what is not named is saved whole"
        rules: list[Check] = [
            (
                self.bound is None or math.isfinite(self.bound),
                "bound",
                "be a finite number or null",
                self.bound,
            ),
            (
                self.bound is None or self.rule is Rule.given,
                "bound",
                f"be left to the rule {self.rule.value}",
                self.bound,
            ),
            (
                bool(self.parts) == (self.rule is Rule.amdahl),
                "parts",
                "be given for amdahl, and only there",
                self.parts,
            ),
            _known("parts", self.parts, PARTS),
            _known("saved", self.saved, self.parts),
            (all(0 < saved < 1 for saved in self.saved.values()), "saved", whole, self.saved),
            (
                bool(self.formula.strip()),
                "formula",
                "say in words where the bound comes from",
                repr(self.formula),
            ),
        ]
        for ok, key, rule, value in rules:
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
        """The primary one, then the guards'."""
        return [METRICS[name] for name in (self.metric, *(guard.metric for guard in self.guards))]

    @property
    def compares(self) -> bool:
        """Whether it needs a baseline."""
        return self.scale is not Scale.value or bool(self.guards)

    @property
    def races(self) -> bool:
        """Whether it is about the shortest schedule that ends at one loss."""
        return any(metric.name in TO_TARGET for metric in self.metrics)

    @property
    def at_equal_loss(self) -> bool:
        """Say whether it needs the baseline's other lengths."""
        return any(metric.name == AT_EQUAL_LOSS for metric in self.metrics)

    def __post_init__(self) -> None:
        check_metric(f"claim {self.id}: metric", self.metric)
        for ok, key, rule, value in [*self._rules(), *self._rules_of_expected()]:
            require(ok, f"claim {self.id}: {key}", rule, value)
        self.expected = [None if end is None else float(end) for end in self.expected]

    def _rules(self) -> list[Check]:
        plain, names, rule = (
            self.scale is Scale.value,
            [metric.name for metric in self.metrics],
            self.mechanism.rule,
        )
        profiled = [name for name in CLAIMABLE if METRICS[name].made_by == "parts"]
        needed = "be baseline for a claim about time or steps to target, and null for others"
        return [
            *(
                (bool(text.strip()), key, "be given", repr(text))
                for key in TEXTS
                for text in [getattr(self, key)]
            ),
            (
                METRICS[self.metric].better is not Better.neither or plain,
                "scale",
                f"be value for {self.metric}",
                self.scale.value,
            ),
            (
                self.scale is Scale.ratio or not METRICS[self.metric].relative,
                "scale",
                f"be ratio for {self.metric}",
                self.scale.value,
            ),
            (not plain or not self.baseline, "baseline", "be left out for a value", self.baseline),
            (self.baseline != self.arm, "baseline", "be another arm", self.baseline),
            (
                bool(self.parts) == (self.metric in profiled),
                "parts",
                f"be given for {', '.join(profiled)} only",
                self.parts,
            ),
            (not self.of or self.metric == "share", "of", "be given for a share only", self.of),
            _known("parts", [*self.parts, *self.of], HELD if self.metric == "held_mib" else PARTS),
            (
                rule is Rule.given or self.scale is Scale.ratio,
                "mechanism.rule",
                "be given but for a ratio",
                rule.value,
            ),
            (
                rule is Rule.given or not METRICS[self.metric].relative,
                "mechanism.rule",
                f"be given for {self.metric}: arithmetic bounds a step, not what it learns",
                rule.value,
            ),
            (self.target == (BASELINE if self.races else None), "target", needed, self.target),
            (
                len(set(names)) == len(names),
                "guards",
                "each have a metric of their own, not the claim's",
                ", ".join(names[1:]),
            ),
            (
                len(self.seeds) >= LEAST_PAIRS,
                "seeds",
                f"be at least {LEAST_PAIRS}: fewer pairs have no verdict",
                len(self.seeds),
            ),
            (len(set(self.seeds)) == len(self.seeds), "seeds", "differ", self.seeds),
        ]

    def _rules_of_expected(self) -> list[Check]:
        ends, bound, key, given = (
            [end for end in self.expected if end is not None],
            self.mechanism.bound,
            "expected",
            self.expected,
        )
        log, plain = is_log(METRICS[self.metric], self.scale), self.scale is Scale.value
        positive = "be above 0 for a ratio, a speed or a time"
        relative = METRICS[self.metric].relative
        return [
            (len(given) == 2 and bool(ends), key, "be [low, high], one of them may be null", given),
            (all(map(math.isfinite, ends)), key, "be finite numbers or null", given),
            (not log or min(ends, default=1) > 0, key, positive, given),
            (len(ends) != 2 or ends[0] < ends[1], key, "hold something: low below high", given),
            (
                plain or relative or not given or given[0] is not None,
                key,
                "have a low end, below no change for what is worse",
                given,
            ),
            (
                not relative or not given or given[-1] is not None,
                key,
                "have a high end, above 1 for what is worse: it is the time over the baseline's",
                given,
            ),
            (not log or bound is None or bound > 0, "mechanism.bound", positive, bound),
            (not self.two_sided or len(ends) == 2, "two_sided", "have both ends stated", given),
        ]


def check_metric(key: str, name: str) -> None:
    require(name in CLAIMABLE, key, f"be one of {', '.join(CLAIMABLE)}", name)


def _known(key: str, parts: Iterable[str], known: Collection[str]) -> Check:
    unknown = [part for part in parts if part not in known]
    return not unknown, key, f"be of {', '.join(known)}", ", ".join(unknown)
