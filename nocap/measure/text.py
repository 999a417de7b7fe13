"""The result of a bench as a table. No torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from nocap.judge.interval import Estimate
from nocap.report.table import Cell, Column, Table
from nocap.report.words import measured, values
from nocap.store.metrics import METRICS, Scale

Json = Mapping[str, Any]


def render_bench(result: Json) -> str:
    """The table, then what its columns count and what could not be timed."""
    base, *others = result["arms"]
    arms = [{**base, "verdict": "baseline"}, {**result["control"], "label": "  again (control)"}, *others]
    columns = [
        Column(title="arm"),
        values("tokens_per_s", "tokens/s"),
        values("step_ms", "step ms"),
        Column(title="speed", show=_speed),
        Column(title="by FLOPs", show=lambda ratio: f"{ratio:.3f}×"),
        values("memory_mib", "MiB"),
        Column(title="MFU"),
        Column(title="verdict"),
    ]
    rows = [
        [
            *(arm.get(key) for key in ("label", "tokens_per_s", "step_ms", "speed", "speed_by_flops")),
            (arm.get("memory_mib") or {}).get("peak"),
            " / ".join(f"{share:.0%}" for share in arm.get("mfu", {}).values() if share) or None,
            arm["verdict"],
        ]
        for arm in arms
        if arm["tokens_per_s"]
    ]
    hard, spent = result["hardware"], result["spent_s"]
    first = (
        f"{hard['name']}, torch {hard['torch']}: {result['clock']}; {result['rounds']} interleaved rounds"
        f" in {spent['all']:.0f} s, {spent['warm_up']:.0f} s of it warm-up"
    )
    return str(Table(title=first, columns=columns, rows=rows, notes=list(_notes(result))))


def _speed(ratio: Json) -> Cell:
    return measured(
        Estimate(mid=ratio["ratio"], low=ratio["low"], high=ratio["high"], n=0),
        METRICS["tokens_per_s"],
        Scale.ratio,
    )


def _notes(result: Json) -> Iterator[str]:
    peaks, arms = result["peak_flops"], result["arms"]
    yield from (f"{arm['label']}: {arm['status']}: {arm['reason']}" for arm in arms if arm["reason"])
    unknown = (arm for arm in arms if arm["flops_per_token"] is None and arm["flops_basis"])
    yield from (f"{arm['label']}: FLOPs {arm['flops_basis']}" for arm in unknown)
    yield (
        "all of this is of one session: how much this machine differs tomorrow is in no "
        "interval here; a study times in three sessions"
    )
    yield (
        "speed: tokens/s over the baseline's, round by round, with an interval at "
        f"{result['limit']['confidence']:.0%} for all arms"
        " together, wider by what the baseline differs from itself (the control). by FLOPs: "
        "what arithmetic alone would give"
    )
    counted = "parameters, gradients, optimizer and what a forward keeps, counted"
    which = "nominal / measured" if any(peak["nominal"] for peak in peaks.values()) else "measured"
    tera = "; ".join(
        f"{precision} {peak['measured'] / 1e12:,.2f} TFLOP/s measured"
        + (f", {peak['nominal'] / 1e12:,.0f} nominal" if peak["nominal"] else "")
        for precision, peak in peaks.items()
    )
    yield (
        f"MiB: {'most allocated' if result['hardware']['device'] == 'cuda' else counted}. "
        f"MFU ({which} peak): {tera}"
    )
    sizes = sorted({arm["tokens_per_step"] for arm in arms if arm["tokens_per_s"]})
    if len(sizes) > 1:
        yield f"tokens per step differ ({', '.join(f'{n:,}' for n in sizes)}): speed is per token"
