"""A study carried out: its claims registered, what is missing trained and measured, and everything there is collected as evidence."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import fmean
from typing import Any

from nocap.config.compose import Composed
from nocap.config.keys import require
from nocap.store.measurement import Ending
from nocap.store.record import read_json, write_json
from nocap.store.runs import Record
from nocap.study.arms import more
from nocap.study.cells import Cells, FailedError, Wanted, wanted
from nocap.study.evidence import Evidence
from nocap.study.keeper import Keeper
from nocap.study.looks import judge, onward, up_to
from nocap.study.measured import steps_to_target
from nocap.study.plan import (
    Short,
    StudyPlan,
    all_sessions,
    ask,
    check_budget,
    compose_trials,
    halvings,
    shorter,
    steps_for,
    with_lengths,
    with_steps,
)
from nocap.study.sessions import run_all
from nocap.study.sittings import Sittings, places_of
from nocap.study.spec import Tune

Log = Callable[[str], None]
PRINT: Log = partial(print, flush=True)  # a study may then wait for minutes


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
    seeds: list[int]  # that the analyses needed
    problems: list[str] = field(default_factory=list)  # sessions that failed, records that cannot be read whole


def carry_out(plan: StudyPlan, *, run: bool, budget_h: float | None = None, only: str | None = None, log: Log = PRINT) -> Done:
    """Train and measure what is missing, analysis by analysis until each claim is decided, or with `run=False` only collect what there is.
    `only`: this arm's runs, and no session.

    Errors:
        ValueError: an invalid run, a damaged ledger, or no budget where the scale needs one.
        cells.StoppedError: somebody asked to stop; everything that finished is kept.
        cells.FailedError, sessions.SessionError: a run or the pilot failed that all else depends on.
    """
    check_budget(plan, budget_h)
    keeper = Keeper(plan, writes=run)
    if run and not keeper.writes:
        log(f"{plan.study.folder or plan.study.name} cannot be written: nothing is registered, and no README or results are left there")
    keeper.missing()
    keeper.timed()
    if only is None:
        keeper.register()
    if plan.needs_budget and budget_h is not None:
        plan = _within_budget(plan, budget_h, run=run, log=log)
        keeper.budget(budget_h, next(iter(plan.train.values())).run.trainer.steps)
    problems: list[str] = []
    tuned = _tune(plan, keeper, run=run, problems=problems, only=only)
    arms = {name: more(arm, *tuned.overrides.get(name, [])) for name, arm in plan.train.items() if only in (None, name)}
    looks = {claim.id: 1 for claim in plan.study.claims}
    while True:
        part = up_to(plan, looks)
        evidence = _measured(part, arms, keeper, run=run, timed=only is None, problems=problems, log=log)
        for claim in plan.study.claims if only is None else []:
            keeper.look(claim.id, judge(claim, plan.study, plan.scale, evidence))
        further = looks if only else onward(plan, looks, evidence)
        if further == looks:
            break
        if run:
            log(f"not decided, and another analysis follows: {', '.join(name for name in looks if further[name] > looks[name])}")
        looks = further
    done = {"train": arms, "bench": plan.bench}
    return Done(evidence=evidence, tuned=tuned, arms=done, seeds=part.study.needed, problems=list(dict.fromkeys(problems)))


def _measured(
    plan: StudyPlan, arms: Mapping[str, Composed], keeper: Keeper, *, run: bool, timed: bool, problems: list[str], log: Log
) -> Evidence:
    """Train and time what is missing, and collect what there is."""
    places = places_of(plan, arms) if timed else []
    timing = Sittings(places if run else [], problems=problems, log=log)
    try:
        evidence = _train(plan, arms, keeper, run=run, problems=problems, timing=timing, log=log) if arms else Evidence()
        timing.hold_all()
    finally:
        keeper.timed()
    held: dict[str, Any] = {place.name: place.results() for place in places}
    return replace(evidence, apart_min=plan.at.apart_min, **held)


def _within_budget(plan: StudyPlan, budget_h: float, *, run: bool, log: Log) -> StudyPlan:
    """The arms with as many steps as the hours allow, from a short timing, which belongs to the first sitting. The number is kept: the same
    command goes on with the same runs.

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


def _tune(plan: StudyPlan, keeper: Keeper, *, run: bool, problems: list[str], only: str | None = None) -> Tuned:
    """Train the trials that are missing, and pick each arm's best mean final loss. A trial that diverged is the worst; one that was not run
    picks nothing. `only`: of this arm's search.

    Errors:
        ValueError: an arm of which every trial diverged.
        FailedError: a trial has a run that neither finished nor diverged.
    """
    tune = plan.study.tune
    if tune is None or not plan.train:
        return Tuned()
    leaders = [arm for arm in tune.trials if only is None or arm == tune.follow.get(only, only)]
    ends = _trials(plan, tune, leaders, keeper, run=run, problems=problems)
    found = Tuned(follow=dict(tune.follow))
    for arm, of in ends.items():
        missing = any(math.isnan(loss) for loss in of)
        losses = [loss for loss in of if math.isfinite(loss)]
        if run and missing:
            raise FailedError(f"the search of {arm} has runs that failed, and picks nothing")
        if run and not losses:
            raise ValueError(f"tune.trials.{arm} must have a trial that does not diverge, got {len(of)} that all did")
        best = None if missing or not losses else of.index(min(losses))
        for i, (words, loss) in enumerate(zip(tune.trials[arm], of, strict=True)):
            known = loss if math.isfinite(loss) else None
            found.trials.append(TuningTrial(arm=arm, words=words, seeds=tune.seeds, val_loss=known, picked=i == best))
        if best is not None:
            found.overrides[arm] = tune.trials[arm][best]
    found.overrides.update({arm: found.overrides[other] for arm, other in tune.follow.items() if other in found.overrides})
    return found


