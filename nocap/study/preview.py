"""What a study would run, what its training would cost, and what its seeds can see: before anything runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

from nocap.judge.claim import Claim
from nocap.judge.interval import POWER, analysis_of, minimum_detectable
from nocap.report.table import aligned
from nocap.study import grid_plan
from nocap.study.conduct import Timings, seeds_of, up_to
from nocap.study.evidence import Evidence, bound
from nocap.study.plan import StudyPlan, shorter
from nocap.study.results import sigma
from nocap.study.tasks import Trainings, trainings
from nocap.study.words import allowed, expected


def render(plan: StudyPlan) -> str:
    """
    Errors:
        nocap.study.tasks.FailedError: the first arm cannot be timed.
    """
    last = analysis_of(len(plan.study.seeds))
    first = up_to(plan, {claim.id: 1 for claim in plan.study.claims})
    needed = seeds_of(first, list(plan.train))
    group = Trainings(trainings(plan.train, needed), label=plan.study.name) if needed else None
    lines = [f"{plan.study.name}, scale {plan.scale}: {plan.study.question}"]
    if group is not None:
        lines += [grid_plan.render(group.grid), ""]
    if rows := list(_beside(first)):
        lines.append(aligned(["beside it", "of", "count", "done"], rows))
    if last > 1:
        most = len(up_to(plan, {claim.id: last for claim in plan.study.claims}).study.claims[0].seeds)
        lines.append(f"analysis 1 of {last} has {len(first.study.claims[0].seeds)} pairs; claims that it does not decide go on, to {most}")
    return "\n".join([*lines, "", *_power(plan, group)])


def _beside(plan: StudyPlan) -> Iterator[list[str]]:
    """What is run besides the runs of whole length."""
    tune, racing = plan.study.tune, plan.study.racing
    if racing:
        n = sum(len(shorter(plan, plan.train[arm])) for arm in racing) * len(plan.study.claims[0].seeds)
        yield ["shorter schedules", f"{', '.join(racing)} at {plan.at.lengths} of the steps", str(n), ""]
    if tune is not None and plan.train:
        n = sum(len(trials) for trials in tune.trials.values()) * len(tune.seeds)
        yield ["tuning", f"{len(tune.trials)} arms, seeds {tune.seeds}", str(n), ""]
    places: dict[str, list[bool]] = {}
    for one, path in Timings(plan, plan.train).wanted():
        places.setdefault(f"{one.name} sessions: {', '.join(one.arms)}", []).append(path.exists())
    for name, done in places.items():
        place, _, arms = name.partition(": ")
        apart = f", {plan.at.apart_min:g} min apart" if len(done) > 1 else ""
        yield [place, f"{arms}{apart}", str(len(done)), str(sum(done))]


# --- power -------------------------------------------------------------------------------------------------------------------------


def _power(plan: StudyPlan, group: Trainings | None) -> Iterator[str]:
    """What each claim about a loss can see with its seeds, and what the others expect."""
    runs = {(run.arm, run.seed): record for run, record in group.records([])} if group else {}  # the study itself names what is unreadable
    noise, source = sigma(plan.at, runs)
    yield f"sigma of one run's final loss: {f'{noise:.4f}' if noise else '?'} ({source})"
    for claim in plan.study.claims:
        limit = bound(claim, plan.study, Evidence())
        line = f"{claim.id}: {claim.metric} of {claim.arm}, expected {expected(_json(claim))}, n={len(claim.seeds)}"
        line += "" if limit is None else f", arithmetic allows {allowed({**_json(claim), 'bound': limit})}"
        if noise and any(metric.name == "val_loss" for metric in claim.metrics):
            visible = minimum_detectable(noise * 2**0.5, len(claim.seeds), declared=plan.at.noise.get("val_loss"))
            line += f"; a loss difference of {visible:.4f} is shown with a power of {POWER:g}"
        yield line


def _json(claim: Claim) -> dict[str, object]:
    return {**asdict(claim), "scale": claim.scale.value}
