"""The comparison as a person reads it in a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from nocap.judge.arms import ABSENT, spell
from nocap.show.table import table as table
from nocap.store.runs import shorten

Facts = Mapping[str, Any]
NONE = "–"


def render(comparison: Facts) -> str:
    """All tables, then what was skipped or should be doubted."""
    arms = comparison["arms"]
    base = next(arm for arm in arms if arm["arm"] == comparison["baseline"])
    arms = [base, *(arm for arm in arms if arm is not base)]
    sections = [_head(comparison, base), _verdicts(comparison, arms), _speed(arms), _inference(arms), _fairness(arms, base)]
    if comparison["target"] is not None:
        sections.append(_target(arms, comparison["target"]))
    sections += [_effects(comparison), _front(arms), *_notes(comparison)]
    return "\n\n".join(section for section in sections if section)


def _head(comparison: Facts, base: Facts) -> str:
    arms, runs = comparison["arms"], comparison["runs"]
    asked = f"{_count(len(arms), 'arm')} from {_count(len(runs), 'run')}; baseline: {base['label']} (another with --baseline)"
    return asked + (f"\nswept: {', '.join(comparison['swept'])}" if comparison["swept"] else "")


def _verdicts(comparison: Facts, arms: Sequence[Facts]) -> str:
    has_bpb = any(arm["val_bpb"] for arm in arms)
    head = ["arm", "n", "val loss", *(["bits/byte"] if has_bpb else []), "difference", "95% interval", "p Holm", "verdict"]
    rows = []
    for arm in arms:
        gap = arm["difference"] or {}
        rows.append(
            [
                arm["label"],
                str(arm["n"]),
                _mean(arm["val_loss"]),
                *([_mean(arm["val_bpb"])] if has_bpb else []),
                _signed(gap.get("mean")),
                _between(gap, _signed),
                NONE if gap.get("p_holm") is None else f"{gap['p_holm']:.2g}",
                gap.get("verdict") or "baseline",
            ]
        )
    methods = dict.fromkeys(arm["difference"]["method"] for arm in arms if arm["difference"])
    unit = {"val_loss": "nats per token", "val_bpb": "bits per byte"}[comparison["metric"]]
    said = f"difference: {unit} to the baseline, below 0 is better; {', '.join(methods)}" if methods else ""
    return "\n".join(filter(None, [table(head, rows), said]))


def _speed(arms: Sequence[Facts]) -> str:
    """Times and memory; a reason stands where a ratio would be a lie."""
    reasons = list(dict.fromkeys(arm["tokens_per_s"]["refused"] for arm in arms if arm["tokens_per_s"]["refused"]))
    shapes: dict[str, Callable[[float], str]] = {
        "tokens_per_s": lambda v: f"{v:,.0f}",
        "step_ms": lambda v: f"{v:,.1f}",
        "memory_mib": lambda v: f"{v:,.0f}",
    }
    rows = []
    for arm in arms:
        cells = [arm["label"]]
        for key, shape in shapes.items():
            facts = arm[key]
            mark = f"refused [{reasons.index(facts['refused']) + 1}]" if facts["refused"] else _ratio(facts["ratio"])
            cells += [NONE if facts["mean"] is None else shape(facts["mean"]), mark]
        rows.append([*cells, _seconds(arm["train_s"]["mean"])])
    head = ["arm", "tokens/s", "×", "step ms", "×", "MiB", "×", "train s"]
    return "\n".join([table(head, rows), *(f"[{number}] {reason}" for number, reason in enumerate(reasons, start=1))])


def _inference(arms: Sequence[Facts]) -> str:
    """One text over a cache, where somebody measured it."""
    if not any(arm["inference"] for arm in arms):
        return ""
    rows = []
    for arm in arms:
        found = arm["inference"] or {}
        rates = [found.get(key) for key in ("prefill_tokens_per_s", "decode_tokens_per_s")]
        cells = ["refused" if found.get("refused") else NONE if rate is None else f"{rate:,.0f}" for rate in rates]
        rows.append([arm["label"], *cells, _cost(found.get("kv_bytes_per_token"), None)])
    reasons = dict.fromkeys(arm["inference"]["refused"] for arm in arms if arm["inference"] and arm["inference"]["refused"])
    head = table(["arm", "prefill tokens/s", "decode tokens/s", "KV bytes/token"], rows)
    return "\n".join(["one text over a cache (nocap.generate --latency)", head, *(f"refused: {reason}" for reason in reasons)])


def _costs(arm: Facts) -> tuple[float | None, ...]:
    return arm["params"].get("total"), arm["flops_per_token"], arm["tokens"]


def _fairness(arms: Sequence[Facts], base: Facts) -> str:
    """What an arm had that the baseline had not."""
    rows = []
    for arm in arms:
        kernel = " / ".join(dict.fromkeys(str(name) for name in arm["kernel"].values())) or NONE
        what = ", ".join(f"{key}={spell(value)}" for key, value in arm["changes"].items() if value != ABSENT)
        costs = [_cost(_costs(arm)[i], _costs(base)[i]) for i in range(3)]
        rows.append([arm["label"], *costs, kernel, what or NONE])
    return table(["arm", "params", "FLOPs/token", "tokens", "kernel", "differs from the baseline in"], rows)


def _target(arms: Sequence[Facts], target: float) -> str:
    rows = []
    for arm in arms:
        cells = [arm["label"]]
        for axis, shape in (("steps", lambda v: f"{v:,.0f}"), ("train_s", _seconds)):
            found = arm["to_target"][axis]
            if found["refused"]:
                cells += ["refused", NONE]
                continue
            beyond = "never" if found["budget"] is None else f"> {shape(found['budget'])}"
            cells.append(beyond if found["median"] is None else shape(found["median"]))
            cells.append(f"p {found['logrank_p']:.2g}" if found["logrank_p"] is not None else _ratio(found["ratio"]))
        reached = arm["to_target"]["steps"]
        rows.append([*cells, f"{reached['n'] - reached['censored']} of {reached['n']}"])
    head = ["arm", "steps", "×", "train s", "×", "reached it"]
    note = "p: log-rank, where a run never got there. In the middle of a schedule a crossing misleads: compare runs that end at the target."
    return f"to val loss {target:g} (median over seeds)\n{table(head, rows)}\n{note}"


def _effects(comparison: Facts) -> str:
    effects = comparison["effects"]
    if effects is None:
        return ""
    titles = {
        "main_effects": "main effects, over all levels of the other factors",
        "interactions": "interactions (half the difference of the differences)",
        "main_effects_on_log_tokens_per_s": "main effects on log tokens/s (0.01 is 1%)",
        "interactions_on_log_tokens_per_s": "interactions on log tokens/s",
    }
    parts = []
    for key, title in titles.items():
        if rows := effects.get(key):
            cells = [[r["term"], _signed(r["mean"]), _between(r, _signed), _p(r["p_holm"]), r["verdict"]] for r in rows]
            parts.append(f"{title}\n{table(['factor', 'effect', '95% interval', 'p Holm', 'verdict'], cells)}")
    return "\n\n".join(parts)


def _front(arms: Sequence[Facts]) -> str:
    front = [arm["label"] for arm in arms if arm["pareto"]]
    if len(arms) < 2 or not front:
        return ""
    tied = [arm["label"] for arm in arms if arm["pareto_tied"]]
    return f"not beaten in loss, training time and memory at once: {', '.join(front)}" + (f"; tied: {', '.join(tied)}" if tied else "")


def _notes(comparison: Facts) -> Iterator[str]:
    if problems := comparison["problems"]:
        yield "\n".join(f"note: {line}" for line in problems)
    if left := comparison["not_compared"]:
        names = [f"{run['name']} ({run['status']})" for run in left]
        yield f"not compared: {shorten(names, most=6)}"


# --- shapes ------------------------------------------------------------------------------------------------------------------------


def _count(n: int, word: str) -> str:
    return f"{n} {word}{'' if n == 1 else 's'}"


def _mean(found: Facts | None) -> str:
    if found is None:
        return NONE
    half = "" if found["low"] is None else f" ± {(found['high'] - found['low']) / 2:.4f}"
    return f"{found['mean']:.4f}{half}"


def _signed(value: float | None) -> str:
    return NONE if value is None else f"{value:+.4f}".replace("-", "−")


def _between(found: Facts, shape: Callable[[float], str]) -> str:
    return NONE if found.get("low") is None else f"[{shape(found['low'])}, {shape(found['high'])}]"


def _ratio(found: Facts | None) -> str:
    if found is None:
        return NONE
    return f"{found['mean']:.3f}" + ("" if found["low"] is None else f" [{found['low']:.3f}, {found['high']:.3f}]")


def _p(p: float | None) -> str:
    return NONE if p is None else f"{p:.2g}"


def _seconds(value: float | None) -> str:
    return NONE if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _cost(value: float | None, base: float | None) -> str:
    """A whole number, and how far it is from the baseline's."""
    if value is None:
        return NONE
    return f"{value:,.0f}" + (f" ({value / base - 1:+.1%})".replace("-", "−") if base and value != base else "")
