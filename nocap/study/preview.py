"""What a study would run and cost, for `--plan`, before anything is trained."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from nocap.config.keys import flat
from nocap.judge.cautious import pooled
from nocap.judge.claim import Claim
from nocap.judge.equal_loss import SHARES
from nocap.judge.interval import LEAST_PAIRS, analyses, analysis_of
from nocap.judge.power import (
    POWER,
    NoiseAtEqualLoss,
    detectable_by_claim,
    detectable_time,
    noise_at_equal_loss,
)
from nocap.judge.verdict import width_of
from nocap.launch.lengths import cost_of
from nocap.report.table import Column, Table
from nocap.sessions.foresight import records_in
from nocap.sessions.grid_plan import of_grid
from nocap.store.metrics import METRICS
from nocap.store.runs import Record
from nocap.study.conduct import seeds_of, up_to
from nocap.study.plan import StudyPlan, compose_trials, shorter
from nocap.study.spec import Study
from nocap.study.tasks import Training, grid_of, length_trainings, sessions, trainings
from nocap.study.words import expected

SESSIONS = [Column(title=name) for name in ("sessions", "of", "count", "done")]


def render(plan: StudyPlan) -> str:
    """Of a study: all runs and sessions of its first analyses, and what its claims can see with their seeds.

    Errors:
        FailedError: the first arm cannot be timed.
    """
    part = up_to(plan, {claim.id: 1 for claim in plan.study.claims})
    study, trials = part.study, compose_trials(plan.study, plan.train)
    short = {
        f"{arm} at {composed.run.trainer.steps} steps": composed
        for arm in study.racing
        for composed in shorter(plan, plan.train[arm])
    }
    seeds = {seed: [*arms, *short] for seed, arms in seeds_of(study).items()} | {
        seed: [*trials] for seed in study.tune.seeds
    }
    runs = trainings({**trials, **plan.train, **short}, seeds)
    lengths = length_trainings(plan, plan.train, study.lengthened)
    numbers = range(1, plan.at.sessions + 1)
    rows = [
        [
            session.name,
            ", ".join(session.arms),
            str(len(numbers)),
            str(sum(session.path(plan.folder, n).exists() for n in numbers)),
        ]
        for session in sessions(part, plan.train)
    ]
    noise = sigma((run.arm, record) for run in runs if run.arm in plan.train and (record := run.record()))
    there = records_in(plan.folder.parents[2]) if study.lengthened else []
    last, first = analysis_of(len(plan.study.seeds)), len(study.claims[0].seeds)
    return "\n".join(
        [
            f"{study.name}, scale {plan.scale}: {study.question}",
            *(_runs([*runs, *lengths], study) if runs else []),
            *_lengths(plan, study),
            *(
                [str(Table(title="", columns=SESSIONS, rows=rows)), f"{plan.at.apart_min:g} minutes apart"]
                if rows
                else []
            ),
            *(
                [f"{first} pairs in analysis 1; claims that it does not decide go on, to {last} analyses"]
                if last > 1
                else []
            ),
            f"\nsigma of one run's final loss: {f'{noise:.4f}, measured' if noise else 'not known yet'}",
            *(_power(claim, plan, noise, there) for claim in plan.study.claims),
        ]
    )


def _runs(runs: Sequence[Training], study: Study) -> list[str]:
    lengths_by = "this study" if study.lengthened else None
    return [of_grid(grid_of(runs, study.name), lengths_by=lengths_by), ""]


def _lengths(plan: StudyPlan, study: Study) -> Iterator[str]:
    """Say what the baselines' other lengths cost, which claims about the time at equal loss need."""
    for arm, seeds in study.lengthened.items():
        steps = plan.train[arm].run.trainer.steps
        yield f"equal loss: {cost_of(arm, steps, len(SHARES) * len(seeds))}"


def sigma(runs: Iterable[tuple[str, Record]]) -> float | None:
    """One run's standard deviation of the final loss between seeds, pooled within arms, once there are
    enough."""
    groups: dict[str, list[float]] = {}
    for arm, run in runs:
        if run.val_loss is not None and run.status == "finished":
            groups.setdefault(arm, []).append(run.val_loss)
    noise = pooled(list(groups.values()))
    return noise.sd if noise is not None and noise.df >= LEAST_PAIRS else None


def _power(claim: Claim, plan: StudyPlan, noise: float | None, there: Sequence[Record]) -> str:
    """Say what a claim expects, and what it can see of a loss and of a time at equal loss with all its
    seeds. `there`: runs that may tell the noise of the latter."""
    line = f"{claim.id}: {claim.metric} of {claim.arm}, expected {expected(claim)}"
    # sessions are in the table
    line += f", n={len(claim.seeds)}" if claim.metrics[0].made_by == "train" else ""
    if noise and any(metric.name == "val_loss" for metric in claim.metrics):
        width = width_of(METRICS["val_loss"], plan.at.noise.get("val_loss"))
        visible = detectable_by_claim(noise * 2**0.5, len(claim.seeds), width=width)
        line += f"; a loss difference of {visible:.4f} is shown with a power of {POWER:g}"
    if claim.at_equal_loss:
        line += _time_shown(claim, plan, there)
    return line


def _time_shown(claim: Claim, plan: StudyPlan, there: Sequence[Record]) -> str:
    """Say which time at equal loss a claim can see; nothing where no runs tell its noise."""
    base = plan.study.against(claim)
    (run,) = trainings(plan.train, {claim.seeds[0]: [base]})
    noise = noise_at_equal_loss(there, dict(flat(run.plan.parts["config"])))
    look = analysis_of(len(claim.seeds))
    gain = math.inf
    if isinstance(noise, NoiseAtEqualLoss):
        gain = detectable_time(noise, analyses()[look - 1], levels=1, look=look)
    if not math.isfinite(gain):
        return ""
    return f"; a time of {1 - gain:.3g} of the baseline's or less is shown with a power of {POWER:g}"
