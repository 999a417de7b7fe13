"""Rows of a profile added up: by part, by layer, and in groups with a subtotal each. No torch.

A group is what performance notes have a share of: attention, MLP, head, embedding, norms, optimizer. Its rows
are parts, some of them in details: the moments of attention, the directions of the embedding, the matrices of
an MLP that has several of one part.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from nocap.store.metrics import PARTS, STEP_PARTS, part_title

Row = dict[str, Any]
Json = Mapping[str, Any]

SUMMED = ("ms", "calls", "flops", "bytes", "bound_ms")  # of a row

GROUPS = {  # and what a table calls them, in its order
    "embedding": "embedding",
    "norms": "norms",
    "attention": "attention",
    "mlp": "MLP",
    "ideas": "ideas",
    "head": "head and loss",
    "optimizer": "gradients and optimizer",
    "rest": "rest",
}
_BY_PART = {
    "embedding": "embedding",
    "norm": "norms",
    **dict.fromkeys(("qkv", "rotary", "scores", "attention_out", "attention"), "attention"),
    **dict.fromkeys(("mlp_up", "activation", "mlp_down", "mlp"), "mlp"),
    "ideas": "ideas",
    **dict.fromkeys(("head", "loss"), "head"),
    **dict.fromkeys(("accumulate", "reduction", "clip", "optimizer"), "optimizer"),
    **dict.fromkeys(("data", "other"), "rest"),
}
# of the residual stream, whose additions a block's branches make
_BRANCHES = {"attention": "attention", "mlp": "mlp"}

# (part, detail) → what a table calls it
DETAILS = {
    ("embedding", "lookup"): "lookup, positions",
    ("embedding", "gradients"): "embedding gradients",
    ("scores", "product"): "scores, Q·Kᵀ",
    ("scores", "softmax"): "softmax",
    ("scores", "values"): "weights·values",
    ("scores", "fused"): "scores, softmax, weights·values: one fused kernel",
    ("scores", "around"): "around the kernels",
    ("scores", None): "scores, softmax, weights·values: not taken apart",
    ("residual", None): "residual",
    ("residual", "between"): "between the branches of a block",
}
# Parts of which an option may have several matrices, which are told by their own names.
_BY_NAME = ("mlp_up", "mlp_down")


def group_of(part: str, path: str) -> str:
    """The group of a module: by its part; in a block or a model that is none of nocap's own, by the module
    inside which it is."""
    if part == "residual":
        names = path.split(".")
        return _BRANCHES.get(names[2], "rest") if len(names) > 2 else "rest"
    return _BY_PART.get(part) or own_group(part)


def own_group(part: str) -> str:
    """Of `blocks.*.attention.q_proj`, `blocks.*.attention`; of a model's `tower.left`, `tower`."""
    names = part.split(".")
    return ".".join(names[:3] if names[1:2] == ["*"] else names[:1])


def title_of(part: str, detail: str | None) -> str:
    """What a table calls a row of a group."""
    if (part, detail) in DETAILS:
        return DETAILS[part, detail]
    return part_title(part) if detail is None else f"{part_title(part)}, {detail}"


def grouped(rows: Sequence[Row], whole_ms: float) -> list[Row]:
    """The groups, each with its sum, its share of the whole, of all modules' forward and of the blocks, and
    its rows with the same figures in `parts`. A sum is that of its rows."""
    told = _told(rows)
    leaves = summed(told, ("group", "part", "detail"), whole_ms)
    totals = summed(told, ("group",), whole_ms)
    in_blocks = [row for row in told if row["layer"] is not None]
    forward_ms = sum(
        row["ms"] for row in told if row["direction"] == "forward" and row["part"] not in STEP_PARTS
    )
    blocks_ms = sum(row["ms"] for row in in_blocks)

    def figures(row: Row, keys: tuple[str, ...]) -> Row:
        inside = [each["ms"] for each in in_blocks if all(each[key] == row[key] for key in keys)]
        outside_model = row.get("part") in STEP_PARTS or row["group"] in ("optimizer", "rest")
        return {
            **row,
            "of_forward": None if outside_model or not row["forward_ms"] else row["forward_ms"] / forward_ms,
            "of_block": sum(inside) / blocks_ms if sum(inside) else None,
        }

    groups = list[Row]()
    for total in totals:
        own = [leaf for leaf in leaves if leaf["group"] == total["group"]]
        parts = [figures(leaf, ("group", "part", "detail")) for leaf in own]
        for part in parts:
            del part["group"]
        groups.append({**figures(total, ("group",)), "parts": parts})
    order = list(GROUPS)
    # a model's own, after the embedding
    return sorted(groups, key=lambda row: order.index(row["group"]) if row["group"] in order else 0.5)


def _told(rows: Sequence[Row]) -> list[Row]:
    """The rows with their group, and with the details of parts other than a mixer."""
    names = defaultdict[str, set[str]](set)
    for row in rows:
        names[row["part"]].add(row["path"].rpartition(".")[2])
    told = list[Row]()
    for row in rows:
        part = row["part"]
        detail = row["detail"]
        if part == "embedding":
            detail = "lookup" if row["direction"] == "forward" else "gradients"
        elif part == "residual" and group_of(part, row["path"]) == "rest":
            detail = "between"
        elif part in _BY_NAME and len(names[part]) > 1:
            detail = row["path"].rpartition(".")[2]
        told.append({**row, "detail": detail, "group": group_of(part, row["path"])})
    return told


# --- sums ---------------------------------------------------------------------------------------------------


def rated(row: Row, whole_ms: float) -> Row:
    """A row, or a sum of rows, with its share of the whole, and how close it is to the roofline."""
    ms = row["ms"]
    rates = {
        "flop_s": row["flops"] / ms * 1e3 if ms else None,
        "of_bound": row["bound_ms"] / ms if ms else None,
    }
    return {**row, "share": ms / whole_ms, **rates}


def summed(rows: Iterable[Row], keys: tuple[str, ...], whole_ms: float) -> list[Row]:
    """Rows added up over everything but `keys`, with the forward's and the backward's milliseconds beside the
    sum."""
    groups: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        whole = groups.setdefault(
            tuple(row[key] for key in keys),
            {**{key: row[key] for key in keys}, **dict.fromkeys((*SUMMED, "forward_ms", "backward_ms"), 0)},
        )
        for key in SUMMED:
            whole[key] += row[key] if key != "calls" or row["direction"] == "forward" else 0
        whole[f"{row['direction']}_ms"] += row["ms"]
    return sorted((rated(row, whole_ms) for row in groups.values()), key=_place)


def _place(row: Row) -> tuple[float, ...]:
    """Where a table has the row: 0.5 for a replaced block's own parts, after the embedding."""
    parts = list(PARTS)
    details = [detail for _, detail in DETAILS]
    part = float(parts.index(row["part"])) if row.get("part") in parts else 0.5
    told = row.get("detail")
    detail = details.index(told) if told in details else len(details)
    return row.get("layer", 0), part, detail
