"""What each option could win at most in what a profile is of: by counted FLOPs, and by the measured
time of its parts, as far as the roofline lets it fall."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from nocap import outside
from nocap.config.run import Run
from nocap.data.batches import microbatches
from nocap.launch.plan import check_compiler
from nocap.measure.profile_schema import CeilingJson, Peak
from nocap.measure.roofline import Count, count
from nocap.step_parts import MODEL_PARTS, STEP_PARTS

Composer = Callable[[Sequence[str]], Run]  # overrides after the user's own → the run they make


def options_ceilings(
    old: Count, compose: Composer, peak: Peak, ms: dict[str, float], rest_ms: float
) -> list[CeilingJson]:
    """Everything that the configuration tree offers and that can be counted, the largest win first:
    by FLOPs and by the step, whose parts took these `ms`."""
    rows = list[CeilingJson]()
    subject = replace(old.subject, cached=True)
    for override, run in options(old, compose).items():
        new = count(run, vocab_size=run.tokenizer.vocab_size, subject=subject)
        if old.not_counted is None and new.not_counted is None:
            rows.append(ceiling(override, old, new, peak, ms, rest_ms))
    return sorted(rows, key=lambda row: (-row.by_step, -row.by_flops))


def options(old: Count, compose: Composer) -> dict[str, Run]:
    """Everything that this configuration tree offers for the subject, and the run does not already
    have: the override, and the run with it."""
    run = old.run
    subject = old.subject
    runs: dict[str, Run] = {}
    overrides = []
    for group in ("attention", "mlp"):
        overrides += [f"{group}={name}" for name in outside.yamls(group)]
    untied = "false" if run.model.tie_head else "true"
    overrides.append(f"model.tie_head={untied}")
    if not subject.of.generates:
        overrides += OF_A_FORWARD
    if subject.of.trains:
        overrides += OF_A_STEP
    for override in overrides:
        try:
            other = subject.run(compose([override]))
            check_compiler(other)
        except ValueError:  # another part of the run does not take it
            continue
        if other not in [run, *runs.values()]:
            runs[override] = other
    return runs


# beside the options of the groups
OF_A_FORWARD = ["trainer.precision=bf16", "trainer.compile=regional", "objective.loss_chunks=8"]
OF_A_STEP = ["trainer.activation_checkpointing=block"]


def ceiling(
    override: str, old: Count, new: Count, peak: Peak, ms: dict[str, float], rest_ms: float
) -> CeilingJson:
    """Return what another run could win at most: speedups by FLOPs (matrix products alone, at the
    peak in their precision) and by the measured step (Amdahl's law), the milliseconds that it saves
    in each part, and the MiB saved with their share of the memory."""
    new_ms = changed(old, new, peak, ms)
    saved_ms = {}
    for part, before in ms.items():
        saved = before - new_ms.get(part, 0.0)
        if saved:
            saved_ms[part] = saved
    return CeilingJson(
        label=override,
        by_flops=old.product_ms(peak) / new.product_ms(peak),
        by_step=(sum(ms.values()) + rest_ms) / (sum(new_ms.values()) + rest_ms),
        saved_ms=saved_ms,
        saved_mib=old.held_mib() - new.held_mib(),
        saved=1 - new.held_mib() / old.held_mib(),
    )


def changed(old: Count, new: Count, peak: Peak, ms: dict[str, float]) -> dict[str, float]:
    """Return the parts of the other run's step, as fast as arithmetic allows. A part's time goes
    down with its roofline bound; where another kernel or precision computes it, whose efficiency is
    unknown, to that bound. Everything else stays."""
    before = old.by_part()
    after = new.by_part()
    n = microbatches(new.run)
    fuses = new.run.trainer.compile is not old.run.trainer.compile
    new_ms = dict(ms)
    for part in {*MODEL_PARTS, *before, *after} - {*STEP_PARTS}:  # a replaced block's own too
        first = before[part]
        second = after[part]
        if fuses and not second.flops and part != "embedding":
            new_ms[part] = 0.0  # fused into a neighbour, at best for nothing
            continue
        second_ms = second.bound_ms(peak)
        if first.kinds != second.kinds or not first:
            new_ms[part] = second_ms * n
            continue
        first_ms = first.bound_ms(peak)
        if first_ms:
            new_ms[part] = ms.get(part, 0.0) * second_ms / first_ms
    new_ms["scores"] *= new.needed() / old.needed()
    for part in ("accumulate", "clip", "optimizer"):
        new_ms[part] = ms.get(part, 0.0) * new.parameters / old.parameters
    return new_ms
