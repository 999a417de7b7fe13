"""Tables of W&B: the runs of a project (`Name,State,…`, a row a run), a panel (`Step,RUN -
val/loss,RUN - val/loss__MIN,…`), and what `run.history().to_csv()` writes. `_step`, a panel's
`Step`, counts calls of `log`, so it is no step unless the program gave its own."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from nocap.sources.formats import csv
from nocap.sources.log_reading import Row, Sample, sample

PATTERN = csv.PATTERN
OF_RUNS = {"Name", "State"}
CALLS = "Step (calls of log)"  # of a panel
BOUND = re.compile(r"(.+) - (.+)__(?:MIN|MAX)")


def recognises(sample: Sample) -> bool:
    names = csv.names_of(sample)
    return {*names} >= OF_RUNS or _is_panel(names) or {"_step", "_timestamp"} <= {*names}


def _is_panel(names: list[str]) -> bool:
    return any(BOUND.fullmatch(name) for name in names[1:])


def read(path: Path) -> Iterator[Row]:
    rows = csv.read(path, cut=False)  # who exports a table writes it whole
    if {*csv.names_of(sample(path))} >= OF_RUNS:  # the newest stands first
        rows = iter(sorted(rows, key=lambda row: str(row.get("Created", ""))))
    for row in rows:
        names = [*row]
        if _is_panel(names):
            yield from _of_panel(row, names[0])
        elif row.keys() >= OF_RUNS:
            own = {"run": row["Name"], "ended": row["State"]}
            yield {key: value for key, value in row.items() if key not in OF_RUNS} | own
        else:
            yield row


def _of_panel(row: Row, axis: str) -> Iterator[Row]:
    """Return a row for each run, by the columns beside those of its least and most."""
    for run, metric in _metrics(row):
        cell = row[f"{run} - {metric}"]
        if metric != "_step" and cell != "":
            yield {
                "line": row["line"],
                "run": run,
                CALLS if axis == "Step" else axis: row[axis],
                metric: cell,
            }


def _metrics(row: Mapping[str, object]) -> list[tuple[str, str]]:
    matches = [match for name in row if (match := BOUND.fullmatch(name)) and name.endswith("__MIN")]
    return [(match[1], match[2]) for match in matches]
