"""What each option could win at most: by its FLOPs, and by Amdahl's law on a step that was measured.

By FLOPs: matrix products alone, at this machine's peak in their precision. By the measured step: a part's time goes down with its roofline
bound; where the option takes another kernel or precision, whose efficiency is unknown, it goes down to that bound. Everything else stays.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

from nocap import outside
from nocap.config.compose import to_plain
from nocap.config.option import declared
from nocap.config.paths import conf_dir
from nocap.config.run import Run
from nocap.config.trainer import Compile, Precision
from nocap.data.batches import microbatches
from nocap.measure.roof import Roof
from nocap.model.flops import component_flops
from nocap.options.attention import first_window, kernel_name
from nocap.options.attention.softmax import Kernel
from nocap.profiling.count import Count, Work
from nocap.profiling.names import MODEL_PARTS
from nocap.training.memory import MIB

Composer = Callable[[Sequence[str]], Run]  # words after the user's own → the run they make
HELD = 4  # parameters, gradients and AdamW's two moments, all as large
WORTH = 0.995  # of the step's time: what wins less is left out of the best of all
LENGTHS = (256, 512, 1024, 2048, 4096)


@dataclass(frozen=True, kw_only=True, slots=True)
class Option:
    """A change of one factor; two options of one factor exclude each other."""

    factor: str
    words: tuple[str, ...]
    label: str
    run: Run


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """A step, by part: FLOPs at peak, measured or bounded ms, bytes kept for the backward. And the bytes of the parameters."""

    product_ms: dict[str, float]
    ms: dict[str, float]
    kept: dict[str, float]
    parameters: float

    @property
    def mib(self) -> float:
        return (HELD * self.parameters + sum(self.kept.values())) / MIB


def options(run: Run, compose: Composer) -> list[Option]:
    """Everything that this configuration tree offers and the run does not already have."""
    found: list[Option] = []
    for factor, words in offered(run):
        changed = compose(words)
        label = _label(factor, words, run, changed)
        if changed != run and label not in [option.label for option in found]:
            found.append(Option(factor=factor, words=tuple(words), label=label, run=changed))
    return found


def offered(run: Run) -> Iterator[tuple[str, list[str]]]:
    for group in ("attention", "mlp"):
        for path in sorted(path for folder in (conf_dir(), *outside.folders()) for path in (folder / group).glob("*.yaml")):
            yield group, [f"{group}={path.stem}"]
    yield "precision", [f"trainer.precision={Precision.bf16.value}"]
    yield "compile", [f"trainer.compile={Compile.regional.value}"]
    yield "head", [f"model.tie_head={'false' if run.model.tie_head else 'true'}"]
    yield "checkpointing", ["trainer.activation_checkpointing=block"]
    yield "loss", ["objective.loss_chunks=8"]


def _label(factor: str, words: Sequence[str], old: Run, new: Run) -> str:
    a, b = old.attention, new.attention
    if factor == "attention":
        name = words[0].partition("=")[2]
        heads = f" {a.n_kv_heads}→{b.n_kv_heads}" if a.n_kv_heads != b.n_kv_heads else ""
        window = f", window {first_window(new)}" if first_window(new) else ""
        kernel = ", fused" if _materializes(old) and name in ("gqa", "mqa") else ""
        return f"{name.upper() if name in ('mha', 'gqa', 'mqa') else name}{heads}{window}{kernel}"
    if factor == "mlp":
        before, after = (to_plain(run)["mlp"] for run in (old, new))
        sizes = [mlp.get("expansion") for mlp in (before, after)]
        size = f"MLP {sizes[0]:g}→{sizes[1]:g}×" if None not in sizes and sizes[0] != sizes[1] else ""
        names = [mlp.get("activation", mlp["kind"]) for mlp in (before, after)]
        return " ".join(filter(None, (size, "" if names[0] == names[1] else {"swiglu": "SwiGLU"}.get(names[1], names[1]))))
    return {"precision": "bf16", "compile": "compile", "checkpointing": "activation checkpointing", "loss": "chunked loss"}.get(
        factor, "tied head" if new.model.tie_head else "untied head"
    )


def _materializes(run: Run) -> bool:
    return kernel_name(run.attention, run.trainer.device, run.trainer.precision) == Kernel.materialized.value


# --- one option --------------------------------------------------------------------------------------------------------------------


def base_cost(run: Run, counted: Count, roof: Roof, ms: dict[str, float]) -> Cost:
    """The measured step itself."""
    return Cost(
        product_ms=_products(run, counted, roof),
        ms=ms,
        kept={part: float(n) for part, n in counted.kept_by_part().items()},
        parameters=counted.parameters,
    )


def changed_cost(option: Option, run: Run, old: Count, new: Count, base: Cost, roof: Roof) -> Cost:
    """The step with the option, as fast as arithmetic allows."""
    before, after = old.by_part(), new.by_part()
    ms, n = dict(base.ms), microbatches(option.run)
    for part in MODEL_PARTS:
        ms[part] = _part_ms(before.get(part, Work()), after.get(part, Work()), base.ms.get(part, 0.0), roof, n)
        if option.factor == "compile" and not after.get(part, Work()).flops and part != "embedding":
            ms[part] = 0.0  # fused into a neighbour, at best for nothing
    ms["scores"] *= _needed(option.run, new) / _needed(run, old)
    for part in ("accumulate", "clip", "optimizer", "reduction"):
        if part in ms:
            ms[part] *= new.parameters / old.parameters
    return Cost(
        product_ms=_products(option.run, new, roof),
        ms=ms,
        kept={part: float(n_bytes) for part, n_bytes in new.kept_by_part().items()},
        parameters=new.parameters,
    )


def _products(run: Run, counted: Count, roof: Roof) -> dict[str, float]:
    products = {part: work.product_ms(roof) * microbatches(run) for part, work in counted.by_part().items()}
    return {**products, "scores": products["scores"] * _needed(run, counted)}


def _needed(run: Run, counted: Count) -> float:
    """The share of the computed scores that lies in the window: chunks compute a border that another kernel can skip."""
    if first_window(run) is None or declared(run.attention, "keys_met", of=("build", "mixer")) is None:
        return 1.0
    tokens = run.trainer.micro_batch * run.model.seq_len
    return component_flops(run, vocab_size=1)["scores"] * tokens / counted.by_part()["scores"].flops


def _part_ms(old: Work, new: Work, ms: float, roof: Roof, n: int) -> float:
    if old.kinds != new.kinds or not old.ops:
        return new.bound_ms(roof) * n
    return ms * new.bound_ms(roof) / old.bound_ms(roof) if old.bound_ms(roof) else ms


# --- all of them -------------------------------------------------------------------------------------------------------------------


def table(base: Cost, costs: Sequence[tuple[Option, Cost]], *, unattributed_ms: float) -> list[dict[str, Any]]:
    """Every option, every pair of different factors, and the best of all factors together; the largest win first."""
    rows = [_row([option], cost, base, unattributed_ms) for option, cost in costs]
    for pair in combinations(costs, 2):
        if pair[0][0].factor != pair[1][0].factor:
            rows.append(_row([option for option, _ in pair], together(base, [cost for _, cost in pair]), base, unattributed_ms))
    best: dict[str, tuple[Option, Cost]] = {}
    for option, cost in costs:
        if option.factor not in best or _total(cost) < _total(best[option.factor][1]):
            best[option.factor] = option, cost
    winners = [(option, cost) for option, cost in best.values() if _total(cost) < WORTH * _total(base)]
    if len(winners) > 2:
        rows.append(_row([option for option, _ in winners], together(base, [cost for _, cost in winners]), base, unattributed_ms))
    return sorted(rows, key=lambda row: (-row["by_step"], -row["by_flops"]))


def _total(cost: Cost) -> float:
    return sum(cost.ms.values())


def together(base: Cost, costs: Sequence[Cost]) -> Cost:
    """Changes of different factors at once: each part's ratios multiply. Head and loss are one here, for a chunked loss is both."""

    def pooled(parts: dict[str, float]) -> dict[str, float]:
        return {**parts, "head": parts.get("head", 0.0) + parts.get("loss", 0.0), "loss": 0.0}

    def product(old: dict[str, float], news: list[dict[str, float]]) -> dict[str, float]:
        old, news = pooled(old), [pooled(new) for new in news]
        parts = dict.fromkeys([*old, *(part for new in news for part in new)])
        return {
            part: old[part] * math.prod(new.get(part, 0.0) / old[part] for new in news)
            if old.get(part)
            else max(new.get(part, 0.0) for new in news)
            for part in parts
        }

    return Cost(
        product_ms=product(base.product_ms, [cost.product_ms for cost in costs]),
        ms=product(base.ms, [cost.ms for cost in costs]),
        kept=product(base.kept, [cost.kept for cost in costs]),
        parameters=base.parameters * math.prod(cost.parameters / base.parameters for cost in costs),
    )


