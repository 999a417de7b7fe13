"""Results of the bench, the profile and the latency as tables for a terminal. No torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nocap.report.table import aligned
from nocap.report.words import gain
from nocap.store.formats import NONE, shorten
from nocap.store.metrics import METRICS, PARTS, Scale, part_title

Json = Mapping[str, Any]
BUSY = 0.8  # of a step: below, the GPU waits for the host
MOST_PAIRS = 12  # combinations of options shown; the JSON has all


def render_latency(content: Json, *, context: int) -> str:
    hard, kv_bytes = content["hardware"], content["kv_bytes_per_token"]
    first = (
        f"{content['run']} at step {content['checkpoint_step']}: {content['prompt_tokens']} tokens of prompt, {content['new_tokens']} new; "
        f"fp32 on {hard['name']}, {hard['threads']} CPU thread(s)"
    )
    head = ["batch", "engine", "prefill tokens/s", "decode tokens/s", "ms p50", "ms p95", "MiB allocated/token", "compile s"]
    cells = [
        [
            str(row["batch"]),
            row["engine"],
            f"{row['prefill_tokens_per_s']:,.0f}",
            f"{row['decode_tokens_per_s']:,.1f}",
            f"{row['ms_per_token']['p50']:.2f}",
            f"{row['ms_per_token']['p95']:.2f}",
            f"{row['allocated_bytes_per_token'] / 2**20:.3f}",
            _or_none(row["compile_s"], ".1f"),
        ]
        for row in content["rows"]
    ]
    cache = [] if kv_bytes is None else [f"KV cache: {kv_bytes:,.0f} bytes a token, over the whole context of {context}"]
    return "\n".join([first, aligned(head, cells), *cache])


# --- the bench


def render_bench(result: Json) -> str:
    """The table, then what its columns count and what could not be timed."""
    base, *others = result["arms"]
    again = {"memory_mib": None, "speed_by_flops": None, "mfu": {}, "step_ms": None, **result["control"], "label": "  again (control)"}
    arms = [{**base, "verdict": "baseline"}, again]
    rows = [_arm(arm) for arm in (*arms, *(arm for arm in others if arm["status"] == "measured"))]
    head = ["arm", "tokens/s", "step ms", "speed", "ratio and interval", "by FLOPs", "MiB", "MFU", "verdict"]
    left_out = [f"{arm['label']}: {arm['status']}: {arm['reason']}" for arm in others if arm["status"] != "measured"]
    hard, spent = result["hardware"], result["spent_s"]
    first = (
        f"{hard['name']}, torch {hard['torch']}: {result['clock']}; {result['rounds']} interleaved rounds"
        f" in {spent['all']:.0f} s, {spent['warm_up']:.0f} s of it warm-up"
    )
    return "\n".join([first, aligned(head, rows), *left_out, *_notes(result)])


def _arm(arm: Json) -> list[str]:
    speed, memory = arm["speed"], arm["memory_mib"]
    shares = [f"{arm['mfu'][kind]:.0%}" for kind in ("nominal", "measured") if arm["mfu"].get(kind) is not None]
    return [
        arm["label"],
        f"{arm['tokens_per_s']:,.0f}",
        _or_none(arm["step_ms"], ",.1f"),
        NONE if speed is None else gain(speed["ratio"], METRICS["tokens_per_s"], Scale.ratio),
        NONE if speed is None else f"{speed['ratio']:.3f}× [{speed['low']:.3f}, {speed['high']:.3f}]",
        _or_none(arm["speed_by_flops"], ".3f"),
        NONE if memory is None else f"{memory['peak']:,.0f}",
        " / ".join(shares) or NONE,
        arm["verdict"] or NONE,
    ]


def _notes(result: Json) -> Iterator[str]:
    limit, peaks = result["limit"], result["peak_flops"]
    yield "all of this is of one session: how much this machine differs tomorrow is in no interval here; a study times in three sessions"
    yield (
        f"speed: tokens/s over those of the baseline's second instance, round by round, with an interval at {limit['confidence']:.2%},"
        f" and a verdict where that is ±{limit['half_width']:.1%} or less."
        " by FLOPs: what arithmetic alone would give"
    )
    counted = "parameters, gradients, optimizer and what a forward keeps, counted"
    which = "nominal / measured" if any(peak["nominal"] for peak in peaks.values()) else "measured"
    tera = "; ".join(
        f"{precision} {peak['measured'] / 1e12:,.2f} TFLOP/s measured"
        + (f", {peak['nominal'] / 1e12:,.0f} nominal" if peak["nominal"] else "")
        for precision, peak in peaks.items()
    )
    yield f"MiB: {'most allocated' if result['hardware']['device'] == 'cuda' else counted}. MFU ({which} peak): {tera}"
    sizes = {arm["tokens_per_step"] for arm in result["arms"] if arm["status"] == "measured"}
    for arm in result["arms"]:
        if arm["settings"]:
            yield f"{arm['label']}: {', '.join(f'{key} {value}' for key, value in arm['settings'].items())}"
    if len(sizes) > 1:
        yield f"tokens per step differ ({', '.join(f'{n:,}' for n in sorted(sizes))}): speed is per token"


# --- the profile


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """One table of the profile, for the terminal and for the page."""

    title: str
    head: list[str]
    rows: list[list[str]]
    note: str = ""


def render_profile(found: Json) -> str:
    tables = [f"{each.title}\n{aligned(each.head, each.rows)}\n{each.note}".rstrip() for each in profile_tables(found).values()]
    return "\n\n".join(["\n".join(profile_head(found)), *tables])


def profile_head(found: Json) -> list[str]:
    m, t, peak, hard = found["config"]["model"], found["config"]["trainer"], found["roof"], found["hardware"]
    flops = ", ".join(f"{v / 1e9:,.1f} GFLOP/s {k}" for k, v in peak["flops"].items())
    return [
        *doubted(found),
        f"{m['n_layer']} layers, {m['n_head']} heads, {m['d_model']} wide, V={found['vocab_size']:,}; "
        f"B={t['micro_batch']}, T={m['seq_len']}, {found['step']['microbatches']} micro-batch(es) a step; {t['precision']}, eager, "
        f"attention {found['kernel']}",
        f"on {hard['name']}, {hard['threads']} thread(s), torch {hard['torch']}",
        f"peaks, measured: {flops} ({peak['product']}² product); "
        f"{peak['bytes_per_s'] / 1e9:,.1f} GB/s ({peak['copy_bytes'] / 2**20:,.0f} MiB copy)",
        f"time: {found['clock']}",
    ]


def doubted(found: Json) -> list[str]:
    """A line that says why the figures cannot be trusted; none where they can."""
    says = {
        "core": lambda d: f"this process had {d['value']:.2f} of its core",
        "peak": lambda d: f"{part_title(d['part'])} at {d['value']:.0%} of the measured peak",
        "layers": lambda d: f"{d['path']} {d['direction']} {_ms(d['low_ms'])} to {_ms(d['high_ms'])} ms in equal layers",
    }
    why = shorten(says[doubt["doubt"]](doubt) for doubt in found["doubts"])
    return [f"not to be trusted, the machine was busy: {why}; measure again when it is quiet"] if why else []


def profile_tables(found: Json) -> dict[str, Table]:
    """By what they show, in the order to read them; tables of ceilings where those were measured."""
    tables = {"parts": _parts(found["parts"], found["step"]), "memory": _memory(found["memory_mib"])}
    if "ceilings" in found:
        tables |= _ceilings(found["ceilings"]["table"], trusted=found["trusted"])
    return {**tables, "layers": _layers(found["layers"])}


def _parts(parts: Sequence[Json], step: Json) -> Table:
    head = ["part", "ms", "share", "forward", "backward", "GFLOP", "share of FLOPs", "GFLOP/s", "MiB moved", "bound ms", "of bound"]
    whole = sum(row["flops"] for row in parts)
    rows = [
        [
            part_title(row["part"]),
            _ms(row["ms"]),
            f"{row['share']:.1%}",
            _ms(row["forward_ms"]),
            _ms(row["backward_ms"]),
            f"{row['flops'] / 1e9:,.1f}" if row["flops"] else NONE,
            f"{row['flops'] / whole:.1%}" if row["flops"] else NONE,
            f"{row['flop_s'] / 1e9:,.1f}" if row["flops"] and row["flop_s"] else NONE,
            f"{row['bytes'] / 2**20:,.0f}" if row["bytes"] else NONE,
            _ms(row["bound_ms"]) if row["bound_ms"] else NONE,
            f"{row['of_bound']:.0%}" if row["bound_ms"] and row["of_bound"] else NONE,
            f"{row['allocations']:,}",
            f"{row['allocated_mib']:,.1f}",
            f"{row['calls']:,}",
        ]
        for row in parts
    ]
    return Table(title="where the time went", head=[*head, "allocs", "MiB", "calls"], rows=rows, note="\n".join(_sum(step)))


def _sum(step: Json) -> Iterator[str]:
    yield (
        f"sum of the parts {_ms(step['attributed_ms'])} ms, {step['attributed_ms'] / step['ms']:.1%} of the profiled step's "
        f"{_ms(step['ms'])} ms; not attributed {_ms(step['unattributed_ms'])} ms (between operations: Python, autograd's engine, the "
        "profiler; on a GPU, where the plain step counts: idle)"
    )
    measured, all_ = step["measured_microbatches"], step["microbatches"]
    of = "" if measured == all_ else f", of {measured} of {all_} micro-batches"
    how = step["compile"] + (", CUDA graphs" if step.get("cuda_graphs") else "")
    compiled = f"compiled ({how}), whole: a compiled graph cannot be taken apart"
    for key, what in (("plain", "without the profiler"), ("compiled", compiled)):
        if step[key]:
            busy = step[key].get("gpu_busy")
            gpu = "" if busy is None else f", the GPU busy {busy:.0%} of it"
            yield f"step {what}: {_ms(step[key]['wall_ms'])} ms wall, {_ms(step[key]['cpu_ms'])} ms of CPU time{of}{gpu}"
            if busy is not None and busy < BUSY:
                yield "there the GPU waits for the host: trainer.cuda_graphs=true has one launch a micro-batch"
    yield "bound: per operation the larger of its FLOPs at the measured peak and its bytes at the measured bandwidth"


def _layers(found: Sequence[Json]) -> Table:
    layers: dict[int, dict[str, float]] = {}
    for row in found:
        layers.setdefault(row["layer"], {})[row["part"]] = row["ms"]
    shown = list(dict.fromkeys(part for parts in layers.values() for part in parts))
    rows = [[str(layer), *(_ms(parts.get(part, 0.0)) for part in shown), _ms(sum(parts.values()))] for layer, parts in layers.items()]
    return Table(title="milliseconds by layer", head=["layer", *(part_title(part).partition(",")[0] for part in shown), "all"], rows=rows)


def _memory(memory: Json) -> Table:
    seen, counted = memory["measured"], memory["counted"]
    rows = [[key, f"{seen[key]:,.1f}", f"{counted[key]:,.1f}"] for key in ("parameters", "gradients", "optimizer", "activations")]
    for part in dict.fromkeys([*PARTS, *seen["kept"], *counted["kept"]]):
        if part in seen["kept"] or part in counted["kept"]:
            rows.append([f"  {part_title(part)}", f"{seen['kept'].get(part, 0):,.1f}", f"{counted['kept'].get(part, 0):,.1f}"])
    rows += [["peak of tensors", f"{seen['peak']:,.1f}", NONE], ["slack beyond them", f"{seen['slack']:,.1f}", NONE]]
    note = "activations: what a micro-batch's forward keeps for its backward, by the part that keeps it first"
    return Table(title="memory", head=["MiB", "measured", "counted"], rows=rows, note=note)


def _ceilings(found: Sequence[Json], *, trusted: bool) -> dict[str, Table]:
    """The largest win first: by the measured step, or, where that cannot be trusted, by arithmetic alone."""
    found = found if trusted else sorted(found, key=lambda row: -row["by_flops"])
    head, tables = ["option", "by FLOPs", "by the measured step", "MiB saved", "of memory"], {}
    by_step = "{:.2f}×" if trusted else NONE
    for key, title in (("single", "what an option can win at most"), ("together", "several together")):
        rows = [row for row in found if (len(row["words"]) > 1) is (key == "together")]
        cells = [
            [
                row["label"],
                f"{row['by_flops']:.3f}×",
                by_step.format(row["by_step"]),
                _mib(row["saved_mib"]),
                f"{row['saved']:.1%}",
            ]
            for row in rows[: None if key == "single" else MOST_PAIRS]
        ]
        note = f"and {len(rows) - len(cells)} more, in --json" if len(rows) > len(cells) else ""
        tables[key] = Table(title=title, head=head, rows=cells, note=note)
    return tables


def _ms(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 1 else f"{value:.3f}"


def _mib(value: float) -> str:
    return f"{value:,.0f}".replace("-", "−")


def _or_none(value: float | None, shape: str) -> str:
    return NONE if value is None else format(value, shape)
