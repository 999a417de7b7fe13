"""The profile as a page: nested bars of the step, its roofline, and the tables of the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nocap.measure.text import profile_head, profile_tables
from nocap.report import page
from nocap.store.files import write_file
from nocap.store.metrics import PARTS, part_title

Json = Mapping[str, Any]


def write(found: Json, path: Path) -> None:
    """Write the report of a profile (`nocap.profile --json`) to `path`."""
    write_file(path, render(found).encode())


def render(found: Json) -> str:
    """The report as HTML."""
    found = page.finite(found)
    first, second, *_ = sorted(found["parts"], key=lambda row: -row["ms"])
    title = (
        f"{part_title(first['part'])} takes {first['share']:.0%} of a step, {part_title(second['part'])} {second['share']:.0%}"
        if found["trusted"]
        else "a step on a busy machine: not to be trusted"
    )
    return page.render(
        "profile",
        kind="nocap profile",
        title=title[:1].upper() + title[1:],
        data=_plots(found),
        head=profile_head(found),
        tables=profile_tables(found),
    )


def _plots(found: Json) -> dict[str, Any]:
    """What the script draws."""
    points = [
        {"name": part_title(row["part"]), "intensity": row["flops"] / row["bytes"], "flop_s": row["flop_s"], "share": row["share"]}
        for row in found["parts"]
        if row["flops"] and row["bytes"] and row["flop_s"]
    ]
    return {
        "tree": _tree(found),
        "peaks": [{"name": precision, "flops": flops} for precision, flops in found["roof"]["flops"].items()],
        "bytes_per_s": found["roof"]["bytes_per_s"],
        "points": points,
    }


def _tree(found: Json) -> list[dict[str, Any]]:
    """The model's hierarchy, each node with its parent and the ms of all below it; a module's own operations are a leaf of it."""
    nodes: dict[str, dict[str, Any]] = {}

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
        add(f"{parent}//{row['part']} {row['direction']}", parent, f"{part_title(row['part'])}, {row['direction']}", row["ms"])
    rest = found["step"]["unattributed_ms"]
    add("step", "", "step", rest)
    add("step//rest", "step", "not attributed", rest)
    return list(nodes.values())
