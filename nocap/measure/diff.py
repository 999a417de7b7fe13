"""Two profiles, before and after: what moved."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nocap.config.keys import flat
from nocap.show.table import NONE, table
from nocap.store.measurement import part_title
from nocap.store.record import SCHEMA_VERSION

Json = Mapping[str, Any]
KIND = "profile"  # of the record, beside its schema_version
MEASURES = ("ms", "operations", "allocations", "allocated_mib", "flops", "bytes", "kept_mib")
MOST_ROWS = 12


def difference(before: Json, after: Json) -> dict[str, Any]:
    """Part by part and module by module, the largest change in time first; without times where the machines differ.

    Errors:
        ValueError: one of them is not a profile of this version.
    """
    for found in (before, after):
        if found.get("kind") != KIND or found.get("schema_version") != SCHEMA_VERSION:
            got = f"kind {found.get('kind')!r}, version {found.get('schema_version')!r}"
            raise ValueError(f"--diff must be given profiles of schema_version {SCHEMA_VERSION}, got {got}")
    old, new = (dict(flat(found["config"])) for found in (before, after))
    prints = [found["hardware"]["fingerprint"] for found in (before, after)]
    busy = "the machine was busy in one of them" if before.get("doubts") or after.get("doubts") else None
    refused = busy if prints[0] == prints[1] else f"other hardware: {before['hardware']['name']}, {after['hardware']['name']}"
    measures = MEASURES if refused is None else MEASURES[1:]
    return {
        "kind": "profile difference",
        "changed": {key: [old.get(key), new.get(key)] for key in dict.fromkeys([*old, *new]) if old.get(key) != new.get(key)},
        "times_refused": refused,
        "step_ms": None if refused else [before["step"]["ms"], after["step"]["ms"]],
        "peak_mib": [found["memory_mib"]["measured"]["peak"] for found in (before, after)],
        "parts": _moved(before["parts"], after["parts"], ("part",), measures),
        "rows": _moved(before["rows"], after["rows"], ("path", "direction"), measures),
    }


def _moved(before: list[Json], after: list[Json], keys: tuple[str, ...], measures: tuple[str, ...]) -> list[dict[str, Any]]:
    old, new = ({tuple(row[key] for key in keys): row for row in rows} for rows in (before, after))
    moved = []
    for name in dict.fromkeys([*old, *new]):
        pair = [rows.get(name, {}) for rows in (old, new)]
        row: dict[str, Any] = dict(zip(keys, name, strict=True))
        row |= {key: [found.get(key, 0) or 0 for found in pair] for key in measures}
        moved.append(row)
    return sorted(moved, key=lambda row: -abs(row[measures[0]][1] - row[measures[0]][0]))


def render(found: Json) -> str:
    """The difference as tables for a terminal."""
    lines = ["changed: " + (", ".join(f"{key} {a}→{b}" for key, (a, b) in found["changed"].items()) or "nothing in the config")]
    if found["times_refused"]:
        lines.append(f"times not compared: {found['times_refused']}")
    else:
        a, b = found["step_ms"]
        lines.append(f"step {a:,.1f} → {b:,.1f} ms, {a / b:.3f}× as fast")
    lines.append(f"peak of tensors {_arrow(found['peak_mib'], ',.0f')} MiB")
    timed = found["times_refused"] is None
    head = ["moved", *(["ms", "by"] if timed else []), "operations", "allocations", "MiB allocated", "GFLOP", "MiB kept"]
    for title, rows in (("part", found["parts"]), ("module", found["rows"][:MOST_ROWS])):
        cells = []
        for row in rows:
            name = part_title(row["part"]) if title == "part" else f"{row['path']} {row['direction']}"
            time = [_arrow(row["ms"], ",.1f"), _by(row["ms"])] if timed else []
            rest = [_arrow(row["operations"], ","), _arrow(row["allocations"], ","), _arrow(row["allocated_mib"], ",.1f")]
            cells.append([name, *time, *rest, _arrow([x / 1e9 for x in row["flops"]], ",.1f"), _arrow(row["kept_mib"], ",.1f")])
        lines += ["", f"by {title}", table(head, cells)]
    return "\n".join(lines)


def _arrow(pair: list[float], shape: str) -> str:
    a, b = (format(value, shape) for value in pair)
    return a if a == b else f"{a} → {b}"


def _by(pair: list[float]) -> str:
    return NONE if pair[0] == pair[1] else f"{pair[1] - pair[0]:+,.1f}".replace("-", "−")
