"""A comparison in words and tables, for the terminal and for the page. What is missing (one seed, another machine, no bytes) is a dash."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from nocap.judge.arms import ABSENT, spell
from nocap.judge.result import ComparedArm, Comparison, EffectRow, Front
from nocap.judge.stats import Estimate
from nocap.show.table import (
    NONE,
    count,
    duration,
    is_numeric,
    loss,
    p_value,
    percent,
    plural,
    shorten,
    table,
    three_digits,
    whole,
)
from nocap.store.measurement import METRICS, Better, Scale


@dataclass(frozen=True, kw_only=True, slots=True)
class TableCell:
    text: str
    small: str = ""  # an interval, or how far a cost is from the baseline's
    hint: str = ""  # for who points at it on a page

    def __str__(self) -> str:
        if self.small.startswith("±"):
            return f"{self.text} {self.small}"
        return f"{self.text} ({self.small})" if self.small else self.text


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """A table with its title and notes. The first cell of a row is its name."""

    name: str
    title: str
    head: list[str]
    rows: list[list[TableCell]]
    notes: list[str] = field(default_factory=list)
    of_arms: bool = True  # a row an arm, the baseline first

    @property
    def is_right(self) -> list[bool]:
        """Which columns stand to the right."""
        return [is_numeric([cell.text for cell in column]) for column in zip(*self.rows, strict=True)]

    def __str__(self) -> str:
        return "\n".join([self.title, table(self.head, [list(map(str, row)) for row in self.rows]), *self.notes])


def ordered(comparison: Comparison) -> list[ComparedArm]:
    """The baseline first, the others as they were started."""
    return sorted(comparison.arms, key=lambda result: result is not comparison.baseline)


def sections(comparison: Comparison) -> Iterator[Section]:
    arms = ordered(comparison)
    yield _verdicts(comparison, arms)
    yield _speed(arms)
    if any(result.inference for result in arms):
        yield _inference(arms)
    yield _costs(arms, comparison.baseline)
    if comparison.target is not None:
        yield _target(arms, comparison.target)
    for name, (title, is_speed) in EFFECTS.items():
        if rows := (comparison.effects or {}).get(name):
            yield _effects(name, title, rows, comparison.metric, is_speed=is_speed)


def mean(estimate: Estimate | None) -> TableCell:
    """`5.1946 ± 0.1763`: half the width of the t-interval, which is symmetric."""
    if estimate is None:
        return TableCell(text=NONE)
    hint = "" if math.isnan(estimate.sd) else f"standard deviation over seeds: {loss(estimate.sd)}"
    return TableCell(text=f"{loss(estimate.mid)} {_half(estimate)}".rstrip(), hint=hint)


def difference(metric: str, estimate: Estimate | None) -> TableCell:
    """`lower loss by 0.0312 ± 0.0047`, of mine minus the baseline's."""
    if estimate is None:
        return TableCell(text=NONE)
    gain = estimate.mid if METRICS[metric].better is Better.higher else -estimate.mid
    text = METRICS[metric].describe(gain, Scale.difference)
    return TableCell(text="the same" if text.endswith(" 0.0000") else text, small=_half(estimate))


def _half(estimate: Estimate) -> str:
    return f"± {estimate.half_width:.4f}" if math.isfinite(estimate.high) else ""


def ratio(metric: str, estimate: Estimate | None) -> TableCell:
    """`7.0% faster`, with the interval `5.1% to 9.0% faster`; of mine over the baseline's."""
    if estimate is None:
        return TableCell(text=NONE)
    text = _ratio(metric, estimate.mid)
    text = "the same" if text.startswith("0.0%") else text
    if not math.isfinite(estimate.high):
        return TableCell(text=text, hint="one seed: no interval")
    ends = sorted((estimate.low, estimate.high), reverse=METRICS[metric].better is Better.lower)
    (low, side), (high, other_side) = (_ratio(metric, end).split(" ", 1) for end in ends)
    small = f"{low}{'' if side == other_side else f' {side}'} to {high} {other_side}"
    return TableCell(text=text, small="" if (low, side) == (high, other_side) else small)


def _ratio(metric: str, value: float) -> str:
    return METRICS[metric].describe(value if METRICS[metric].better is Better.higher else 1 / value, Scale.ratio)


