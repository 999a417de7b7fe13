"""MLflow's runs: of the file store (`mlruns/EXPERIMENT/RUN/meta.yaml` and the folders beside it),
of its sqlite database, or of `search_runs().to_csv()`, which has last values only. Parameters are
settings. A run that was deleted is left out."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import yaml

from nocap.config.keys import require
from nocap.sources.formats import csv
from nocap.sources.log_reading import Row, Sample, lines
from nocap.sources.log_reading import sample as sampled

PATTERN = "meta.yaml *.db *.sqlite *.csv"
SQLITE = b"SQLite format 3\0"
STATES = {1: "running", 2: "scheduled", 3: "finished", 4: "failed", 5: "killed"}
NAME = "mlflow.runName"


def recognises(sample: Sample) -> bool:
    if sample.head.startswith(SQLITE):
        return b"run_uuid" in sample.head and b"is_nan" in sample.head
    is_run = sample.path.name == "meta.yaml" and re.search(
        r"^run_(?:uu)?id:", sample.text, re.MULTILINE
    )
    return bool(is_run) or {"run_id", "experiment_id", "artifact_uri"} <= {*csv.names_of(sample)}


def read(path: Path) -> Iterator[Row]:
    if path.name == "meta.yaml":
        yield from _of_folder(path.parent)
    elif sampled(path).head.startswith(SQLITE):
        yield from _of_database(path)
    else:
        yield from _of_export(path)


def _of_folder(run: Path) -> Iterator[Row]:
    meta = yaml.safe_load((run / "meta.yaml").read_text())
    require(isinstance(meta, dict), "meta.yaml", "hold keys and values", type(meta).__name__)
    if meta.get("lifecycle_stage") == "deleted":
        return
    state = STATES.get(meta.get("status"), "unknown")
    facts = {"run": meta.get("run_name") or run.name, "started": meta.get("start_time")}
    yield {**facts, "ended": state, **_settings(run / "params")}
    points = list[Point]()
    folder = run / "metrics"
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        metric = file.relative_to(folder).as_posix()
        for number, text in lines(file):
            cells = text.split()
            require(
                len(cells) in (2, 3),
                f"metrics/{metric}, line {number}",
                "be a time, a value and perhaps a step",
                repr(text[:60]),
            )
            step = int(cells[2]) if len(cells) == 3 else 0
            points.append(Point(time=int(cells[0]), step=step, metric=metric, value=cells[1]))
    yield from _rows(points)


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """A metric's value, and when it was logged."""

    time: int
    step: int
    metric: str
    value: object


def _rows(points: Iterable[Point]) -> Iterator[Row]:
    """Return points as rows by step. Of a metric each step counts once: where steps go back, as in
    a resumed run, or stay at 0, as where a program gives none, the later ones count."""
    by_metric: dict[str, list[Point]] = {}
    for point in sorted(points, key=lambda point: (point.time, point.step)):
        of_metric = by_metric.setdefault(point.metric, [])
        while of_metric and of_metric[-1].step >= point.step:
            of_metric.pop()
        of_metric.append(point)
    for point in sorted(chain(*by_metric.values()), key=lambda point: point.step):
        yield {"step": point.step, point.metric: point.value}


def _settings(folder: Path) -> Row:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {
        f"config/{file.relative_to(folder).as_posix()}": file.read_text().strip() for file in files
    }


def _of_database(path: Path) -> Iterator[Row]:
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as base:
        every = base.execute(
            "SELECT run_uuid, name, status, start_time FROM runs "
            "WHERE lifecycle_stage = 'active' ORDER BY start_time"
        )
        for run, name, state, started in every.fetchall():
            facts = {"run": f"{name} {run}", "started": started}
            settings = base.execute("SELECT key, value FROM params WHERE run_uuid = ?", (run,))
            yield {**facts, "ended": state, **{f"config/{key}": value for key, value in settings}}
            metrics = base.execute(
                "SELECT timestamp, step, key, CASE WHEN is_nan THEN 'nan' ELSE value END FROM "
                "metrics "
                "WHERE run_uuid = ? ORDER BY rowid",
                (run,),
            )
            points = [
                Point(time=time, step=step, metric=metric, value=value)
                for time, step, metric, value in metrics
            ]
            for row in _rows(points):
                yield {**facts, **row}


def _of_export(path: Path) -> Iterator[Row]:
    for row in csv.read(path):
        facts = {key: row[key] for key in ("line", "start_time") if key in row}
        name = row.get(f"tags.{NAME}", "")
        facts |= {"run": f"{name} {row['run_id']}".strip(), "ended": row["status"]}
        named = {
            re.sub(r"^metrics\.", "", key): x
            for key, x in row.items()
            if key.startswith("metrics.")
        }
        settings = {
            re.sub(r"^params\.", "config/", key): x
            for key, x in row.items()
            if key.startswith("params.")
        }
        yield facts | named | settings
