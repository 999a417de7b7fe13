"""A claim: what an arm is said to gain, written down before the runs, with the rule that will judge it. No torch.

An effect is always a gain: as a ratio, how many times better than the baseline the arm is; as a difference, by how much. 1.25 is a quarter
more tokens a second, or a step in four fifths of the time; a guard's margin is how much worse the arm may be. A study has scales of its
own (`cpu`, `gpu`), and each has its own margins.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from nocap.config.keys import require
from nocap.profiling.names import PARTS
from nocap.store.identity import digest
from nocap.store.measurement import Scale as Scale

LEAST = 3  # pairs: fewer have no verdict


class Metric(Enum):
    # of training runs
    time_to_target_s = "time_to_target_s"  # steps to the target at the step time of interleaved runs
    steps_to_target = "steps_to_target"
    val_loss = "val_loss"  # nats a token
    val_bpb = "val_bpb"
    # of timed steps
    tokens_per_s = "tokens_per_s"
    step_ms = "step_ms"
    memory_mib = "memory_mib"  # a GPU's peak; on a CPU parameters, gradients, optimizer and activations, counted
    params = "params"
    kv_bytes = "kv_bytes"  # of a token in the cache
    # of a profile, of the claim's `parts`
    share = "share"  # of the time of `of`, or of the step
    part_ms = "part_ms"
    part_mib = "part_mib"  # kept from the forward for the backward
    part_params = "part_params"
    held_mib = "held_mib"  # its `parts` are those of memory: parameters, gradients, optimizer, activations
    # of attention alone over several lengths
    exponent = "exponent"  # of its time in T
    # of decoding
    decode_tokens_per_s = "decode_tokens_per_s"
    decode_ms = "decode_ms"  # of a token, median
    decode_mb = "decode_mb"  # allocated a token
    collections = "collections"  # of Python's garbage in 50 tokens


MORE_IS_BETTER = (Metric.tokens_per_s, Metric.decode_tokens_per_s)
TO_TARGET = (Metric.time_to_target_s, Metric.steps_to_target)
NOT_BETTER = (Metric.share, Metric.exponent)  # neither more nor less is better: a claim about them states their value
OF_PARTS = (Metric.share, Metric.part_ms, Metric.part_mib, Metric.part_params, Metric.held_mib)
HELD = ("parameters", "gradients", "optimizer", "activations")
BASELINE = "baseline"  # the target that is each seed's own final loss of the baseline


@dataclass(kw_only=True, slots=True)
class Guard:
    """What the gain may not cost."""

    metric: Metric
    scale: Scale
    margins: dict[str, float]  # a study's scale → how much worse the arm may be: 1.01 as a ratio, 0.005 as a difference

    def __post_init__(self) -> None:
        key = f"guard {self.metric.value}"
        require(self.metric not in NOT_BETTER, key, "be about a metric that can be better or worse", self.metric.value)
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
        require(at in self.margins, f"guard {self.metric.value}.margins", f"name the scale {at}", ", ".join(self.margins))
        return self.margins[at]


class Rule(Enum):
    """How a bound is worked out, from the two arms' configurations; all are ratios, baseline over arm."""

    given = "given"  # the number in the claim, or none
    flops = "flops"  # of a training token; of the claim's `parts` of it where the claim has some
    params = "params"
    memory = "memory"  # parameters, gradients, optimizer, and what a forward keeps
    kv = "kv"  # bytes of a token in the cache
    amdahl = "amdahl"  # the measured step without the mechanism's parts: 1 / (1 - their share)


@dataclass(kw_only=True, slots=True)
class Mechanism:
    """Why the gain is possible: the most that arithmetic allows, on the primary metric's scale, and how that is worked out."""

    rule: Rule = Rule.given
    bound: float | None = None  # for `given`; null where arithmetic says nothing, and the formula says why
    parts: list[str] = field(default_factory=list)  # for `amdahl`
    formula: str

    def __post_init__(self) -> None:
        require(self.bound is None or math.isfinite(self.bound), "mechanism.bound", "be a finite number or null", self.bound)
        require(self.bound is None or self.rule is Rule.given, "mechanism.bound", f"be left to the rule {self.rule.value}", self.bound)
        require(bool(self.parts) == (self.rule is Rule.amdahl), "mechanism.parts", "be given for amdahl, and only there", self.parts)
        check_parts("mechanism.parts", self.parts)
        require(bool(self.formula.strip()), "mechanism.formula", "say in words where the bound comes from", repr(self.formula))


def check_parts(key: str, parts: list[str], *, known: Collection[str] = tuple(PARTS)) -> None:
    unknown = [part for part in parts if part not in known]
    require(not unknown, key, f"be of {', '.join(known)}", ", ".join(unknown))


