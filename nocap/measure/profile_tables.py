"""A profile as tables: times, arithmetic, memory, layers, ceilings, and what to try. No torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from nocap.config.keys import flat
from nocap.display import fixed, integer, three_digits
from nocap.measure.profile_groups import GROUPS, title_of
from nocap.measure.profile_schema import (
    CeilingJson,
    ClocksJson,
    GroupJson,
    LayerJson,
    LeafJson,
    MemoryJson,
    OptionJson,
    ProfileFile,
    ProfileJson,
)
from nocap.measure.subject import SubjectKind
from nocap.report.table import Column, Table
from nocap.report.terminal import prose
from nocap.step_parts import HELD, PARTS, part_title

BUSY = 0.8  # of a step: below, the GPU waits for the host
SLOWED = 1.25  # times: beyond, the profiler lengthens what consists of many small operations


def render_profiles(files: Mapping[str, ProfileFile], *, ceilings: bool) -> str:
    """Return the profiles as text, each under its name where there are several."""
    texts = list[str]()
    for of, file in files.items():
        text = render_profile(file, ceilings=ceilings)
        if len(files) > 1:
            text = f"=== {SubjectKind(of).title}\n{text}"
        largest = "\n".join(_largest(file))
        texts.append(f"{text}\n\n{largest}")
    return "\n\n".join(texts)


def render_profile(profile: ProfileJson, *, ceilings: bool = True) -> str:
    """Return its head and the tables in the order to read them; with `ceilings` also the bounds of
    all options, where they were counted."""
    tables = [_times(profile), _arithmetic(profile), _memory(profile.memory_mib)]
    if profile.ceilings and ceilings:
        tables.append(_ceilings(profile.ceilings.table, trusted=profile.trusted))
    if profile.layers:
        tables.append(_layers(profile.layers))
    return "\n\n".join(["\n".join(map(prose, _head(profile))), *map(str, tables)])


def _head(profile: ProfileJson) -> Iterator[str]:
    config = dict(flat(profile.config))
    peak = profile.roof
    hardware = profile.hardware
    doubts = profile.doubts
    if not profile.trusted:
        yield (
            "do not trust these times, because the machine was busy: this process had "
            f"{doubts.core:.2f} of its core, and a part reached {doubts.peak:.0%} of the measured "
            "peak. Measure again when the machine is idle"
        )
    flops = ", ".join(f"{rate / 1e9:,.1f} GFLOP/s {name}" for name, rate in peak.flops.items())
    yield (
        f"{config['model.n_layer']} layers, {config['model.n_head']} heads, "
        f"{config['model.d_model']} wide, V={profile.vocab_size:,}; {_size(profile, config)}; "
        f"{config['trainer.precision']}, eager, attention {profile.kernel}"
    )
    yield f"on {hardware.name}, {hardware.threads} thread(s), torch {hardware.torch}"
    yield f"measured peaks: {flops}; {peak.bytes_per_s / 1e9:,.1f} GB/s"
    yield f"time: {profile.clock}"
    if profile.flops_per_token is None:
        yield f"FLOPs a token: {profile.flops_basis}"
    if profile.not_counted:
        yield f"FLOPs, bytes and bounds of the parts: not counted ({profile.not_counted})"


def _size(profile: ProfileJson, config: Mapping[str, Any]) -> str:
    """Return how large a step, a forward or a text is."""
    context = config["model.seq_len"]
    shape = f"B={config['trainer.micro_batch']}, T={context}"
    text = profile.text
    if profile.of.trains:
        return f"{shape}, {profile.step.microbatches} micro-batch(es) a step"
    if text is None:
        return f"{shape}, the forward of a micro-batch without gradients"
    cache = "no cache, so the prefix is computed again"
    if text.cached:
        cache = f"a cache of {context} tokens"
    if profile.of is SubjectKind.prefill:
        return f"a prompt of {text.prompt} tokens in one pass, {cache}"
    return f"one token of {text.texts} text(s) after {text.prompt} tokens, {cache}"


def _per(unit: float, digits: int = 1) -> Callable[[float], str]:
    return lambda x: fixed(x / unit, digits)


def in_percent(x: float) -> str:
    return f"{fixed(100 * x, 1)}%"


def _in(unit: float) -> Callable[[float], str]:
    return lambda x: three_digits(x / unit)


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """A line of a table: a group's subtotal, or a row."""

    title: str
    row: GroupJson | LeafJson
    is_sum: bool = False


