"""Results of the bench and the profile as tables, for a terminal and for the profile's page. No torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from nocap.judge.interval import Estimate
from nocap.report.table import Cell, Column, Table
from nocap.report.words import measured, values
from nocap.store.formats import fixed, three_digits, whole
from nocap.store.metrics import HELD, METRICS, PARTS, Scale, part_title

Json = Mapping[str, Any]
BUSY = 0.8  # of a step: below, the GPU waits for the host


# --- the bench


def render_bench(result: Json) -> str:
    """The table, then what its columns count and what could not be timed."""
    base, *others = result["arms"]
    arms = [{**base, "verdict": "baseline"}, {**result["control"], "label": "  again (control)"}, *others]
    columns = [
        Column(title="arm"),
        values("tokens_per_s", "tokens/s"),
        values("step_ms", "step ms"),
        Column(title="speed", show=_speed),
        Column(title="by FLOPs", show=lambda ratio: f"{ratio:.3f}×"),
        values("memory_mib", "MiB"),
        Column(title="MFU"),
        Column(title="verdict"),
    ]
    rows = [
        [
            *(arm.get(key) for key in ("label", "tokens_per_s", "step_ms", "speed", "speed_by_flops")),
            (arm.get("memory_mib") or {}).get("peak"),
            " / ".join(f"{share:.0%}" for share in arm.get("mfu", {}).values() if share) or None,
            arm["verdict"],
        ]
        for arm in arms
        if arm["tokens_per_s"]
    ]
    hard, spent = result["hardware"], result["spent_s"]
    first = (
        f"{hard['name']}, torch {hard['torch']}: {result['clock']}; {result['rounds']} interleaved rounds"
        f" in {spent['all']:.0f} s, {spent['warm_up']:.0f} s of it warm-up"
    )
    return str(Table(title=first, columns=columns, rows=rows, notes=list(_notes(result))))


def _speed(ratio: Json) -> Cell:
    return measured(
        Estimate(mid=ratio["ratio"], low=ratio["low"], high=ratio["high"], n=0),
        METRICS["tokens_per_s"],
        Scale.ratio,
    )


def _notes(result: Json) -> Iterator[str]:
    peaks, arms = result["peak_flops"], result["arms"]
    yield from (f"{arm['label']}: {arm['status']}: {arm['reason']}" for arm in arms if arm["reason"])
    unknown = (arm for arm in arms if arm["flops_per_token"] is None and arm["flops_basis"])
    yield from (f"{arm['label']}: FLOPs {arm['flops_basis']}" for arm in unknown)
    yield (
        "all of this is of one session: how much this machine differs tomorrow is in no "
        "interval here; a study times in three sessions"
    )
    yield (
        "speed: tokens/s over the baseline's, round by round, with an interval at "
        f"{result['limit']['confidence']:.0%} for all arms"
        " together, wider by what the baseline differs from itself (the control). by FLOPs: "
        "what arithmetic alone would give"
    )
    counted = "parameters, gradients, optimizer and what a forward keeps, counted"
    which = "nominal / measured" if any(peak["nominal"] for peak in peaks.values()) else "measured"
    tera = "; ".join(
        f"{precision} {peak['measured'] / 1e12:,.2f} TFLOP/s measured"
        + (f", {peak['nominal'] / 1e12:,.0f} nominal" if peak["nominal"] else "")
        for precision, peak in peaks.items()
    )
    yield (
        f"MiB: {'most allocated' if result['hardware']['device'] == 'cuda' else counted}. "
        f"MFU ({which} peak): {tera}"
    )
    yield from (
        f"{arm['label']}: {', '.join(f'{key} {x}' for key, x in arm['settings'].items())}"
        for arm in arms
        if arm["settings"]
    )
    sizes = sorted({arm["tokens_per_step"] for arm in arms if arm["tokens_per_s"]})
    if len(sizes) > 1:
        yield f"tokens per step differ ({', '.join(f'{n:,}' for n in sizes)}): speed is per token"


# --- the profile


def render_profile(profile: Json) -> str:
    """Its head, then the tables in the order to read them; that of ceilings where those were measured."""
    trusted, ceilings = profile["trusted"], profile.get("ceilings")
    tables = [
        _parts(profile["parts"], profile["step"]),
        _memory(profile["memory_mib"]["measured"]),
        *([_ceilings(ceilings["table"], trusted=trusted)] if ceilings else []),
        _layers(profile["layers"]),
    ]
    return "\n\n".join(["\n".join(_head(profile)), *map(str, tables)])


def _head(profile: Json) -> Iterator[str]:
    m, t = profile["config"]["model"], profile["config"]["trainer"]
    peak, hard, doubts = profile["roof"], profile["hardware"], profile["doubts"]
    if not profile["trusted"]:
        yield (
            f"not to be trusted, the machine was busy: this process had {doubts['core']:.2f} of its core, "
            f"a part came to {doubts['peak']:.0%} of the measured peak; measure again when it is quiet"
        )
    flops = ", ".join(f"{v / 1e9:,.1f} GFLOP/s {k}" for k, v in peak["flops"].items())
    yield (
        f"{m['n_layer']} layers, {m['n_head']} heads, {m['d_model']} wide, V={profile['vocab_size']:,}; "
        f"B={t['micro_batch']}, T={m['seq_len']}, {profile['step']['microbatches']} "
        f"micro-batch(es) a step; {t['precision']}, eager, "
        f"attention {profile['kernel']}"
    )
    yield f"on {hard['name']}, {hard['threads']} thread(s), torch {hard['torch']}"
    yield f"peaks, measured: {flops}; {peak['bytes_per_s'] / 1e9:,.1f} GB/s"
    yield f"time: {profile['clock']}"
    if profile["flops_per_token"] is None:
        yield f"FLOPs a token: {profile['flops_basis']}"
    if profile["not_counted"]:
        yield f"FLOPs, bytes and bounds of the parts: not counted ({profile['not_counted']})"


def _per(unit: float, digits: int = 1) -> Callable[[float], str]:
    return lambda x: fixed(x / unit, digits)


def _share(x: float) -> str:
    return f"{fixed(100 * x, 1)}%"


# key of a row → title, format; what is 0 of arithmetic is a dash
PART_COLUMNS: dict[str, tuple[str, Callable[[Any], str]]] = {
    "part": ("part", part_title),
    "ms": ("ms", three_digits),
    "share": ("share", _share),
    "forward_ms": ("forward", three_digits),
    "backward_ms": ("backward", three_digits),
    "flops": ("GFLOP", _per(1e9)),
    "of_flops": ("share of FLOPs", _share),
    "flop_s": ("GFLOP/s", _per(1e9)),
    "bytes": ("MiB moved", _per(2**20, 0)),
    "bound_ms": ("bound ms", three_digits),
    "of_bound": ("of bound", "{:.0%}".format),
    "calls": ("calls", whole),
}
COUNTED = ("flops", "of_flops", "flop_s", "bytes", "bound_ms", "of_bound")


def _parts(parts: Sequence[Json], step: Json) -> Table:
    all_flops = sum(row["flops"] for row in parts)
    rows = [{**row, "of_flops": row["flops"] / all_flops if all_flops else 0.0} for row in parts]
    cells = [[row[key] or None if key in COUNTED else row[key] for key in PART_COLUMNS] for row in rows]
    columns = [Column(title=title, show=show) for title, show in PART_COLUMNS.values()]
    return Table(title="where the time went", columns=columns, rows=cells, notes=list(_sum(step)))


def _sum(step: Json) -> Iterator[str]:
    yield (
        f"sum of the parts {three_digits(step['attributed_ms'])} ms, "
        f"{step['attributed_ms'] / step['ms']:.1%} of the profiled step's "
        f"{three_digits(step['ms'])} ms; not attributed "
        f"{three_digits(step['unattributed_ms'])} ms (between operations: Python, autograd's "
        "engine, the profiler; on a GPU, where the plain step counts: idle)"
    )
    measured, all_ = step["measured_microbatches"], step["microbatches"]
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
            yield f"step {what}: {clocks}{portion}{gpu}"
            if busy is not None and busy < BUSY:
                yield (
                    "there the GPU waits for the host: trainer.cuda_graphs=true has one launch a micro-batch"
                )
    yield (
        "bound: per operation the larger of its FLOPs at the measured peak and its bytes at "
        "the measured bandwidth"
    )


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


def _memory(mib: Json) -> Table:
    rows = [[key, mib[key]] for key in HELD]
    rows += [
        [f"  {part_title(part)}", mib["kept"][part]]
        for part in dict.fromkeys([*PARTS, *mib["kept"]])
        if part in mib["kept"]
    ]
    columns = [Column(title="memory"), Column(title="MiB", show=_per(1))]
    note = "activations: what a micro-batch's forward keeps for its backward, by the part that keeps it first"
    return Table(title="memory", columns=columns, rows=rows, notes=[note])


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
