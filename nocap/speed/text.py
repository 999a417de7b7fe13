"""A bench's result as a person reads it in a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from nocap.show.table import NONE, table

Facts = Mapping[str, Any]
HEAD = ["arm", "tokens/s", "step ms", "speed", "interval", "by FLOPs", "MiB", "MFU", "verdict"]


def render(result: Facts) -> str:
    """The table, then what its columns count and what could not be timed."""
    base, *others = result["arms"]
    control = {
        **result["control"],
        "label": "  again (control)",
        "status": "measured",
        "memory_mib": None,
        "speed_by_flops": None,
        "mfu": {},
        "step_ms": None,
    }
    rows = [_row({**base, "verdict": "baseline"}), _row(control), *(_row(arm) for arm in others if arm["status"] == "measured")]
    return "\n".join([_head(result), table(HEAD, rows), *_left_out(others), *_notes(result)])


def _head(result: Facts) -> str:
    hardware, spent = result["hardware"], result["spent_s"]
    return (
        f"{hardware['name']}, torch {hardware['torch']}: {result['clock']}; {result['rounds']} interleaved rounds"
        f" in {spent['all']:.0f} s, {spent['warm_up']:.0f} s of it warm-up"
    )


def _row(arm: Facts) -> list[str]:
    speed, memory, mfu = arm["speed"], arm["memory_mib"], arm["mfu"]
    shares = [f"{mfu[kind]:.0%}" for kind in ("nominal", "measured") if mfu.get(kind) is not None]
    return [
        arm["label"],
        f"{arm['tokens_per_s']:,.0f}",
        NONE if arm["step_ms"] is None else f"{arm['step_ms']:,.1f}",
        NONE if speed is None else f"{speed['ratio']:.3f}",
        NONE if speed is None else f"[{speed['low']:.3f}, {speed['high']:.3f}]",
        NONE if arm["speed_by_flops"] is None else f"{arm['speed_by_flops']:.3f}",
        NONE if memory is None else f"{memory['peak']:,.0f}",
        " / ".join(shares) or NONE,
        arm["verdict"] or NONE,
    ]


def _left_out(arms: list[Facts]) -> Iterator[str]:
    for arm in arms:
        if arm["status"] != "measured":
            yield f"{arm['label']}: {arm['status']}: {arm['reason']}"


def _notes(result: Facts) -> Iterator[str]:
    limit, on_gpu = result["limit"], result["hardware"]["device"] == "cuda"
    yield (
        f"speed: tokens/s over the baseline's, round by round, with an interval at {limit['confidence']:.2%},"
        f" and a verdict where that is ±{limit['half_width']:.1%} or less."
        " by FLOPs: what arithmetic alone would give"
    )
    peaks = "; ".join(
        f"{precision} {peak['measured'] / 1e12:,.2f} TFLOP/s measured"
        + (f", {peak['nominal'] / 1e12:,.0f} nominal" if peak["nominal"] else "")
        for precision, peak in result["peak_flops"].items()
    )
    which = "nominal / measured" if any(peak["nominal"] for peak in result["peak_flops"].values()) else "measured"
    counted = "most allocated" if on_gpu else "parameters, gradients, optimizer and what a forward keeps, counted"
    yield f"MiB: {counted}. MFU ({which} peak): {peaks}"
    sizes = {arm["tokens_per_step"] for arm in result["arms"] if arm["status"] == "measured"}
    if len(sizes) > 1:
        yield f"tokens per step differ ({', '.join(f'{n:,}' for n in sorted(sizes))}): speed is per token"