@dataclass(kw_only=True, slots=True)
class Claim:
    """An expected gain with its guards and decision rule. Seeds name pairs: of runs, or of timing blocks."""

    id: str
    statement: str
    source: str
    arm: str
    baseline: str | None = None  # another arm; null: the study's, or none for a value
    metric: Metric  # the primary one
    parts: list[str] = field(default_factory=list)  # of the step, for the metrics of a profile
    of: list[str] = field(default_factory=list)  # for a share: of these parts, not of the step
    scale: Scale
    expected: list[float | None]  # [low, high] as the source states it; null is open
    slack: dict[str, float] = field(default_factory=dict)  # a study's scale → how far beyond the ends still counts there
    two_sided: bool = False  # a gain above the stated top refutes too; otherwise it is reported
    target: Any = None  # the loss that time and steps to target are about; `baseline`: each seed's own final loss of the baseline
    guards: list[Guard] = field(default_factory=list)
    mechanism: Mechanism
    seeds: list[int]
    alpha: float = 0.05
    looks: int = 1  # 2: also at half of the seeds, with a fifth of alpha

    def __post_init__(self) -> None:
        for key in ("id", "statement", "source", "arm"):
            require(bool(getattr(self, key).strip()), f"claim {self.id}: {key}", "be given", repr(getattr(self, key)))
        of = f"claim {self.id}:"
        stated = self.metric in NOT_BETTER
        require(not stated or self.scale is Scale.value, f"{of} scale", f"be value for {self.metric.value}", self.scale.value)
        require(self.scale is not Scale.value or not self.baseline, f"{of} baseline", "be left out for a value", self.baseline)
        require(self.baseline != self.arm, f"{of} baseline", "be another arm", self.baseline)
        require(bool(self.parts) == (self.metric in OF_PARTS), f"{of} parts", f"be given for {_names(OF_PARTS)} only", self.parts)
        require(not self.of or self.metric is Metric.share, f"{of} of", "be given for a share only", self.of)
        check_parts(f"{of} parts", [*self.parts, *self.of], known=HELD if self.metric is Metric.held_mib else tuple(PARTS))
        ok = all(0 <= slack < math.inf for slack in self.slack.values())
        require(ok, f"{of} slack", "be at least 0, in the unit of expected", self.slack)
        require(not self.slack or self.scale is Scale.difference, f"{of} slack", "be for a difference only", self.scale.value)
        rule = self.mechanism.rule
        require(rule is Rule.given or self.scale is Scale.ratio, f"{of} mechanism.rule", "be given but for a ratio", rule.value)
        self._check_expected(of)
        self._check_target(of)
        names = [self.metric.value, *(guard.metric.value for guard in self.guards)]
        require(len(set(names)) == len(names), f"{of} guards", "each have a metric of their own, not the claim's", ", ".join(names[1:]))
        require(len(self.seeds) >= LEAST, f"{of} seeds", f"be at least {LEAST}: fewer pairs have no verdict", len(self.seeds))
        require(len(set(self.seeds)) == len(self.seeds), f"{of} seeds", "differ", self.seeds)
        require(0 < self.alpha < 0.5, f"{of} alpha", "be above 0 and below 0.5", self.alpha)
        require(self.looks in (1, 2), f"{of} looks", "be 1 or 2", self.looks)
        enough = len(self.seeds) // self.looks >= LEAST
        require(enough, f"{of} looks", f"leave {LEAST} pairs for the first look", f"{self.looks} looks at {len(self.seeds)} seeds")

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
        needs = any(metric in TO_TARGET for metric in (self.metric, *(guard.metric for guard in self.guards)))
        rule = "be a loss above 0, or baseline, for a claim about time or steps to target, and null for others"
        number = isinstance(self.target, int | float) and 0 < self.target < math.inf
        require((number or self.target == BASELINE) if needs else self.target is None, f"{of} target", rule, self.target)

    def at_look(self, look: int) -> tuple[list[int], float]:
        """The seeds a look sees, and its share of alpha: two looks at .01 and .04 keep .05 together (Bonferroni).

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
        """Of all that was claimed: a claim that says anything else has another. The order of guards and margins says nothing."""
        plain = dataclasses.asdict(self)
        plain["guards"].sort(key=lambda guard: guard["metric"].value)
        return digest(_values(plain))


def _names(metrics: tuple[Metric, ...]) -> str:
    return ", ".join(metric.value for metric in metrics)


def _values(plain: dict[str, object]) -> dict[str, object]:
    def value(item: object) -> object:
        if isinstance(item, dict):
            return _values(item)
        return [value(x) for x in item] if isinstance(item, list) else item.value if isinstance(item, Enum) else item

    return {key: value(item) for key, item in plain.items()}
