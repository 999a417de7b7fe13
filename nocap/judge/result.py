"""A comparison, typed: arms beside a baseline. `Comparison.json()` is what `--json`, trackers and other programs read.

    baseline     the arm's id          target   nats per token, or null       swept   config keys that differ between arms
    metric       what the verdicts are about: val_loss, or val_bpb where vocabularies differ and that was declared
    arms         one object an arm, in the order they were started
    runs         one object a run, with its validation curve
    measurements one object a run and metric, with unit and which way is better
    effects      of a full factorial, or null and the reason in effects_refused: see `factorial`
    problems     lines for people: what was skipped, declared or should be doubted
    not_compared runs that are not finished or cannot be read, with their status

Losses are nats per token, times seconds of training and data wait (`train_s`) or ms, memory MiB. Intervals are 95% t-intervals.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from enum import Enum
from statistics import fmean
from typing import Any

from nocap.judge.arms import Arm
from nocap.judge.estimates import ALPHA, CONFIDENCE, LEAST_SEEDS
from nocap.judge.inference import Inference
from nocap.judge.stats import Estimate
from nocap.judge.target import Reach
from nocap.store.record import SCHEMA_VERSION
from nocap.store.runs import Record, measurements


class Kind(Enum):
    better = "better"
    worse = "worse"
    unclear = "no difference shown"
    undecided = "no verdict"
    confounded = "confounded"


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """Of the metric to the baseline's."""

    estimate: Estimate | None
    kind: Kind
    reason: str = ""  # why there is no verdict, or what confounds it
    p_holm: float | None = None
    visible: float | None = None  # of no difference shown: the least that these seeds would have shown with 80% power
    metric: str

    @property
    def verdict(self) -> str:
        if self.kind is Kind.confounded:
            return f"confounded: {self.reason}"
        return f"no verdict ({self.reason})" if self.kind is Kind.undecided else self.kind.value

    def json(self) -> dict[str, Any]:
        nothing = {"mean": None, "low": None, "high": None, "p": None, "method": f"no {self.metric}"}
        return {
            **(self.estimate.json() if self.estimate else nothing),
            "p_holm": self.p_holm,
            "visible": self.visible,
            "verdict": self.verdict,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Timed:
    """A mean over runs of one machine, and its ratio to the baseline's; or why there is none."""

    mean: float | None
    ratio: Estimate | None = None
    refused: str | None = None


class Front(Enum):
    """Where an arm stands in loss, training time and memory at once."""

    on = "on the front"
    tied = "tied"  # another arm is better in all three, but no interval sets them apart
    behind = "behind"


@dataclass(frozen=True, kw_only=True, slots=True)
class ComparedArm:
    """An arm beside the baseline."""

    arm: Arm
    changes: Mapping[str, Any]  # config keys in which it differs from the baseline, with its own values
    val_loss: Estimate | None
    val_bpb: Estimate | None
    difference: Difference | None  # None: it is the baseline
    difference_bpb: Estimate | None
    times: Mapping[str, Timed]  # tokens_per_s, step_ms, model_mib, train_s
    to_target: Mapping[str, Reach] | None
    inference: Inference | None
    front: Front | None = None  # None: not comparable

    @property
    def label(self) -> str:
        return self.arm.label

    @property
    def costs(self) -> dict[str, float | None]:
        return {
            "params": (self.arm.summary("params") or {}).get("total"),
            **{key: self.arm.summary(key) for key in ("flops_per_token", "tokens")},
        }

    @property
    def clock_s(self) -> dict[str, float]:
        clocks = [run.summary.get("clock_s") or {} for run in self.arm.runs]
        return {line: fmean(clock.get(line) or 0.0 for clock in clocks) for line in dict.fromkeys(k for c in clocks for k in c)}

    def json(self) -> dict[str, Any]:
        arm = self.arm
        return {
            "arm": arm.id,
            "label": arm.label,
            "changes": self.changes,
            "n": len(arm.seeds),
            "seeds": arm.seeds,
            "diverged": sorted({run.seed for run in arm.diverged}),
            **{key: _plain(getattr(self, key)) for key in ("val_loss", "val_bpb", "difference", "difference_bpb")},
            **_plain(self.times),
            "params": arm.summary("params") or {},
            **{key: arm.summary(key) for key in ("flops_per_token", "tokens", "steps")},
            "kernel": arm.summary("kernel") or {},
            "hardware": sorted({run.machine[0] for run in arm.runs}),
            "to_target": _plain(self.to_target),
            "inference": _plain(self.inference),
            "pareto": self.front and self.front is Front.on,
            "pareto_tied": self.front and self.front is Front.tied,
            "clock_s": self.clock_s,
            "runs": [run.identity for run in arm.all],
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class EffectRow:
    """What a choice does to the loss, or two together beyond the sum; or to the logarithm of tokens/s, where 0.01 is 1%."""

    term: str
    factors: list[str]
    estimate: Estimate
    p_holm: float | None
    verdict: str  # lower, higher, no effect shown, or why none

    def json(self) -> dict[str, Any]:
        return {"term": self.term, "factors": self.factors, **self.estimate.json(), "p_holm": self.p_holm, "verdict": self.verdict}


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    arms: list[ComparedArm]
    baseline: ComparedArm
    target: float | None
    metric: str
    swept: list[str]
    effects: Mapping[str, list[EffectRow]] | None  # main_effects, interactions, and both with _on_log_tokens_per_s
    effects_refused: str | None
    problems: list[str]
    not_compared: list[tuple[str, str]]  # name and status

    @property
    def runs(self) -> list[tuple[Record, Arm]]:
        return [(run, result.arm) for result in self.arms for run in result.arm.all]

    def json(self) -> dict[str, Any]:
        return {
            "schema_version": SCHEMA_VERSION,
            "baseline": self.baseline.arm.id,
            "confidence": CONFIDENCE,
            "alpha": ALPHA,
            "least_seeds": LEAST_SEEDS,
            "target": self.target,
            "metric": self.metric,
            "swept": self.swept,
            "arms": [result.json() for result in self.arms],
            "runs": [_run(run, arm) for run, arm in self.runs],
            "measurements": [{**one.json(), "arm": arm.id} for run, arm in self.runs for one in measurements(run)],
            "effects": _plain(self.effects),
            "effects_refused": self.effects_refused,
            "problems": self.problems,
            "not_compared": [{"name": name, "status": status} for name, status in self.not_compared],
        }


def _plain(value: Any) -> Any:
    """As JSON: what has a form of its own in that, other dataclasses by their fields."""
    if isinstance(value, Estimate | Difference | EffectRow):
        return value.json()
    if isinstance(value, Timed | Reach | Inference):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list) else value


def _run(run: Record, arm: Arm) -> dict[str, Any]:
    return {
        "identity": run.identity,
        "name": run.name,
        "arm": arm.id,
        "label": arm.label,
        "seed": run.seed,
        "status": run.status,
        **{key: run.summary.get(key) for key in ("steps", "tokens")},
        **{key: run.value(key) for key in ("val_loss", "val_bpb", "tokens_per_s", "train_s")},
        "curve": asdict(run.curve),
        "clock_s": run.summary.get("clock_s") or {},
        "hardware": dict(run.hardware),
    }
