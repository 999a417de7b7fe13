"""The report's numbers and sentences. Everything may be missing (one seed, another machine, no bytes): missing is a dash, never a zero."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from nocap.show.page import DASH
from nocap.training.ledger import LINES

Facts = Mapping[str, Any]

# kind of verdict → its mark, its name, and what it means to somebody who has never seen one. The order is the report's.
VERDICTS = {
    "better": ("✓", "Better", "the loss is lower than the baseline's, beyond what seeds explain"),
    "worse": ("✕", "Worse", "the loss is higher than the baseline's, beyond what seeds explain"),
    "none": ("○", "No difference shown", "the seeds cannot tell them apart; that does not make them equal"),
    "single": ("?", "No verdict", "too few seeds finished to tell a change from luck"),
    "confounded": ("!", "Confounded", "something else differs too, so the difference cannot be put down to the change"),
}

# The ledger's lines, for the stacked bars.
CLOCK = {
    "train": "training steps",
    "data": "waiting for data",
    "compile": "compiling",
    "val": "validation",
    "checkpoint": "checkpoints",
    "startup": "start-up",
    "other": "other",
}
assert set(CLOCK) == set(LINES)


def get(facts: Facts | None, *keys: str) -> Any:
    """The value under `keys`, or None as soon as one of them is missing."""
    value: Any = facts
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def loss(value: float | None) -> str:
    return DASH if value is None else f"{value:.4f}"


def signed(value: float | None, digits: int = 4) -> str:
    # adding 0 takes the minus from a rounded −0
    return DASH if value is None else f"{round(value, digits) + 0.0:+.{digits}f}".replace("-", "−")


def whole(value: float | None) -> str:
    return DASH if value is None else f"{value:,.0f}"


def times(value: float | None) -> str:
    return DASH if value is None else f"{value:.3g}×" if value >= 10 else f"{value:.2f}×"


def milliseconds(value: float | None) -> str:
    return DASH if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 1 else f"{value:.3f}"


def count(value: float | None) -> str:
    """124,439,808 as 124.4M."""
    if value is None:
        return DASH
    for size, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.{1 if abs(value) >= 10 * size else 2}f}{unit}"
    return f"{value:.4g}"


def duration(seconds: float | None) -> str:
    if seconds is None:
        return DASH
    for size, unit in ((3600.0, "h"), (60.0, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.3g} s"


def p_value(p: float | None) -> str:
    return DASH if p is None else "< 0.001" if p < 0.001 else f"{p:.3f}" if p < 0.1 else f"{p:.2f}"


def interval(estimate: Facts | None, shape: Callable[[float], str]) -> str:
    low, high = get(estimate, "low"), get(estimate, "high")
    return "" if low is None or high is None else f"{shape(low)} to {shape(high)}"


def plus_minus(estimate: Facts | None, digits: int = 4) -> str:
    """A mean and half the width of its t-interval, which is symmetric."""
    mean, low, high = get(estimate, "mean"), get(estimate, "low"), get(estimate, "high")
    if mean is None:
        return DASH
    return f"{mean:.{digits}f}" if low is None or high is None else f"{mean:.{digits}f} ± {(high - low) / 2:.{digits}f}"


def relative(value: float | None, base: float | None) -> str:
    """How far a cost is from the baseline's, in per cent; nothing where they are the same."""
    if not value or not base or value == base:
        return ""
    return f"{signed((value / base - 1) * 100, 1)}%"


def listed(words: Iterable[str]) -> str:
    *most, last = list(words) or [DASH]
    return f"{', '.join(most)} and {last}" if most else last


def kind(arm: Facts) -> str | None:
    """Which of `VERDICTS` an arm has; the baseline has none."""
    if arm.get("difference") is None:
        return None
    verdict = str(get(arm, "difference", "verdict") or "")
    starts = {"better": "better", "worse": "worse", "no difference": "none", "confounded": "confounded"}
    return next((name for start, name in starts.items() if verdict.startswith(start)), "single")


def sentence(arm: Facts, baseline: Facts) -> str:
    """An arm's verdict in words: the loss first, then the speed, then what it spent that the baseline did not."""
    verdict = _upper(str(get(arm, "difference", "verdict") or "no verdict"))
    said = {
        "better": "Lower loss than the baseline.",
        "worse": "Higher loss than the baseline.",
        "none": "No difference in loss shown.",
        "single": f"{verdict}: it may be luck." if "n=" in verdict else f"{verdict}.",
        "confounded": f"{verdict} differs as well.",
    }
    return " ".join(filter(None, (said[kind(arm) or "none"], _speed(arm), _size(arm, baseline))))


def _speed(arm: Facts) -> str:
    speed = arm.get("tokens_per_s")
    mean, low, high = (get(speed, "ratio", key) for key in ("mean", "low", "high"))
    if get(speed, "refused"):
        return f"Speed not compared: {get(speed, 'refused')}."
    if mean is None:
        return ""
    if low is None or high is None:
        return f"Speed {times(mean)}, of one run."
    word = "Faster" if low > 1 else "Slower" if high < 1 else "Speed not told apart"
    return f"{word}: {times(mean)} tokens/s."