def _lines(profile: ProfileJson) -> Iterator[Line]:
    """Give each group, then its rows; a group of one row is one line."""
    for group in profile.groups:
        title = GROUPS.get(group.group, group.group)
        if len(group.parts) == 1:
            (leaf,) = group.parts
            if not leaf.detail:
                title = part_title(leaf.part)
            yield Line(title=title, row=leaf)
            continue
        yield Line(title=title, row=group, is_sum=True)
        for leaf in group.parts:
            yield Line(title=f"  {title_of(leaf.part, leaf.detail)}", row=leaf)


# --- the tables -----------------------------------------------------------------------------------

# key of a row → title, format
TIME_COLUMNS: dict[str, tuple[str, Callable[[Any], str]]] = {
    "ms": ("ms", three_digits),
    "share": ("share", in_percent),
    "of_forward": ("of forward", in_percent),
    "of_block": ("of block", in_percent),
    "forward_ms": ("forward", three_digits),
    "backward_ms": ("backward", three_digits),
    "calls": ("calls", integer),
}
OF_TRAINING = ("of_forward", "forward_ms", "backward_ms")
# what is 0 of arithmetic is a dash
COUNT_COLUMNS: dict[str, tuple[str, Callable[[Any], str]]] = {
    "flops": ("GFLOP", _in(1e9)),
    "of_flops": ("share of FLOPs", in_percent),
    "flop_s": ("GFLOP/s", _per(1e9)),
    "bytes": ("MiB moved", _in(2**20)),
    "bound_ms": ("bound ms", three_digits),
    "of_bound": ("of bound", "{:.0%}".format),
}
SMALL = {"flops": ("MFLOP", _in(1e6))}  # of less than a GFLOP


def _times(profile: ProfileJson) -> Table:
    keys = [key for key in TIME_COLUMNS if profile.of.trains or key not in OF_TRAINING]
    columns = [Column(title="part")]
    for key in keys:
        title, show = TIME_COLUMNS[key]
        columns.append(Column(title=title, show=show))
    rows = list[list[Any]]()
    for line in _lines(profile):
        figures = msgspec.structs.asdict(line.row)
        if line.is_sum:
            figures["calls"] = None  # they would be of different things
        rows.append([line.title, *(figures[key] for key in keys)])
    return Table(title="where the time went", columns=columns, rows=rows, notes=list(_sum(profile)))


def _sum(profile: ProfileJson) -> Iterator[str]:
    step = profile.step
    of = profile.of
    yield (
        f"the parts take {three_digits(step.attributed_ms)} ms together, "
        f"{step.attributed_ms / step.ms:.1%} of the profiled {of.title}'s {three_digits(step.ms)} "
        f"ms. The other {three_digits(step.unattributed_ms)} ms are between operations: Python, "
        "autograd's engine and the profiler, or on a GPU idle time"
    )
    lengthened = ""
    if step.profiler > SLOWED:
        lengthened = "; rows with many small operations are too long by this factor"
    yield (
        f"control: with the profiler the {of.title} took {step.profiler:.2f}× the time without "
        f"it{lengthened}"
    )
    yield from _clocks(profile, "without the profiler", step.plain)
    if step.compiled:
        how = step.compile
        if step.cuda_graphs:
            how += ", CUDA graphs"
        compiled = f"compiled ({how}), only in total, because a compiled graph has no parts to time"
        yield from _clocks(profile, compiled, step.compiled)
    if of.trains:
        yield (
            "share is the share of the step, of forward the share of the model's forward, and of "
            "block the share of the layers' time in both directions"
        )


def _clocks(profile: ProfileJson, what: str, clocks: ClocksJson) -> Iterator[str]:
    """Say what the clocks of a step show."""
    measured = profile.step.measured_microbatches
    total = profile.step.microbatches
    times = f"{three_digits(clocks.wall_ms)} ms wall, {three_digits(clocks.cpu_ms)} ms of CPU time"
    if measured != total:
        times += f", for {measured} of {total} micro-batches"
    busy = clocks.gpu_busy
    if busy is not None:
        times += f"; the GPU was busy for {busy:.0%} of this time"
    yield f"{profile.of.title} {what}: {times}"
    if busy is not None and busy < BUSY:
        yield _waiting(profile.of)


def _waiting(of: SubjectKind) -> str:
    if of.trains:
        return (
            "the GPU waits for the host; trainer.cuda_graphs=true needs only one launch for each "
            "micro-batch"
        )
    return "the GPU waits for the host, which launches one kernel after another"


