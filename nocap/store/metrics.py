"""The registry of metrics: what is measured, its unit, which way is better, where its noise comes from, how
it is shown and where a run's record has it. There is no other table of metrics. And one measurement, whoever
made it: train, bench, profile, generate or study."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Any

from nocap.config.keys import require
from nocap.store.formats import count, duration, loss, three_digits, whole


class Better(Enum):
    lower = "lower"
    higher = "higher"
    neither = "neither"  # a claim about it states its value


class Kind(Enum):
    """Where the noise of a metric comes from."""

    exact = "exact"  # counted
    seed = "seed"
    clock = "clock"


class Scale(Enum):
    """How a gain over the baseline is stated."""

    ratio = "ratio"  # how many times better
    difference = "difference"  # by how much better
    value = "value"  # the arm's own number, without a baseline


OF_BASELINE = "of the baseline's"  # a unit


@dataclass(frozen=True, kw_only=True, slots=True)
class Metric:
    name: str  # everywhere: in claims, in columns, in JSON
    title: str
    unit: str
    better: Better
    kind: Kind
    made_by: str  # train, clock, or the kind of session: steps, parts, lengths, decoding
    gain: str = ""  # how an arm that is better is described
    loss: str = ""  # and one that is worse
    show: Callable[[float | None], str] = three_digits
    path: tuple[str, ...] = ()  # in `summary.json`
    curve: str = ""  # in rows of `metrics.jsonl`, W&B and TensorBoard

    @property
    def relative(self) -> bool:
        """Say whether its value is the arm's over the baseline's, as claims state it and tables show it:
        below 1 is a gain."""
        return self.unit == OF_BASELINE


_LOWER, _HIGHER, _NEITHER = Better
_EXACT, _SEED, _CLOCK = Kind
_SPEED, _MEMORY, _PARAMS = (
    ("faster", "slower"),
    ("less memory", "more memory"),
    ("fewer parameters", "more parameters"),
)


def _metrics(made_by: str, **rows: tuple[Any, ...]) -> dict[str, Metric]:
    """Name → title, unit, better, kind, words of better and worse, format, place in a summary, curve."""
    names = ("title", "unit", "better", "kind", "gain", "loss", "show", "path", "curve")
    return {
        name: Metric(name=name, made_by=made_by, **dict(zip(names, row, strict=False)))
        for name, row in rows.items()
    }


METRICS: dict[str, Metric] = {
    **_metrics(
        "train",
        val_loss=(
            "validation loss",
            "nats/token",
            _LOWER,
            _SEED,
            "lower loss",
            "higher loss",
            loss,
            ("val_loss",),
            "val/loss",
        ),
        val_bpb=(
            *(
                "validation bits per byte",
                "bits/byte",
                _LOWER,
                _SEED,
                "lower bits/byte",
                "higher bits/byte",
            ),
            *(loss, ("val_bpb",), "val/bpb"),
        ),
        steps_to_target=(
            "steps to the target loss",
            "steps",
            _LOWER,
            _SEED,
            "fewer steps",
            "more steps",
            whole,
        ),
        time_to_target_s=(
            "time to the target loss",
            "s",
            _LOWER,
            _CLOCK,
            "faster to the target",
            "slower to the target",
            duration,
        ),
        # for the loss that the arm reaches; of a seed by the delta method (`judge.equal_loss`)
        time_at_equal_loss=(
            "time at equal loss",
            OF_BASELINE,
            _LOWER,
            _SEED,
            "less time",
            "more time",
        ),
    ),
    **_metrics(  # of a run, which is not interleaved with others: no claim may be about these
        "clock",
        train_s=("training time", "s", _LOWER, _CLOCK, *_SPEED, duration),  # made of lines of the clock
        token_us=(  # of training; on a CPU in CPU time
            "time a token",
            "µs",
            _LOWER,
            _CLOCK,
            *_SPEED,
            three_digits,
            ("token_us",),
            "perf/token_us",
        ),
        model_mib=(
            "the model's memory",
            "MiB",
            _LOWER,
            _EXACT,
            *_MEMORY,
            whole,
            ("memory_mib", "model"),
            "memory/model_mib",
        ),
    ),
    **_metrics(  # of a raced command, whatever it is
        "command",
        wall_s=("wall-clock", "s", _LOWER, _CLOCK, "less time", "more time", duration),
        cpu_s=("CPU time", "s", _LOWER, _CLOCK, "less CPU time", "more CPU time", duration),
        peak_mib=("peak MiB", "MiB", _LOWER, _CLOCK, *_MEMORY, whole),  # as it was sampled
    ),
    **_metrics(
        "steps",
        tokens_per_s=(
            "tokens/s",
            "tokens/s",
            _HIGHER,
            _CLOCK,
            *_SPEED,
            whole,
            ("tokens_per_s",),
            "perf/tokens_per_s",
        ),
        step_ms=(
            "step time",
            "ms",
            _LOWER,
            _CLOCK,
            "less time",
            "more time",
            three_digits,
            ("step_ms", "median"),
            "perf/step_ms",
        ),
        memory_mib=("memory", "MiB", _LOWER, _EXACT, *_MEMORY, whole),  # a GPU's peak; on a CPU counted
        params=("parameters", "parameters", _LOWER, _EXACT, *_PARAMS, count, ("params", "total")),
        kv_bytes=("KV cache per token", "bytes/token", _LOWER, _EXACT, "less cache", "more cache", whole),
    ),
    **_metrics(  # over the `parts` of a claim
        "parts",
        share=("share of the time", "share", _NEITHER, _CLOCK),
        part_ms=("time", "ms", _LOWER, _CLOCK, *_SPEED),
        part_mib=("memory kept for the backward", "MiB", _LOWER, _EXACT, *_MEMORY),
        part_params=("parameters", "parameters", _LOWER, _EXACT, *_PARAMS, count),
        # parts of memory: parameters, gradients, optimizer, activations
        held_mib=("MiB held", "MiB", _LOWER, _EXACT, *_MEMORY),
    ),
    **_metrics("lengths", exponent=("exponent of attention's time in T", "", _NEITHER, _CLOCK)),
    **_metrics(
        "decoding",
        decode_tokens_per_s=("decoded tokens/s", "tokens/s", _HIGHER, _CLOCK, *_SPEED, whole),
        decode_ms=("time per decoded token", "ms", _LOWER, _CLOCK, *_SPEED),
        decode_mb=("memory allocated per token", "MB", _LOWER, _EXACT, "less allocated", "more allocated"),
        collections=(
            "garbage collections in 50 tokens",
            "",
            _LOWER,
            _CLOCK,
            "fewer collections",
            "more collections",
        ),
    ),
}
OF_A_RUN = [name for name, metric in METRICS.items() if metric.path or name == "train_s"]


def is_count(metric: Metric, *, on_cuda: bool) -> bool:
    """Whether it needs no clock, and is equal in all sessions. A GPU's peak of memory is measured."""
    return metric.kind is Kind.exact and not (on_cuda and metric.name == "memory_mib")


