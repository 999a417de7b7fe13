"""A claim: what an arm is expected to gain, with its guards and the rule that will judge it. Written down before the runs.

An effect is always a gain: as a ratio, how many times better than the baseline the arm is; as a difference, by how much. 1.25 is 25% more
tokens/s, or a step in 80% of the time. A guard's margin is how much worse the arm may be. A study has scales of its own (`cpu`, `gpu`),
and each has its own margins.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from nocap.config.keys import require
from nocap.store.identity import digest
from nocap.store.measurement import HELD, METRICS, PARTS, Better, Metric, Scale

LEAST_PAIRS = 3  # fewer have no verdict
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
        self.margins = {name: float(margin) for name, margin in sorted(self.margins.items())}

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


@dataclass(kw_only=True, slots=True)
class Mechanism:
    """Why the gain is possible: the most that arithmetic allows, on the primary metric's scale, and how that is computed."""

    rule: Rule = Rule.given
    bound: float | None = None  # for `given`; null where arithmetic sets no bound, and the formula says why
    parts: list[str] = field(default_factory=list)  # for `amdahl`
    formula: str

    def __post_init__(self) -> None:
        require(self.bound is None or math.isfinite(self.bound), "mechanism.bound", "be a finite number or null", self.bound)
        require(self.bound is None or self.rule is Rule.given, "mechanism.bound", f"be left to the rule {self.rule.value}", self.bound)
        require(bool(self.parts) == (self.rule is Rule.amdahl), "mechanism.parts", "be given for amdahl, and only there", self.parts)
        _check_parts("mechanism.parts", self.parts, PARTS)
        require(bool(self.formula.strip()), "mechanism.formula", "say in words where the bound comes from", repr(self.formula))


@dataclass(kw_only=True, slots=True)
class Claim:
    """An expected gain with its guards and decision rule. Seeds name pairs: of runs, or of timing sessions."""

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
    slack: dict[str, float] = field(default_factory=dict)  # scale of the study → how far beyond the ends still counts there
    two_sided: bool = False  # a gain above the stated top refutes too; otherwise it is reported
    target: Any = None  # the loss that time and steps to target are about; `baseline`: each seed's own final loss of the baseline
    guards: list[Guard] = field(default_factory=list)
    mechanism: Mechanism
    seeds: list[int]
    alpha: float = 0.05
    looks: int = 1  # 2: also at half of the seeds, with a fifth of alpha

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
        ok = all(0 <= slack < math.inf for slack in self.slack.values())
        require(ok, f"{of} slack", "be at least 0, in the unit of expected", self.slack)
        require(not self.slack or self.scale is Scale.difference, f"{of} slack", "be for a difference only", self.scale.value)
        rule = self.mechanism.rule
        require(rule is Rule.given or self.scale is Scale.ratio, f"{of} mechanism.rule", "be given but for a ratio", rule.value)
        self._check_expected(of)
        self._check_target(of)
        names = [metric.name for metric in self.metrics]
        require(len(set(names)) == len(names), f"{of} guards", "each have a metric of their own, not the claim's", ", ".join(names[1:]))
        self._check_pairs(of)

    def _check_pairs(self, of: str) -> None:
        require(len(self.seeds) >= LEAST_PAIRS, f"{of} seeds", f"be at least {LEAST_PAIRS}: fewer pairs have no verdict", len(self.seeds))
        require(len(set(self.seeds)) == len(self.seeds), f"{of} seeds", "differ", self.seeds)
        require(0 < self.alpha < 0.5, f"{of} alpha", "be above 0 and below 0.5", self.alpha)
        require(self.looks in (1, 2), f"{of} looks", "be 1 or 2", self.looks)
        enough = len(self.seeds) // self.looks >= LEAST_PAIRS
        rule = f"leave {LEAST_PAIRS} pairs for the first look"
        require(enough, f"{of} looks", rule, f"{self.looks} looks at {len(self.seeds)} seeds")

    def _check_expected(self, of: str) -> None:
        key, ends = f"{of} expected", [end for end in self.expected if end is not None]
        require(len(self.expected) == 2 and bool(ends), key, "be [low, high], one of them may be null", self.expected)
        require(all(math.isfinite(end) for end in ends), key, "be finite numbers or null", self.expected)
        require(self.scale is not Scale.ratio or min(ends) > 0, key, "be above 0 for a ratio", self.expected)
        require(len(ends) == 1 or ends[0] < ends[1], key, "hold something: low below high", self.expected)
        bound = self.mechanism.bound
        require(self.scale is not Scale.ratio or bound is None or bound > 0, f"{of} mechanism.bound", "be above 0 for a ratio", bound)
        require(not self.two_sided or len(ends) == 2, f"{of} two_sided", "have both ends stated", self.expected)
        self.expected = [None if end is None else float(end) for end in self.expected]

    def _check_target(self, of: str) -> None:
        needs = any(metric.name in TO_TARGET for metric in self.metrics)
        rule = "be a loss above 0, or baseline, for a claim about time or steps to target, and null for others"
        number = isinstance(self.target, int | float) and 0 < self.target < math.inf
        require((number or self.target == BASELINE) if needs else self.target is None, f"{of} target", rule, self.target)

    def at_look(self, look: int) -> tuple[list[int], float]:
        """The seeds of a look and its share of alpha: two looks at .01 and .04 keep .05 together (Bonferroni).

        Errors:
            ValueError: the look was not declared.
        """
        require(1 <= look <= self.looks, f"claim {self.id}: look", f"be one of the {self.looks} declared", look)
        if self.looks == 1:
            return self.seeds, self.alpha
        half = len(self.seeds) // 2
        return (self.seeds[:half], self.alpha / 5) if look == 1 else (self.seeds, self.alpha * 4 / 5)

    def judged(self, at: str) -> tuple[float | None, float | None]:
        """The ends that decide at a scale of the study: of two stated ones the lower, unless the claim is two-sided."""
        low, high = self.expected
        slack = self.slack.get(at, 0.0)
        top = high if self.two_sided or low is None else None
        return None if low is None else low - slack, None if top is None else top + slack

    def hash(self) -> str:
        """Of all that is claimed. The order of guards and margins does not count."""
        plain = dataclasses.asdict(self)
        plain["guards"].sort(key=lambda guard: guard["metric"])
        return digest(_plain(plain))


def check_metric(key: str, name: str) -> None:
    require(name in CLAIMABLE, key, f"be one of {', '.join(CLAIMABLE)}", name)


def _check_parts(key: str, parts: Iterable[str], known: Collection[str]) -> None:
    unknown = [part for part in parts if part not in known]
    require(not unknown, key, f"be of {', '.join(known)}", ", ".join(unknown))


def _plain(tree: Any) -> Any:
    """Enums by their values, at any depth."""
    if isinstance(tree, dict):
        return {key: _plain(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_plain(value) for value in tree]
    return tree.value if isinstance(tree, Enum) else tree
