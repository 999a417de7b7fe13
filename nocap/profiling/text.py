"""The profile as a person reads it in a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nocap.profiling.names import PARTS
from nocap.show.table import NONE, table

Facts = Mapping[str, Any]
MOST_PAIRS = 12  # combinations shown; the JSON has all


def render(found: Facts) -> str:
    sections = [_head(found), _parts(found), _sum(found), _layers(found), _memory(found)]
    if "ceilings" in found:
        sections += [_ceilings(found["ceilings"]), _order(found["ceilings"]["by_length"])]
    if "curve" in found:
        sections.append(_curve(found["curve"]))
    return "\n\n".join(sections)


def _head(found: Facts) -> str:
    config, roof, hard = found["config"], found["roof"], found["hardware"]
    m, t = config["model"], config["trainer"]
    step = found["step"]
    return "\n".join(
        [
            f"{m['n_layer']} layers, {m['n_head']} heads, {m['d_model']} wide, V={found['vocab_size']:,}; "
            f"B={t['micro_batch']}, T={m['seq_len']}, {step['microbatches']} micro-batch(es) a step; {t['precision']}, eager, "
            f"attention {found['kernel']}",
            f"on {hard['name']}, {hard['threads']} thread(s), torch {hard['torch']}",
            f"roof, measured: {', '.join(f'{v / 1e9:,.1f} GFLOP/s {k}' for k, v in roof['flops'].items())} "
            f"({roof['product']}² product); {roof['bytes_per_s'] / 1e9:,.1f} GB/s ({roof['copy_bytes'] / 2**20:,.0f} MiB copy)",
            f"time: {found['clock']}",
        ]
    )


def _parts(found: Facts) -> str:
    head = ["part", "ms", "share", "forward", "backward", "GFLOP", "GFLOP/s", "MiB moved", "roof ms", "of roof", "allocs", "MiB", "calls"]
    flops = sum(row["flops"] for row in found["parts"])
    head.insert(6, "share of FLOPs")
    rows = []
    for row in found["parts"]:
        rows.append(
            [
                PARTS[row["part"]],
                _ms(row["ms"]),
                f"{row['share']:.1%}",
                _ms(row["forward_ms"]),
                _ms(row["backward_ms"]),
                f"{row['flops'] / 1e9:,.1f}" if row["flops"] else NONE,
                f"{row['flops'] / flops:.1%}" if row["flops"] else NONE,
                f"{row['flop_s'] / 1e9:,.1f}" if row["flops"] and row["flop_s"] else NONE,
                f"{row['bytes'] / 2**20:,.0f}" if row["bytes"] else NONE,
                _ms(row["bound_ms"]) if row["bound_ms"] else NONE,
                f"{row['of_bound']:.0%}" if row["bound_ms"] and row["of_bound"] else NONE,
                f"{row['allocations']:,}",
                f"{row['allocated_mib']:,.1f}",
                f"{row['calls']:,}",
            ]
        )
    return table(head, rows)


def _sum(found: Facts) -> str:
    step = found["step"]
    lines = [
        f"sum of the parts {_ms(step['attributed_ms'])} ms, {step['attributed_ms'] / step['ms']:.1%} of the profiled step's "
        f"{_ms(step['ms'])} ms; not attributed {_ms(step['unattributed_ms'])} ms (between operations: Python, autograd's engine, the "
        "profiler; on a GPU: idle)"
    ]
    for key, what in (
        ("plain", "without the profiler"),
        ("compiled", f"compiled ({step['compile']}), whole: a compiled graph cannot be taken apart"),
    ):
        if step[key]:
            per = step["microbatches"] / step["measured_microbatches"]
            of = "" if per == 1 else f", of {step['measured_microbatches']} of {step['microbatches']} micro-batches"
            lines.append(f"step {what}: {_ms(step[key]['wall_ms'])} ms wall, {_ms(step[key]['cpu_ms'])} ms of CPU time{of}")
    return "\n".join(lines)


def _layers(found: Facts) -> str:
    layers: dict[int, dict[str, float]] = {}
    for row in found["layers"]:
        layers.setdefault(row["layer"], {})[row["part"]] = row["ms"]
    shown = [part for part in PARTS if any(part in parts for parts in layers.values())]
    rows = [[str(layer), *(_ms(parts.get(part, 0.0)) for part in shown), _ms(sum(parts.values()))] for layer, parts in layers.items()]
    return "ms by layer\n" + table(["layer", *(PARTS[part].partition(",")[0] for part in shown), "all"], rows)


def _memory(found: Facts) -> str:
    seen, counted = found["memory_mib"]["measured"], found["memory_mib"]["counted"]
    rows = []
    for key in ("parameters", "gradients", "optimizer", "activations"):
        rows.append([key, f"{seen[key]:,.1f}", NONE if counted[key] is None else f"{counted[key]:,.1f}"])
        if key == "activations":
            for part in PARTS:
                if part in seen["kept"] or part in counted["kept"]:
                    rows.append([f"  {PARTS[part]}", f"{seen['kept'].get(part, 0):,.1f}", f"{counted['kept'].get(part, 0):,.1f}"])
    rows += [["peak of tensors", f"{seen['peak']:,.1f}", NONE], ["slack beyond them", f"{seen['slack']:,.1f}", NONE]]
    return "memory\n" + table(["MiB", "measured", "counted"], rows)


def _ceilings(found: Facts) -> str:
    single = [row for row in found["table"] if " + " not in row["label"]]
    pairs = [row for row in found["table"] if " + " in row["label"]]
    lines = [
        "what an option can win at most, by this step as measured, the largest first",
        _bounds(single),
        "",
        "together",
        _bounds(pairs[:MOST_PAIRS]),
    ]
    if len(pairs) > MOST_PAIRS:
        lines.append(f"and {len(pairs) - MOST_PAIRS} more pairs, in --json")
    return "\n".join(lines)


def _bounds(rows: list[Facts]) -> str:
    lines = [
        [row["label"], f"{row['by_flops']:.3f}×", f"{row['by_step']:.2f}×", _mib(row["saved_mib"]), f"{row['saved']:.1%}"] for row in rows
    ]
    return table(["option", "by FLOPs", "by the measured step", "MiB saved", "of memory"], lines)


def _order(found: list[Facts]) -> str:
    lines = [f"T={row['T']}: " + ", ".join(f"{option['label']} {option['by_flops']:.3f}×" for option in row["options"]) for row in found]
    return "by FLOPs, in order, at each length (a default window is a quarter of the sequence)\n" + "\n".join(lines)


def _curve(found: list[Facts]) -> str:
    lines = []
    for row in found:
        window = f", window {row['window']}" if "window" in row else ""
        for key, what in (("attention", "scores and weighted sum, one layer"), ("step", "step")):
            costs = "  ".join(f"{T}: {_ms(ms)}" for T, ms in zip(row["T"], row[f"{key}_ms"], strict=True))
            fit = row[key]
            lines.append([row["name"] + window, what, f"T^{fit['exponent']:.2f} [{fit['low']:.2f}, {fit['high']:.2f}]", costs])
    return "ms against sequence length\n" + table(["attention", "of", "fitted", "ms at T"], lines)


def _ms(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 1 else f"{value:.3f}"


def _mib(value: float) -> str:
    return f"{value:,.0f}".replace("-", "−")
