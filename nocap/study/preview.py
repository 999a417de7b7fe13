"""What a study would run, what that would cost, and what its seeds can see: before anything runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict

from nocap.judge.claim import Claim
from nocap.judge.stats import power_of
from nocap.show.table import duration, table
from nocap.study.cells import Cells, wanted
from nocap.study.evidence import Evidence, bound
from nocap.study.plan import OVERHEAD, PILOT_STEPS, StudyPlan, all_sessions, shorter, with_lengths
from nocap.study.results import sigma
from nocap.study.sessions import Session
from nocap.study.text import expected

POWER = 0.9
WARM_STEPS = 6  # of a timed arm, before its blocks
BENCH = "bench: "  # before an arm's name, at the claim's shape


def render(plan: StudyPlan) -> str:
    cells = Cells(wanted(plan.train, plan.study.seeds), label=plan.study.name) if plan.train else None
    pace = _rough(plan)
    rows = [*(_training(plan, cells, pace) if cells else []), *_sessions(plan, pace)]
    lines = [
        f"{plan.study.name}, scale {plan.scale}: {plan.study.question}",
        table(["what", "of", "cells", "done", "about"], rows),
        "cost: FLOPs at a quarter of this machine's measured matmul peak, one cell after the other; a rough guess, often twofold off",
    ]
    if plan.needs_budget:
        lines.append(f"the length of a run is what budget_h=… allows; the cost above is of {PILOT_STEPS} steps")
    return "\n".join([*lines, "", *_power(plan, cells)])


def _training(plan: StudyPlan, cells: Cells, pace: Mapping[str, float]) -> Iterator[list[str]]:
    study, tune = plan.study, plan.study.tune
    seconds = {arm: pace.get(arm, 0.0) * one.run.trainer.steps * one.run.trainer.batch_tokens * OVERHEAD for arm, one in plan.train.items()}
    cost = sum(seconds[run.arm] for run, _ in cells.of)
    of = f"{len(plan.train)} arms × {len(study.seeds)} seeds"
    yield ["training", of, str(len(cells.grid.cells)), str(cells.done), duration(cost)]
    shorts = {arm: shorter(plan, plan.train[arm]) for arm in with_lengths(plan) if arm in plan.train}
    if n := sum(map(len, shorts.values())) * len(study.seeds):
        share = {
            arm: sum(one.composed.run.trainer.steps - one.branches_at for one in of) / plan.train[arm].run.trainer.steps
            for arm, of in shorts.items()
        }
        cost = sum(seconds[arm] * share[arm] for arm in shorts) * len(study.seeds)
        yield ["shorter schedules", f"{', '.join(shorts)} at {plan.at.lengths} of the steps", str(n), "", duration(cost)]
    if tune is not None:
        trials = {arm: len(overrides) * len(tune.seeds) for arm, overrides in tune.trials.items()}
        cost = sum(seconds[arm] * n for arm, n in trials.items())
        yield ["tuning", f"{len(trials)} arms, seeds {tune.seeds}", str(sum(trials.values())), "", duration(cost)]


def _sessions(plan: StudyPlan, pace: Mapping[str, float]) -> Iterator[list[str]]:
    for kind, sessions in all_sessions(plan, plan.train).items():
        if sessions:
            done = sum(one.found(plan.folder) is not None for one in sessions)
            arms = ", ".join(dict.fromkeys(arm for one in sessions for arm in one.arms))
            cost = sum(_session_s(one, pace) for one in sessions)
            yield [f"{kind} sessions", arms, str(len(sessions)), str(done), duration(cost)]


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
        line += "" if limit is None else f", arithmetic allows {limit:.3g}"
        if noise and any(metric.name == "val_loss" for metric in claim.metrics):
            line += f"; a loss difference of {_visible(noise, len(claim.seeds), claim.alpha):.4f} is seen with a power of {POWER:g}"
        yield line


def _visible(noise: float, n: int, alpha: float) -> float:
    """The difference that so many pairs see, if pairing brings nothing: by bisection."""
    low, high = 0.0, 1.0
    while power_of(high, n=n, alpha=alpha, pairs=True) < POWER:
        low, high = high, 2 * high
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if power_of(middle, n=n, alpha=alpha, pairs=True) >= POWER else (middle, high)
    return high * noise * 2**0.5


def _json(claim: Claim) -> dict[str, object]:
    return {**asdict(claim), "scale": claim.scale.value, "slack": 0.0}
