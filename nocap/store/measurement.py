"""One measurement, whoever made it: train, bench, profile, generate or study. And the table of metrics: unit, and which way is better."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Any

from nocap.config.keys import require


class Better(Enum):
    lower = "lower"
    higher = "higher"
    neither = "neither"  # a claim about it states its value


class Scale(Enum):
    """How a gain over the baseline is stated."""

    ratio = "ratio"  # how many times better
    difference = "difference"  # by how much better
    value = "value"  # the arm's own number, without a baseline


@dataclass(frozen=True, kw_only=True, slots=True)
class Metric:
    name: str
    title: str
    unit: str
    better: Better
    made_by: str  # train, clock, or the kind of session: steps, parts, lengths, decoding
    gain: str = ""  # how an arm that is better is described, and one that is worse
    loss: str = ""

    def describe(self, gain: float, scale: Scale) -> str:
        """A gain in words: `7.0% faster`, `2.10× as fast`, `25.0% less memory`, `lower loss by 0.0300`. Above 1 as a ratio, or above 0 as a
        difference, is better in every metric."""
        if scale is Scale.value or self.better is Better.neither:
            return f"{gain:.4g}"
        if scale is Scale.difference:
            return f"{self.gain if gain >= 0 else self.loss} by {abs(gain):.4f}"
        fast = self.gain.startswith("faster")
        amount = gain if fast else 1 / gain  # the speed, or what is used
        if amount >= 2:
            return f"{amount:.2f}× as {self.gain.replace('faster', 'fast')}" if fast else f"{amount:.2f}× the {self.loss[5:]}"
        return f"{abs(amount - 1):.1%} {self.gain if gain >= 1 else self.loss}"


_SPEED, _MEMORY, _PARAMS = ("faster", "slower"), ("less memory", "more memory"), ("fewer parameters", "more parameters")
_TABLE: dict[str, list[tuple[str, ...]]] = {  # instrument → name, title, unit, better, and words for a gain and a loss
    "train": [
        ("val_loss", "validation loss", "nats/token", "lower", "lower loss", "higher loss"),
        ("val_bpb", "validation bits per byte", "bits/byte", "lower", "lower bits/byte", "higher bits/byte"),
        ("steps_to_target", "steps to the target loss", "steps", "lower", "fewer steps", "more steps"),
        ("time_to_target_s", "time to the target loss", "s", "lower", "faster to the target", "slower to the target"),
    ],
    "clock": [  # of a run, which is not interleaved with others: no claim may be about these
        ("train_s", "training time", "s", "lower", *_SPEED),
        ("model_mib", "the model's memory", "MiB", "lower", *_MEMORY),  # as `memory_mib` of timed steps
    ],
    "steps": [
        ("tokens_per_s", "tokens/s", "tokens/s", "higher", *_SPEED),
        ("step_ms", "step time", "ms", "lower", "less time", "more time"),
        ("memory_mib", "memory", "MiB", "lower", *_MEMORY),  # a GPU's peak; on a CPU counted: parameters, gradients, state, activations
        ("params", "parameters", "parameters", "lower", *_PARAMS),
        ("kv_bytes", "KV cache per token", "bytes/token", "lower", "less cache", "more cache"),
    ],
    "parts": [  # over the `parts` of a claim
        ("share", "share of the time", "share", "neither"),
        ("part_ms", "time", "ms", "lower", *_SPEED),
        ("part_mib", "memory kept for the backward", "MiB", "lower", *_MEMORY),
        ("part_params", "parameters", "parameters", "lower", *_PARAMS),
        ("held_mib", "MiB held", "MiB", "lower", *_MEMORY),  # parts of memory: parameters, gradients, optimizer, activations
    ],
    "lengths": [("exponent", "exponent of attention's time in T", "", "neither")],
    "decoding": [
        ("decode_tokens_per_s", "decoded tokens/s", "tokens/s", "higher", *_SPEED),
        ("decode_ms", "time per decoded token", "ms", "lower", *_SPEED),
        ("decode_mb", "memory allocated per token", "MB", "lower", "less allocated", "more allocated"),
        ("collections", "garbage collections in 50 tokens", "", "lower", "fewer collections", "more collections"),
    ],
}


def _metric(made_by: str, name: str, title: str, unit: str, better: str, gain: str = "", loss: str = "") -> Metric:
    return Metric(name=name, title=title, unit=unit, better=Better(better), made_by=made_by, gain=gain, loss=loss)


METRICS = {row[0]: _metric(made_by, *row) for made_by, rows in _TABLE.items() for row in rows}
COUNTS = ("params", "kv_bytes", "part_params", "part_mib", "held_mib", "memory_mib", "decode_mb")


def is_count(metric: Metric, *, on_cuda: bool) -> bool:
    """Whether it needs no clock, and is equal in all sessions. A GPU's peak of memory is measured."""
    return metric.name in COUNTS and not (on_cuda and metric.name == "memory_mib")


