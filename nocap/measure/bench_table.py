"""The result of a bench as a table. No torch."""

from __future__ import annotations

from collections.abc import Iterator

from nocap.judge.interval import CONFIDENCE, Estimate
from nocap.measure.bench_result import Bench, BenchedArm, FlopPeak
from nocap.metrics import METRICS, Scale
from nocap.report.figures_in_words import measured, values
from nocap.report.table import Column, Table, TableCell

ONE_SESSION = (
    "all times are from one session, so no interval covers how the machine differs tomorrow; a "
    "study times in three sessions"
)
COUNTED = "parameters, gradients, optimizer state and what a forward keeps, all counted"


def render_bench(bench: Bench) -> str:
    """Draw the table, then what its columns count and what could not be timed."""
    base, *others = bench.arms
    rows = list[list[object]]()
    if base.tokens_per_s:
        rows.append(_row(base, word="baseline"))
    if bench.control.tokens_per_s:
        rows.append(_control(bench.control))
    rows += [_row(arm, word=arm.word_with_reason) for arm in others if arm.tokens_per_s]
    columns = [
        Column(title="arm"),
        values("tokens_per_s", "tokens/s"),
        values("step_ms", "step ms"),
        Column(title="speed", show=_speed, keep=True),
        Column(title="by FLOPs", show="{:.3f}×".format),
        values("memory_mib", "MiB"),
        Column(title="MFU"),
        Column(title="verdict", keep=True),
    ]
    machine = f"{bench.hardware['name']}, torch {bench.hardware['torch']}"
    spent = f"in {bench.spent_s:.0f} s, which include {bench.warm_up_s:.0f} s of warm-up"
    title = f"{machine}: {bench.clock}; {bench.rounds} interleaved rounds {spent}"
    return str(Table(title=title, columns=columns, rows=rows, notes=list(_notes(bench))))


def _row(arm: BenchedArm, *, word: str | None) -> list[object]:
    mib = (arm.facts.memory_mib or {}).get("peak")
    shares = [f"{share:.0%}" for share in (arm.mfu.nominal, arm.mfu.measured) if share]
    return [
        arm.label,
        arm.tokens_per_s,
        arm.step_ms,
        arm.ratio,
        arm.speed_by_flops,
        mib,
        " / ".join(shares) or None,
        word,
    ]


def _control(arm: BenchedArm) -> list[object]:
    """Return the row of the baseline's first instance: its speed alone, for all else is the
    baseline's."""
    return [
        "  again (control)",
        arm.tokens_per_s,
        None,
        arm.ratio,
        None,
        None,
        None,
        arm.word_with_reason,
    ]


def _speed(ratio: Estimate) -> TableCell:
    return measured(ratio, METRICS["tokens_per_s"], Scale.ratio)


def _notes(bench: Bench) -> Iterator[str]:
    for arm in bench.arms:
        if arm.reason:
            yield f"{arm.label}: {arm.status}: {arm.reason}"
    for arm in bench.arms:
        if arm.facts.flops_per_token is None and arm.facts.flops_basis:
            yield f"{arm.label}: FLOPs {arm.facts.flops_basis}"
    yield ONE_SESSION
    yield (
        f"speed is tokens/s divided by the baseline's, round by round. Its {CONFIDENCE:.0%} "
        "interval holds for all arms together; it is wider by the difference between the two runs "
        "of the baseline (the control). by FLOPs is the speed that arithmetic alone would give"
    )
    yield _of_memory_and_peaks(bench)
    sizes = {arm.facts.tokens_per_step for arm in bench.arms if arm.tokens_per_s}
    if len(sizes) > 1:
        counts = [f"{tokens:,}" for tokens in sorted(size for size in sizes if size is not None)]
        yield (
            f"the arms have different numbers of tokens per step ({', '.join(counts)}), so speed "
            "is per token"
        )


def _of_memory_and_peaks(bench: Bench) -> str:
    """Say what the MiB count, and by which peaks the shares are."""
    mib = "largest amount allocated" if bench.hardware["device"] == "cuda" else COUNTED
    peaks = bench.peaks
    which = "nominal / measured" if any(peak.nominal for peak in peaks.values()) else "measured"
    tera = [f"{precision} {_tera(peak)}" for precision, peak in peaks.items()]
    return f"MiB: {mib}. MFU ({which} peak): {'; '.join(tera)}"


def _tera(peak: FlopPeak) -> str:
    measured = f"{peak.measured / 1e12:,.2f} TFLOP/s measured"
    if not peak.nominal:
        return measured
    return f"{measured}, {peak.nominal / 1e12:,.0f} nominal"
