"""What makes two runs differ, for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nocap.report.table import Column, Table
from nocap.store.verify import ENDED

COLUMNS = [Column(title="part"), Column(title="key"), Column(title="a → b")]


def render(found: Mapping[str, Any]) -> str:
    """The answer of `judge.comparability.why`."""
    a, b = (run["name"] + ("" if run["status"] in ENDED else f" ({run['status']})") for run in (found["a"], found["b"]))
    same_run = f"{a} and {b} are the same run (identity {found['a']['identity']})"
    rows = [[d["part"], d["key"], f"{d['a']} → {d['b']}"] for d in found["differences"]]
    differ, recorded = ([row for row in rows if (row[0] == "recorded") == is_recorded] for is_recorded in (False, True))
    quiet = [part for part in ("config", "source", "data", "environment") if part not in {row[0] for row in differ}]
    lines = [same_run if found["same"] else f"{a}\n{b}\nare two runs because of:"]
    lines += [str(Table(title="", columns=COLUMNS, rows=differ))] if differ else []
    lines += [f"the same: {', '.join(quiet)}"] if quiet else []
    lines += [str(Table(title="recorded, and not part of the identity:", columns=COLUMNS, rows=recorded))] if recorded else []
    return "\n".join(lines)
