"""`summary.json`: a run in one object, made from its rows, its manifest and the totals that the recorder
measured."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from nocap.config import hardware
from nocap.config.run import Run
from nocap.store.record import Metrics, Row, read_json, write_summary
from nocap.training.ledger import LINES

QUANTILES = {"median": 50, "p10": 10, "p90": 90}


def summarize(
    run: Run,
    manifest: Mapping[str, Any],
    rows: list[Row],
    *,
    status: str,
    step: int,
    clock_s: Mapping[str, float],
    totals: Mapping[str, Any],
) -> dict[str, Any]:
    """All keys of the contract; what could not be measured is null, with the reason beside it."""
    totals = dict(totals)
    val = [row for row in rows if "val/loss" in row] or [dict.fromkeys(("val/loss", "val/bpb", "step"))]
    step_ms = [row["perf/step_ms"] for row in rows if "perf/step_ms" in row]
    token_us = [row["perf/token_us"] for row in rows if "perf/token_us" in row]
    t, training_s = run.trainer, clock_s["train"] + clock_s["data"]
    tokens_per_s = run.tokens_before(step) / training_s if step and training_s else None
    epoch_tokens = totals.pop("train_windows", 0) * run.model.seq_len
    return {
        "status": status,
        "identity": manifest["identity"],
        "name": manifest["name"],
        "arm": manifest["arm"],
        "seed": run.seed,
        "val_loss": val[-1]["val/loss"],
        "val_bpb": val[-1].get("val/bpb"),
        "val_bpb_reason": manifest["data"]["val_bytes_reason"],
        "val_step": val[-1]["step"],
        "steps": step,
        "tokens": run.tokens_before(step),
        "tokens_per_s": tokens_per_s,
        "epoch_s": epoch_tokens / tokens_per_s if tokens_per_s and epoch_tokens else None,
        "spikes": [row["step"] for row in rows if "train/spike" in row],
        "step_ms": {name: float(np.percentile(step_ms, q)) for name, q in QUANTILES.items()}
        if step_ms
        else None,
        "token_us": float(np.median(token_us)) if token_us else None,
        **_mfu(run, tokens_per_s, totals),
        "flops_per_token": None,
        "params": {},
        "memory_mib": {},
        "clock_s": dict(clock_s),
        "kernel": {},
        "hardware": manifest["hardware"],
        "data": {"manifest": manifest["data"]["manifest"], "name": run.data.kind},
        "devices": t.devices,
        "attempts": len(manifest["attempts"]),
        **totals,
    }


def cut_short(
    run: Run, run_dir: Path, *, status: str, attempt_s: float, error: str, stage: Path | None
) -> dict[str, Any]:
    """Write and return the summary of an attempt that did not come to its end.

    Where its time went is known up to its last row; the rest is `other`. On a full disk or without its lease
    it is returned only: a run without a summary is one that has not ended.
    """
    manifest, rows = read_json(run_dir / "manifest.json"), Metrics(run_dir / "metrics.jsonl").rows()
    assert manifest is not None
    clock = {line: (rows[-1].get(f"clock/{line}_s") or 0.0) if rows else 0.0 for line in LINES}
    clock["other"] += max(0.0, manifest["attempts"][-1]["spent_s"] + attempt_s - sum(clock.values()))
    clock["wall"] = sum(clock.values())
    step = rows[-1]["step"] if rows else 0
    summary = summarize(run, manifest, rows, status=status, step=step, clock_s=clock, totals={"error": error})
    with suppress(OSError):
        write_summary(run_dir, summary, stage=stage)
    return summary


def _mfu(run: Run, tokens_per_s: float | None, totals: Mapping[str, Any]) -> dict[str, Any]:
    t, flops = run.trainer, totals.get("flops_per_token")
    peak, basis = hardware.peak_flops(t.device, t.precision)
    if peak is None:
        return {"mfu": None, "mfu_basis": basis}
    if tokens_per_s is None or "flops_basis" not in totals:
        return {"mfu": None, "mfu_basis": "no step was timed"}
    if flops is None:
        return {"mfu": None, "mfu_basis": f"FLOPs {totals['flops_basis']}"}
    formula = (
        f"tokens/s × {flops / 1e6:.1f} MFLOP/token (causal attention counted once) / {t.devices} × {basis}"
    )
    return {
        "mfu": hardware.utilization(tokens_per_s * flops, t.device, t.precision, t.devices),
        "mfu_basis": formula,
    }
