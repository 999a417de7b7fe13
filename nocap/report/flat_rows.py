"""Flat rows: of each run, for CSV files and notebooks, with the swept config keys as columns; and
of a comparison's arms and levels, for trackers."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from nocap.config.outgoing_text import visible
from nocap.judge.arms import swept_keys
from nocap.judge.comparison import Comparison
from nocap.judge.comparison_json import result_of
from nocap.judge.comparison_schema import ArmJson, DifferenceJson, FactorJson, LevelJson
from nocap.judge.grouping import group
from nocap.store.record import Record

FORMULA = ("=", "+", "-", "@", "\t", "\r")


def rows(records: Sequence[Record]) -> list[dict[str, object]]:
    """Return a row for every run that could be read, whatever its status. Units are in the names;
    `val_loss` is nats per token."""
    labels = dict[str, str]()
    for arm in group(records):
        labels |= dict.fromkeys((run.identity for run in arm.all), arm.label)
    swept = swept_keys(record.config for record in records)
    return [_run(run, labels.get(run.identity), swept) for run in records]


def _run(run: Record, label: str | None, swept: Sequence[str]) -> dict[str, object]:
    row: dict[str, object] = {
        "identity": run.identity,
        "name": run.name,
        "arm": run.arm,
        "label": label,
        "seed": run.seed,
        "status": run.status,
    }
    for key in swept:
        row[key] = run.config.get(key)
    for key in ("steps", "tokens", "val_loss", "val_bpb", "tokens_per_s"):
        row[key] = run.summary.get(key)
    for metric in ("step_ms", "model_mib", "train_s"):
        row[metric] = run.value(metric)
    row["wall_s"] = run.wall_s
    row["params"] = run.value("params")
    row["flops_per_token"] = run.number("flops_per_token")
    row["mfu"] = run.number("mfu")
    row["kernel"] = run.kernel
    row["devices"] = run.machine.devices
    row["hardware"] = run.hardware.get("name")
    row["fingerprint"] = run.machine.fingerprint
    row["folder"] = str(run.folder)
    return row


def tables_of(comparison: Comparison) -> dict[str, list[dict[str, object]]]:
    """Return a comparison as tables of scalars: each arm with its word, and each level of a grid
    that is read by factor. No figure stands without an interval."""
    result = result_of(comparison)
    tables = {"verdicts": [_arm(arm) for arm in result.arms]}
    if result.by_factor is not None:
        seeds = len(result.by_factor.seeds)
        levels = list[dict[str, object]]()
        for factor in result.by_factor.factors:
            levels += [_level(factor, level, seeds) for level in factor.levels]
        tables["by_factor"] = levels
    return tables


def _arm(arm: ArmJson) -> dict[str, object]:
    ratio = arm.token_us.ratio
    time_ratio = None
    if ratio is not None and ratio.low is not None:
        time_ratio = ratio.mean
    return {
        "arm": arm.label,
        "n": arm.n,
        "val_loss": arm.val_loss,
        **_difference(arm.difference),
        "tokens_per_s": arm.tokens_per_s.mean,
        "time_ratio": time_ratio,
        "model_mib": arm.model_mib.mean,
        "params": arm.params.get("total"),
        "flops_per_token": arm.flops_per_token,
    }


def _level(factor: FactorJson, level: LevelJson, seeds: int) -> dict[str, object]:
    over = [f"{key} ({count})" for key, count in factor.over.items()]
    return {
        "level": f"{factor.key}={level.level}",
        "against": factor.baseline,
        "over": ", ".join(over),
        "n": seeds,
        **_difference(level.difference),
    }


def _difference(of: DifferenceJson | None) -> dict[str, object]:
    """Return a difference, its interval and its word; those of a baseline are empty."""
    if of is None:
        names = ("difference", "difference_low", "difference_high")
        return {**dict.fromkeys(names), "verdict": "baseline"}
    return {
        "difference": of.mean,
        "difference_low": of.low,
        "difference_high": of.high,
        "verdict": of.verdict,
    }


def to_csv(table: Sequence[dict[str, object]]) -> str:
    """Return rows as CSV. A null is an empty cell; a text that a spreadsheet would compute begins
    with an apostrophe."""
    names = list[str]()
    for row in table[:1]:
        names += row
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=names, lineterminator="\n")
    writer.writeheader()
    for row in table:
        writer.writerow({key: _inert(value) for key, value in row.items()})
    return text.getvalue()


def _inert(value: object) -> object:
    if not isinstance(value, str):
        return value
    shown = visible(value)
    if value.startswith(FORMULA):
        return f"'{shown}"
    return shown
