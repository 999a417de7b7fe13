"""What TensorBoard's page downloads: a table a tag, `Wall time,Step,Value`, whose name alone says which
run and tag it is of: `run-base_version_0-tag-val_loss.csv`. The tables of one run are read together."""

from __future__ import annotations

import re
from collections.abc import Iterator
from heapq import merge
from pathlib import Path

from nocap.sources.formats import Row, Sample, csv

PATTERN = csv.PATTERN
NAME = re.compile(r"run-(.+)-tag-(.+?)(?: \(\d+\))?\.csv(?:\.gz)?")


def recognises(sample: Sample) -> bool:
    return csv.names_of(sample) == ["Wall time", "Step", "Value"]


def run_of(path: Path) -> str:
    match = NAME.fullmatch(path.name)
    return str(path.with_name(match[1]) if match else path)


def read(*paths: Path) -> Iterator[Row]:
    yield from merge(*map(_of_tag, paths), key=lambda row: float(row["step"]))


def _of_tag(path: Path) -> Iterator[Row]:
    match = NAME.fullmatch(path.name)
    told = {"run": match[1]} if match else {}
    for row in csv.read(path):
        yield {"step": row["Step"], match[2] if match else "Value": row["Value"], **told}
