"""Rows of a profile added up: by part, by layer, and in groups with a subtotal each. No torch.

A group is what performance notes have a share of: attention, MLP, head, embedding, norms,
optimizer. Its rows are parts, some of them in details: the moments of attention, the directions of
the embedding, the matrices of an MLP that has several of one part.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

from nocap.measure.mixer_moments import AROUND, FUSED, PRODUCT, SOFTMAX, VALUES
from nocap.measure.profile_schema import GroupJson, LayerJson, LeafJson, PartJson, RowJson
from nocap.step_parts import PARTS, STEP_PARTS, part_title

K = TypeVar("K", bound=Hashable)

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

# details of an embedding, and of the residual stream
LOOKUP = "lookup"
GRADIENTS = "gradients"
BETWEEN = "between"
# (part, detail) → what a table calls it
DETAILS = {
    ("embedding", LOOKUP): "lookup, positions",
    ("embedding", GRADIENTS): "embedding gradients",
    ("scores", PRODUCT): "scores, Q·Kᵀ",
    ("scores", SOFTMAX): "softmax",
    ("scores", VALUES): "weights·values",
    ("scores", FUSED): "scores, softmax, weights·values: one fused kernel",
    ("scores", AROUND): "around the kernels",
    ("scores", None): "scores, softmax, weights·values: not taken apart",
    ("residual", None): "residual",
    ("residual", BETWEEN): "between the branches of a block",
}
OUTSIDE_MODEL = ("optimizer", "rest")  # groups
# Parts of which an option may have several matrices, which have their own names in a table.
_BY_NAME = ("mlp_up", "mlp_down")


@dataclass(frozen=True, kw_only=True, slots=True)
class ProfileRow:
    """The cost of a module in one direction; of a mixer, in one of its moments."""

    path: str
    part: str
    layer: int | None
    direction: str  # forward or backward
    detail: str | None = None
    ms: float
    calls: int
    flops: float
    bytes: float
    bound_ms: float


@dataclass(frozen=True, kw_only=True, slots=True)
class RowKey:
    """Where a row stands in the groups; a group's own place has no part."""

    group: str
    part: str
    detail: str | None


def group_of(part: str, path: str) -> str:
    """Return the group of a module: by its part; in a block or a model that is none of nocap's own,
    by the module inside which it is."""
    if part == "residual":
        names = path.split(".")
        if len(names) < 3:
            return "rest"
        return _BRANCHES.get(names[2], "rest")
    return _BY_PART.get(part) or own_group(part)


def own_group(part: str) -> str:
    """Return `blocks.*.attention` of `blocks.*.attention.q_proj`; of a model's `tower.left`,
    `tower`."""
    names = part.split(".")
    in_block = names[1:2] == ["*"]
    return ".".join(names[:3] if in_block else names[:1])


def title_of(part: str, detail: str | None) -> str:
    """Return what a table calls a row of a group."""
    if (part, detail) in DETAILS:
        return DETAILS[part, detail]
    title = part_title(part)
    if detail is None:
        return title
    return f"{title}, {detail}"


# --- sums -----------------------------------------------------------------------------------------


@dataclass(kw_only=True, slots=True)
class Total:
    """A sum of rows. Calls are those of the forward."""

    ms: float = 0
    calls: int = 0
    flops: float = 0
    bytes: float = 0
    bound_ms: float = 0
    forward_ms: float = 0
    backward_ms: float = 0

    def add(self, row: ProfileRow) -> None:
        """Add a row."""
        self.ms += row.ms
        self.flops += row.flops
        self.bytes += row.bytes
        self.bound_ms += row.bound_ms
        if row.direction == "forward":
            self.calls += row.calls
            self.forward_ms += row.ms
        else:
            self.backward_ms += row.ms

    def figures(self, whole_ms: float) -> dict[str, Any]:
        """Return the fields that each sum of rows has in a profile."""
        return {**asdict(self), **rates(self, whole_ms)}


def rates(cost: ProfileRow | Total, whole_ms: float) -> dict[str, Any]:
    """Return the fields that say how large a cost is beside the whole, and how close to the
    roofline."""
    fields: dict[str, Any] = {"share": cost.ms / whole_ms, "flop_s": None, "of_bound": None}
    if cost.ms != 0:
        fields["flop_s"] = cost.flops / cost.ms * 1e3
        fields["of_bound"] = cost.bound_ms / cost.ms
    return fields


def rated(row: ProfileRow, whole_ms: float) -> RowJson:
    """Return a row as a profile has it."""
    fields = asdict(row)
    del fields["detail"]
    return RowJson(**fields, **rates(row, whole_ms))


def summed(rows: Iterable[ProfileRow], key: Callable[[ProfileRow], K]) -> defaultdict[K, Total]:
    """Return the sum of the rows of each key."""
    totals = defaultdict[K, Total](Total)
    for row in rows:
        totals[key(row)].add(row)
    return totals


