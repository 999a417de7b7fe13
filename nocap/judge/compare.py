"""The comparison: arms against a baseline, as one plain JSON object that the table, the report and other programs read.

    baseline     the arm's id          target   nats per token, or null       swept   config keys that differ between arms
    metric       what the verdicts are about: val_loss, or val_bpb where vocabularies differ and that was declared
    arms         one object an arm, in the order they were started: see `_arm`
    runs         one object a run, with its validation curve
    effects      of a full factorial, or null and the reason in effects_refused: see `factorial`
    problems     lines for people: what was skipped, declared or should be doubted
    not_compared runs that are not finished or cannot be read, with their status

Losses are nats per token, times seconds of training and data wait (`train_s`) or ms, memory MiB. Intervals are 95% t-intervals.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict
from statistics import fmean
from typing import Any

from nocap.judge import estimates, factorial, stats, target
from nocap.judge.arms import Arm, changes, choose_baseline, group, swept
from nocap.judge.estimates import ALPHA, CONFIDENCE, LEAST_SEEDS
from nocap.judge.inference import inference
from nocap.judge.why import check_allowed, check_measured, confounders, covers
from nocap.store.record import SCHEMA_VERSION
from nocap.store.runs import COMPARED, Found, Record, shorten

Comparison = dict[str, Any]
Measure = Callable[[Record], float | None]


def _val_loss(run: Record) -> float | None:
    return run.val_loss


def _val_bpb(run: Record) -> float | None:
    return run.number("val_bpb")


TIMES: dict[str, Measure] = {  # comparable on one machine only
    "tokens_per_s": lambda run: run.number("tokens_per_s"),
    "step_ms": lambda run: run.number("step_ms", "median"),
    "memory_mib": lambda run: run.number("memory_mib", "peak"),
    "train_s": lambda run: run.train_s,
}


def compare(found: Found, *, baseline: str | None = None, target_loss: float | None = None, allow: Collection[str] = ()) -> Comparison:
    """Compare what was found.

    Errors:
        ValueError: no finished run, no such baseline, an unknown `allow`, or losses that measure different things.
    """
    check_allowed(allow)
    arms = group(found.records)
    if not arms:
        have = shorten(f"{r.folder.name}: {r.status}" for r in found.records) or shorten(f"{n}: {w}" for n, w in found.unreadable.items())
        raise ValueError(f"a comparison needs a finished run with a validation loss, got none ({have or 'no run'})")
    declared = check_measured(arms, allowed=allow)
    base = choose_baseline(arms, baseline)
    metric = "val_bpb" if _vocabularies(arms) > 1 else "val_loss"
    told = [_arm(arm, base, metric=metric, allow=allow, goal=target_loss) for arm in arms]
    _adjust(told)
    _front(told, arms, base)
    effects, refused = factorial.effects(arms, base, metric=metric, allow=allow)
    compared = {run.identity for arm in arms for run in arm.all}
    left_out = [record for record in found.records if record.identity not in compared]
    return {
        "schema_version": SCHEMA_VERSION,
        "baseline": base.id,
        "confidence": CONFIDENCE,
        "alpha": ALPHA,
        "least_seeds": LEAST_SEEDS,
        "target": target_loss,
        "metric": metric,
        "swept": swept(arms),
        "arms": told,
        "runs": [_run(run, arm) for arm in arms for run in arm.all],
        "effects": effects,
        "effects_refused": refused,
        "problems": [*found.problems, *declared, *_doubts(arms, base, left_out, allow=allow)],
        "not_compared": [
            *({"name": record.folder.name, "status": _status(record)} for record in left_out),
            *({"name": name, "status": f"unreadable: {why}"} for name, why in found.unreadable.items()),
        ],
    }


def _vocabularies(arms: Sequence[Arm]) -> int:
    return len({run.config.get("tokenizer.vocabulary") for arm in arms for run in arm.all})


def _status(record: Record) -> str:
    if record.status == "finished":
        return "finished without a validation loss"
    return f"{record.status}: no seed of its arm finished" if record.status in COMPARED else record.status


# --- an arm ------------------------------------------------------------------------------------------------------------------------


def _arm(arm: Arm, base: Arm, *, metric: str, allow: Collection[str], goal: float | None) -> dict[str, Any]:
    is_base = arm.id == base.id
    clocks = [run.summary.get("clock_s") or {} for run in arm.runs]
    return {
        "arm": arm.id,
        "label": arm.label,
        "changes": changes(arm, base),
        "n": len(arm.seeds),
        "seeds": arm.seeds,
        "diverged": sorted({run.seed for run in arm.diverged}),
        "val_loss": estimates.mean(arm.values(_val_loss)),
        "val_bpb": estimates.mean(arm.values(_val_bpb)),
        "difference": None if is_base else _difference(arm, base, metric=metric, allow=allow),
        "difference_bpb": None if is_base else estimates.difference(arm.values(_val_bpb), base.values(_val_bpb)),
        **{name: _timed(arm, base, measure) for name, measure in TIMES.items()},
        "params": arm.fact("params") or {},
        "flops_per_token": arm.fact("flops_per_token"),
        "tokens": arm.fact("tokens"),
        "steps": arm.fact("steps"),
        "kernel": arm.fact("kernel") or {},
        "hardware": sorted({run.machine[0] for run in arm.runs}),
        "to_target": None if goal is None else target.reach(arm, base, goal=goal),
        "inference": inference(arm, base),
        "pareto": None,
        "pareto_tied": None,
        "clock_s": {line: fmean(clock.get(line) or 0.0 for clock in clocks) for line in dict.fromkeys(k for c in clocks for k in c)},
        "runs": [run.identity for run in arm.all],
    }


def _difference(arm: Arm, base: Arm, *, metric: str, allow: Collection[str]) -> dict[str, Any]:
    """The estimate and what stands in the way of a verdict, if anything does; `_adjust` fills in the rest."""
    mine, theirs = (side.values(lambda run: run.number(metric)) for side in (arm, base))
    nothing = {"mean": None, "low": None, "high": None, "p": None, "method": f"no {metric}"}
    found, n = estimates.difference(mine, theirs) or nothing, min(len(mine), len(theirs))
    verdict = None
    if spoilt := confounders(arm, base, allowed=allow):
        verdict = f"confounded: {', '.join(spoilt)}"
    elif arm.diverged or base.diverged:
        who = arm if arm.diverged else base
        seeds = len({run.seed for run in who.all})
        diverged = len({run.seed for run in who.diverged})
        verdict = f"no verdict ({diverged} of {seeds} seeds diverged{'' if who is arm else ' in the baseline'})"
    elif n < LEAST_SEEDS:
        verdict = f"no verdict (n={n})"
    return {**found, "p_holm": None, "verdict": verdict}


def _adjust(told: Sequence[dict[str, Any]]) -> None:
    """Holm over the arms that can have a verdict, then the verdicts."""
    family = [arm["difference"] for arm in told if arm["difference"] and arm["difference"]["verdict"] is None]
    for difference, p in zip(family, stats.holm([difference["p"] for difference in family]), strict=True):
        difference["p_holm"] = p
        side = "better" if difference["mean"] < 0 else "worse"
        difference["verdict"] = side if p < ALPHA else "no difference shown"


# --- times, on one machine ---------------------------------------------------------------------------------------------------------


def machines_differ(arm: Arm, base: Arm) -> str | None:
    """Why times of these two cannot be compared; `None` where they can."""
    for side, what in ((arm, "its runs"), (base, "the baseline's runs")):
        if len(side.machines) > 1:
            return f"{what} are from {len(side.machines)} machines: {shorten(side.machines.values(), most=3)}"
    (mine, name), (theirs, base_name) = (next(iter(side.machines.items())) for side in (arm, base))
    return None if mine == theirs else f"other hardware: {name}; the baseline: {base_name}"


def _timed(arm: Arm, base: Arm, measure: Measure) -> dict[str, Any]:
    """A mean over runs of one machine, and its ratio to the baseline's on the log scale; or the reason why there is none."""
    mine, theirs = arm.values(measure), base.values(measure)
    refused = machines_differ(arm, base)
    mean = fmean(mine.values()) if mine and len(arm.machines) == 1 else None
    if refused or arm.id == base.id or not mine or not theirs:
        return {"mean": mean, "ratio": None, "refused": refused}
    return {"mean": mean, "ratio": estimates.ratio(mine, theirs), "refused": None}