def _cost(value: float | None, base: float | None, shape: Callable[[float | None], str] = whole) -> TableCell:
    """A cost, and how far it is from the baseline's."""
    return TableCell(text=shape(value), small=percent(value / base - 1) if value and base and value != base else "")


def _cells(*texts: str) -> list[TableCell]:
    return [TableCell(text=text) for text in texts]


def _verdicts(comparison: Comparison, arms: Sequence[ComparedArm]) -> Section:
    has_bpb = any(result.val_bpb for result in arms)
    rows = []
    for result in arms:
        gap = result.difference
        n, diverged = len(result.arm.seeds), len(result.arm.diverged)
        rows.append(
            [
                TableCell(text=result.label),
                TableCell(text=str(n), small=f"{diverged} diverged" if diverged else ""),
                mean(result.val_loss),
                *([mean(result.val_bpb)] if has_bpb else []),
                difference(comparison.metric, gap.estimate if gap else None),
                TableCell(text=p_value(gap.p_holm if gap else None), hint=_uncorrected(gap.estimate) if gap and gap.estimate else ""),
                TableCell(
                    text=gap.verdict if gap else "baseline", small=f"would have shown {gap.visible:.4f}" if gap and gap.visible else ""
                ),
            ]
        )
    bpb = ["bits/byte"] if has_bpb else []
    note = f"±: half of a 95% interval. p: Holm's correction over the arms. Differences: {', '.join(methods(comparison)) or 'none'}."
    words = (
        "would have shown: from this difference on with 80% power, by the noise that these seeds measured and at Holm's strictest level."
    )
    seen = [words] if any(result.difference and result.difference.visible for result in arms) else []
    head = ["arm", "n", "val loss", *bpb, "difference", "p", "verdict"]
    return Section(name="verdicts", title="Verdicts", head=head, rows=rows, notes=[note, *seen])


def _uncorrected(estimate: Estimate) -> str:
    return "" if math.isnan(estimate.p) else f"uncorrected: {p_value(estimate.p)}"


def methods(comparison: Comparison) -> list[str]:
    """How the differences were estimated."""
    found = (result.difference for result in comparison.arms if result.difference)
    return list(dict.fromkeys(gap.estimate.method if gap.estimate else f"no {gap.metric}" for gap in found))


def _speed(arms: Sequence[ComparedArm]) -> Section:
    """Times and memory; a reason stands where a ratio would be a lie."""
    shapes = {"tokens_per_s": whole, "step_ms": three_digits, "model_mib": whole, "train_s": duration}
    reasons = list(
        dict.fromkeys(refused for result in arms for metric in ("tokens_per_s", "model_mib") if (refused := result.times[metric].refused))
    )
    rows = []
    for result in arms:
        shown = [TableCell(text=shape(result.times[metric].mean)) for metric, shape in shapes.items()]
        shown.insert(1, _against("tokens_per_s", result, reasons))
        shown.insert(4, _against("model_mib", result, reasons))
        rows.append([TableCell(text=result.label), *shown])
    head = ["arm", "mean tokens/s", "speed", "median step ms", "model MiB", "memory", "training"]
    notes = [f"[{number}] {reason}" for number, reason in enumerate(reasons, start=1)]
    return Section(name="speed", title="Speed and memory, against the baseline", head=head, rows=rows, notes=notes)


def _against(metric: str, result: ComparedArm, reasons: list[str]) -> TableCell:
    timed = result.times[metric]
    return TableCell(text=f"refused [{reasons.index(timed.refused) + 1}]") if timed.refused else ratio(metric, timed.ratio)


def _inference(arms: Sequence[ComparedArm]) -> Section:
    rows = []
    for result in arms:
        found = result.inference
        rates = [found.prefill_tokens_per_s, found.decode_tokens_per_s] if found else [None, None]
        texts = ["refused" if found and found.refused else whole(rate) for rate in rates]
        rows.append(_cells(result.label, *texts, whole(found.kv_bytes_per_token if found else None)))
    reasons = dict.fromkeys(result.inference.refused for result in arms if result.inference and result.inference.refused)
    head = ["arm", "prefill tokens/s", "decode tokens/s", "KV bytes/token"]
    notes = [f"refused: {reason}" for reason in reasons]
    return Section(name="inference", title="One text over a cache (nocap.generate --latency)", head=head, rows=rows, notes=notes)


