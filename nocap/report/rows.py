"""Flat rows: of each run, for CSV files and notebooks, with the swept config keys as columns; and of a
comparison's arms and levels, for trackers."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from nocap.config.outward import visible
from nocap.judge.arms import group, swept_keys
from nocap.judge.compare import Comparison
from nocap.judge.factors import Factor, Factors, Level
from nocap.judge.result import ArmJson, DifferenceJson, difference_json, result_of
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


def tables_of(comparison: Comparison) -> dict[str, list[dict[str, object]]]:
    """Return a comparison as tables of scalars: each arm with its word, and each level of a grid that is read
    by factor. No figure stands without an interval."""
    tables = {"verdicts": [_arm(arm) for arm in result_of(comparison).arms]}
    factors = comparison.factors
    if factors is not None:
        tables["by_factor"] = [
            _level(factor, level, factors) for factor in factors.factors for level in factor.levels
        ]
    return tables


def _arm(arm: ArmJson) -> dict[str, object]:
    ratio = arm.token_us.ratio
    is_known = ratio is not None and ratio.low is not None
    return {
        "arm": arm.label,
        "n": arm.n,
        "val_loss": arm.val_loss,
        **_difference(arm.difference),
        "tokens_per_s": arm.tokens_per_s.mean,
        "time_ratio": ratio.mean if ratio is not None and is_known else None,
        "model_mib": arm.model_mib.mean,
        "params": arm.params.get("total"),
        "flops_per_token": arm.flops_per_token,
    }


def _level(factor: Factor, level: Level, factors: Factors) -> dict[str, object]:
    return {
        "level": f"{factor.key}={level.name}",
        "against": factor.baseline,
        "over": ", ".join(f"{key} ({levels})" for key, levels in factor.over.items()),
        "n": len(factors.seeds),
        **_difference(difference_json(level.difference)),
    }


def _difference(of: DifferenceJson | None) -> dict[str, object]:
    """Return a difference, its interval and its word; those of a baseline are empty."""
    return {
        "difference": None if of is None else of.mean,
        "difference_low": None if of is None else of.low,
        "difference_high": None if of is None else of.high,
        "verdict": "baseline" if of is None else of.verdict,
    }


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
