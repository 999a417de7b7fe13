"""What each option could win at most: by its FLOPs, and by Amdahl's law on a step that was measured.

By FLOPs: matrix products alone, at this machine's peak in their precision. By the measured step: a part's time goes down with its roofline
bound; where the option takes another kernel or precision, whose efficiency is unknown, it goes down to that bound. Everything else stays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from nocap import outside
from nocap.config.option import declared
from nocap.config.paths import conf_dir
from nocap.config.run import Run
from nocap.data.batches import microbatches
from nocap.measure.roofline import Count, Peak, Work, count
from nocap.model.flops import component_flops
from nocap.options.attention import first_window
from nocap.store.metrics import MODEL_PARTS, STEP_PARTS
from nocap.training.memory import MIB

Composer = Callable[[Sequence[str]], Run]  # overrides after the user's own → the run they make
HELD = 4  # parameters, gradients and AdamW's two moments, all as large


@dataclass(frozen=True, kw_only=True, slots=True)
class Bound:
    """A step: by part its matrix products at peak in ms and its measured or bounded ms; the MiB that it holds."""

    product_ms: dict[str, float]
    ms: dict[str, float]
    mib: float


def ceilings(run: Run, compose: Composer, counted: Count, peak: Peak, profile: dict[str, Any]) -> dict[str, Any]:
    """Everything that the configuration tree offers, the largest win first: by FLOPs and by the step. `profile` is the record of the
    measured step."""
    base, rest_ms = bound(run, counted, peak, {row["part"]: row["ms"] for row in profile["parts"]}), profile["step"]["unattributed_ms"]
    rows = [row(override, base, changed(run, other, counted, base, peak), rest_ms) for override, other in options(run, compose).items()]
    return {"table": sorted(rows, key=lambda row: (-row["by_step"], -row["by_flops"]))}


def options(run: Run, compose: Composer) -> dict[str, Run]:
    """Everything that this configuration tree offers and the run does not already have: the override, and the run with it."""
    groups = [(group, folder / group) for group in ("attention", "mlp") for folder in (conf_dir(), *outside.folders())]
    runs: dict[str, Run] = {}
    for override in (
        *(f"{group}={path.stem}" for group, folder in groups for path in sorted(folder.glob("*.yaml"))),
        "trainer.precision=bf16",
        "trainer.compile=regional",
        f"model.tie_head={'false' if run.model.tie_head else 'true'}",
        "trainer.activation_checkpointing=block",
        "objective.loss_chunks=8",
    ):
        try:
            other = compose([override])
        except ValueError:  # another part of the run does not take it
            continue
        if other not in [run, *runs.values()]:
            runs[override] = other
    return runs


def row(override: str, base: Bound, new: Bound, unattributed_ms: float) -> dict[str, Any]:
    """What an option can win at most: speedups by FLOPs and by the step, MiB saved, and that as a share of the memory."""
    return {
        "label": override,
        "by_flops": sum(base.product_ms.values()) / sum(new.product_ms.values()),
        "by_step": (sum(base.ms.values()) + unattributed_ms) / (sum(new.ms.values()) + unattributed_ms),
        "saved_mib": base.mib - new.mib,
        "saved": 1 - new.mib / base.mib,
    }


def bound(run: Run, counted: Count, peak: Peak, ms: dict[str, float]) -> Bound:
    """A step whose parts take these `ms`."""
    products = {part: work.product_ms(peak) * microbatches(run) for part, work in counted.by_part().items()}
    products["scores"] = products.get("scores", 0.0) * _needed(run, counted)
    mib = (HELD * counted.parameters + sum(counted.ranges.kept.values())) / MIB
    return Bound(product_ms=products, ms=ms, mib=mib)


def changed(run: Run, other: Run, old: Count, base: Bound, peak: Peak) -> Bound:
    """The step of the other run, as fast as arithmetic allows."""
    new = count(other, vocab_size=run.tokenizer.vocab_size)
    before, after = old.by_part(), new.by_part()
    ms, n, fuses = dict(base.ms), microbatches(other), other.trainer.compile is not run.trainer.compile
    own = [part for part in (*before, *after) if part not in STEP_PARTS]  # a replaced block's too
    for part in dict.fromkeys([*MODEL_PARTS, *own]):
        ms[part] = _part_ms(before.get(part, Work()), after.get(part, Work()), base.ms.get(part, 0.0), peak, n)
        if fuses and not after.get(part, Work()).flops and part != "embedding":
            ms[part] = 0.0  # fused into a neighbour, at best for nothing
    ms["scores"] *= _needed(other, new) / _needed(run, old)
    for part in ("accumulate", "clip", "optimizer", "reduction"):
        if part in ms:
            ms[part] *= new.parameters / old.parameters
    return bound(other, new, peak, ms)


def _needed(run: Run, counted: Count) -> float:
    """The share of the computed scores that lies in the window: chunks compute a border that another kernel can skip."""
    scores, by = counted.by_part().get("scores"), ("build", "mixer")
    if scores is None or first_window(run) is None or declared(run.attention, "keys_met", of=by) is None:
        return 1.0
    tokens = run.trainer.micro_batch * run.model.seq_len
    return component_flops(run, vocab_size=1)["scores"] * tokens / scores.flops


def _part_ms(old: Work, new: Work, ms: float, peak: Peak, n: int) -> float:
    if old.kinds != new.kinds or not old:
        return new.bound_ms(peak) * n
    return ms * new.bound_ms(peak) / old.bound_ms(peak) if old.bound_ms(peak) else ms
