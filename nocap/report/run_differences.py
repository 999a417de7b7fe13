"""What makes two runs differ, for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from nocap.config.keys import flat
from nocap.judge.arms import ABSENT, spell
from nocap.judge.comparison_schema import Schema
from nocap.report.table import Column, Table
from nocap.store.identity import differing_keys
from nocap.store.record import Record
from nocap.store.record import read_record as read
from nocap.store.record_files import ENDED

COLUMNS = [Column(title="part"), Column(title="key"), Column(title="a → b", keep=True)]
RECORDED = "recorded"  # and not part of the identity


class RunName(Schema, frozen=True, kw_only=True):
    """One of the two runs."""

    identity: str
    name: str
    status: str

    @property
    def text(self) -> str:
        return self.name if self.status in ENDED else f"{self.name} ({self.status})"


class DifferingKey(Schema, frozen=True, kw_only=True):
    """A key in which two runs differ."""

    part: str  # of the identity; recorded: of none
    key: str
    a: str
    b: str


class Why(Schema, frozen=True, kw_only=True):
    """The differences of two runs."""

    a: RunName
    b: RunName
    same: bool  # whether they are the same run
    differences: list[DifferingKey]


def render(answer: Why) -> str:
    """Return the answer of `why` for people."""
    if answer.same:
        a, b = answer.a, answer.b
        lines = [f"{a.text} and {b.text} are the same run (identity {a.identity})"]
    else:
        because = (
            "are two different runs. They differ in these keys (the identity leaves out a part "
            f"that is only {RECORDED}):"
        )
        lines = [answer.a.text, answer.b.text, because]
    rows = [[each.part, each.key, f"{each.a} → {each.b}"] for each in answer.differences]
    if rows:
        lines.append(str(Table(title="", columns=COLUMNS, rows=rows)))
    differing = {each.part for each in answer.differences}
    quiet = [part for part in ("config", "source", "data", "environment") if part not in differing]
    if quiet:
        lines.append(f"the same: {', '.join(quiet)}")
    return "\n".join(lines)


def why(folder_a: Path, folder_b: Path) -> Why:
    """Return what makes two runs differ.

    Errors:
        ValueError: a folder's record cannot be read.
    """
    try:
        a = read(folder_a)
        b = read(folder_b)
    except ValueError as error:
        names = f"{folder_a.name} and {folder_b.name}"
        raise ValueError(
            f"'nocap.runs why' needs two runs that nocap can read, got {names}: {error}"
        ) from error
    same_data = a.data_hash == b.data_hash
    differences = list[DifferingKey]()
    for (part, x), (_, y) in zip(_parts(a), _parts(b), strict=True):
        if part == "data" and same_data:
            continue
        differences += _differences(part, x, y)
    return Why(
        a=RunName(identity=a.identity, name=a.folder.name, status=a.status),
        b=RunName(identity=b.identity, name=b.folder.name, status=b.status),
        same=a.identity == b.identity,
        differences=differences,
    )


def _parts(run: Record) -> Iterator[tuple[str, Mapping[str, object]]]:
    """Yield the parts of the identity, then the facts that are only recorded."""
    for part in ("config", "source", "environment", "teachers", "init"):
        yield part, run.parts.get(part) or {}
    data = {"manifest": str(run.data_hash)[:12]}
    for split in ("train", "val"):
        data[split] = run.tokens_hash(split)[:12]
    yield "data", {**data, **run.manifest["data"]["source"]}
    recorded = {
        "hardware": run.machine_name,
        "git commit": run.commit or ABSENT,
        "kernel": run.kernel or ABSENT,
    }
    for name, version in run.versions.items():
        if name != "torch":
            recorded[f"version of {name}"] = version
    yield RECORDED, recorded


def _differences(
    part: str, a: Mapping[str, object], b: Mapping[str, object]
) -> Iterator[DifferingKey]:
    left = _flat(a)
    right = _flat(b)
    for key in differing_keys(left, right):
        yield DifferingKey(part=part, key=key, a=left.get(key, ABSENT), b=right.get(key, ABSENT))


def _flat(tree: Mapping[str, object]) -> dict[str, str]:
    return {key: spell(value) for key, value in flat(tree)}
