"""A prepared study carried out: what is missing is trained and measured, and all that there is collected as evidence."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from nocap.config.compose import Composed, composed
from nocap.store.runs import Record
from nocap.study.asking import all_sessions
from nocap.study.budget import within_budget
from nocap.study.evidence import Evidence, read_claims
from nocap.study.prepared import Prepared, at_budget, lengths_of, with_lengths
from nocap.study.sessions import Session, SessionError, hold_all
from nocap.study.training import grid_of, records_of, train, wanted
from nocap.study.tuning import Tuned, tune

Say = Callable[[str], None]


@dataclass(kw_only=True)
class Done:
    """What there is after a study was carried out, or as far as it was."""

    evidence: Evidence
    tuned: Tuned
    arms: dict[str, dict[str, Composed]]
    problems: list[str] = field(default_factory=list)  # sessions that failed, records that cannot be read whole


def carry_out(plan: Prepared, *, run: bool, budget_h: float | None = None, only: str | None = None, say: Say = print) -> Done:
    """Train and measure what is missing, or with `run=False` only collect what there is. `only`: this arm's runs, and no session.

    Errors:
        ValueError: a run that will not do, or no budget where the scale needs one.
        training.StoppedError: somebody asked to stop; everything that was finished is kept.
    """
    problems: list[str] = []
    if at_budget(plan):
        plan = within_budget(plan, budget_h, run=run, say=say)
    tuned = (
        tune(plan.study, plan.train, claims=plan.claims, run=run, problems=problems, only=only)
        if plan.study.tune and plan.train
        else Tuned()
    )
    training = {name: _tuned(arm, tuned.words.get(name, [])) for name, arm in plan.train.items() if only in (None, name)}
    trained = _train(plan, training, run=run, problems=problems)
    sessions = all_sessions(plan, training) if only is None else {}
    said: dict[str, list[tuple[Session, dict[str, Any]]]] = {}
    for kind, asked in sessions.items():
        if run and asked:
            try:
                hold_all(asked, plan.folder, claims=plan.claims, say=say)
            except SessionError as error:
                problems.append(f"{kind}: {error}")
        said[kind] = [(one, found) for one in asked if (found := one.found(plan.folder)) is not None]
    by_seed: dict[str, Any] = {
        kind: {one.seed: found["measured"] for one, found in pairs} for kind, pairs in said.items() if kind != "parts"
    }
    evidence = replace(
        trained,
        **by_seed,
        parts={(arm, one.seed): facts for one, found in said.get("parts", []) for arm, facts in found["measured"]["arms"].items()},
        registered={kind: [read_claims(one.path(plan.folder)) for one, _ in pairs] for kind, pairs in said.items()},
    )
    return Done(evidence=evidence, tuned=tuned, arms={"train": training, "bench": plan.bench}, problems=problems)


def _tuned(arm: Composed, words: Sequence[str]) -> Composed:
    return composed([*arm.overrides, *words]) if words else arm


def _train(plan: Prepared, arms: Mapping[str, Composed], *, run: bool, problems: list[str]) -> Evidence:
    """The runs of whole length, then the shorter ones, which begin from those where they can."""
    if not arms:
        return Evidence()
    plans = {arm: lengths_of(plan, arms[arm]) for arm in with_lengths(plan) if arm in arms}
    kept = {arm: [one.branches_at for one in shorts if one.branches_at] for arm, shorts in plans.items()}
    whole = {name: composed([*arm.overrides, f"trainer.keep_steps={kept[name]}"]) if kept.get(name) else arm for name, arm in arms.items()}
    cells = wanted(whole, plan.study.seeds)
    grid, of = grid_of(cells, label=plan.study.name, claims=plan.claims)
    if run:
        train(grid)
    runs = {(cell.arm, cell.seed): record for cell, record in records_of(cells, of, problems=problems)}
    branches = [branch for (arm, seed), record in runs.items() for short in plans.get(arm, []) if (branch := short.of(arm, seed, record))]
    if not branches:
        return Evidence(runs=runs)
    grid, of = grid_of(branches, label=f"{plan.study.name}, shorter:", claims=plan.claims)
    if run:
        train(grid)
    shorter: dict[tuple[str, int], dict[int, Record]] = {}
    for cell, record in records_of(branches, of, problems=problems):
        shorter.setdefault((cell.arm, cell.seed), {})[cell.composed.run.trainer.steps] = record
    lengths = {arm: tuple(one.composed.run.trainer.steps for one in shorts) for arm, shorts in plans.items()}
    return Evidence(runs=runs, shorter=shorter, lengths=lengths)
