"""Runs that finished elsewhere: rows of a file beside the log, which a command on another machine takes instead of training them again.

Losses travel between machines where both runs of a pair are from one; step times never do. A row's key has nothing of its machine in it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nocap.config.bounded import parse_json, read_text
from nocap.config.keys import require
from nocap.config.outward import redact
from nocap.store.files import write_file
from nocap.store.identity import digest, source_hashes
from nocap.store.runs import Curve, Record
from nocap.study.log import Log
from nocap.study.plan import StudyPlan
from nocap.study.registration import content_of
from nocap.study.tasks import Training

FILE = "rows.jsonl"
KEPT = (
    "val_loss",
    "val_bpb",
    "steps",
    "tokens",
    "tokens_per_s",
    "flops_per_token",
    "params",
    "status",
    "hardware",
    "kernel",
)  # of a summary


def key(plan: StudyPlan, run: Training) -> str:
    """Of what is trained: its config without the keys of the machine, its seed and length, and the source that computes it."""
    return digest([content_of(plan, run.composed, "train"), run.seed, source_hashes(run.composed.run)])


def write(plan: StudyPlan, records: Sequence[tuple[Training, Record]]) -> Path:
    """Rows of these runs, beside those of other machines that are there."""
    path = Path(plan.study.folder) / FILE
    rows = {(row["key"], row["machine"]): row for row in _read(path)}
    for run, record in records:
        names = {"key": key(plan, run), "machine": record.machine[0], "content": content_of(plan, run.composed, "train")}
        facts = {"arm": run.arm, "seed": run.seed, "short": run.short, "identity": record.identity, "started": record.started}
        curve = {name: getattr(record.curve, name) for name in ("step", "tokens", "train_s", "val_loss", "val_bpb")}
        summary = {name: record.summary[name] for name in KEPT if name in record.summary}
        steps = record.config["trainer.steps"]
        rows[names["key"], names["machine"]] = {
            **names,
            **facts,
            "torch": record.parts["environment"]["torch"],
            "trainer.steps": steps,
            "summary": summary,
            "curve": curve,
        }
    write_file(path, "".join(f"{json.dumps(redact(row), allow_nan=False)}\n" for row in rows.values()).encode())
    return path


def _read(path: Path) -> list[dict[str, Any]]:
    return [parse_json(line) for line in read_text(path).splitlines()] if path.is_file() else []


def taken(plan: StudyPlan, runs: Sequence[Training], log: Log) -> list[tuple[Training, Record]]:
    """What the rows have of these runs: a seed is taken whole and of one machine, or not at all.

    Errors:
        ValueError: a row whose loss the study's log has not.
    """
    path = Path(plan.study.folder) / FILE
    by_machine: dict[str, dict[str, dict[str, Any]]] = {}
    for row in _read(path) if plan.study.folder else ():
        by_machine.setdefault(row["machine"], {})[row["key"]] = row
    known = {(line["content"], line["seed"], line["val_loss"]) for line in log.of("run")}
    records = []
    for seed in dict.fromkeys(run.seed for run in runs) if by_machine else ():
        wanted = {key(plan, run): run for run in runs if run.seed == seed}
        for rows in (rows for rows in by_machine.values() if wanted.keys() <= rows.keys()):
            for name, run in wanted.items():
                row, loss = rows[name], rows[name]["summary"]["val_loss"]
                rule = "have a loss that the study's log has"
                require((row["content"], seed, loss) in known, f"{path}: {run.arm}, seed {seed}", rule, loss)
                records.append((run, _record(row)))
            break
    return records


def _record(row: dict[str, Any]) -> Record:
    return Record(
        folder=Path(row["identity"]),
        identity=row["identity"],
        name=row["arm"],
        arm=row["arm"],
        seed=row["seed"],
        status=row["summary"]["status"],
        started=row["started"],
        config={"trainer.steps": row["trainer.steps"]},
        parts={"environment": {"torch": row["torch"]}},
        manifest={},
        summary=row["summary"],
        curve=Curve(**row["curve"]),
    )
