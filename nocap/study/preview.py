"""What a study would run, what its training would cost, and what its seeds can see: before anything runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict

from nocap.judge.claim import Claim
from nocap.judge.interval import POWER, analysis_of, minimum_detectable
from nocap.report.table import aligned
from nocap.study import grid_plan
from nocap.study.cells import Cells, wanted
from nocap.study.evidence import Evidence, bound
from nocap.study.looks import up_to
from nocap.study.plan import PILOT_STEPS, StudyPlan, halvings, racing, shorter, with_lengths
from nocap.study.results import sigma
from nocap.study.sittings import places_of
from nocap.study.wording import allowed, expected


def render(plan: StudyPlan) -> str:
    """
    Errors:
        nocap.study.sessions.SessionError: the first arm cannot be timed.
    """
    last = max(analysis_of(len(claim.seeds)) for claim in plan.study.claims)
    first, whole = (up_to(plan, {claim.id: min(n, analysis_of(len(claim.seeds))) for claim in plan.study.claims}) for n in (1, last))
    cells = Cells(wanted(first.train, first.study.made_by("train")), label=plan.study.name) if plan.train else None
    lines = [f"{plan.study.name}, scale {plan.scale}: {plan.study.question}"]
    if cells is not None:
        lines += [grid_plan.render(cells.grid), ""]
    if rows := list(_beside(first)):
        lines.append(aligned(["beside it", "of", "count", "done"], rows))
    if last > 1:
        pairs = [len(part.study.needed) for part in (first, whole)]
        lines.append(f"analysis 1 of {last} has {pairs[0]} pairs; claims that it does not decide go on, to {pairs[1]} at most")
    if plan.needs_budget:
        lines.append(f"the length of a run is what budget_h=… allows; the cost above is of {PILOT_STEPS} steps")
    return "\n".join([*lines, "", *_power(plan, cells)])


def _beside(plan: StudyPlan) -> Iterator[list[str]]:
    """What is run besides the runs of whole length."""
    tune, runs = plan.study.tune, [arm for arms in plan.study.made_by("train").values() for arm in arms]
    shorts: Mapping[str, int] = {arm: len(shorter(plan, plan.train[arm])) for arm in with_lengths(plan) if arm in plan.train}
    if n := sum(shorts.get(arm, 0) for arm in runs):
        yield ["shorter schedules", f"{', '.join(shorts)} at {plan.at.lengths} of the steps", str(n), ""]
    if racing(plan.study):
        yield ["if a race needs them", f"one arm at {[round(share, 4) for share in halvings(plan.at)]}", "", ""]
    if tune is not None and plan.train:
        n = sum(len(of) for of in tune.trials.values()) * len(tune.seeds)
        yield ["tuning", f"{len(tune.trials)} arms, seeds {tune.seeds}", str(n), ""]
    for place in places_of(plan, plan.train):
        done = sum(one.found(place.folder) is not None for one in place.sessions)
        arms = dict.fromkeys(arm for one in place.sessions for arm in one.arms)
        apart = f" in {place.sittings} sittings, {place.apart_min:g} min apart" if place.sittings > 1 else ""
        yield [f"{place.name} sessions", f"{', '.join(arms)}{apart}", str(len(place.sessions)), str(done)]


# --- power -------------------------------------------------------------------------------------------------------------------------


def _power(plan: StudyPlan, cells: Cells | None) -> Iterator[str]:
    """What each claim about a loss can see with its seeds, and what the others expect."""
    runs = {(run.arm, run.seed): record for run, record in cells.records([])} if cells else {}  # the study itself names what is unreadable
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
