"""The registry of metrics: what is measured, its unit, which way is better, where its noise comes
from, how it is shown and where a run's record has it. There is no other table of metrics."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum, StrEnum

from nocap.display import count, duration, integer, loss, three_digits
from nocap.row_keys import MODEL_MIB, STEP_MS, TOKEN_US, TOKENS_PER_S, VAL_BPB, VAL_LOSS


class Better(Enum):
    lower = "lower"
    higher = "higher"
    neither = "neither"  # a claim about it states its value


class Kind(Enum):
    """Where the noise of a metric comes from."""

    exact = "exact"  # counted
    seed = "seed"
    clock = "clock"


class MadeBy(StrEnum):
    """What makes a metric's values: a training, a command, or a kind of session."""

    train = "train"
    clock = "clock"  # of a run
    command = "command"  # a raced one
    steps = "steps"
    parts = "parts"
    lengths = "lengths"
    decoding = "decoding"


class Scale(Enum):
    """How a gain over the baseline is stated."""

    ratio = "ratio"  # how many times better
    difference = "difference"  # by how much better
    value = "value"  # the arm's own number, without a baseline


OF_BASELINE = "of the baseline's"  # a unit


@dataclass(frozen=True, kw_only=True, slots=True)
class Wording:
    """How a text says a metric's gains and losses."""

    better: str  # of an arm that is better: 7.4% `faster`
    worse: str
    times: str  # of a large ratio: 2.10× `as fast`, or 2.10× `the memory`
    no_worse: str
    as_speed: bool = False  # a ratio is that of speeds; false: of what is used


FASTER = Wording(
    better="faster", worse="slower", times="as fast", no_worse="not slower", as_speed=True
)
FASTER_TO_TARGET = Wording(
    better="faster to the target",
    worse="slower to the target",
    times="as fast to the target",
    no_worse="not slower to the target",
    as_speed=True,
)


def _less(noun: str) -> Wording:
    """Return the wording for an amount, such as memory."""
    better = f"less {noun}"
    worse = f"more {noun}"
    times = f"the {noun}"
    no_worse = f"no more {noun}"
    return Wording(better=better, worse=worse, times=times, no_worse=no_worse)


def _fewer(noun: str) -> Wording:
    """Return the wording for a number of things, such as steps."""
    return replace(_less(noun), better=f"fewer {noun}")


def _lower(noun: str) -> Wording:
    """Return the wording for a level, such as a loss."""
    better = f"lower {noun}"
    worse = f"higher {noun}"
    times = f"the {noun}"
    no_worse = f"no higher {noun}"
    return Wording(better=better, worse=worse, times=times, no_worse=no_worse)


