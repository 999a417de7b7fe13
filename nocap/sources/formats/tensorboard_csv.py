"""What TensorBoard's page downloads: a table a tag, `Wall time,Step,Value`, whose name alone says
which run and tag it is of: `run-base_version_0-tag-val_loss.csv`. The tables of one run are read
together."""

from __future__ import annotations

import re
from collections.abc import Iterator
from heapq import merge
from pathlib import Path

from nocap.sources.formats import csv
from nocap.sources.log_reading import CutError, Row, Sample

PATTERN = csv.PATTERN
NAME = re.compile(r"run-(.+)-tag-(.+?)(?: \(\d+\))?\.csv(?:\.gz)?")


def recognises(sample: Sample) -> bool:
    return csv.names_of(sample) == ["Wall time", "Step", "Value"]


def run_of(path: Path) -> str:
    match = NAME.fullmatch(path.name)
    return str(path.with_name(match[1]) if match else path)


def read(*paths: Path) -> Iterator[Row]:
    """Yield the rows of all tables of a run.

    Errors:
        CutError: the last lines of tables are cut, and were left out.
    """
    cut = list[str]()
    yield from merge(*(_of_tag(path, cut) for path in paths), key=lambda row: float(row["step"]))
    if cut:
        raise CutError("; ".join(cut))


def _of_tag(path: Path, cut: list[str]) -> Iterator[Row]:
    """Return the rows of a table, and add to `cut` what is wrong with its end."""
    match = NAME.fullmatch(path.name)
    facts = {"run": match[1]} if match else {}
    tag = match[2] if match else "Value"
    try:
        for row in csv.read(path):
            yield {tag: row["Value"], "step": row["Step"], **facts}
    except CutError as error:
        cut.append(f"{path.name}: {error}")