def is_log(metric: Metric, scale: Scale) -> bool:
    """Whether gains are logarithms: of ratios, and of speeds and times, whose noise multiplies. No interval
    of theirs goes below 0."""
    return scale is Scale.ratio or (
        scale is Scale.value and metric.kind is Kind.clock and metric.unit in ("tokens/s", "ms", "s")
    )


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


# --- measurements -------------------------------------------------------------------------------------------


class Ending(Enum):
    measured = "measured"
    at_most = "at_most"  # reached its target in its shortest schedule: the value is more than was needed
    diverged = "diverged"
    refused = "refused"  # it is there, and what it says cannot be told: `why`


class Per(Enum):
    """What repeats a measurement."""

    seed = "seed"
    session = "session"  # of timing, apart from the others in time and in process
    exact = "exact"  # a count: any session has it


def now() -> str:
    """To the second, as records have their start."""
    return datetime.now().astimezone().isoformat(timespec="seconds")


def moment(text: str) -> float | None:
    """Read a time of ISO 8601 as seconds since the epoch, so that times of two zones are in their order.

    One without a zone is of this machine's. None: the text is no time.
    """
    try:
        return datetime.fromisoformat(text).timestamp()
    except (OverflowError, ValueError):
        return None


@dataclass(frozen=True, kw_only=True, slots=True)
class Measurement:
    """What one arm did in one metric, once."""

    arm: str
    repeat: int  # the seed of a run, the number of a session, or the round of a bench
    metric: Metric
    value: float | None  # in the metric's unit; None where the run diverged, or it is refused
    ending: Ending = Ending.measured
    where: str = ""  # the hardware's fingerprint
    when: str = ""  # ISO 8601
    part: str = ""  # of the step, where a profile measured only that
    per: Per = Per.seed
    why: str = ""  # it is refused

    def __post_init__(self) -> None:
        without = self.ending in (Ending.diverged, Ending.refused)
        require(
            (self.value is None) == without and math.isfinite(self.value or 0.0),
            f"a measurement of {self.metric.name}",
            "be a finite number, or null where the run diverged or it is refused",
            self.value,
        )
