"""What a study would run, what that would cost, and what its seeds can see: before anything runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from nocap.judge.stats import power_of
from nocap.launch.board import duration
from nocap.launch.plan import outcome
from nocap.show.table import table
from nocap.study.asking import all_sessions
from nocap.study.budget import OVERHEAD
from nocap.study.claim import Claim, Metric, Scale
from nocap.study.evidence import Evidence, bound
from nocap.study.prepared import Prepared, at_budget, lengths_of, with_lengths
from nocap.study.results import sigma
from nocap.study.sessions import Session
from nocap.study.text import METRICS, expected
from nocap.study.training import grid_of, records_of, wanted

POWER = 0.9
WARM_STEPS = 6  # of a timed arm, before its blocks
BENCH = "bench: "  # before an arm's name, where it is meant at the claim's shape


def render(plan: Prepared) -> str:
    return "\n".join([*_cells(plan), "", *_power(plan)])


def _cells(plan: Prepared) -> Iterator[str]:
    study, rows = plan.study, list[list[str]]()
    pace = _rough(plan)
    if plan.train:
        cells = wanted(plan.train, study.seeds)
        grid, _ = grid_of(cells, label=study.name, claims=plan.claims)
        done = sum(outcome(cell.plan) is not None for cell in grid.cells)
        seconds = {
            arm: pace.get(arm, 0.0) * one.run.trainer.steps * one.run.trainer.batch_tokens * OVERHEAD for arm, one in plan.train.items()
        }
        whole = sum(seconds[cell.arm] for cell in cells)
        rows.append(["training", f"{len(plan.train)} arms × {len(study.seeds)} seeds", str(len(grid.cells)), str(done), duration(whole)])
        racing = [arm for arm in with_lengths(plan) if arm in plan.train]
        shorts = {arm: lengths_of(plan, plan.train[arm]) for arm in racing}
        n = sum(map(len, shorts.values())) * len(study.seeds)
        if n:
            parts = [
                seconds[arm] * (one.composed.run.trainer.steps - one.branches_at) / plan.train[arm].run.trainer.steps
                for arm, of in shorts.items()
                for one in of
            ]
            cost = sum(parts) * len(study.seeds)
            rows.append(["shorter schedules", f"{', '.join(racing)} at {plan.at.lengths} of the steps", str(n), "", duration(cost)])
        if study.tune is not None:
            trials = {arm: len(words) * len(study.tune.seeds) for arm, words in study.tune.trials.items()}
            cost = sum(seconds[arm] * n for arm, n in trials.items())
            rows.append(["tuning", f"{len(trials)} arms, seeds {study.tune.seeds}", str(sum(trials.values())), "", duration(cost)])
    for kind, sessions in all_sessions(plan, plan.train).items():
        if sessions:
            done = sum(one.found(plan.folder) is not None for one in sessions)
            arms = ", ".join(dict.fromkeys(arm for one in sessions for arm in one.arms))
            rows.append([f"{kind} sessions", arms, str(len(sessions)), str(done), duration(sum(_session_s(one, pace) for one in sessions))])
    yield f"{study.name}, scale {plan.scale}: {study.question}"
    yield table(["what", "of", "cells", "done", "about"], rows)
    yield "cost: FLOPs at a quarter of this machine's measured matmul peak, one cell after the other; a rough guess, often twofold off"
    if at_budget(plan):
        yield "the length of a run is what budget_h=… allows; the cost above is of 100 steps"


def _session_s(session: Session, pace: Mapping[str, float]) -> float:
    """A guess: steps of the arms' own size."""
    if session.kind in ("lengths", "decoding"):
        return 30.0
    steps = WARM_STEPS + 2 * session.how.get("rounds", 1)
    lanes = [*session.arms, next(iter(session.arms))] if session.kind == "steps" else list(session.arms)
    place = "" if session.what == "pace" else BENCH
    return sum(10.0 + steps * pace.get(f"{place}{arm}", 0.0) * session.runs[arm].trainer.batch_tokens for arm in lanes)


def _rough(plan: Prepared) -> dict[str, float]:
    """Seconds a token of each arm where it is trained, and of `bench: ` each arm at the claim's shape."""
    arms = {**plan.train, **{f"{BENCH}{name}": one for name, one in plan.bench.items()}}
    if not arms:
        return {}
    first = Session(
        kind="rough",
        what="rough",
        seed=0,
        arms={name: one.words for name, one in arms.items()},
        runs={name: one.run for name, one in arms.items()},
    )
    measured: dict[str, Any] = first.hold(plan.folder, claims={})["measured"]
    return {name: float(facts["seconds_a_token"]) for name, facts in measured["arms"].items()}


# --- power -------------------------------------------------------------------------------------------------------------------------


def _power(plan: Prepared) -> Iterator[str]:
    """What each claim about a loss can see with its seeds, and the rest in words."""
    runs = {}
    if plan.train:
        cells = wanted(plan.train, plan.study.seeds)
        _, of = grid_of(cells, label=plan.study.name, claims=plan.claims)
        runs = {(cell.arm, cell.seed): record for cell, record in records_of(cells, of, problems=[])}  # the study itself names them
    noise, source = sigma(plan.study, plan.at, runs)
    yield f"sigma of one run's final loss: {f'{noise:.4f}' if noise else '?'} ({source})"
    for claim in plan.study.claims:
        limit = bound(claim, plan.study, Evidence())
        said = f"{claim.id}: {METRICS[claim.metric.value]} of {claim.arm}, expected {expected(_facts(claim))}, n={len(claim.seeds)}"
        if limit is not None:
            said += f", arithmetic allows {limit:.3g}"
        if noise and any(metric is Metric.val_loss for metric in (claim.metric, *(g.metric for g in claim.guards))):
            said += f"; a loss difference of {_visible(noise, len(claim.seeds), claim.alpha):.4f} is seen with a power of {POWER:g}"
        yield said


def _visible(noise: float, n: int, alpha: float) -> float:
    """The difference that so many pairs see, pairing worth nothing: found by halving."""
    low, high = 0.0, 1.0
    while power_of(high, n=n, alpha=alpha, pairs=True) < POWER:
        low, high = high, 2 * high
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if power_of(middle, n=n, alpha=alpha, pairs=True) >= POWER else (middle, high)
    return high * noise * 2**0.5


def _facts(claim: Claim) -> dict[str, Any]:
    return {"expected": claim.expected, "scale": Scale(claim.scale).value, "metric": claim.metric.value}
