"""What a study would run and cost, for `--plan`, before anything is trained."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from nocap.config.compose import Composed
from nocap.config.keys import flat
from nocap.judge.cautious_interval import pooled
from nocap.judge.claim import Claim
from nocap.judge.equal_loss import SHARES
from nocap.judge.gain import width_of
from nocap.judge.interval import LEAST_PAIRS, analyses, analysis_of
from nocap.judge.power import (
    POWER,
    NoiseAtEqualLoss,
    detectable_by_claim,
    detectable_time,
    noise_at_equal_loss,
)
from nocap.launch.baseline_lengths import cost_of
from nocap.metrics import METRICS
from nocap.report.table import Column, Table
from nocap.report.terminal import prose
from nocap.sessions.foresight import records_in
from nocap.sessions.grid_plan import of_grid
from nocap.sessions.places import TRAIN
from nocap.store.record import Record
from nocap.store.record_files import RunStatus
from nocap.study.carry_out import up_to
from nocap.study.claim_words import expected
from nocap.study.conductor import seeds_of
from nocap.study.spec import Study
from nocap.study.study_plan import StudyPlan, compose_trials, shorter
from nocap.study.tasks import Training, grid_of, length_trainings, sessions, trainings

SESSIONS = [Column(title=name) for name in ("sessions", "of", "count", "done")]


def render(plan: StudyPlan) -> str:
    """Return a text of all runs and sessions of a study's first analyses, what they cost, and what
    its claims can show with their seeds.

    Errors:
        FailedError: the first arm cannot be timed.
    """
    first = up_to(plan, {claim.id: 1 for claim in plan.study.claims})
    study = first.study
    runs = _runs(first)
    lines = [prose(f"{study.name}, scale {plan.scale}: {study.question}")]
    if runs:
        lengths = length_trainings(plan, plan.train, study.seeds_of_lengths)
        lines += [_grid([*runs, *lengths], study), ""]
    lines += map(prose, _lengths(plan, study))
    lines += _sessions(first)
    lines += map(prose, _analyses(plan, study))
    own = [run for run in runs if run.arm in plan.train]
    noise = sigma(_records(own))
    shown = f"{noise:.4f}, measured" if noise else "not known yet"
    lines += ["", prose(f"sigma (standard deviation) of one run's final loss: {shown}")]
    others = list[Record]()
    if study.seeds_of_lengths:
        others = records_in(plan.folder.parents[2])
    for claim in plan.study.claims:
        lines.append(prose(_power(claim, plan, noise, others), hang=2))
    return "\n".join(lines)


def _runs(first: StudyPlan) -> list[Training]:
    """List the runs of the first analyses: trials of a search, arms, and shorter schedules of those
    that race."""
    study = first.study
    trials = compose_trials(study, first.train)
    short = dict[str, Composed]()
    for arm in study.racing_arms:
        for composed in shorter(first, first.train[arm]):
            short[f"{arm} at {composed.run.trainer.steps} steps"] = composed
    names = {seed: [*arms, *short] for seed, arms in seeds_of(study).items()}
    for seed in study.tune.seeds:
        names[seed] = list(trials)
    return trainings({**trials, **first.train, **short}, names)


def _grid(runs: Sequence[Training], study: Study) -> str:
    """Return the plan of these runs as a grid."""
    lengths_by = "this study" if study.seeds_of_lengths else None
    return of_grid(grid_of(runs, study.name), lengths_by=lengths_by)


def _lengths(plan: StudyPlan, study: Study) -> Iterator[str]:
    """Say what the baselines' other lengths cost, which claims about the time at equal loss
    need."""
    for arm, seeds in study.seeds_of_lengths.items():
        steps = plan.train[arm].run.trainer.steps
        cost = cost_of(arm, steps, len(SHARES) * len(seeds))
        yield f"equal loss: {cost}"


def _sessions(first: StudyPlan) -> Iterator[str]:
    """Say which sessions there are to time, and how many of each are done."""
    count = first.at.sessions
    rows = list[list[str]]()
    for session in sessions(first, first.train):
        paths = [session.path(first.folder, number) for number in range(1, count + 1)]
        done = sum(path.exists() for path in paths)
        rows.append([session.name, ", ".join(session.arms), str(count), str(done)])
    if rows:
        yield str(Table(title="", columns=SESSIONS, rows=rows))
        yield f"time between sessions: {first.at.apart_min:g} minutes"


def _analyses(plan: StudyPlan, study: Study) -> Iterator[str]:
    """Say how many analyses may follow the first. `study`: with the claims of the first."""
    last = analysis_of(len(plan.study.seeds))
    pairs = len(study.claims[0].seeds)
    if last > 1:
        yield (
            f"analysis 1 has {pairs} pairs; a claim that it does not decide gets more pairs, "
            f"in at most {last} analyses"
        )


def _records(runs: Iterable[Training]) -> Iterator[tuple[str, Record]]:
    """Yield the arm and the record of each run that has ended."""
    for run in runs:
        record = run.record()
        if record is not None:
            yield run.arm, record


def sigma(runs: Iterable[tuple[str, Record]]) -> float | None:
    """Return the standard deviation of one run's final loss between seeds, pooled within arms;
    `None`: there are too few runs."""
    groups: dict[str, list[float]] = {}
    for arm, run in runs:
        if run.val_loss is not None and run.status == RunStatus.finished:
            groups.setdefault(arm, []).append(run.val_loss)
    noise = pooled(list(groups.values()))
    if noise is None or noise.df < LEAST_PAIRS:
        return None
    return noise.sd


def _power(claim: Claim, plan: StudyPlan, noise: float | None, others: Sequence[Record]) -> str:
    """Say what a claim expects, and what it can see of a loss and of a time at equal loss with all
    its seeds. `others`: runs that may tell the noise of the latter."""
    line = f"{claim.id}: {claim.metric} of {claim.arm}, expected {expected(claim)}"
    if claim.metrics[0].made_by == TRAIN:  # sessions are in the table
        line += f", n={len(claim.seeds)}"
    if noise and any(metric.name == "val_loss" for metric in claim.metrics):
        width = width_of(METRICS["val_loss"], plan.at.noise.get("val_loss"))
        visible = detectable_by_claim(noise * 2**0.5, len(claim.seeds), width=width)
        line += f"; a loss difference of {visible:.4f} is shown with a power of {POWER:g}"
    if claim.at_equal_loss:
        line += _time_shown(claim, plan, others)
    return line


def _time_shown(claim: Claim, plan: StudyPlan, others: Sequence[Record]) -> str:
    """Say which time at equal loss a claim can see; nothing where no runs tell its noise."""
    base = plan.study.against(claim)
    (run,) = trainings(plan.train, {claim.seeds[0]: [base]})
    config = dict(flat(run.plan.identity_parts["config"]))
    noise = noise_at_equal_loss(others, config)
    if not isinstance(noise, NoiseAtEqualLoss):
        return ""
    look = analysis_of(len(claim.seeds))
    gain = detectable_time(noise, analyses()[look - 1], levels=1, look=look)
    if not math.isfinite(gain):
        return ""
    return (
        f"; a time of {1 - gain:.3g} of the baseline's or less is shown with a power of {POWER:g}"
    )
