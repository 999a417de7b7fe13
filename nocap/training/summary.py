"""`summary.json`: a run in one object, made from its rows, its manifest and what the loop counted."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from nocap.config import hardware
from nocap.config.run import Run
from nocap.options.attention import kernel_name
from nocap.store.record import Metrics, Row, read_json, write_json
from nocap.training.ledger import LINES


def summarize(
    run: Run,
    manifest: Mapping[str, Any],
    rows: list[Row],
    *,
    status: str,
    step: int,
    clock_s: Mapping[str, float],
    facts: Mapping[str, Any],
) -> dict[str, Any]:
    """All keys of the contract; what could not be measured is null, with the reason beside it."""
    facts = dict(facts)
    val = [row for row in rows if "val/loss" in row]
    t, training_s = run.trainer, clock_s["train"] + clock_s["data"]
    tokens_per_s = step * t.batch_tokens / training_s if step and training_s else None
    epoch_tokens = facts.pop("train_windows", 0) * run.model.seq_len
    flops = facts.get("flops_per_token")
    return {
        "status": status,
        "identity": manifest["identity"],
        "name": manifest["name"],
        "arm": manifest["arm"],
        "seed": run.seed,
        "val_loss": val[-1]["val/loss"] if val else None,
        "val_bpb": val[-1].get("val/bpb") if val else None,
        "val_bpb_reason": manifest["data"]["val_bytes_reason"],
        "val_step": val[-1]["step"] if val else None,
        "steps": step,
        "tokens": step * t.batch_tokens,
        "tokens_per_s": tokens_per_s,
        "epoch_s": epoch_tokens / tokens_per_s if tokens_per_s and epoch_tokens else None,
        "spikes": [row["step"] for row in rows if "train/spike" in row],
        "step_ms": _quantiles([row["perf/step_ms"] for row in rows if "perf/step_ms" in row]),
        **_mfu(run, tokens_per_s, flops),
        "flops_per_token": None,
        "params": {},
        "memory_mib": {},
        "clock_s": dict(clock_s),
        "kernel": {
            phase: kernel_name(run.attention, t.device, precision)
            for phase, precision in (("train", t.precision), ("val", t.val_precision))
        },
        "hardware": manifest["hardware"],
        "data": {"manifest": manifest["data"]["manifest"], "name": run.data.kind},
        "devices": t.devices,
        "attempts": len(manifest["attempts"]),
        **facts,
    }


def cut_short(run: Run, run_dir: Path, *, status: str, attempt_s: float, error: str) -> dict[str, Any]:
    """Write and return the summary of an attempt that did not come to its end.

    Where its time went is known up to its last row; the rest is `other`. On a full disk it is returned only: a run without a summary is
    one that has not ended.
    """
    manifest, rows = read_json(run_dir / "manifest.json"), Metrics(run_dir / "metrics.jsonl").rows()
    assert manifest is not None
    clock = {line: rows[-1][f"clock/{line}_s"] if rows else 0.0 for line in LINES}
    clock["other"] += max(0.0, manifest["attempts"][-1]["spent_s"] + attempt_s - sum(clock.values()))
    clock["wall"] = sum(clock.values())
    step = rows[-1]["step"] if rows else 0
    summary = summarize(run, manifest, rows, status=status, step=step, clock_s=clock, facts={"error": error})
    with suppress(OSError):
        write_json(run_dir / "summary.json", summary)
    return summary


def _quantiles(step_ms: list[float]) -> dict[str, float] | None:
    if not step_ms:
        return None
    p10, median, p90 = np.percentile(step_ms, [10, 50, 90])
    return {"median": float(median), "p10": float(p10), "p90": float(p90)}


def _mfu(run: Run, tokens_per_s: float | None, flops: float | None) -> dict[str, Any]:
    peak, basis = hardware.peak_flops(run.trainer.device, run.trainer.precision)
    if peak is None or tokens_per_s is None or flops is None:
        return {"mfu": None, "mfu_basis": basis if peak is None else "no step was timed"}
    formula = f"tokens/s × {flops / 1e6:.1f} MFLOP/token (causal attention counted once) / {run.trainer.devices} × {basis}"
    t = run.trainer
    return {"mfu": hardware.utilization(tokens_per_s * flops, t.device, t.precision, t.devices), "mfu_basis": formula}
