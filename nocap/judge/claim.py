"""A claim: what an arm is expected to gain, with its guards. Written down before the runs, and judged by `judge.verdict`.

An effect is always a gain: as a ratio, how many times better than the baseline the arm is; as a difference, by how much. 1.25 is 25% more
tokens/s, or a step in 80% of the time. A guard's margin is how much worse the arm may be. A study has scales of its own (`cpu`, `gpu`), and
each has its own margins.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from nocap.config.keys import require
from nocap.judge.interval import LEAST_PAIRS
from nocap.store.metrics import HELD, METRICS, PARTS, Better, Metric, Scale, is_log

TO_TARGET = ("time_to_target_s", "steps_to_target")
BASELINE = "baseline"  # the target that is each seed's own final loss of the baseline
CLAIMABLE = [name for name, metric in METRICS.items() if metric.made_by != "clock"]


@dataclass(kw_only=True, slots=True)
class Guard:
    """What the gain may not cost."""

    metric: str
    scale: Scale
    margins: dict[str, float]  # scale of the study → how much worse the arm may be: 1.01 as a ratio, 0.005 as a difference

    def __post_init__(self) -> None:
        key = f"guard {self.metric}"
        check_metric("guard metric", self.metric)
        require(METRICS[self.metric].better is not Better.neither, key, "be about a metric that can be better or worse", self.metric)
        require(self.scale is not Scale.value, f"{key}.scale", "be ratio or difference", self.scale.value)
        require(bool(self.margins), f"{key}.margins", "name a scale of the study, as in {cpu: 0.02}", self.margins)
        least = 1.0 if self.scale is Scale.ratio else 0.0
        for name, margin in self.margins.items():
            ok = math.isfinite(margin) and margin >= least
            require(ok, f"{key}.margins.{name}", f"be a finite number of at least {least:g} for a {self.scale.value}", margin)

    def margin(self, at: str) -> float:
        """For a scale of the study.

        Errors:
            ValueError: none was declared for it.
        """
        require(at in self.margins, f"guard {self.metric}.margins", f"name the scale {at}", ", ".join(self.margins))
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
    """Why the gain is possible: the most that arithmetic allows, on the primary metric's scale, and how that is computed."""

    rule: Rule = Rule.given
    bound: float | None = None  # for `given`; null where arithmetic sets no bound, and the formula says why
    parts: list[str] = field(default_factory=list)  # for `amdahl`
    saved: dict[str, float] = field(default_factory=dict)  # of these parts: how much of one is saved, where it is not all of it
    formula: str

    def __post_init__(self) -> None:
        require(self.bound is None or math.isfinite(self.bound), "mechanism.bound", "be a finite number or null", self.bound)
        require(self.bound is None or self.rule is Rule.given, "mechanism.bound", f"be left to the rule {self.rule.value}", self.bound)
        require(bool(self.parts) == (self.rule is Rule.amdahl), "mechanism.parts", "be given for amdahl, and only there", self.parts)
        _check_parts("mechanism.parts", self.parts, PARTS)
        _check_parts("mechanism.saved", self.saved, self.parts)
        ok = all(0 < saved < 1 for saved in self.saved.values())
        require(ok, "mechanism.saved", "be above 0 and below 1: what is not named is saved whole", self.saved)
        require(bool(self.formula.strip()), "mechanism.formula", "say in words where the bound comes from", repr(self.formula))


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
    target: Any = None  # the loss that time and steps to target are about; `baseline`: each seed's own final loss of the baseline
    guards: list[Guard] = field(default_factory=list)
    mechanism: Mechanism
    seeds: list[int]

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
        """Whether it is about the shortest schedule that ends at the baseline's own final loss."""
        return self.target == BASELINE and any(metric.name in TO_TARGET for metric in self.metrics)

    def __post_init__(self) -> None:
        for key in ("id", "statement", "source", "arm"):
            require(bool(getattr(self, key).strip()), f"claim {self.id}: {key}", "be given", repr(getattr(self, key)))
        of = f"claim {self.id}:"
        check_metric(f"{of} metric", self.metric)
        metric = METRICS[self.metric]
        stated = metric.better is Better.neither
        require(not stated or self.scale is Scale.value, f"{of} scale", f"be value for {self.metric}", self.scale.value)
        require(self.scale is not Scale.value or not self.baseline, f"{of} baseline", "be left out for a value", self.baseline)
        require(self.baseline != self.arm, f"{of} baseline", "be another arm", self.baseline)
        profiled = [name for name in CLAIMABLE if METRICS[name].made_by == "parts"]
        require(bool(self.parts) == (self.metric in profiled), f"{of} parts", f"be given for {', '.join(profiled)} only", self.parts)
        require(not self.of or self.metric == "share", f"{of} of", "be given for a share only", self.of)
        _check_parts(f"{of} parts", [*self.parts, *self.of], HELD if self.metric == "held_mib" else PARTS)
        rule = self.mechanism.rule
        require(rule is Rule.given or self.scale is Scale.ratio, f"{of} mechanism.rule", "be given but for a ratio", rule.value)
        self._check_expected(of)
        self._check_target(of)
        names = [metric.name for metric in self.metrics]
        require(len(set(names)) == len(names), f"{of} guards", "each have a metric of their own, not the claim's", ", ".join(names[1:]))
        require(len(self.seeds) >= LEAST_PAIRS, f"{of} seeds", f"be at least {LEAST_PAIRS}: fewer pairs have no verdict", len(self.seeds))
        require(len(set(self.seeds)) == len(self.seeds), f"{of} seeds", "differ", self.seeds)

    def _check_expected(self, of: str) -> None:
        key, ends = f"{of} expected", [end for end in self.expected if end is not None]
        require(len(self.expected) == 2 and bool(ends), key, "be [low, high], one of them may be null", self.expected)
        require(all(math.isfinite(end) for end in ends), key, "be finite numbers or null", self.expected)
        log = is_log(METRICS[self.metric], self.scale)
        require(not log or min(ends) > 0, key, "be above 0 for a ratio, a speed or a time", self.expected)
        require(len(ends) == 1 or ends[0] < ends[1], key, "hold something: low below high", self.expected)
        low, plain = self.expected[0], self.scale is Scale.value
        require(plain or low is not None, key, "have a low end, below no change for what is worse", self.expected)
        bound = self.mechanism.bound
        require(not log or bound is None or bound > 0, f"{of} mechanism.bound", "be above 0 for a ratio, a speed or a time", bound)
        require(not self.two_sided or len(ends) == 2, f"{of} two_sided", "have both ends stated", self.expected)
        self.expected = [None if end is None else float(end) for end in self.expected]

    def _check_target(self, of: str) -> None:
        needs = any(metric.name in TO_TARGET for metric in self.metrics)
        rule = "be a loss above 0, or baseline, for a claim about time or steps to target, and null for others"
        number = isinstance(self.target, int | float) and 0 < self.target < math.inf
        require((number or self.target == BASELINE) if needs else self.target is None, f"{of} target", rule, self.target)


def check_metric(key: str, name: str) -> None:
    require(name in CLAIMABLE, key, f"be one of {', '.join(CLAIMABLE)}", name)


def _check_parts(key: str, parts: Iterable[str], known: Collection[str]) -> None:
    unknown = [part for part in parts if part not in known]
    require(not unknown, key, f"be of {', '.join(known)}", ", ".join(unknown))