def _trials(plan: StudyPlan, tune: Tune, arms: Sequence[str], keeper: Keeper, *, run: bool, problems: list[str]) -> dict[str, list[float]]:
    """Arm → the mean loss over the seeds of each of its trials; infinite where one diverged, nan where one is missing."""
    named = {name: one for name, one in compose_trials(plan.study, plan.train).items() if name.rpartition(", trial ")[0] in arms}
    cells = Cells(wanted(named, {seed: list(named) for seed in tune.seeds}), label="tuning")
    losses: dict[str, list[float]] = {name: [] for name in named}
    for one, record in _records(cells, keeper, run=run, problems=problems):
        losses[one.arm].append(math.inf if record.val_loss is None or record.status == "diverged" else record.val_loss)
    mean = {name: fmean(seen) if len(seen) == len(tune.seeds) else math.nan for name, seen in losses.items()}
    return {arm: [mean[f"{arm}, trial {i}"] for i in range(1, len(tune.trials[arm]) + 1)] for arm in arms}


def _records(
    cells: Cells, keeper: Keeper, *, run: bool, problems: list[str], before_seed: Callable[[], None] | None = None
) -> list[tuple[Wanted, Record]]:
    """Of the runs that have a result, after those that had none were trained."""
    try:
        if run:
            cells.train(before_seed, watch=keeper.watch)
    finally:
        found = cells.records(problems)
        keeper.ran(found)
    return found


def _train(
    plan: StudyPlan, arms: Mapping[str, Composed], keeper: Keeper, *, run: bool, problems: list[str], timing: Sittings, log: Log = PRINT
) -> Evidence:
    """The runs of whole length, then the shorter ones, which begin from those where they can, then those that a race goes on to. Timing is
    held in between."""
    plans = {arm: shorter(plan, arms[arm]) for arm in with_lengths(plan) if arm in arms}
    branches = {arm: [short.branches_at for short in shorts if short.branches_at] for arm, shorts in plans.items()}
    whole = {name: more(arm, f"trainer.keep_steps={branches[name]}") if branches.get(name) else arm for name, arm in arms.items()}

    damaged = set[tuple[str, int]]()

    def trained(runs: list[Wanted], label: str) -> list[tuple[Wanted, Record]]:
        before, cells = timing.hold_due if timing.waiting() else None, Cells(runs, label=label)
        records = _records(cells, keeper, run=run, problems=problems, before_seed=before)
        damaged.update(cells.damaged)
        return records

    runs = {(one.arm, one.seed): record for one, record in trained(wanted(whole, plan.study.made_by("train")), plan.study.name)}
    found = Evidence(runs=runs, damaged=frozenset(damaged), lengths={arm: tuple(short.steps for short in of) for arm, of in plans.items()})
    while plans:
        shorts = [branch for (arm, seed), record in runs.items() for short in plans.get(arm, []) if (branch := short.of(arm, seed, record))]
        ends: dict[tuple[str, int], dict[int, Record]] = {key: dict(of) for key, of in found.shorter.items()}
        for one, record in trained(shorts, f"{plan.study.name}, shorter:") if shorts else []:
            ends.setdefault((one.arm, one.seed), {})[one.short] = record
        found = replace(found, shorter=ends)
        plans = _next_lengths(plan, arms, found)
        lengths = {arm: (*(short.steps for short in of), *found.lengths[arm]) for arm, of in plans.items()}
        found = replace(found, lengths={**found.lengths, **lengths})
        for arm, (steps, *_) in lengths.items() if run else ():
            log(f"{arm} reaches the loss of its race in its shortest schedule: {steps} steps are next")
    return found


def _next_lengths(plan: StudyPlan, arms: Mapping[str, Composed], found: Evidence) -> dict[str, list[Short]]:
    """Arm → the next shorter schedule, of each that ended a race below the loss at its shortest. None where a run is missing."""
    next_ = {}
    for claim in plan.study.claims:
        sides = (claim.arm, plan.study.against(claim))
        if not claim.races or any(arm not in arms for arm in sides):
            continue
        for (arm, _), (_, ending) in steps_to_target(claim, plan.study, found).items():
            shares = halvings(plan.at)[len(found.lengths[arm]) - len(plan.at.lengths) :]
            if ending is Ending.at_most and shares:
                next_[arm] = shorter(plan, arms[arm], shares[:1])
    return next_