# What a training takes beside time, as a sentence says it.
COST_WORDS = {
    "memory": _less("memory"),
    "params": _fewer("parameters"),
    "tokens": _fewer("tokens"),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Metric:
    name: str  # everywhere: in claims, in columns, in JSON
    title: str
    unit: str
    better: Better = Better.lower
    kind: Kind
    made_by: MadeBy
    wording: Wording | None = None  # None: claims state its value alone
    show: Callable[[float | None], str] = three_digits
    path: tuple[str, ...] = ()  # in `summary.json`
    curve: str = ""  # in rows of `metrics.jsonl`, W&B and TensorBoard

    @property
    def relative(self) -> bool:
        """Say whether its value is the arm's over the baseline's, as claims state it and tables
        show it: below 1 is a gain."""
        return self.unit == OF_BASELINE

    @property
    def is_pace(self) -> bool:
        """Say whether it is a time or a speed, whose noise multiplies."""
        return self.kind is Kind.clock and self.unit in ("tokens/s", "ms", "s")


METRICS: dict[str, Metric] = {}  # by name, in the order in which messages list them


def _define(metric: Metric) -> None:
    METRICS[metric.name] = metric


# Of a training.
_define(
    Metric(
        name="val_loss",
        title="validation loss",
        unit="nats/token",
        kind=Kind.seed,
        made_by=MadeBy.train,
        wording=_lower("loss"),
        show=loss,
        path=("val_loss",),
        curve=VAL_LOSS,
    )
)
_define(
    Metric(
        name="val_bpb",
        title="validation bits per byte",
        unit="bits/byte",
        kind=Kind.seed,
        made_by=MadeBy.train,
        wording=_lower("bits/byte"),
        show=loss,
        path=("val_bpb",),
        curve=VAL_BPB,
    )
)
_define(
    Metric(
        name="steps_to_target",
        title="steps to the target loss",
        unit="steps",
        kind=Kind.seed,
        made_by=MadeBy.train,
        wording=_fewer("steps"),
        show=integer,
    )
)
_define(
    Metric(
        name="time_to_target_s",
        title="time to the target loss",
        unit="s",
        kind=Kind.clock,
        made_by=MadeBy.train,
        wording=FASTER_TO_TARGET,
        show=duration,
    )
)
# for the loss that the arm reaches; of a seed by the delta method (`judge.equal_loss`)
_define(
    Metric(
        name="time_at_equal_loss",
        title="time at equal loss",
        unit=OF_BASELINE,
        kind=Kind.seed,
        made_by=MadeBy.train,
        wording=_less("time"),
    )
)
# Of a run, which is not interleaved with others: no claim may be about these.
_define(
    Metric(
        name="train_s",  # made of lines of the clock
        title="training time",
        unit="s",
        kind=Kind.clock,
        made_by=MadeBy.clock,
        wording=FASTER,
        show=duration,
    )
)
_define(
    Metric(
        name="token_us",  # of training; on a CPU in CPU time
        title="time a token",
        unit="µs",
        kind=Kind.clock,
        made_by=MadeBy.clock,
        wording=FASTER,
        path=("token_us",),
        curve=TOKEN_US,
    )
)
_define(
    Metric(
        name="model_mib",
        title="the model's memory",
        unit="MiB",
        kind=Kind.exact,
        made_by=MadeBy.clock,
        wording=_less("memory"),
        show=integer,
        path=("memory_mib", "model"),
        curve=MODEL_MIB,
    )
)
# Of a raced command, whatever it is.
_define(
    Metric(
        name="wall_s",
        title="wall-clock",
        unit="s",
        kind=Kind.clock,
        made_by=MadeBy.command,
        wording=_less("time"),
        show=duration,
    )
)
_define(
    Metric(
        name="cpu_s",
        title="CPU time",
        unit="s",
        kind=Kind.clock,
        made_by=MadeBy.command,
        wording=_less("CPU time"),
        show=duration,
    )
)
_define(
    Metric(
        name="peak_mib",  # as it was sampled
        title="peak MiB",
        unit="MiB",
        kind=Kind.clock,
        made_by=MadeBy.command,
        wording=_less("memory"),
        show=integer,
    )
)
# Of steps.
_define(
    Metric(
        name="tokens_per_s",
        title="tokens/s",
        unit="tokens/s",
        better=Better.higher,
        kind=Kind.clock,
        made_by=MadeBy.steps,
        wording=FASTER,
        show=integer,
        path=("tokens_per_s",),
        curve=TOKENS_PER_S,
    )
)
_define(
    Metric(
        name="step_ms",
        title="step time",
        unit="ms",
        kind=Kind.clock,
        made_by=MadeBy.steps,
        wording=_less("time"),
        path=("step_ms", "median"),
        curve=STEP_MS,
    )
)
_define(
    Metric(
        name="memory_mib",  # a GPU's peak; on a CPU counted
        title="memory",
        unit="MiB",
        kind=Kind.exact,
        made_by=MadeBy.steps,
        wording=_less("memory"),
        show=integer,
    )
)
_define(
    Metric(
        name="params",
        title="parameters",
        unit="parameters",
        kind=Kind.exact,
        made_by=MadeBy.steps,
        wording=_fewer("parameters"),
        show=count,
        path=("params", "total"),
    )
)
_define(
    Metric(
        name="kv_bytes",
        title="KV cache per token",
        unit="bytes/token",
        kind=Kind.exact,
        made_by=MadeBy.steps,
        wording=_less("cache"),
        show=integer,
    )
)
# Over the `parts` of a claim.
_define(
    Metric(
        name="share",
        title="share of the time",
        unit="share",
        better=Better.neither,
        kind=Kind.clock,
        made_by=MadeBy.parts,
    )
)
_define(
    Metric(
        name="part_ms",
        title="time",
        unit="ms",
        kind=Kind.clock,
        made_by=MadeBy.parts,
        wording=FASTER,
    )
)
_define(
    Metric(
        name="part_mib",
        title="memory kept for the backward",
        unit="MiB",
        kind=Kind.exact,
        made_by=MadeBy.parts,
        wording=_less("memory"),
    )
)
_define(
    Metric(
        name="part_params",
        title="parameters",
        unit="parameters",
        kind=Kind.exact,
        made_by=MadeBy.parts,
        wording=_fewer("parameters"),
        show=count,
    )
)
_define(
    Metric(
        name="held_mib",  # by parts of memory: parameters, gradients, optimizer, activations
        title="MiB held",
        unit="MiB",
        kind=Kind.exact,
        made_by=MadeBy.parts,
        wording=_less("memory"),
    )
)
# Over several lengths of the sequence.
_define(
    Metric(
        name="exponent",
        title="exponent of attention's time in T",
        unit="",
        better=Better.neither,
        kind=Kind.clock,
        made_by=MadeBy.lengths,
    )
)
# Of decoding.
_define(
    Metric(
        name="decode_tokens_per_s",
        title="decoded tokens/s",
        unit="tokens/s",
        better=Better.higher,
        kind=Kind.clock,
        made_by=MadeBy.decoding,
        wording=FASTER,
        show=integer,
    )
)
_define(
    Metric(
        name="decode_ms",
        title="time per decoded token",
        unit="ms",
        kind=Kind.clock,
        made_by=MadeBy.decoding,
        wording=FASTER,
    )
)
_define(
    Metric(
        name="decode_mb",
        title="memory allocated per token",
        unit="MB",
        kind=Kind.exact,
        made_by=MadeBy.decoding,
        wording=replace(_less("allocated"), times="the memory allocated"),
    )
)
_define(
    Metric(
        name="collections",
        title="garbage collections in 50 tokens",
        unit="",
        kind=Kind.clock,
        made_by=MadeBy.decoding,
        wording=_fewer("collections"),
    )
)

OF_A_RUN = [name for name, metric in METRICS.items() if metric.path or name == "train_s"]


def is_count(metric: Metric, *, on_cuda: bool) -> bool:
    """Say whether it needs no clock, and is equal in all sessions. A GPU's peak of memory is
    measured."""
    is_peak = on_cuda and metric.name == "memory_mib"
    return metric.kind is Kind.exact and not is_peak


def is_log(metric: Metric, scale: Scale) -> bool:
    """Say whether gains are logarithms: of ratios, and of speeds and times, whose noise multiplies.
    No interval of theirs goes below 0."""
    if scale is Scale.value:
        return metric.is_pace
    return scale is Scale.ratio