def _front(told: Sequence[dict[str, Any]], arms: Sequence[Arm], base: Arm) -> None:
    """Who is beaten by nobody in loss, training time and memory at once. Beaten for real, not tied, is who is beaten by an arm that the
    t-intervals set apart in at least one of the three."""
    measures = [_val_loss, TIMES["train_s"], TIMES["memory_mib"]]
    intervals = [[estimates.mean(arm.values(measure)) for measure in measures] for arm in arms]
    placed = [i for i, arm in enumerate(arms) if machines_differ(arm, base) is None and None not in intervals[i]]
    points = {i: [cell["mean"] or 0.0 for cell in intervals[i] if cell] for i in placed}

    def apart(i: int, j: int) -> bool:
        cells = [(a, b) for a, b in zip(intervals[i], intervals[j], strict=True) if a and b]
        return any(a["high"] is not None and b["low"] is not None and a["high"] < b["low"] for a, b in cells)

    for i, on_front in zip(placed, stats.pareto(list(points.values())), strict=True):
        beaten_by = [j for j in placed if stats.dominates(points[j], points[i])]
        told[i]["pareto"] = on_front
        told[i]["pareto_tied"] = not on_front and not any(apart(j, i) for j in beaten_by)


# --- runs, and what to doubt -------------------------------------------------------------------------------------------------------


