"""A comparison as tables, for the terminal and for the page. What is missing (one seed, another machine, no bytes) is a dash."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from nocap.judge.arms import ABSENT, spell
from nocap.judge.compare import ComparedArm, Comparison
from nocap.judge.interval import Estimate
from nocap.report.table import Cell, Column, Table
from nocap.report.words import as_gain, measured
from nocap.store.formats import count, percent, plural, shorten
from nocap.store.metrics import METRICS, Scale

ARM, DIFFERENCE, VERDICT = "arm", "difference", "verdict"  # columns that the page knows


def ordered(comparison: Comparison) -> list[ComparedArm]:
    """The baseline first, the others as they were started."""
    return sorted(comparison.arms, key=lambda row: row is not comparison.baseline)


def tables(comparison: Comparison) -> Iterator[Table]:
    arms = ordered(comparison)
    yield _verdicts(comparison, arms)
    yield _speed(arms)
    yield _costs(arms, comparison.baseline)
    if comparison.target is not None:
        yield _target(arms, comparison.target)


def gains(metric: str, scale: Scale, title: str = DIFFERENCE) -> Column:
    """Of estimates of an arm's number minus or over the baseline's; a text says why there is none."""
    of = METRICS[metric]

    def show(found: Estimate | str) -> str | Cell:
        return found if isinstance(found, str) else measured(as_gain(found, of, scale), of, scale)

    return Column(title=title, show=show, metric=metric)


def _values(metric: str, title: str) -> Column:
    return Column(title=title, show=METRICS[metric].show, metric=metric, unit=METRICS[metric].unit)


def _verdicts(comparison: Comparison, arms: Sequence[ComparedArm]) -> Table:
    has_bpb = any(row.val_bpb for row in arms)
    columns = [
        Column(title=ARM),
        Column(title="n"),
        _values("val_loss", "val loss"),
        *([_values("val_bpb", "bits/byte")] if has_bpb else []),
        gains(comparison.metric, Scale.difference),
        Column(title=VERDICT),
    ]
    rows = []
    for row in arms:
        gap, diverged = row.difference, len(row.arm.diverged)
        n = f"{len(row.seeds)} ({diverged} diverged)" if diverged else len(row.seeds)
        bpb = [row.val_bpb] if has_bpb else []
        rows.append([row.label, n, row.val_loss, *bpb, gap and gap.estimate, gap.verdict if gap else "baseline"])
    note = f"±: half of the 95% interval that decides, for all arms together. Differences: {', '.join(methods(comparison)) or 'none'}."
    return Table(name="verdicts", title="Verdicts", columns=columns, rows=rows, notes=[note])


def methods(comparison: Comparison) -> list[str]:
    """How the differences were estimated."""
    gaps = [row.difference for row in comparison.arms if row.difference]
    return list(dict.fromkeys(gap.estimate.method if gap.estimate else f"no {gap.metric}" for gap in gaps))


def _speed(arms: Sequence[ComparedArm]) -> Table:
    """Times and memory; a reason stands where a ratio would be a lie."""
    times = (row.times[metric].refused for row in arms for metric in ("tokens_per_s", "model_mib"))
    reasons = list(dict.fromkeys(filter(None, times)))

    def ratio(row: ComparedArm, metric: str) -> Estimate | str | None:
        timed = row.times[metric]
        return f"refused [{reasons.index(timed.refused) + 1}]" if timed.refused else timed.ratio

    columns = [
        Column(title=ARM),
        _values("tokens_per_s", "mean tokens/s"),
        gains("tokens_per_s", Scale.ratio, "speed"),
        _values("step_ms", "median step ms"),
        _values("model_mib", "model MiB"),
        gains("model_mib", Scale.ratio, "memory"),
        _values("train_s", "training"),
    ]
    rows = [
        [
            row.label,
            row.times["tokens_per_s"].mean,
            ratio(row, "tokens_per_s"),
            row.times["step_ms"].mean,
            row.times["model_mib"].mean,
            ratio(row, "model_mib"),
            row.times["train_s"].mean,
        ]
        for row in arms
    ]
    notes = [f"[{number}] {reason}" for number, reason in enumerate(reasons, start=1)]
    notes.append("Speeds are of one session: what holds on other days takes a study, in three sessions that lie apart.")
    return Table(name="speed", title="Speed and memory, against the baseline", columns=columns, rows=rows, notes=notes)


def _costs(arms: Sequence[ComparedArm], base: ComparedArm) -> Table:
    """What an arm had that the baseline had not."""

    def cost(name: str, title: str) -> Column:
        own = base.costs[name]
        return Column(title=title, show=lambda x: Cell(text=count(x), small=f"({percent(x / own - 1)})" if own and x != own else ""))

    columns = [
        Column(title=ARM),
        *(cost(*names) for names in (("params", "params"), ("flops_per_token", "FLOPs/token"), ("tokens", "tokens"))),
        Column(title="kernel"),
        Column(title="differs from the baseline in"),
    ]
    rows = []
    for row in arms:
        kernel = " / ".join(dict.fromkeys(str(name) for name in (row.arm.summary("kernel") or {}).values()))
        differs = ", ".join(f"{key}={spell(value)}" for key, value in row.changes.items() if value != ABSENT)
        rows.append([row.label, *row.costs.values(), kernel or None, differs or None])
    return Table(name="costs", title="What each arm is", columns=columns, rows=rows)


def _target(arms: Sequence[ComparedArm], target: float) -> Table:
    axes = (("steps", METRICS["steps_to_target"]), ("train_s", METRICS["train_s"]))
    columns, rows = [Column(title=ARM)], []
    for axis, metric in axes:
        columns += [Column(title=axis, metric=metric.name), gains(metric.name, Scale.ratio, f"{axis} against the baseline")]
    for row in arms:
        reaches, cells = row.to_target or {}, list[Any]([row.label])
        for axis, metric in axes:
            found = reaches[axis]
            at = metric.show(found.median) if found.median is not None else f"> {metric.show(found.budget)}" if found.budget else "never"
            cells += ["refused" if found.refused else at, found.ratio]
        rows.append([*cells, f"{reaches['steps'].reached} of {reaches['steps'].n}"])
    refused = dict.fromkeys(reach.refused for row in arms for reach in (row.to_target or {}).values() if reach.refused)
    notes = [f"refused: {reason}" for reason in refused]
    notes.append("In mid-schedule a crossing misleads: compare runs that end at the target.")
    title = f"To val loss {target:g}, medians over seeds"
    return Table(name="target", title=title, columns=[*columns, Column(title="reached it")], rows=rows, notes=notes)


def notes(comparison: Comparison) -> Iterator[str]:
    yield from (f"note: {line}" for line in comparison.problems)
    if comparison.not_compared:
        yield f"not compared: {shorten((f'{name} ({status})' for name, status in comparison.not_compared), most=6)}"


def render(comparison: Comparison) -> str:
    """All of it, for a terminal."""
    arms, runs = plural(len(comparison.arms), "arm"), plural(len(comparison.runs), "run")
    head = [f"{arms} from {runs}; baseline: {comparison.baseline.label} (another with --baseline)"]
    head += [f"swept: {', '.join(comparison.swept)}"] if comparison.swept else []
    parts = ["\n".join(head), *map(str, tables(comparison)), "\n".join(notes(comparison))]
    return "\n\n".join(part for part in parts if part)
