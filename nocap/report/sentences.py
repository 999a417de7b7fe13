"""A comparison in sentences, for the page."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from nocap.judge.compare import ComparedArm, Comparison, Outcome
from nocap.report.words import as_gain, gain
from nocap.store.formats import count, listed, plural, whole
from nocap.store.metrics import METRICS, Scale


def besides(result: ComparedArm, base: ComparedArm) -> str:
    """What came with the loss: the speed, and what the arm spent that the baseline did not."""
    sizes: dict[str, list[str]] = {}
    for name, title in (("params", "parameters"), ("flops_per_token", "FLOPs per token")):
        mine, theirs = result.costs[name], base.costs[name]
        if mine and theirs and abs(mine / theirs - 1) >= 0.005:
            sizes.setdefault(f"{abs(mine / theirs - 1):.0%} {'more' if mine > theirs else 'fewer'}", []).append(title)
    parts = [_pace(result), listed(f"{amount} {listed(what)}" for amount, what in sizes.items()) if sizes else ""]
    return " ".join(f"{part[:1].upper()}{part[1:]}." for part in parts if part)


def _pace(result: ComparedArm) -> str:
    timed = result.times["tokens_per_s"]
    if timed.refused:
        return f"speed not compared: {timed.refused}"
    if timed.ratio is None:
        return ""
    if not math.isfinite(timed.ratio.high) or timed.ratio.low <= 1 <= timed.ratio.high:
        return "no difference in speed shown"
    metric = METRICS["tokens_per_s"]
    return f"{gain(as_gain(timed.ratio, metric, Scale.ratio).mid, metric, Scale.ratio)}, in this session"


# Outcome → one arm, several arms.
_HEADLINES = {
    Outcome.better: ("lowers the loss", "lower the loss"),
    Outcome.worse: ("raises the loss", "raise the loss"),
    Outcome.unclear: ("shows no difference", "show no difference"),
    Outcome.undecided: ("has no verdict yet", "have no verdict yet"),
    Outcome.confounded: ("is confounded", "are confounded"),
}


def headline(comparison: Comparison) -> str:
    """The whole comparison in one sentence."""
    base = comparison.baseline.label
    changed = [(result.label, result.difference.outcome) for result in comparison.arms if result.difference]
    kinds = [kind for _, kind in changed]
    if not changed:
        return f"{base}: one arm, with nothing to compare it to yet"
    if len(changed) == 1:
        return f"{changed[0][0]} {_HEADLINES[kinds[0]][0]}, compared with {base}"
    if set(kinds) == {Outcome.undecided}:
        return f"{len(kinds)} changes to {base}, and no verdict yet: too few seeds"
    parts = [f"{kinds.count(kind)} {_HEADLINES[kind][kinds.count(kind) > 1]}" for kind in Outcome if kind in kinds]
    return f"Of {len(kinds)} changes to {base}, {listed(parts)}"


def summary(comparison: Comparison) -> list[tuple[str, str]]:
    """What was compared, on what, how often: name and value."""
    runs = [run for run, _ in comparison.runs]
    names = sorted({str(name) for run in runs if (name := run.hardware.get("name"))})
    setups = len({machine for result in comparison.arms for machine in result.arm.machines})
    groups = [key.partition(".")[0] for key in comparison.swept]
    # `attention` where several of its keys were swept, as an option brings them along; else the key
    keys = dict.fromkeys(key if groups.count(group) == 1 else group for key, group in zip(comparison.swept, groups, strict=True))
    steps, tokens = ([run.number(key) for run in runs] for key in ("steps", "tokens"))
    return [
        ("Compared", f"{plural(len(comparison.arms), 'arm')}, {plural(len(runs), 'run')}" + (f"; swept: {listed(keys)}" if keys else "")),
        ("Baseline", comparison.baseline.label),
        ("Seeds per arm", _span([len(result.arm.seeds) for result in comparison.arms], whole)),
        ("Length of a run", f"{_span(steps, whole)} steps, {_span(tokens, count)} tokens"),
        ("Hardware", listed(names) + (f" ({setups} setups: times are compared within each)" if setups > 1 else "")),
    ]


def _span(values: Sequence[float | None], shape: Callable[[float | None], str]) -> str:
    known = [value for value in values if value is not None]
    low, high = min(known, default=None), max(known, default=None)
    return shape(low) if low == high else f"{shape(low)} to {shape(high)}"