def _size(arm: Facts, baseline: Facts) -> str:
    said: dict[str, list[str]] = {}
    for what, path in (("parameters", ("params", "total")), ("FLOPs per token", ("flops_per_token",))):
        mine, base = get(arm, *path), get(baseline, *path)
        if mine and base and abs(mine / base - 1) >= 0.005:
            said.setdefault(f"{abs(mine / base - 1):.0%} {'more' if mine > base else 'fewer'}", []).append(what)
    return f"{listed(f'{amount} {listed(what)}' for amount, what in said.items())}." if said else ""


def _upper(text: str) -> str:
    return text[:1].upper() + text[1:]


# The tables of effects: key in the comparison → title and what is said of the mean.
EFFECTS = {
    "main_effects": "Each choice on its own: loss",
    "interactions": "Two choices together: loss beyond the sum",
    "main_effects_on_log_tokens_per_s": "Each choice on its own: tokens/s",
    "interactions_on_log_tokens_per_s": "Two choices together: tokens/s beyond the product",
}


def effects(found: Facts | None) -> list[tuple[str, list[dict[str, str]]]]:
    """The tables of effects, each with its title; speeds from the logarithm back to per cent."""
    tables = []
    for key, title in EFFECTS.items():
        shape = percent if "_log_" in key else signed
        rows = [
            {
                "term": str(row.get("term")),
                "mean": shape(row.get("mean")),
                "interval": interval(row, shape),
                "p": p_value(row.get("p_holm")),
                "verdict": str(row.get("verdict") or DASH),
            }
            for row in get(found, key) or ()
        ]
        if rows:
            tables.append((title, rows))
    return tables


def percent(log_ratio: float | None) -> str:
    return DASH if log_ratio is None else f"{signed(math.expm1(log_ratio) * 100, 1)}%"


def headline(arms: list[Facts], baseline: Facts) -> str:
    """The whole comparison in one sentence."""
    kinds = [name for name in map(kind, arms) if name]
    if not kinds:
        return f"{baseline.get('label')}: one arm, with nothing to compare it to yet"
    if set(kinds) == {"single"} and len(kinds) > 1:
        return f"{len(kinds)} changes to {baseline.get('label')}, and no verdict yet: too few seeds"
    one = {
        "better": "lowers the loss",
        "worse": "raises the loss",
        "none": "shows no difference",
        "single": "has no verdict yet",
        "confounded": "is confounded",
    }
    many = {**one, "better": "lower the loss", "worse": "raise it", "none": "show no difference", "single": "have no verdict yet"}
    many["confounded"] = "are confounded"
    if len(kinds) == 1:
        (arm,) = (arm for arm in arms if kind(arm))
        return f"{arm.get('label')} {one[kinds[0]]}, compared with {baseline.get('label')}"
    parts = [f"{kinds.count(name)} {(one if kinds.count(name) == 1 else many)[name]}" for name in VERDICTS if name in kinds]
    if "better" not in kinds:
        parts = [part.replace("raise it", "raise the loss") for part in parts]
    return f"Of {len(kinds)} changes to {baseline.get('label')}, {listed(parts)}"


def summary_facts(comparison: Facts, baseline: Facts) -> list[tuple[str, str]]:
    """What was compared, on what, how often: name and value."""
    runs, arms = comparison["runs"], comparison["arms"]
    names = sorted({str(get(run, "hardware", "name")) for run in runs if get(run, "hardware", "name")})
    prints = {mark for arm in arms for mark in arm.get("hardware") or ()}
    machine = listed(names) + (f" ({len(prints)} setups: times are compared within each)" if len(prints) > 1 else "")
    seeds = sorted({arm.get("n") or 0 for arm in arms})
    steps = sorted({run.get("steps") or 0 for run in runs})
    tokens = sorted({arm.get("tokens") or 0 for arm in arms})
    return [
        (
            "Compared",
            f"{len(arms)} arms, {len(runs)} runs"
            + (f"; swept: {listed(_factors(comparison['swept']))}" if comparison.get("swept") else ""),
        ),
        ("Baseline", str(baseline.get("label"))),
        ("Seeds per arm", _span(seeds, str)),
        ("Length of a run", f"{_span(steps, whole)} steps, {_span(tokens, count)} tokens"),
        ("Hardware", machine),
    ]


def _factors(keys: list[str]) -> list[str]:
    """`attention` where several of its keys were swept, as an option brings them along; else the key."""
    groups = [key.partition(".")[0] for key in keys]
    return list(dict.fromkeys(key if groups.count(group) == 1 else group for key, group in zip(keys, groups, strict=True)))


def _span(values: list[Any], shape: Callable[[Any], str]) -> str:
    if not values:
        return DASH
    return shape(values[0]) if values[0] == values[-1] else f"{shape(values[0])} to {shape(values[-1])}"