def _row(chosen: Sequence[Option], cost: Cost, base: Cost, unattributed_ms: float) -> dict[str, Any]:
    return {
        "label": " + ".join(option.label for option in chosen),
        "words": [word for option in chosen for word in option.words],
        "by_flops": sum(base.product_ms.values()) / sum(cost.product_ms.values()),
        "by_step": (_total(base) + unattributed_ms) / (_total(cost) + unattributed_ms),
        "saved_mib": base.mib - cost.mib,
        "saved": 1 - cost.mib / base.mib,
    }


# --- over the sequence length ------------------------------------------------------------------------------------------------------


def order_by_length(run: Run, choices: Sequence[Option], compose: Composer, roof: Roof, *, vocab_size: int) -> list[dict[str, Any]]:
    """What wins most by FLOPs at each length, in order: the rule that should replace rules of thumb.

    Compilation and what only saves memory have no FLOPs to save.
    """
    found = []
    for T in LENGTHS:
        base = at_length(run, T)
        rows: list[dict[str, Any]] = []
        for option in choices:
            if option.factor in ("attention", "mlp", "precision"):
                changed = _composed_at(option, run, compose, T)
                speedup = _peak_s(base, roof, vocab_size) / _peak_s(changed, roof, vocab_size)
                rows.append({"label": _label(option.factor, option.words, base, changed), "by_flops": speedup, "words": option.words})
        found.append({"T": T, "options": sorted(rows, key=lambda row: -row["by_flops"])})
    return found


def _composed_at(option: Option, run: Run, compose: Composer, T: int) -> Run:
    """The option with sequences of T tokens. A default window grows with the sequence, which composing sees to."""
    if first_window(option.run) is None or option.factor != "attention":
        return at_length(option.run, T)
    tokens = run.trainer.micro_batch * T
    batch = [f"trainer.batch_tokens={tokens}", f"trainer.val_tokens={tokens}"]
    return compose([f"model.seq_len={T}", *batch, *option.words])


def at_length(run: Run, T: int) -> Run:
    """The run with sequences of T tokens, one micro-batch a step, and nothing else changed."""
    t = run.trainer
    tokens = t.micro_batch * T
    return replace(run, model=replace(run.model, seq_len=T), trainer=replace(t, batch_tokens=tokens * t.devices, val_tokens=tokens))


def _peak_s(run: Run, roof: Roof, vocab_size: int) -> float:
    """Seconds of a token's matrix FLOPs at the measured peak; materialised scores are computed for the masked half as well."""
    flops = component_flops(run, vocab_size=vocab_size)
    if _materializes(run):
        flops["scores"] = component_flops(run, vocab_size=vocab_size, causal=False)["scores"]
    return sum(flops.values()) / roof.flops[run.trainer.precision.value]
