"""A profile, and what changed between two, as tables. No torch."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from nocap.measure.difference import Change, ProfileDifference
from nocap.measure.groups import GROUPS, title_of
from nocap.measure.largest import between
from nocap.measure.subject import Of
from nocap.report.table import Column, Table
from nocap.store.formats import MINUS, fixed, shorten, three_digits, whole
from nocap.store.metrics import HELD, PARTS, part_title

Json = Mapping[str, Any]
BUSY = 0.8  # of a step: below, the GPU waits for the host
SLOWED = 1.25  # times: beyond, the profiler lengthens what consists of many small operations


def render_profiles(profiles: Mapping[str, Json], *, ceilings: bool) -> str:
    """One after another, each under its name where there are several."""
    told = [render_profile(profile, ceilings=ceilings) for profile in profiles.values()]
    if len(profiles) > 1:
        told = [f"=== {Of(name).title}\n{text}" for name, text in zip(profiles.keys(), told, strict=True)]
    return "\n\n".join(told)


def render_profile(profile: Json, *, ceilings: bool = True) -> str:
    """Its head, the tables in the order to read them, and what to try; with `ceilings` also the bounds of all
    options, where they were counted."""
    bounds = profile.get("ceilings")
    tables = [
        _times(profile),
        _arithmetic(profile),
        _memory(profile["memory_mib"]),
        *([_ceilings(bounds["table"], trusted=profile["trusted"])] if bounds and ceilings else []),
        *([_layers(profile["layers"])] if profile["layers"] else []),
    ]
    told = ["\n".join(_head(profile)), *map(str, tables)]
    if "largest" in profile:
        told.append("\n".join(_largest(profile)))
    return "\n\n".join(told)


def _head(profile: Json) -> Iterator[str]:
    m = profile["config"]["model"]
    t = profile["config"]["trainer"]
    peak = profile["roof"]
    hard = profile["hardware"]
    doubts = profile["doubts"]
    of = Of(profile["of"])
    if not profile["trusted"]:
        yield (
            f"not to be trusted, the machine was busy: this process had {doubts['core']:.2f} of its core, "
            f"a part came to {doubts['peak']:.0%} of the measured peak; measure again when it is quiet"
        )
    flops = ", ".join(f"{v / 1e9:,.1f} GFLOP/s {k}" for k, v in peak["flops"].items())
    yield (
        f"{m['n_layer']} layers, {m['n_head']} heads, {m['d_model']} wide, V={profile['vocab_size']:,}; "
        f"{_size(profile, of)}; {t['precision']}, eager, attention {profile['kernel']}"
    )
    yield f"on {hard['name']}, {hard['threads']} thread(s), torch {hard['torch']}"
    yield f"peaks, measured: {flops}; {peak['bytes_per_s'] / 1e9:,.1f} GB/s"
    yield f"time: {profile['clock']}"
    if profile["flops_per_token"] is None:
        yield f"FLOPs a token: {profile['flops_basis']}"
    if profile["not_counted"]:
        yield f"FLOPs, bytes and bounds of the parts: not counted ({profile['not_counted']})"


def _size(profile: Json, of: Of) -> str:
    m = profile["config"]["model"]
    t = profile["config"]["trainer"]
    text = profile["text"]
    if of.trains:
        n = profile["step"]["microbatches"]
        return f"B={t['micro_batch']}, T={m['seq_len']}, {n} micro-batch(es) a step"
    if of is Of.forward:
        return f"B={t['micro_batch']}, T={m['seq_len']}, the forward of a micro-batch without gradients"
    cache = f"a cache of {m['seq_len']} tokens" if text["cached"] else "no cache, the prefix again"
    if of is Of.prefill:
        return f"a prompt of {text['prompt']} tokens in one pass, {cache}"
    return f"one token of {text['texts']} text(s) after {text['prompt']} tokens, {cache}"


def _per(unit: float, digits: int = 1) -> Callable[[float], str]:
    return lambda x: fixed(x / unit, digits)


def _share(x: float) -> str:
    return f"{fixed(100 * x, 1)}%"


def _in(unit: float) -> Callable[[float], str]:
    return lambda x: three_digits(x / unit)


def _rows(profile: Json) -> Iterator[tuple[str, Json]]:
    """Each group with its title, then its rows; a group of one row is one line."""
    for group in profile["groups"]:
        parts = group["parts"]
        title = GROUPS.get(group["group"], group["group"])
        if len(parts) == 1:
            (only,) = parts
            yield title if only["detail"] else part_title(only["part"]), only
            continue
        yield title, group
        yield from ((f"  {title_of(row['part'], row['detail'])}", row) for row in parts)


# --- the tables ---------------------------------------------------------------------------------------------

# key of a row → title, format
TIMES: dict[str, tuple[str, Callable[[Any], str]]] = {
    "ms": ("ms", three_digits),
    "share": ("share", _share),
    "of_forward": ("of forward", _share),
    "of_block": ("of block", _share),
    "forward_ms": ("forward", three_digits),
    "backward_ms": ("backward", three_digits),
    "calls": ("calls", whole),
}
OF_TRAINING = ("of_forward", "forward_ms", "backward_ms")
# what is 0 of arithmetic is a dash
COUNTED: dict[str, tuple[str, Callable[[Any], str]]] = {
    "flops": ("GFLOP", _in(1e9)),
    "of_flops": ("share of FLOPs", _share),
    "flop_s": ("GFLOP/s", _per(1e9)),
    "bytes": ("MiB moved", _in(2**20)),
    "bound_ms": ("bound ms", three_digits),
    "of_bound": ("of bound", "{:.0%}".format),
}
SMALL = {"flops": ("MFLOP", _in(1e6))}  # of less than a GFLOP


def _times(profile: Json) -> Table:
    trains = Of(profile["of"]).trains
    keys = [key for key in TIMES if trains or key not in OF_TRAINING]
    columns = [Column(title="part"), *(Column(title=TIMES[key][0], show=TIMES[key][1]) for key in keys)]
    rows = list[list[Any]]()
    for title, row in _rows(profile):
        shown = {**row, "calls": None} if "parts" in row else row  # a subtotal's would be of different things
        rows.append([title, *(shown[key] for key in keys)])
    return Table(title="where the time went", columns=columns, rows=rows, notes=list(_sum(profile)))


def _sum(profile: Json) -> Iterator[str]:
    step = profile["step"]
    of = Of(profile["of"])
    yield (
        f"sum of the parts {three_digits(step['attributed_ms'])} ms, "
        f"{step['attributed_ms'] / step['ms']:.1%} of the profiled {of.title}'s "
        f"{three_digits(step['ms'])} ms; not attributed "
        f"{three_digits(step['unattributed_ms'])} ms (between operations: Python, autograd's "
        "engine, the profiler; on a GPU, where the plain step counts: idle)"
    )
    slow = step["profiler"]
    lengthened = "; rows of many small operations are too long by as much" if slow > SLOWED else ""
    yield f"control: with the profiler it took {slow:.2f}× the time without{lengthened}"
    measured = step["measured_microbatches"]
    all_ = step["microbatches"]
    portion = "" if measured == all_ else f", of {measured} of {all_} micro-batches"
    how = step["compile"] + (", CUDA graphs" if step.get("cuda_graphs") else "")
    compiled = f"compiled ({how}), whole: a compiled graph cannot be taken apart"
    for key, what in (("plain", "without the profiler"), ("compiled", compiled)):
        if step[key]:
            busy = step[key].get("gpu_busy")
            gpu = "" if busy is None else f", the GPU busy {busy:.0%} of it"
            clocks = (
                f"{three_digits(step[key]['wall_ms'])} ms wall, {three_digits(step[key]['cpu_ms'])} "
                "ms of CPU time"
            )
            yield f"{of.title} {what}: {clocks}{portion}{gpu}"
            if busy is not None and busy < BUSY:
                yield _waiting(of)
    if of.trains:
        yield (
            "share: of the step; of forward: of the model's forward; of block: of the layers' time in both "
            "directions"
        )


def _waiting(of: Of) -> str:
    if of.trains:
        return "there the GPU waits for the host: trainer.cuda_graphs=true has one launch a micro-batch"
    return "there the GPU waits for the host, which launches one kernel after another"


def _arithmetic(profile: Json) -> Table:
    all_flops = sum(group["flops"] for group in profile["groups"])
    shown = COUNTED if all_flops >= 1e9 else {**COUNTED, **SMALL}
    columns = [Column(title="part"), *(Column(title=title, show=show) for title, show in shown.values())]
    rows = list[list[Any]]()
    for title, row in _rows(profile):
        if row["flops"] or row["bytes"]:
            figures = {**row, "of_flops": row["flops"] / all_flops if all_flops else 0.0}
            rows.append([title, *(figures[key] or None for key in COUNTED)])
    note = (
        "bound: per operation the larger of its FLOPs at the measured peak and its bytes at "
        "the measured bandwidth"
    )
    return Table(title="what arithmetic says of it", columns=columns, rows=rows, notes=[note])


def _layers(timings: Sequence[Json]) -> Table:
    layers: dict[int, dict[str, float]] = {}
    for row in timings:
        layers.setdefault(row["layer"], {})[row["part"]] = row["ms"]
    shown = list(dict.fromkeys(row["part"] for row in timings))
    rows = [
        [layer, *(parts.get(part, 0.0) for part in shown), sum(parts.values())]
        for layer, parts in layers.items()
    ]
    titles = [*(part_title(part).partition(",")[0] for part in shown), "all"]
    columns = [Column(title="layer"), *(Column(title=title, show=three_digits) for title in titles)]
    return Table(title="milliseconds by layer", columns=columns, rows=rows)


def _memory(memory: Json) -> Table:
    mib = memory["measured"]
    trains = mib["gradients"] > 0
    rows = [[key, mib[key]] for key in HELD if trains or mib[key]]
    rows += [["cached keys and values", memory["cache"]]] if memory["cache"] else []
    rows += [
        [f"  {part_title(part)}", mib["kept"][part]]
        for part in dict.fromkeys([*PARTS, *mib["kept"]])
        if part in mib["kept"]
    ]
    columns = [Column(title="memory"), Column(title="MiB", show=_per(1))]
    note = "activations: what a micro-batch's forward keeps for its backward, by the part that keeps it first"
    return Table(title="memory", columns=columns, rows=rows, notes=[note] if trains else [])


def _ceilings(ceilings: Sequence[Json], *, trusted: bool) -> Table:
    """The largest win first: by the measured step, or, where that cannot be trusted, by arithmetic alone."""
    columns = [
        Column(title="option"),
        Column(title="by FLOPs", show="{:.3f}×".format),
        Column(title="by the measured step", show="{:.2f}×".format),
        Column(title="MiB saved", show=whole),
        Column(title="of memory", show=_share),
    ]
    order = ceilings if trusted else sorted(ceilings, key=lambda row: -row["by_flops"])
    rows = [
        [row["label"], row["by_flops"], row["by_step"] if trusted else None, row["saved_mib"], row["saved"]]
        for row in order
    ]
    return Table(title="what an option can win at most", columns=columns, rows=rows)


# --- what to try --------------------------------------------------------------------------------------------


def _largest(profile: Json) -> Iterator[str]:
    whole = Of(profile["of"]).title
    yield (
        f"the largest parts; how much faster the {whole} can be at most with options that make the part "
        "cheaper; and what measures it"
    )
    of = Of(profile["of"])
    rest_ms = profile["step"]["unattributed_ms"]
    whole_ms = profile["step"]["ms"]
    if rest_ms > profile["largest"][0]["ms"]:
        share = _share(rest_ms / whole_ms)
        yield f"larger than any part: {three_digits(rest_ms)} ms, {share}, not attributed"
    for number, row in enumerate(profile["largest"], start=1):
        bound = f", {row['of_bound']:.0%} of its bound" if row["of_bound"] else ""
        share = f"{_share(row['share'])} of the {of.title}"
        yield f"{number}. {part_title(row['part'])}: {three_digits(row['ms'])} ms, {share}{bound}"
        wins = list[str]()
        for option in row["options"]:
            by = option["by_step"]
            wins.append(
                f"{option['label']} {by:.2f}×"
                if by
                else f"{option['label']} {option['by_flops']:.3f}× by FLOPs"
            )
        if wins:
            yield f"   at most: {', '.join(wins)}"
            yield f"   {row['command']}"
        else:
            yield "   no option of this configuration wins there by arithmetic"


# --- what changed -------------------------------------------------------------------------------------------


def render_differences(differences: Sequence[ProfileDifference]) -> str:
    """One after another."""
    return "\n\n".join(_difference(difference) for difference in differences)


def _difference(difference: ProfileDifference) -> str:
    tables = [
        _changes("what changed", difference.groups),
        _changes("row by row, the largest change first", difference.rows),
    ]
    head = "\n".join(_about(difference))
    return "\n\n".join([head, *map(str, tables), "\n".join(_caution(difference))])


def _about(difference: ProfileDifference) -> Iterator[str]:
    for name, side in (("A", difference.before), ("B", difference.after)):
        words = " ".join(side.words) or "no overrides"
        ratio = f", {difference.ratio:.2f}× A" if side is difference.after else ""
        doubt = "; not to be trusted, the machine was busy" if not side.trusted else ""
        yield (
            f"{name}: {side.path}, {three_digits(side.ms)} ms a {side.of.title}{ratio}, attention "
            f"{side.kernel}: {words}{doubt}"
        )
    if difference.before.tokens != difference.after.tokens:
        yield (
            f"of {difference.before.tokens:,} and {difference.after.tokens:,} tokens: a token takes "
            f"{difference.ratio_per_token:.2f}× A"
        )
    changed = [f"{key} {_value(a)} → {_value(b)}" for key, (a, b) in difference.config.items()]
    yield f"config: {shorten(changed, most=12) if changed else 'the same'}"


def _value(value: object) -> str:
    return json.dumps(value) if value is None or isinstance(value, bool) else str(value)


def _changes(title: str, changes: Sequence[Change]) -> Table:
    columns = [
        Column(title="part"),
        Column(title="A ms", show=three_digits),
        Column(title="B ms", show=three_digits),
        Column(title="change ms", show=_signed),
        Column(title="B/A", show="{:.2f}×".format),
        Column(title="A share", show=_share),
        Column(title="B share", show=_share),
    ]
    rows = list[list[Any]]()
    for change in changes:
        before = change.before
        after = change.after
        rows.append(
            [
                _title(change),
                before and before.ms,
                after and after.ms,
                change.ms,
                change.ratio,
                before and before.share,
                after and after.share,
            ]
        )
    return Table(title=title, columns=columns, rows=rows)


def _title(change: Change) -> str:
    place = change.place
    group = GROUPS.get(place.group, place.group)
    if not place.part:
        return group
    is_whole = place.detail is None
    part = part_title(place.part) if is_whole else title_of(place.part, place.detail)
    return part if part == group else f"{group}: {part}"


def _signed(ms: float) -> str:
    return f"+{three_digits(ms)}" if ms > 0 else three_digits(ms).replace("-", MINUS)


def _caution(difference: ProfileDifference) -> Iterator[str]:
    drift = ", ".join(f"{name} {each:.2f}×" for name, each in difference.drift.items())
    yield (
        "A and B are one measurement each, without an interval. Between them the machine itself changed, by "
        f"its measured peaks: {drift}"
    )
    told = between(difference.before, difference.after)
    if told is None:
        yield "both have the same overrides: what is shown is how much two profiles differ by themselves"
    elif told:
        yield f"with an interval: {told}"