def _arithmetic(profile: ProfileJson) -> Table:
    all_flops = sum(group.flops for group in profile.groups)
    shown = COUNT_COLUMNS
    if all_flops < 1e9:
        shown = COUNT_COLUMNS | SMALL
    columns = [Column(title="part")]
    for title, show in shown.values():
        columns.append(Column(title=title, show=show))
    rows = list[list[Any]]()
    for line in _lines(profile):
        row = line.row
        if not row.flops and not row.bytes:
            continue
        figures = msgspec.structs.asdict(row)
        figures["of_flops"] = row.flops / all_flops if all_flops else 0.0
        rows.append([line.title, *(figures[key] or None for key in COUNT_COLUMNS)])
    note = (
        "bound is the least time of each operation: its FLOPs at the measured peak, or its bytes "
        "at the measured bandwidth, whichever takes longer"
    )
    return Table(title="FLOPs, bytes and bounds", columns=columns, rows=rows, notes=[note])


def _layers(timings: Sequence[LayerJson]) -> Table:
    layers: dict[int, dict[str, float]] = {}
    for row in timings:
        layers.setdefault(row.layer, {})[row.part] = row.ms
    shown = list(dict.fromkeys(row.part for row in timings))
    rows = list[list[Any]]()
    for layer, parts in layers.items():
        rows.append([layer, *(parts.get(part, 0.0) for part in shown), sum(parts.values())])
    columns = [Column(title="layer")]
    for part in shown:
        title = part_title(part).partition(",")[0]
        columns.append(Column(title=title, show=three_digits))
    columns.append(Column(title="all", show=three_digits))
    return Table(title="milliseconds by layer", columns=columns, rows=rows)


def _memory(memory: MemoryJson) -> Table:
    held = msgspec.structs.asdict(memory.measured)
    mib_by_part = memory.measured.kept
    trains = memory.measured.gradients > 0
    rows = [[part, held[part]] for part in HELD if trains or held[part]]
    if memory.cache:
        rows.append(["cached keys and values", memory.cache])
    for part in dict.fromkeys([*PARTS, *mib_by_part]):
        if part in mib_by_part:
            rows.append([f"  {part_title(part)}", mib_by_part[part]])
    columns = [Column(title="memory"), Column(title="MiB", show=_per(1))]
    notes = list[str]()
    if trains:
        notes.append(
            "activations are what a micro-batch's forward keeps for its backward; each counts for "
            "the part that keeps it first"
        )
    return Table(title="memory", columns=columns, rows=rows, notes=notes)


def _ceilings(ceilings: Sequence[CeilingJson], *, trusted: bool) -> Table:
    """Return the largest win first: by the measured step, or, where that cannot be trusted, by
    arithmetic alone."""
    columns = [
        Column(title="option"),
        Column(title="by FLOPs", show="{:.3f}×".format),
        Column(title="by the measured step", show="{:.2f}×".format),
        Column(title="MiB saved", show=integer),
        Column(title="of memory", show=in_percent),
    ]
    order = list(ceilings)
    if not trusted:
        order.sort(key=lambda row: -row.by_flops)
    rows = list[list[Any]]()
    for row in order:
        by_step = row.by_step if trusted else None
        rows.append([row.label, row.by_flops, by_step, row.saved_mib, row.saved])
    return Table(title="the largest gain that each option can give", columns=columns, rows=rows)


# --- what to try ----------------------------------------------------------------------------------


def _largest(file: ProfileFile) -> Iterator[str]:
    of = file.of.title
    yield prose(
        f"the largest parts, the largest speedup of the {of} that options can give, and the "
        "commands that measure it"
    )
    rest_ms = file.step.unattributed_ms
    if rest_ms > file.largest[0].ms:
        share = in_percent(rest_ms / file.step.ms)
        yield prose(
            f"{three_digits(rest_ms)} ms ({share}) belong to no part; this is more than the "
            "largest part"
        )
    for number, row in enumerate(file.largest, start=1):
        cost = f"{three_digits(row.ms)} ms, {in_percent(row.share)} of the {of}"
        if row.of_bound:
            cost += f", {row.of_bound:.0%} of its bound"
        yield prose(f"{number}. {part_title(row.part)}: {cost}", hang=3)
        if row.options:
            yield prose(f"   at most: {', '.join(map(_win, row.options))}", hang=3)
            yield f"   {row.command}"
        else:
            yield prose(
                "   by arithmetic, no option of this configuration makes this part cheaper", hang=3
            )


def _win(option: OptionJson) -> str:
    if option.by_step:
        return f"{option.label} {option.by_step:.2f}×"
    return f"{option.label} {option.by_flops:.3f}× by FLOPs"
