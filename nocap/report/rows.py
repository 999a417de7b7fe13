"""One flat row per run, for CSV files and notebooks; the swept config keys are columns."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from nocap.config.outward import visible
from nocap.judge.arms import group, swept_keys
from nocap.store.runs import Record

FORMULA = ("=", "+", "-", "@", "\t", "\r")


def rows(records: Sequence[Record]) -> list[dict[str, object]]:
    """Every run that could be read, whatever its status. Units are in the names; `val_loss` is nats per
    token."""
    labels = {run.identity: arm.label for arm in group(records) for run in arm.all}
    keys = swept_keys([record.config for record in records])
    return [
        {
            "identity": run.identity,
            "name": run.name,
            "arm": run.arm,
            "label": labels.get(run.identity),
            "seed": run.seed,
            "status": run.status,
            **{key: run.config.get(key) for key in keys},
            **{
                key: run.summary.get(key)
                for key in ("steps", "tokens", "val_loss", "val_bpb", "tokens_per_s")
            },
            **{key: run.value(key) for key in ("step_ms", "model_mib", "train_s")},
            "wall_s": run.number("clock_s", "wall"),
            "params": run.value("params"),
            **{key: run.number(key) for key in ("flops_per_token", "mfu")},
            "kernel": run.summary["kernel"].get("train"),
            "devices": run.machine.devices,
            "hardware": run.hardware.get("name"),
            "fingerprint": run.machine.fingerprint,
            "folder": str(run.folder),
        }
        for run in records
    ]


def to_csv(table: Sequence[dict[str, object]]) -> str:
    """A null is an empty cell. A text that a spreadsheet would compute begins with an apostrophe."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(table[0]) if table else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: _inert(value) for key, value in row.items()} for row in table)
    return text.getvalue()


def _inert(value: object) -> object:
    if not isinstance(value, str):
        return value
    return f"'{visible(value)}" if value.startswith(FORMULA) else visible(value)