def _run(run: Record, arm: Arm) -> dict[str, Any]:
    return {
        "identity": run.identity,
        "name": run.name,
        "arm": arm.id,
        "label": arm.label,
        "seed": run.seed,
        "status": run.status,
        "steps": run.summary.get("steps"),
        "tokens": run.summary.get("tokens"),
        "val_loss": run.val_loss,
        "val_bpb": run.number("val_bpb"),
        "tokens_per_s": run.number("tokens_per_s"),
        "train_s": run.train_s,
        "curve": asdict(run.curve),
        "clock_s": run.summary.get("clock_s") or {},
        "hardware": dict(run.hardware),
    }


def _doubts(arms: Sequence[Arm], base: Arm, left_out: Sequence[Record], *, allow: Collection[str]) -> list[str]:
    lines = []
    if _vocabularies(arms) > 1:
        lines.append("vocabularies differ: verdicts are on bits per byte, each over the text that its val_tokens cover")
    for arm in arms:
        for spoilt in confounders(arm, base, allowed=allow):
            lines.append(f"{arm.label}: differs from the baseline in its {spoilt} too; no verdict unless declared (--allow {spoilt})")
        if arm.diverged:
            seeds = shorten(str(run.seed) for run in arm.diverged)
            lines.append(f"{arm.label}: seed {seeds} diverged; its means are over the seeds that did not, which flatters it")
        if len(arm.runs) > len(arm.seeds):
            lines.append(f"{arm.label}: {len(arm.runs)} runs of {len(arm.seeds)} seeds; a seed that ran twice counts once, with its mean")
    if apart := [arm.label for arm in arms if arm.id != base.id and _one_after_the_other(arm, base)]:
        lines.append(f"not interleaved with the baseline, so a machine that drifted would look like speed: {shorten(apart)}")
    for record in left_out:
        if record.status == "diverged":
            lines.append(f"{record.folder.name}: diverged, and so did or is missing every other seed of its arm")
    torches = {str(run.parts.get("environment", {}).get("torch")) for arm in arms for run in arm.all}
    if len(torches) > 1 and not any(covers(a, "torch") for a in allow):
        lines.append(f"runs of several versions of torch: {', '.join(sorted(torches))}")
    return lines


def _one_after_the_other(arm: Arm, base: Arm) -> bool:
    """Whether all runs of one arm were started before all runs of the other. Two seeds or more should have alternated."""
    a, b = ([run.started for run in side.runs] for side in (arm, base))
    if min(len(a), len(b)) < 2 or not all([*a, *b]) or machines_differ(arm, base):
        return False
    return max(a) < min(b) or max(b) < min(a)
