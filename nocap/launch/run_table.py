"""A run in a few lines, as a person reads it at its end. No torch here."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from textwrap import shorten
from typing import Any

from nocap.display import duration


def table(summary: Mapping[str, Any], *, run_dir: Path) -> str:
    """Return the run in a few lines."""
    rows: dict[str, str | None] = {
        "run": f"{summary['name']}  {summary['status']} at step {summary['steps']}",
        "validation": _validation(summary),
        "speed": _speed(summary),
        "epoch": _epoch(summary),
        "memory": _memory(summary),
        "clock": _clock(summary),
        "record": str(run_dir),
        "curve": None,
        "tracker": summary.get("tracker"),
    }
    if summary["val_loss"] is not None:
        rows["curve"] = f"python -m nocap.plot {shlex.quote(str(run_dir))}"
    return "\n".join(f"  {label:<11} {text}" for label, text in rows.items() if text)


def _validation(summary: Mapping[str, Any]) -> str | None:
    if summary["val_loss"] is None:
        return None
    if summary["val_bpb"] is None:
        bpb = f"no bits per byte: {shorten(summary['val_bpb_reason'], 90)}"
    else:
        bpb = f"{summary['val_bpb']:.4f} bits per byte"
    return f"{summary['val_loss']:.4f} nats per token, {bpb}"


def _epoch(summary: Mapping[str, Any]) -> str | None:
    """Say how long one pass over all training data takes at the run's average speed."""
    if summary.get("epoch_s") is None:  # as in older records
        return None
    return f"{duration(summary['epoch_s'])} for one pass over the training data, at this speed"


def _memory(summary: Mapping[str, Any]) -> str | None:
    parts = dict(summary["memory_mib"])
    if not parts:
        return None
    peak = parts.pop("peak")
    shown = ", ".join(f"{name} {mib:,.0f}" for name, mib in parts.items())
    return f"{peak:,.0f} MiB peak; {shown}"


def _clock(summary: Mapping[str, Any]) -> str:
    """Say where the time went, the longest first."""
    clock_s = dict(summary["clock_s"])
    wall_s = clock_s.pop("wall")
    lines = [line for line, seconds in clock_s.items() if seconds >= 0.05]
    lines.sort(key=lambda line: -clock_s[line])
    shown = " + ".join(f"{line} {clock_s[line]:.1f}" for line in lines)
    return f"{wall_s:.1f} s = {shown}"


def _speed(summary: Mapping[str, Any]) -> str | None:
    if summary["tokens_per_s"] is None or summary["step_ms"] is None:
        return None
    if summary["mfu"] is None:
        mfu = f"no MFU: {summary['mfu_basis']}"
    else:
        mfu = f"MFU {summary['mfu']:.1%}"
    return (
        f"{summary['tokens_per_s']:,.0f} tokens/s on average, "
        f"{summary['step_ms']['median']:.1f} ms in the median step; {mfu}"
    )
