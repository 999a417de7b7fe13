"""What each option could win at most: by its FLOPs, and by Amdahl's law on a step that was measured.

By FLOPs: matrix products alone, at this machine's peak in their precision. By the measured step: a part's time goes down with its roofline
bound; where the option takes another kernel or precision, whose efficiency is unknown, it goes down to that bound. Everything else stays.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from nocap import outside
from nocap.config.option import declared
from nocap.config.paths import conf_dir
from nocap.config.run import Run
from nocap.config.trainer import Compile, Precision
from nocap.data.batches import microbatches
from nocap.measure.roofline import Count, Peak, Work, count
from nocap.model.flops import component_flops
from nocap.options.attention import first_window
from nocap.store.metrics import MODEL_PARTS, STEP_PARTS
from nocap.training.memory import MIB

Composer = Callable[[Sequence[str]], Run]  # overrides after the user's own → the run they make
HELD = 4  # parameters, gradients and AdamW's two moments, all as large
WORTH = 0.995  # of the step's time: what wins less is left out of the best of all


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """A change of one factor; two options of one factor exclude each other."""

    factor: str
    label: str  # its override
    run: Run


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """A step, by part: matrix products at peak in ms, measured or bounded ms, bytes kept for the backward. And the bytes of parameters."""

    product_ms: dict[str, float]
    ms: dict[str, float]
    kept: dict[str, float]
    parameters: float

    @property
    def total_ms(self) -> float:
        return sum(self.ms.values())

    @property
    def mib(self) -> float:
        return (HELD * self.parameters + sum(self.kept.values())) / MIB


def ceilings(run: Run, compose: Composer, counted: Count, peak: Peak, profile: dict[str, Any]) -> dict[str, Any]:
    """Everything that the configuration tree offers, the largest win first. `profile` is the record of the measured step."""
    base = base_cost(run, counted, peak, {row["part"]: row["ms"] for row in profile["parts"]})
    counts = [(option, count(option.run, vocab_size=run.tokenizer.vocab_size)) for option in options(run, compose)]
    costs = [(option, changed_cost(option, run, counted, new, base, peak)) for option, new in counts]
    return {"table": table(base, costs, unattributed_ms=profile["step"]["unattributed_ms"])}


# --- the options


def options(run: Run, compose: Composer) -> list[Change]:
    """Everything that this configuration tree offers and the run does not already have."""
    found: list[Change] = []
    for factor, override in (
        *((group, f"{group}={name}") for group in ("attention", "mlp") for name in _names(group)),
        ("precision", f"trainer.precision={Precision.bf16.value}"),
        ("compile", f"trainer.compile={Compile.regional.value}"),
        ("head", f"model.tie_head={'false' if run.model.tie_head else 'true'}"),
        ("checkpointing", "trainer.activation_checkpointing=block"),
        ("loss", "objective.loss_chunks=8"),
    ):
        try:
            changed = compose([override])
        except ValueError:  # another part of the run does not take it
            continue
        if changed not in [run, *(option.run for option in found)]:
            found.append(Change(factor=factor, label=override, run=changed))
    return found


def _names(group: str) -> list[str]:
    return [path.stem for path in sorted(path for folder in (conf_dir(), *outside.folders()) for path in (folder / group).glob("*.yaml"))]


# --- one option


def base_cost(run: Run, counted: Count, peak: Peak, ms: dict[str, float]) -> Cost:
    """The measured step itself; `ms` by part."""
    kept = {part: float(n_bytes) for part, n_bytes in counted.ranges.kept_by_part().items()}
    return Cost(product_ms=_products(run, counted, peak), ms=ms, kept=kept, parameters=counted.parameters)


def changed_cost(option: Change, run: Run, old: Count, new: Count, base: Cost, peak: Peak) -> Cost:
    """The step with the option, as fast as arithmetic allows."""
    before, after = old.by_part(), new.by_part()
    ms, n = dict(base.ms), microbatches(option.run)
    own = [part for part in (*before, *after) if part not in STEP_PARTS]  # a replaced block's too
    for part in dict.fromkeys([*MODEL_PARTS, *own]):
        ms[part] = _part_ms(before.get(part, Work()), after.get(part, Work()), base.ms.get(part, 0.0), peak, n)
        if option.factor == "compile" and not after.get(part, Work()).flops and part != "embedding":
            ms[part] = 0.0  # fused into a neighbour, at best for nothing
    ms["scores"] *= _needed(option.run, new) / _needed(run, old)
    for part in ("accumulate", "clip", "optimizer", "reduction"):
        if part in ms:
            ms[part] *= new.parameters / old.parameters
    return base_cost(option.run, new, peak, ms)


def _products(run: Run, counted: Count, peak: Peak) -> dict[str, float]:
    products = {part: work.product_ms(peak) * microbatches(run) for part, work in counted.by_part().items()}
    return {**products, "scores": products.get("scores", 0.0) * _needed(run, counted)}


def _needed(run: Run, counted: Count) -> float:
    """The share of the computed scores that lies in the window: chunks compute a border that another kernel can skip."""
    scores, by = counted.by_part().get("scores"), ("build", "mixer")
    if scores is None or first_window(run) is None or declared(run.attention, "keys_met", of=by) is None:
        return 1.0
    tokens = run.trainer.micro_batch * run.model.seq_len
    return component_flops(run, vocab_size=1)["scores"] * tokens / scores.flops


def _part_ms(old: Work, new: Work, ms: float, peak: Peak, n: int) -> float:
    if old.kinds != new.kinds or not old.ops:
        return new.bound_ms(peak) * n
    return ms * new.bound_ms(peak) / old.bound_ms(peak) if old.bound_ms(peak) else ms


# --- all of them


def table(base: Cost, costs: Sequence[tuple[Change, Cost]], *, unattributed_ms: float) -> list[dict[str, Any]]:
    """Every option, every pair of different factors, and the best of all factors together; the largest win first. What one of them, or
    several together, can win at most: speedups by FLOPs and by the step, MiB saved, and that as a share of the memory."""
    chosen = [(one,) for one in costs] + [(a, b) for a, b in combinations(costs, 2) if a[0].factor != b[0].factor]
    by_factor = [[one for one in costs if one[0].factor == factor] for factor in dict.fromkeys(option.factor for option, _ in costs)]
    best = [min(each, key=lambda one: one[1].total_ms) for each in by_factor]
    winners = tuple(one for one in best if one[1].total_ms < WORTH * base.total_ms)
    rows = []
    for several in [*chosen, *([winners] if len(winners) > 2 else [])]:
        words, cost = [option.label for option, _ in several], together(base, [cost for _, cost in several])
        rows.append(
            {
                "label": " + ".join(words),
                "words": words,
                "by_flops": sum(base.product_ms.values()) / sum(cost.product_ms.values()),
                "by_step": (base.total_ms + unattributed_ms) / (cost.total_ms + unattributed_ms),
                "saved_mib": base.mib - cost.mib,
                "saved": 1 - cost.mib / base.mib,
            }
        )
    return sorted(rows, key=lambda row: (-row["by_step"], -row["by_flops"]))


def together(base: Cost, costs: Sequence[Cost]) -> Cost:
    """Changes of different factors at once: each part's ratios multiply. Head and loss are one here, for a chunked loss is both."""

    if len(costs) == 1:
        return costs[0]

    def pooled(parts: dict[str, float]) -> dict[str, float]:
        return {**parts, "head": parts.get("head", 0.0) + parts.get("loss", 0.0), "loss": 0.0}

    def product(old: dict[str, float], news: list[dict[str, float]]) -> dict[str, float]:
        old, news = pooled(old), [pooled(new) for new in news]
        return {
            part: old[part] * math.prod(new.get(part, 0.0) / old[part] for new in news)
            if old.get(part)
            else max(new.get(part, 0.0) for new in news)
            for part in dict.fromkeys([*old, *(part for new in news for part in new)])
        }

    return Cost(
        product_ms=product(base.product_ms, [cost.product_ms for cost in costs]),
        ms=product(base.ms, [cost.ms for cost in costs]),
        kept=product(base.kept, [cost.kept for cost in costs]),
        parameters=base.parameters * math.prod(cost.parameters / base.parameters for cost in costs),
    )
