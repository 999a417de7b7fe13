"""What a study would run, what that would cost, and what its seeds can see: before anything runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict

from nocap.judge.claim import Claim
from nocap.judge.interval import POWER, analysis_of, minimum_detectable
from nocap.report.table import aligned
from nocap.store.formats import duration, plural
from nocap.study.cells import Cells, wanted
from nocap.study.evidence import Evidence, bound
from nocap.study.looks import last_analysis, up_to
from nocap.study.plan import OVERHEAD, PILOT_STEPS, StudyPlan, halvings, racing, shorter, with_lengths
from nocap.study.results import sigma
from nocap.study.sessions import Session
from nocap.study.sittings import Place, places_of
from nocap.study.startup import startups
from nocap.study.wording import allowed, expected

WARM_STEPS = 6  # of a timed arm, before its blocks
BENCH = "bench: "  # before an arm's name, at the claim's shape


def render(plan: StudyPlan) -> str:
    numbers = range(1, last_analysis(plan) + 1)
    parts = [up_to(plan, {claim.id: min(n, analysis_of(len(claim.seeds))) for claim in plan.study.claims}) for n in numbers]
    cells = Cells(wanted(plan.train, parts[0].study.made_by("train")), label=plan.study.name) if plan.train else None
    pace = _rough(plan)
    start, source = startups({arm: one.run for arm, one in plan.train.items()}, plan.runs)
    costs = [list(_rows(part, cells, pace, start)) for part in parts]
    lines = [
        f"{plan.study.name}, scale {plan.scale}: {plan.study.question}",
        aligned(["what", "of", "cells", "done", "about"], [[*row, duration(cost)] for row, cost in costs[0]]),
        *_analyses(parts, [sum(cost for _, cost in rows) for rows in costs]),
        "cost: FLOPs at a quarter of this machine's measured matmul peak, one cell after the other; a rough guess, often twofold off",
    ]
    if start:
        lines.append(f"in it, the start of each run: {duration(max(start.values()))}, {source}")
    if plan.needs_budget:
        lines.append(f"the length of a run is what budget_h=… allows; the cost above is of {PILOT_STEPS} steps")
    return "\n".join([*lines, "", *_power(plan, cells)])


Row = tuple[list[str], float]  # what a table shows, and seconds


def _rows(plan: StudyPlan, cells: Cells | None, pace: Mapping[str, float], start: Mapping[str, float]) -> Iterator[Row]:
    training, places = list(_training(plan, cells, pace, start)), places_of(plan, plan.train)
    yield from training
    yield from _sessions(places, pace)
    yield from _waiting(places, sum(seconds for _, seconds in training))


def _analyses(parts: Sequence[StudyPlan], costs: Sequence[float]) -> Iterator[str]:
    """What each analysis costs, if it is needed by all claims that may."""
    if len(parts) == 1:
        return
    yield f"analysis 1: {len(parts[0].study.needed)} pairs, as above, about {duration(costs[0])}"
    for i, part in enumerate(parts[1:], start=1):
        pairs = f"{len(part.study.needed)} pairs, about {duration(costs[i] - costs[i - 1])} more"
        yield f"analysis {i + 1}: {pairs}, or less: only for what analysis {i} did not decide"


def _training(plan: StudyPlan, cells: Cells | None, pace: Mapping[str, float], start: Mapping[str, float]) -> Iterator[Row]:
    if cells is None:
        return
    study, tune = plan.study, plan.study.tune
    seconds = {arm: pace.get(arm, 0.0) * one.run.tokens_before(one.run.trainer.steps) * OVERHEAD for arm, one in plan.train.items()}
    runs = [(arm, seed) for seed, arms in study.made_by("train").items() for arm in arms]
    of = f"{len(plan.train)} arms × {len(study.needed)} seeds"
    yield ["training", of, str(len(cells.grid.cells)), str(cells.done)], sum(start[arm] + seconds[arm] for arm, _ in runs)
    shorts = {arm: shorter(plan, plan.train[arm]) for arm in with_lengths(plan) if arm in plan.train}
    if n := sum(len(shorts.get(arm, ())) for arm, _ in runs):
        share = {
            arm: sum(one.composed.run.trainer.steps - one.branches_at for one in of) / plan.train[arm].run.trainer.steps
            for arm, of in shorts.items()
        }
        cost = sum(len(shorts[arm]) * start[arm] + seconds[arm] * share[arm] for arm, _ in runs if arm in shorts)
        yield ["shorter schedules", f"{', '.join(shorts)} at {plan.at.lengths} of the steps", str(n), ""], cost
    if racing(study):
        yield ["if a race needs them", f"one arm at {[round(share, 4) for share in halvings(plan.at)]}", "", ""], 0.0
    if tune is not None:
        trials = {arm: tune.n_trials(arm) * len(tune.seeds) for arm in tune.leaders}
        cost, n = sum(trials[arm] * start[arm] + seconds[arm] * tune.whole_runs(arm) for arm in tune.leaders), sum(trials.values())
        yield ["tuning", f"{len(tune.leaders)} arms, seeds {tune.seeds}", str(n), ""], cost


def _sessions(places: Sequence[Place], pace: Mapping[str, float]) -> Iterator[Row]:
    for place in places:
        done = sum(one.found(place.folder) is not None for one in place.sessions)
        arms, n = dict.fromkeys(arm for one in place.sessions for arm in one.arms), len({one.seed for one in place.sessions})
        times = max(n, place.sittings) / n  # a seed is timed again where there are more sittings
        cost = times * sum(_session_s(one, pace) for one in place.sessions)
        yield [f"{place.name} sessions", ", ".join(arms), f"{times * len(place.sessions):.0f}", str(done)], cost


def _waiting(places: Sequence[Place], train_s: float) -> Iterator[Row]:
    """Sittings are apart; what training does not fill is waited for."""
    left = max((place.left() for place in places), default=0)
    if left:
        between_s = (left - 1) * places[0].apart_min * 60
        of = f"{plural(left, 'sitting')} of timing, {places[0].apart_min:g} min apart: {duration(between_s)} that training may fill"
        yield ["waiting", of, "", ""], max(0.0, between_s - train_s)


def _session_s(session: Session, pace: Mapping[str, float]) -> float:
    """A guess: steps of the arms' own size."""
    if session.kind in ("lengths", "decoding"):
        return 30.0
    steps = WARM_STEPS + 2 * session.how.get("rounds", 1)
    lanes = [*session.arms, next(iter(session.arms))] if session.kind == "steps" else list(session.arms)
    place = "" if session.what == "pace" else BENCH
    return sum(10.0 + steps * pace.get(f"{place}{arm}", 0.0) * session.arms[arm].run.trainer.batch_tokens for arm in lanes)


def _rough(plan: StudyPlan) -> dict[str, float]:
    """Seconds a token of each arm where it is trained, and of `bench: ` each arm at the claim's shape."""
    arms = {**plan.train, **{f"{BENCH}{name}": one for name, one in plan.bench.items()}}
    if not arms:
        return {}
    measured = Session(kind="rough", what="rough", seed=0, arms=arms).run(plan.folder)["measured"]
    return {name: float(seen["seconds_a_token"]) for name, seen in measured["arms"].items()}


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