def by_part(rows: Iterable[ProfileRow], whole_ms: float) -> list[PartJson]:
    """Return each part's sum, in the order of a table."""
    totals = summed(rows, lambda row: row.part)
    parts = list[PartJson]()
    for part in sorted(totals, key=_part_rank):
        parts.append(PartJson(part=part, **totals[part].figures(whole_ms)))
    return parts


def by_layer(rows: Iterable[ProfileRow], whole_ms: float) -> list[LayerJson]:
    """Return the sum of each part of each layer, in the order of a table."""
    in_blocks = (row for row in rows if row.layer is not None)
    totals = summed(in_blocks, lambda row: (row.layer or 0, row.part))
    layers = list[LayerJson]()
    for layer, part in sorted(totals, key=lambda place: (place[0], _part_rank(place[1]))):
        figures = totals[layer, part].figures(whole_ms)
        layers.append(LayerJson(layer=layer, part=part, **figures))
    return layers


def _part_rank(part: str) -> float:
    """Return where a table has a part: 0.5 for a replaced block's own, after the embedding."""
    parts = list(PARTS)
    if part not in parts:
        return 0.5
    return float(parts.index(part))


# --- groups ---------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Wholes:
    """The times that shares are of."""

    ms: float
    forward_ms: float  # of all modules
    blocks_ms: float  # in both directions

    def figures(self, total: Total, inside: Total, *, in_model: bool) -> dict[str, Any]:
        """Return the fields of a sum with its shares. `inside`: what of it lies in the blocks."""
        figures = total.figures(self.ms)
        figures["of_forward"] = None
        if in_model and total.forward_ms != 0:
            figures["of_forward"] = total.forward_ms / self.forward_ms
        figures["of_block"] = None
        if inside.ms:
            figures["of_block"] = inside.ms / self.blocks_ms
        return figures


def grouped(rows: Sequence[ProfileRow], whole_ms: float) -> list[GroupJson]:
    """Return the groups, each with its sum, its share of the whole, of all modules' forward and of
    the blocks, and its rows with the same figures in `parts`. A sum is that of its rows."""
    rows = _detailed(rows)
    in_blocks = [row for row in rows if row.layer is not None]
    in_forward = [row for row in rows if row.direction == "forward" and row.part not in STEP_PARTS]
    wholes = Wholes(
        ms=whole_ms,
        forward_ms=sum(row.ms for row in in_forward),
        blocks_ms=sum(row.ms for row in in_blocks),
    )
    leaves = summed(rows, _key_of)
    leaves_inside = summed(in_blocks, _key_of)
    groups_inside = summed(in_blocks, _group_of)
    places = sorted(leaves, key=_rank)
    groups = list[GroupJson]()
    for name, total in summed(rows, _group_of).items():
        in_model = name not in OUTSIDE_MODEL
        parts = list[LeafJson]()
        for place in places:
            if place.group != name:
                continue
            is_module = in_model and place.part not in STEP_PARTS
            figures = wholes.figures(leaves[place], leaves_inside[place], in_model=is_module)
            parts.append(LeafJson(part=place.part, detail=place.detail, **figures))
        figures = wholes.figures(total, groups_inside[name], in_model=in_model)
        groups.append(GroupJson(group=name, **figures, parts=parts))
    return sorted(groups, key=_group_rank)


def _group_of(row: ProfileRow) -> str:
    return group_of(row.part, row.path)


def _key_of(row: ProfileRow) -> RowKey:
    return RowKey(group=_group_of(row), part=row.part, detail=row.detail)


def _rank(place: RowKey) -> tuple[float, int]:
    """Return where a table has a row of a group."""
    details = [detail for _, detail in DETAILS]
    rank = len(details)
    if place.detail in details:
        rank = details.index(place.detail)
    return _part_rank(place.part), rank


def _group_rank(group: GroupJson) -> float:
    """Return where a table has a group: a model's own after the embedding."""
    order = list(GROUPS)
    if group.group not in order:
        return 0.5
    return order.index(group.group)


def _detailed(rows: Sequence[ProfileRow]) -> list[ProfileRow]:
    """Return the rows with the details of parts other than a mixer."""
    names = defaultdict[str, set[str]](set)
    for row in rows:
        names[row.part].add(_name(row))
    detailed = list[ProfileRow]()
    for row in rows:
        detail = row.detail
        if row.part == "embedding":
            detail = LOOKUP if row.direction == "forward" else GRADIENTS
        elif row.part == "residual" and _group_of(row) == "rest":
            detail = BETWEEN
        elif row.part in _BY_NAME and len(names[row.part]) > 1:
            detail = _name(row)
        detailed.append(replace(row, detail=detail))
    return detailed


def _name(row: ProfileRow) -> str:
    """Return the module's own name."""
    return row.path.rpartition(".")[2]
