"""What makes two runs differ, for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from nocap.config.keys import flat
from nocap.judge.arms import ABSENT, spell
from nocap.report.table import Column, Table
from nocap.store.record import ENDED
from nocap.store.runs import Record, read

COLUMNS = [Column(title="part"), Column(title="key"), Column(title="a → b")]
RECORDED = "recorded"  # and not part of the identity


def render(answer: Mapping[str, Any]) -> str:
    """The answer of `why`."""
    a, b = (
        run["name"] + ("" if run["status"] in ENDED else f" ({run['status']})")
        for run in (answer["a"], answer["b"])
    )
    same_run = f"{a} and {b} are the same run (identity {answer['a']['identity']})"
    rows = [[d["part"], d["key"], f"{d['a']} → {d['b']}"] for d in answer["differences"]]
    quiet = [
        part for part in ("config", "source", "data", "environment") if part not in {row[0] for row in rows}
    ]
    title = (
        same_run
        if answer["same"]
        else f"{a}\n{b}\nare two runs because of (what is only {RECORDED} is not part of the identity):"
    )
    drawn = [str(Table(title="", columns=COLUMNS, rows=rows))] if rows else []
    return "\n".join([title, *drawn, *([f"the same: {', '.join(quiet)}"] if quiet else [])])


def why(folder_a: Path, folder_b: Path) -> dict[str, Any]:
    """Two runs' differences, as plain JSON: of each the `part` of the identity (or "recorded", which is no
    part of it), its key, a and b.

    Errors:
        ValueError: a folder's record cannot be read.
    """
    try:
        a, b = (read(folder) for folder in (folder_a, folder_b))
    except ValueError as error:
        raise ValueError(
            f"why needs two readable runs: {folder_a.name} and {folder_b.name}: {error}"
        ) from error
    parts = [
        (x, y)
        for x, y in zip(_parts(a), _parts(b), strict=True)
        if x[0] != "data" or a.parts.get("data") != b.parts.get("data")
    ]
    return {
        "a": {"identity": a.identity, "name": a.folder.name, "status": a.status},
        "b": {"identity": b.identity, "name": b.folder.name, "status": b.status},
        "same": a.identity == b.identity,
        "differences": [difference for (part, x), (_, y) in parts for difference in _differences(part, x, y)],
    }


def _parts(run: Record) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The parts of the identity, then what is only recorded."""
    for part in ("config", "source", "environment", "teachers", "init"):
        yield part, run.parts.get(part) or {}
    tokens = {split: run.tokens_hash(split)[:12] for split in ("train", "val")}
    yield "data", {"manifest": str(run.parts.get("data"))[:12], **tokens, **run.manifest["data"]["source"]}
    versions = {
        f"version of {name}": version for name, version in run.manifest["versions"].items() if name != "torch"
    }
    commit = str(run.manifest["git"].get("commit") or ABSENT)[:12]
    kernel = run.summary["kernel"].get("train") or ABSENT
    yield RECORDED, {"hardware": run.machine_name, "git commit": commit, "kernel": kernel, **versions}


def _differences(part: str, a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    left, right = ({key: spell(value) for key, value in flat(tree)} for tree in (a, b))
    for key in dict.fromkeys([*left, *right]):
        if (x := left.get(key, ABSENT)) != (y := right.get(key, ABSENT)):
            yield {"part": part, "key": key, "a": x, "b": y}
