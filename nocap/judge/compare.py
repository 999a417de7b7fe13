"""The comparison: arms against a baseline, with intervals, verdicts, and what should be doubted."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from statistics import fmean

from nocap.judge import estimates, factorial, stats, target
from nocap.judge.arms import Arm, changes, choose_baseline, group, swept
from nocap.judge.estimates import ALPHA, LEAST_SEEDS
from nocap.judge.inference import inference
from nocap.judge.result import ComparedArm, Comparison, Difference, Front, Kind, Timed
from nocap.judge.stats import Estimate
from nocap.judge.why import check_allowed, check_measured, confounders, covers
from nocap.show.table import shorten
from nocap.store.runs import Found, Record
from nocap.store.verify import ENDED

TIMES = ("tokens_per_s", "step_ms", "model_mib", "train_s")  # comparable on one machine only
PEAK_ONLY = "no figure of the model's memory: a record has none, or only the peak of its process"


def compare(found: Found, *, baseline: str | None = None, target_loss: float | None = None, allow: Collection[str] = ()) -> Comparison:
    """Compare what was found.

    Errors:
        ValueError: no finished run, no such baseline, an unknown `allow`, or losses that measure different things.
    """
    check_allowed(allow)
    arms = group(found.records)
    if not arms:
        open_ = [f"{record.folder.name}: {record.status}" for record in found.records]
        have = shorten([*(f"{name}: {why}" for name, why in found.unreadable.items()), *open_])
        raise ValueError(f"a comparison needs a finished run with a validation loss, got none ({have or 'no run'})")
    declared = check_measured(arms, allowed=allow)
    base = choose_baseline(arms, baseline)
    metric = "val_bpb" if _vocabularies(arms) > 1 else "val_loss"
    differences = _differences(arms, base, metric=metric, allow=allow)
    fronts = _front(arms, base)
    results = [
        ComparedArm(
            arm=arm,
            changes=changes(arm, base),
            val_loss=estimates.mean(arm.values("val_loss")),
            val_bpb=estimates.mean(arm.values("val_bpb")),
            difference=differences.get(arm.id),
            difference_bpb=None if arm is base else estimates.difference(arm.values("val_bpb"), base.values("val_bpb")),
            times={name: _timed(arm, base, name) for name in TIMES},
            to_target=None if target_loss is None else target.reach(arm, base, goal=target_loss),
            inference=inference(arm, base),
            front=fronts.get(arm.id),
        )
        for arm in arms
    ]
    effects, refused = factorial.effects(arms, base, metric=metric, allow=allow)
    compared = {run.identity for arm in arms for run in arm.all}
    left_out = [record for record in found.records if record.identity not in compared]
    return Comparison(
        arms=results,
        baseline=next(result for result in results if result.arm is base),
        target=target_loss,
        metric=metric,
        swept=swept(arms),
        effects=effects,
        effects_refused=refused,
        problems=[*found.problems, *declared, *_doubts(arms, base, left_out, allow=allow)],
        not_compared=[
            *((record.folder.name, _status(record)) for record in left_out),
            *((name, f"unreadable: {why}") for name, why in found.unreadable.items()),
        ],
    )


def _vocabularies(arms: Sequence[Arm]) -> int:
    return len({arm.config.get("tokenizer.vocabulary") for arm in arms})


def _status(record: Record) -> str:
    if record.status == "finished":
        return "finished without a validation loss"
    return f"{record.status}: no seed of its arm finished" if record.status in ENDED else record.status


def _differences(arms: Sequence[Arm], base: Arm, *, metric: str, allow: Collection[str]) -> dict[str, Difference]:
    """By arm. Holm over the arms that can have a verdict."""
    found = {arm.id: _difference(arm, base, metric=metric, allow=allow) for arm in arms if arm is not base}
    family = {arm: one.estimate for arm, one in found.items() if one.kind is Kind.unclear and one.estimate}
    for (arm, estimate), p in zip(family.items(), stats.holm([estimate.p for estimate in family.values()]), strict=True):
        side = Kind.better if estimate.mid < 0 else Kind.worse
        if p < ALPHA:
            found[arm] = replace(found[arm], p_holm=p, kind=side)
        else:
            found[arm] = replace(found[arm], p_holm=p, visible=estimates.visible(estimate, among=len(family)))
    return found


def _difference(arm: Arm, base: Arm, *, metric: str, allow: Collection[str]) -> Difference:
    """The estimate, and what stands in the way of a verdict, if anything does."""
    mine, theirs = arm.values(metric), base.values(metric)
    kind, reason = Kind.unclear, ""
    if spoilt := confounders(arm, base, allowed=allow):
        kind, reason = Kind.confounded, ", ".join(spoilt)
    elif arm.diverged or base.diverged:
        who = arm if arm.diverged else base
        diverged, seeds = (len({run.seed for run in runs}) for runs in (who.diverged, who.all))
        kind, reason = Kind.undecided, f"{diverged} of {seeds} seeds diverged{'' if who is arm else ' in the baseline'}"
    elif (n := min(len(mine), len(theirs))) < LEAST_SEEDS:
        kind, reason = Kind.undecided, f"n={n}"
    return Difference(estimate=estimates.difference(mine, theirs), kind=kind, reason=reason, metric=metric)


def machines_differ(arm: Arm, base: Arm) -> str | None:
    """Why times of these two cannot be compared; `None` where they can."""
    for side, what in ((arm, "its runs"), (base, "the baseline's runs")):
        if len(side.machines) > 1:
            return f"{what} are from {len(side.machines)} machines: {shorten(side.machines.values(), most=3)}"
    (mine, name), (theirs, base_name) = (next(iter(side.machines.items())) for side in (arm, base))
    return None if mine == theirs else f"other hardware: {name}; the baseline: {base_name}"


def _timed(arm: Arm, base: Arm, metric: str) -> Timed:
    mine, theirs = arm.values(metric), base.values(metric)
    unknown = metric == "model_mib" and not (mine and theirs)
    refused = machines_differ(arm, base) or (PEAK_ONLY if unknown else None)
    ratio = None if refused or arm is base else estimates.ratio(mine, theirs)
    return Timed(mean=fmean(mine.values()) if mine and len(arm.machines) == 1 else None, ratio=ratio, refused=refused)


def _front(arms: Sequence[Arm], base: Arm) -> dict[str, Front]:
    """Which arms no other beats in loss, training time and memory at once. An arm that is beaten only by arms which no t-interval of the
    three sets apart from it is tied."""
    placed: dict[str, list[Estimate]] = {}
    for arm in arms:
        cells = [estimates.mean(arm.values(metric)) for metric in ("val_loss", "train_s", "model_mib")]
        if machines_differ(arm, base) is None and None not in cells:
            placed[arm.id] = [cell for cell in cells if cell]
    points = {name: [estimate.mid for estimate in mine] for name, mine in placed.items()}
    fronts = {}
    for name, mine in placed.items():
        beaten_by = [other for other in placed if stats.dominates(points[other], points[name])]
        apart = any(a.high < b.low for other in beaten_by for a, b in zip(placed[other], mine, strict=True))
        fronts[name] = Front.behind if apart else Front.tied if beaten_by else Front.on
    return fronts


def _doubts(arms: Sequence[Arm], base: Arm, left_out: Sequence[Record], *, allow: Collection[str]) -> Iterator[str]:
    if _vocabularies(arms) > 1:
        yield "vocabularies differ: verdicts are on bits per byte, each over the text that its val_tokens cover"
    for arm in arms:
        for spoilt in confounders(arm, base, allowed=allow):
            yield f"{arm.label}: differs from the baseline in its {spoilt} too; no verdict unless declared (--allow {spoilt})"
        if arm.diverged:
            seeds = shorten(str(run.seed) for run in arm.diverged)
            yield f"{arm.label}: seed {seeds} diverged; its means are over the seeds that did not, which flatters it"
        if len(arm.runs) > len(arm.seeds):
            yield f"{arm.label}: {len(arm.runs)} runs of {len(arm.seeds)} seeds; a seed that ran twice counts once, with its mean"
    if apart := [arm.label for arm in arms if arm is not base and _one_after_the_other(arm, base)]:
        yield f"not interleaved with the baseline, so a machine that drifted would look like speed: {shorten(apart)}"
    for record in left_out:
        if record.status == "diverged":
            yield f"{record.folder.name}: diverged, and so did or is missing every other seed of its arm"
    torches = {str(run.parts.get("environment", {}).get("torch")) for arm in arms for run in arm.all}
    if len(torches) > 1 and not any(covers(a, "torch") for a in allow):
        yield f"runs of several versions of torch: {', '.join(sorted(torches))}"


def _one_after_the_other(arm: Arm, base: Arm) -> bool:
    """Whether all runs of one arm were started before all runs of the other. Two seeds or more should have alternated."""
    a, b = ([run.started for run in side.runs] for side in (arm, base))
    if min(len(a), len(b)) < 2 or not all([*a, *b]) or machines_differ(arm, base):
        return False
    return max(a) < min(b) or max(b) < min(a)