# Parts of a training step → what a table calls them.
PARTS = {
    "embedding": "embedding",
    "norm": "norms",
    "qkv": "QKV projections",
    "rotary": "rotary, QK norm, head layout",
    "scores": "scores and weighted sum",
    "attention_out": "output projection",
    "mlp_up": "MLP up",
    "activation": "activation",
    "mlp_down": "MLP down",
    "attention": "attention, whole",
    "mlp": "MLP, whole",
    "ideas": "ideas",
    "residual": "residual stream",
    "head": "head",
    "loss": "loss",
    "accumulate": "gradients into .grad",
    "reduction": "gradient reduction",
    "clip": "gradient norm, clipping",
    "optimizer": "optimizer",
    "data": "data",
    "other": "rest of the step",
}
# Of nocap's own models, and of the step around any model.
MODEL_PARTS, STEP_PARTS = tuple(PARTS)[:15], tuple(PARTS)[15:]
HELD = ("parameters", "gradients", "optimizer", "activations")  # parts of memory


def part_title(part: str) -> str:
    """A part as a table calls it; one of a replaced block is called by its module's path."""
    return PARTS.get(part, part)


class Ending(Enum):
    measured = "measured"
    censored = "censored"  # never reached its target: the value is the budget
    at_most = "at_most"  # reached its target in its shortest schedule: the value is more than was needed
    diverged = "diverged"


class Per(Enum):
    """What repeats a measurement."""

    seed = "seed"
    sitting = "sitting"  # sessions of timing close together: their mean, for what slows a machine slows all of them
    exact = "exact"  # a count: any session has it


def now() -> str:
    """To the second, as records have their start."""
    return datetime.now().astimezone().isoformat(timespec="seconds")


@dataclass(frozen=True, kw_only=True, slots=True)
class Measurement:
    """What one arm did in one metric, once."""

    arm: str
    repeat: int  # the seed of a run, the number of a sitting, or the round of a bench
    metric: Metric
    value: float | None  # in the metric's unit; None where the run diverged
    ending: Ending = Ending.measured
    where: str = ""  # the hardware's fingerprint
    when: str = ""  # ISO 8601
    part: str = ""  # of the step, where a profile measured only that
    per: Per = Per.seed

    def json(self) -> dict[str, Any]:
        metric = {"metric": self.metric.name, "unit": self.metric.unit, "better": self.metric.better.value}
        part = {"part": self.part} if self.part else {}
        value = {"value": self.value, "ending": self.ending.value, "per": self.per.value, "where": self.where, "when": self.when}
        return {"arm": self.arm, "repeat": self.repeat, **metric, **part, **value}

    def __post_init__(self) -> None:
        diverged = self.ending is Ending.diverged
        ok = self.value is None if diverged else self.value is not None and math.isfinite(self.value)
        require(ok, f"a measurement of {self.metric.name}", "be a finite number, or null where the run diverged", self.value)
