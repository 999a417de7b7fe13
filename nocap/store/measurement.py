"""One measurement, whoever made it: train, bench, profile, generate or study. And the table of metrics: unit, and which way is better."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


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
    gain: str = ""  # how an arm that is better is described, and one that is worse
    loss: str = ""

    def describe(self, gain: float, scale: Scale) -> str:
        """A gain in words: `7.0% faster`, `25.0% less memory`, `lower loss by 0.0300`. Above 1 as a ratio, or above 0 as a difference, is
        better in every metric."""
        if scale is Scale.value or self.better is Better.neither:
            return f"{gain:.4g}"
        if scale is Scale.difference:
            return f"{self.gain if gain >= 0 else self.loss} by {abs(gain):.4f}"
        speed = self.gain.startswith("faster")
        change = gain - 1 if speed else 1 / gain - 1  # of the speed, or of the amount
        return f"{abs(change):.1%} {self.gain if gain >= 1 else self.loss}"


def _metric(name: str, title: str, unit: str, better: str, gain: str = "", loss: str = "") -> Metric:
    return Metric(name=name, title=title, unit=unit, better=Better(better), gain=gain, loss=loss)


_SPEED = ("faster", "slower")
METRICS = {
    metric.name: metric
    for metric in (
        # of training runs
        _metric("val_loss", "validation loss", "nats/token", "lower", "lower loss", "higher loss"),
        _metric("val_bpb", "validation bits per byte", "bits/byte", "lower", "lower bits/byte", "higher bits/byte"),
        _metric("train_s", "training time", "s", "lower", *_SPEED),
        _metric("steps_to_target", "steps to the target loss", "steps", "lower", "fewer steps", "more steps"),
        # steps to the target at the step time of interleaved runs
        _metric("time_to_target_s", "time to the target loss", "s", "lower", "faster to the target", "slower to the target"),
        # of timed steps
        _metric("tokens_per_s", "tokens/s", "tokens/s", "higher", *_SPEED),
        _metric("step_ms", "step time", "ms", "lower", *_SPEED),
        # a GPU's peak; on a CPU parameters, gradients, optimizer and activations, counted
        _metric("memory_mib", "memory", "MiB", "lower", "less memory", "more memory"),
        _metric("params", "parameters", "parameters", "lower", "fewer parameters", "more parameters"),
        _metric("kv_bytes", "KV cache per token", "bytes/token", "lower", "less cache", "more cache"),
        # of a profile, over the claim's `parts`
        _metric("share", "share of the time", "share", "neither"),
        _metric("part_ms", "time", "ms", "lower", *_SPEED),
        _metric("part_mib", "memory kept for the backward", "MiB", "lower", "less memory", "more memory"),
        _metric("part_params", "parameters", "parameters", "lower", "fewer parameters", "more parameters"),
        # its `parts` are those of memory: parameters, gradients, optimizer, activations
        _metric("held_mib", "MiB held", "MiB", "lower", "less memory", "more memory"),
        # of attention alone over several lengths
        _metric("exponent", "exponent of attention's time in T", "", "neither"),
        # of decoding
        _metric("decode_tokens_per_s", "decoded tokens/s", "tokens/s", "higher", *_SPEED),
        _metric("decode_ms", "time per decoded token", "ms", "lower", *_SPEED),
        _metric("decode_mb", "memory allocated per token", "MB", "lower", "less allocated", "more allocated"),
        _metric("collections", "garbage collections in 50 tokens", "", "lower", "fewer collections", "more collections"),
    )
}


class Ending(Enum):
    measured = "measured"
    censored = "censored"  # never reached its target: the value is the budget
    diverged = "diverged"


@dataclass(frozen=True, kw_only=True, slots=True)
class Measurement:
    """What one arm did in one metric, once."""

    arm: str
    repeat: int  # the seed of a run or a session, or the round of a bench
    metric: Metric
    value: float | None  # in the metric's unit; None where the run diverged
    ending: Ending = Ending.measured
    where: str = ""  # the hardware's fingerprint
    when: str = ""  # ISO 8601