def _costs(arms: Sequence[ComparedArm], base: ComparedArm) -> Section:
    """What an arm had that the baseline had not."""
    rows = []
    for result in arms:
        kernel = " / ".join(dict.fromkeys(str(name) for name in (result.arm.summary("kernel") or {}).values())) or NONE
        differs = ", ".join(f"{key}={spell(value)}" for key, value in result.changes.items() if value != ABSENT) or NONE
        costs = [_cost(value, base.costs[name], count) for name, value in result.costs.items()]
        rows.append([TableCell(text=result.label), *costs, *_cells(kernel, differs)])
    head = ["arm", "params", "FLOPs/token", "tokens", "kernel", "differs from the baseline in"]
    return Section(name="costs", title="What each arm is", head=head, rows=rows)


def _target(arms: Sequence[ComparedArm], target: float) -> Section:
    rows = []
    for result in arms:
        reaches, cells = result.to_target or {}, _cells(result.label)
        for axis, metric, shape in (("steps", "steps_to_target", whole), ("train_s", "train_s", duration)):
            found = reaches[axis]
            at = shape(found.median) if found.median is not None else "never" if found.budget is None else f"> {shape(found.budget)}"
            pace = TableCell(text=f"p {p_value(found.logrank_p)}") if found.logrank_p is not None else ratio(metric, found.ratio)
            cells += [TableCell(text="refused" if found.refused else at), pace]
        rows.append([*cells, TableCell(text=f"{reaches['steps'].n - reaches['steps'].censored} of {reaches['steps'].n}")])
    head = ["arm", "steps", "against the baseline", "training", "against the baseline", "reached it"]
    refused = dict.fromkeys(reach.refused for result in arms for reach in (result.to_target or {}).values() if reach.refused)
    notes = [f"refused: {reason}" for reason in refused]
    notes.append("p: log-rank, where a run never got there. In mid-schedule a crossing misleads: compare runs that end at the target.")
    return Section(name="target", title=f"To val loss {target:g}, medians over seeds", head=head, rows=rows, notes=notes)


# The tables of effects: key in the comparison → title, and whether they are of the speed.
EFFECTS = {
    "main_effects": ("Each choice on its own: loss, over all levels of the others", False),
    "interactions": ("Two choices together: loss beyond the sum (half the difference of the differences)", False),
    "main_effects_on_log_tokens_per_s": ("Each choice on its own: tokens/s", True),
    "interactions_on_log_tokens_per_s": ("Two choices together: tokens/s beyond the product", True),
}


def _effects(name: str, title: str, rows: Sequence[EffectRow], metric: str, *, is_speed: bool) -> Section:
    cells = []
    for row in rows:
        effect = ratio("tokens_per_s", row.estimate.exp()) if is_speed else difference(metric, row.estimate)
        cells.append([TableCell(text=row.term), effect, *_cells(p_value(row.p_holm), row.verdict)])
    return Section(name=name, title=title, head=["choice", "effect", "p", "verdict"], rows=cells, of_arms=False)


def front(comparison: Comparison) -> str:
    arms = ordered(comparison)
    names = {place: ", ".join(result.label for result in arms if result.front is place) for place in Front}
    if len(arms) < 2 or not names[Front.on]:
        return ""
    tied = f"; tied: {names[Front.tied]}" if names[Front.tied] else ""
    return f"not beaten in loss, training time and memory at once: {names[Front.on]}{tied}"


def notes(comparison: Comparison) -> Iterator[str]:
    yield from (f"note: {line}" for line in comparison.problems)
    if comparison.not_compared:
        yield f"not compared: {shorten((f'{name} ({status})' for name, status in comparison.not_compared), most=6)}"


def render(comparison: Comparison) -> str:
    """All of it, for a terminal."""
    arms, runs = plural(len(comparison.arms), "arm"), plural(len(comparison.runs), "run")
    head = [f"{arms} from {runs}; baseline: {comparison.baseline.label} (another with --baseline)"]
    head += [f"swept: {', '.join(comparison.swept)}"] if comparison.swept else []
    parts = ["\n".join(head), *map(str, sections(comparison)), front(comparison), "\n".join(notes(comparison))]
    return "\n\n".join(part for part in parts if part)
