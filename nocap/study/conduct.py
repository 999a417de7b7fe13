"""A study carried out: its claims registered, what is missing trained and measured, and everything there is collected as evidence."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any

from nocap.config.compose import Composed
from nocap.config.keys import require
from nocap.store.record import read_json, write_json
from nocap.store.runs import Record
from nocap.study.arms import more
from nocap.study.cells import Cells, FailedError, wanted
from nocap.study.evidence import Evidence
from nocap.study.plan import StudyPlan, all_sessions, ask, check_budget, compose_trials, shorter, steps_for, with_lengths, with_steps
from nocap.study.registration import register
from nocap.study.sessions import SessionError, run_all

Log = Callable[[str], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class TuningTrial:
    arm: str
    words: list[str]  # its overrides, by the name that results have had
    seeds: list[int]
    val_loss: float | None  # mean over the seeds; null where a seed diverged or was not run
    picked: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Tuned:
    """What the search before a study found."""

    overrides: dict[str, list[str]] = field(default_factory=dict)  # arm → the winner's
    trials: list[TuningTrial] = field(default_factory=list)
    follow: dict[str, str] = field(default_factory=dict)

    def n_trials(self, arm: str) -> int:
        return sum(trial.arm == self.follow.get(arm, arm) for trial in self.trials)


@dataclass(kw_only=True)
class Done:
    """What there is after a study was carried out, or as far as it was."""

    evidence: Evidence
    tuned: Tuned
    arms: dict[str, dict[str, Composed]]  # place (`train` or `bench`) → arm → how it was composed there
    problems: list[str] = field(default_factory=list)  # sessions that failed, records that cannot be read whole


def carry_out(plan: StudyPlan, *, run: bool, budget_h: float | None = None, only: str | None = None, log: Log = print) -> Done:
    """Train and measure what is missing, or with `run=False` only collect what there is. `only`: this arm's runs, and no session.

    Errors:
        ValueError: an invalid run, or no budget where the scale needs one.
        cells.StoppedError: somebody asked to stop; everything that finished is kept.
        cells.FailedError, sessions.SessionError: a run or the pilot failed that all else depends on.
    """
    check_budget(plan, budget_h)
    if run:
        register(plan.folder, plan.claims)
    if plan.needs_budget and budget_h is not None:
        plan = _within_budget(plan, budget_h, run=run, log=log)
    problems: list[str] = []
    tuned = _tune(plan, run=run, problems=problems, only=only)
    arms = {name: more(arm, *tuned.overrides.get(name, [])) for name, arm in plan.train.items() if only in (None, name)}
    evidence = _train(plan, arms, run=run, problems=problems) if arms else Evidence()
    if only is None:
        evidence = replace(evidence, **_measure(plan, arms, run=run, problems=problems, log=log))
    return Done(evidence=evidence, tuned=tuned, arms={"train": arms, "bench": plan.bench}, problems=problems)


def _within_budget(plan: StudyPlan, budget_h: float, *, run: bool, log: Log) -> StudyPlan:
    """The arms with as many steps as the hours allow, from a short timing. The number is kept: the same command goes on with the same runs.

    Errors:
        ValueError: a budget too small for a step, or one to judge that nothing was run with.
    """
    path = plan.folder / f"budget-{budget_h:g}h.json"
    kept = read_json(path)
    if kept is None:
        require(run, "budget_h", "be one that the study was begun with, to be judged", budget_h)
        log(f"timing the arms, to spread {budget_h:g} h")
        pilots = all_sessions(plan, plan.train)["pace"] or ask("steps", "pace", plan.study.seeds[0], plan.train, rounds=1)
        measured = run_all(pilots[:1], plan.folder, log=log)[0]["measured"]["arms"]
        steps = steps_for(plan, {arm: 1 / seen["tokens_per_s"] for arm, seen in measured.items()}, budget_h)
        kept = {"budget_h": budget_h, "steps": steps}
        write_json(path, kept)
    log(f"{budget_h:g} h are {kept['steps']} steps a run")
    return with_steps(plan, kept["steps"])


def _tune(plan: StudyPlan, *, run: bool, problems: list[str], only: str | None = None) -> Tuned:
    """Train the trials that are missing, and pick each arm's best mean final loss. A trial that diverged is the worst; one that was not run
    picks nothing. `only`: of this arm's search.

    Errors:
        ValueError: an arm of which every trial diverged.
        FailedError: a trial has a run that neither finished nor diverged.
    """
    tune = plan.study.tune
    if tune is None or not plan.train:
        return Tuned()
    trials = {arm: of for arm, of in tune.trials.items() if only is None or arm == tune.follow.get(only, only)}
    named = {name: one for name, one in compose_trials(plan.study, plan.train).items() if name.rpartition(", trial ")[0] in trials}
    cells = Cells(wanted(named, tune.seeds), label="tuning")
    if run:
        cells.train()
    losses: dict[str, list[float]] = {name: [] for name in named}
    for one, record in cells.records(problems):
        losses[one.arm].append(math.inf if record.val_loss is None or record.status == "diverged" else record.val_loss)
    found = Tuned(follow=dict(tune.follow))
    for arm, of in trials.items():
        means = [fmean(seen) if len(seen := losses[f"{arm}, trial {i}"]) == len(tune.seeds) else math.nan for i in range(1, len(of) + 1)]
        missing = any(map(math.isnan, means))
        if run and missing:
            raise FailedError(f"the search of {arm} has runs that failed, and picks nothing")
        if run and not any(map(math.isfinite, means)):
            raise ValueError(f"tune.trials.{arm} must have a trial that does not diverge, got {len(of)} that all did")
        best = None if missing or not any(map(math.isfinite, means)) else means.index(min(means))
        for i, (overrides, mean) in enumerate(zip(of, means, strict=True)):
            loss = mean if math.isfinite(mean) else None
            found.trials.append(TuningTrial(arm=arm, words=overrides, seeds=tune.seeds, val_loss=loss, picked=i == best))
        if best is not None:
            found.overrides[arm] = of[best]
    found.overrides.update({arm: found.overrides[other] for arm, other in tune.follow.items() if other in found.overrides})
    return found


def _train(plan: StudyPlan, arms: Mapping[str, Composed], *, run: bool, problems: list[str]) -> Evidence:
    """The runs of whole length, then the shorter ones, which begin from those where they can."""
    plans = {arm: shorter(plan, arms[arm]) for arm in with_lengths(plan) if arm in arms}
    branches = {arm: [short.branches_at for short in shorts if short.branches_at] for arm, shorts in plans.items()}
    whole = {name: more(arm, f"trainer.keep_steps={branches[name]}") if branches.get(name) else arm for name, arm in arms.items()}
    cells = Cells(wanted(whole, plan.study.seeds), label=plan.study.name)
    if run:
        cells.train()
    runs = {(one.arm, one.seed): record for one, record in cells.records(problems)}
    shorts = [branch for (arm, seed), record in runs.items() for short in plans.get(arm, []) if (branch := short.of(arm, seed, record))]
    found: dict[tuple[str, int], dict[int, Record]] = {}
    if shorts:
        cells = Cells(shorts, label=f"{plan.study.name}, shorter:")
        if run:
            cells.train()
        for one, record in cells.records(problems):
            found.setdefault((one.arm, one.seed), {})[one.composed.run.trainer.steps] = record
    lengths = {arm: tuple(short.composed.run.trainer.steps for short in of) for arm, of in plans.items()}
    return Evidence(runs=runs, shorter=found, lengths=lengths)


def _measure(plan: StudyPlan, arms: Mapping[str, Composed], *, run: bool, problems: list[str], log: Log) -> dict[str, Any]:
    """Field of the evidence → its sessions that have a result."""
    fields: dict[str, Any] = {}
    for place, sessions in all_sessions(plan, arms).items():
        if run and sessions:
            try:
                run_all(sessions, plan.folder, log=log)
            except SessionError as error:
                problems.append(f"{place}: {error}")
        found = [(one, result) for one in sessions if (result := one.found(plan.folder)) is not None]
        fields[place] = {(next(iter(one.arms)), one.seed) if place == "parts" else one.seed: result for one, result in found}
    return fields
