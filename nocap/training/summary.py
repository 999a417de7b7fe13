"""Make `summary.json`, a run in one object, from its rows, its manifest and the totals that the
recorder measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from nocap.config import hardware
from nocap.config.run import Run
from nocap.row_keys import (
    LINES,
    LOGGED,
    SPIKE,
    STEP_LINES,
    STEP_MS,
    TOKEN_US,
    VAL_BPB,
    VAL_LOSS,
    WALL,
    clock_key,
)
from nocap.store.record_files import MANIFEST, ROWS, RunStatus, read_json, write_summary
from nocap.store.rows_file import Row, RowsFile

QUANTILES = {"median": 50, "p10": 10, "p90": 90}


@dataclass(frozen=True, kw_only=True, slots=True)
class Totals:
    """Hold what is measured once a run, at its end. An attempt that was cut short has none of
    it."""

    params: Mapping[str, int] = field(default_factory=dict)
    flops_per_token: float | None = None  # None: they could not be counted
    flops_basis: str | None = None  # how they were counted, or why not
    memory_mib: Mapping[str, float] = field(default_factory=dict)
    memory_notes: Mapping[str, str] | None = None  # part of the memory → what it is
    kernel: Mapping[str, str] = field(default_factory=dict)  # of training and of validation
    n_windows: int = 0  # of the training data
    diverged: Mapping[str, object] | None = None  # where and how


def summarize(
    run: Run,
    manifest: Mapping[str, Any],
    rows: Sequence[Row],
    *,
    status: RunStatus,
    step: int,
    clock_s: Mapping[str, float],
    totals: Totals,
    error: str | None = None,
) -> dict[str, Any]:
    """Return all keys of the contract. A value that could not be measured is null, with the reason
    beside it. `error`: why the attempt was cut short."""
    last: Row = {}  # validation
    for row in rows:
        if VAL_LOSS in row:
            last = row
    spikes = [row["step"] for row in rows if SPIKE in row]
    tokens = run.tokens_before(step)
    epoch_tokens = totals.n_windows * run.model.seq_len
    tokens_per_s = None
    training_s = sum(clock_s[line] for line in STEP_LINES)
    if step and training_s:
        tokens_per_s = tokens / training_s
    data = manifest["data"]
    identified = {
        "status": status,
        "identity": manifest["identity"],
        "name": manifest["name"],
        "arm": manifest["arm"],
        "seed": run.seed,
    }
    reached = {
        "val_loss": last.get(VAL_LOSS),
        "val_bpb": last.get(VAL_BPB),
        "val_bpb_reason": data["val_bytes_reason"],
        "val_step": last.get("step"),
        "steps": step,
        "tokens": tokens,
    }
    noticed = {"spikes": spikes, "logged": _logged(rows)}
    speed = {
        "tokens_per_s": tokens_per_s,
        "epoch_s": _epoch_s(epoch_tokens, tokens_per_s),
        "step_ms": _quantiles(rows, STEP_MS),
        "token_us": _median(rows, TOKEN_US),
        **_mfu(run, tokens_per_s, totals),
    }
    costs = {
        "flops_per_token": totals.flops_per_token,
        "params": totals.params,
        "memory_mib": totals.memory_mib,
        "clock_s": dict(clock_s),
    }
    conditions = {
        "kernel": totals.kernel,
        "hardware": manifest["hardware"],
        "data": {"manifest": data["manifest"], "name": run.data.kind},
        "devices": run.trainer.devices,
        "attempts": len(manifest["attempts"]),
    }
    explained = {
        "flops_basis": totals.flops_basis,
        "memory_notes": totals.memory_notes,
        "diverged": totals.diverged,
        "error": error,
    }
    known = {key: value for key, value in explained.items() if value is not None}
    return {**identified, **reached, **noticed, **speed, **costs, **conditions, **known}


def _epoch_s(epoch_tokens: int, tokens_per_s: float | None) -> float | None:
    """Return the seconds that an epoch takes; `None`: it is not known."""
    if not tokens_per_s or not epoch_tokens:
        return None
    return epoch_tokens / tokens_per_s


def _quantiles(rows: Sequence[Row], key: str) -> dict[str, float] | None:
    """Return `QUANTILES` of what the rows have under a key; None where no row has it."""
    values = [row[key] for row in rows if key in row]
    if not values:
        return None
    return {name: float(np.percentile(values, q)) for name, q in QUANTILES.items()}


def _median(rows: Sequence[Row], key: str) -> float | None:
    """Return the median of what the rows have under a key; None where no row has it."""
    values = [row[key] for row in rows if key in row]
    if not values:
        return None
    return float(np.median(values))


def _logged(rows: Sequence[Row]) -> dict[str, float | None]:
    """Return the last value of each name that a module logged."""
    values = dict[str, float | None]()
    for row in rows:
        for key, value in row.items():
            if key.startswith(LOGGED):
                values[key.removeprefix(LOGGED)] = value
    return values


def cut_short(
    run: Run, run_dir: Path, *, status: RunStatus, attempt_s: float, error: str, stage: Path | None
) -> dict[str, Any]:
    """Write and return the summary of an attempt that did not come to its end.

    Where its time went is known up to its last row; the rest is `other`. On a full disk or without
    its lease it is returned only: a run without a summary is one that has not ended.
    """
    manifest = read_json(run_dir / MANIFEST)
    assert manifest is not None
    rows = RowsFile(run_dir / ROWS).rows()
    last: Row = {"step": 0}
    if rows:
        last = rows[-1]
    clock = {line: last.get(clock_key(line)) or 0.0 for line in LINES}
    attempt = manifest["attempts"][-1]
    spent_s = attempt["spent_s"] + attempt_s
    lost_s = spent_s - sum(clock.values())
    clock["other"] += max(0.0, lost_s)
    clock[WALL] = sum(clock.values())
    summary = summarize(
        run,
        manifest,
        rows,
        status=status,
        step=last["step"],
        clock_s=clock,
        totals=Totals(),
        error=error,
    )
    with suppress(OSError):
        write_summary(run_dir, summary, stage=stage)
    return summary


def _mfu(run: Run, tokens_per_s: float | None, totals: Totals) -> dict[str, Any]:
    """Return the model's FLOPs as a share of the device's peak, with how they were counted, or why
    it is not known."""
    t = run.trainer
    flops = totals.flops_per_token
    peak, basis = hardware.peak_flops(t.device, t.precision)
    if peak is None:
        return {"mfu": None, "mfu_basis": basis}
    if tokens_per_s is None or totals.flops_basis is None:
        return {"mfu": None, "mfu_basis": "no step was timed"}
    if flops is None:
        return {"mfu": None, "mfu_basis": f"FLOPs {totals.flops_basis}"}
    counted = f"{flops / 1e6:.1f} MFLOP/token (causal attention counted once)"
    share = hardware.utilization(tokens_per_s * flops, t.device, t.precision, t.devices)
    return {"mfu": share, "mfu_basis": f"tokens/s × {counted} / {t.devices} × {basis}"}
