"""The profile as a page: nested bars of the step, its roofline, the ceilings, the curve."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nocap.profiling.names import PARTS
from nocap.show import page, table
from nocap.store.files import write_file

HERE = Path(__file__).parent
MOST_PAIRS = 16

Facts = Mapping[str, Any]


def write(found: Facts, path: Path) -> None:
    """Write the report of a profile (`nocap.profile --json`) to `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, render(found).encode())


def render(found: Facts) -> str:
    """The report as text."""
    found = page.finite(found)
    largest = sorted(found["parts"], key=lambda row: -row["ms"])
    title = f"{PARTS[largest[0]['part']]} takes {largest[0]['share']:.0%} of a step, {PARTS[largest[1]['part']]} {largest[1]['share']:.0%}"
    bounds = found["ceilings"]["table"] if "ceilings" in found else []
    return page.render(
        HERE,
        kind="nocap profile",
        title=title[:1].upper() + title[1:],
        data=_plots(found),
        p=found,
        facts=_facts(found),
        kept=[(part, name) for part, name in PARTS.items() if part in found["memory_mib"]["measured"]["kept"]],
        parts=PARTS,
        layers=_layers(found),
        singles=[row for row in bounds if " + " not in row["label"]],
        pairs=[row for row in bounds if " + " in row["label"]][:MOST_PAIRS],
        w=table,
    )


def _facts(found: Facts) -> list[tuple[str, str]]:
    config, hard, roof, step = found["config"], found["hardware"], found["roof"], found["step"]
    m, t = config["model"], config["trainer"]
    peaks = ", ".join(f"{flops / 1e9:,.1f} GFLOP/s {precision}" for precision, flops in roof["flops"].items())
    return [
        ("Model", f"{m['n_layer']} layers, {m['n_head']} heads, {m['d_model']} wide, {found['vocab_size']:,} tokens of vocabulary"),
        ("Shape", f"{t['micro_batch']} × {m['seq_len']} tokens, {step['microbatches']} micro-batch(es) a step, {t['precision']}"),
        ("Attention", f"{found['kernel']}, {config['attention']['n_kv_heads']} key/value heads"),
        ("Machine", f"{hard['name']}, {hard['threads']} thread(s), torch {hard['torch']}"),
        ("Its roof, measured", f"{peaks}; {roof['bytes_per_s'] / 1e9:,.1f} GB/s"),
        ("Step", f"{table.three_digits(step['ms'])} ms, {step['attributed_ms'] / step['ms']:.1%} of it attributed"),
    ]


def _layers(found: Facts) -> dict[int, dict[str, float]]:
    layers: dict[int, dict[str, float]] = {}
    for row in found["layers"]:
        layers.setdefault(row["layer"], {})[row["part"]] = row["ms"]
    return layers


def _plots(found: Facts) -> dict[str, Any]:
    """What the script draws."""
    roofs = [{"name": precision, "flops": flops} for precision, flops in found["roof"]["flops"].items()]
    points = [
        {"name": PARTS[row["part"]], "intensity": row["flops"] / row["bytes"], "flop_s": row["flop_s"], "share": row["share"]}
        for row in found["parts"]
        if row["flops"] and row["bytes"] and row["flop_s"]
    ]
    return {
        "tree": _tree(found),
        "unattributed_ms": found["step"]["unattributed_ms"],
        "roofs": roofs,
        "bytes_per_s": found["roof"]["bytes_per_s"],
        "points": points,
        "curve": found.get("curve") or [],
    }


def _tree(found: Facts) -> list[dict[str, Any]]:
    """The model's hierarchy, each node with its parent and the ms of all below it; a module's own operations are a leaf of it."""
    nodes: dict[str, dict[str, Any]] = {"step": {"id": "step", "parent": "", "name": "step", "ms": 0.0}}

    def add(id_: str, parent: str, name: str, ms: float) -> None:
        node = nodes.setdefault(id_, {"id": id_, "parent": parent, "name": name, "ms": 0.0})
        node["ms"] += ms

    for row in found["rows"]:
        inside = [] if row["path"] in ("model", "step", *PARTS) else row["path"].replace(".f.", ".").split(".")
        names = ["model", *inside] if inside or row["path"] == "model" else []
        add("step", "", "step", row["ms"])
        parent = "step"
        for depth, name in enumerate(names):
            id_ = "/".join(names[: depth + 1])
            add(id_, parent, f"block {name}" if name.isdigit() else name, row["ms"])
            parent = id_
        add(f"{parent}//{row['part']} {row['direction']}", parent, f"{PARTS[row['part']]}, {row['direction']}", row["ms"])
    rest = found["step"]["unattributed_ms"]
    add("step", "", "step", rest)
    add("step//rest", "step", "not attributed", rest)
    return list(nodes.values())
