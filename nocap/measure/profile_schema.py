"""The types of a profile's JSON, for programs and for the reader of two profiles: its schema.
`profile_record` fills them, `profile_file` writes and reads them. No torch.

Times are ms, memory is MiB. A row is what a module cost in one direction of a whole optimizer step;
of a forward, a prompt or a token the same.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec

from nocap.measure.subject import SubjectKind

KIND: Final = "profile"
Number = int | float  # of FLOPs or bytes
Positive = Annotated[float, msgspec.Meta(gt=0)]
Amount = Annotated[float, msgspec.Meta(ge=0)]


class Object(msgspec.Struct, frozen=True, kw_only=True):
    """An object of JSON."""


# --- what was profiled, and on what ---------------------------------------------------------------


class HardwareJson(Object, frozen=True, kw_only=True):
    """The machine, as `config.hardware.describe` has it."""

    device: str
    name: str
    cpu: str
    cpu_kind: str
    cores: int | None
    threads: int
    host: str
    system: str
    torch: str
    cuda: str | None
    fingerprint: str


class Peak(Object, frozen=True, kw_only=True):
    """What a machine can do at most."""

    flops: dict[str, Positive]  # FLOP/s by precision
    bytes_per_s: Positive  # read and written


class TextJson(Object, frozen=True, kw_only=True):
    """The size of what is generated."""

    prompt: int  # tokens
    texts: int  # decoded together
    cached: bool  # over keys and values that are kept; else the prefix again for each token


class DoubtsJson(Object, frozen=True, kw_only=True):
    """The figures by which a profile is trusted."""

    core: float  # the share of a core that the process had
    peak: float  # the share of the measured peak that a part came to


class ClocksJson(Object, frozen=True, kw_only=True):
    """The clocks of one call."""

    wall_ms: float
    cpu_ms: float  # of this process
    gpu_busy: float | None = None  # the share of the wall's time in which the GPU worked


class StepJson(Object, frozen=True, kw_only=True):
    """The whole of which the rows are parts."""

    ms: Positive
    attributed_ms: float  # of all rows
    unattributed_ms: float
    profiler: float  # the control: times as slow with it
    microbatches: int
    measured_microbatches: int
    plain: ClocksJson  # eager, as the parts are
    profiled: ClocksJson
    compiled: ClocksJson | None  # null: the config does not ask for it
    compile: str
    cuda_graphs: bool


# --- rows and their sums --------------------------------------------------------------------------


class RowJson(Object, frozen=True, kw_only=True):
    """A module in one direction."""

    path: str
    part: str
    layer: int | None
    direction: str  # forward or backward
    ms: float
    calls: int
    flops: Number
    bytes: Number
    bound_ms: float  # by the roofline
    share: float  # of the whole
    flop_s: float | None
    of_bound: float | None  # the bound's share of the time


class PartJson(Object, frozen=True, kw_only=True):
    """A part: the sum of its rows."""

    part: str
    ms: float
    calls: int
    flops: Number
    bytes: Number
    bound_ms: float
    forward_ms: float
    backward_ms: float
    share: float
    flop_s: float | None
    of_bound: float | None


class LayerJson(Object, frozen=True, kw_only=True):
    """A part in one layer."""

    layer: int
    part: str
    ms: float
    calls: int
    flops: Number
    bytes: Number
    bound_ms: float
    forward_ms: float
    backward_ms: float
    share: float
    flop_s: float | None
    of_bound: float | None


class LeafJson(Object, frozen=True, kw_only=True):
    """A row of a group: a part, or a detail of one."""

    part: str
    detail: str | None
    ms: Amount
    calls: int
    flops: Number
    bytes: Number
    bound_ms: float
    forward_ms: float
    backward_ms: float
    share: Amount
    flop_s: float | None
    of_bound: float | None
    of_forward: float | None  # its forward's share of all modules'
    of_block: float | None  # the share of the blocks' time


class GroupJson(Object, frozen=True, kw_only=True):
    """A group with its subtotal and its rows."""

    group: str
    ms: Amount
    calls: int
    flops: Number
    bytes: Number
    bound_ms: float
    forward_ms: float
    backward_ms: float
    share: Amount
    flop_s: float | None
    of_bound: float | None
    of_forward: float | None
    of_block: float | None
    parts: list[LeafJson]


# --- memory, and what can be won ------------------------------------------------------------------


class HeldJson(Object, frozen=True, kw_only=True):
    """The memory that is held, by what it is."""

    parameters: float
    gradients: float
    optimizer: float
    activations: float
    kept: dict[str, float]  # activations by the part that keeps them first


class MemoryJson(Object, frozen=True, kw_only=True):
    """The memory in MiB."""

    measured: HeldJson
    cache: float  # keys and values


class CeilingJson(Object, frozen=True, kw_only=True):
    """What an option can win at most."""

    label: str  # its override
    by_flops: float  # times as fast, by matrix products alone
    by_step: float  # times as fast, by the measured step
    saved_ms: dict[str, float]  # by part
    saved_mib: float
    saved: float  # of the memory


class CeilingsJson(Object, frozen=True, kw_only=True):
    """Every option that can be counted."""

    table: list[CeilingJson]  # the largest win first


class OptionJson(Object, frozen=True, kw_only=True):
    """What an option can win in a part at most."""

    label: str
    by_step: float | None  # null: the times are not to be trusted
    by_flops: float
    saved_ms: float


class LargestJson(Object, frozen=True, kw_only=True):
    """One of the largest parts, and what to try there."""

    part: str
    ms: float
    share: float
    of_bound: float | None
    options: list[OptionJson]  # the largest win first
    command: str | None  # that measures them; null: there are none


# --- the profile ----------------------------------------------------------------------------------


class ProfileJson(Object, frozen=True, kw_only=True):
    """What was measured and counted."""

    kind: Literal["profile"] = KIND
    of: SubjectKind
    date: str
    words: list[str]  # overrides
    config: dict[str, Any]
    vocab_size: int
    tokens: Annotated[int, msgspec.Meta(gt=0)]  # that one device works on
    text: TextJson | None  # null: nothing is generated
    flops_per_token: Number | None
    flops_basis: str
    not_counted: str | None  # why the rows have no FLOPs, bytes and bounds
    kernel: str
    hardware: HardwareJson
    roof: Peak
    clock: str
    trusted: bool
    doubts: DoubtsJson
    step: StepJson
    groups: list[GroupJson]
    parts: list[PartJson]
    layers: list[LayerJson]
    rows: list[RowJson]
    memory_mib: MemoryJson
    ceilings: CeilingsJson | None = None  # null: nobody asked for them


class ProfileFile(ProfileJson, frozen=True, kw_only=True):
    """A profile as its command writes it."""

    config_dirs: list[str]
    largest: list[LargestJson]


class TextFile(Object, frozen=True, kw_only=True):
    """The two profiles of generating text."""

    kind: Literal["profile"] = KIND
    of: Literal["generate"] = "generate"
    prefill: ProfileFile
    token: ProfileFile
