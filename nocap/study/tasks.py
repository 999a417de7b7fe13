"""What a study needs done, each once: runs to train, sessions to time. A task is done when its
result is there."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace

from nocap.config.compose import Composed
from nocap.config.errors import StoppedError
from nocap.config.override_keys import key_of
from nocap.judge.claim import Rule
from nocap.launch.grid import Cell, Grid
from nocap.launch.plan import Datasets, Plan
from nocap.launch.plan import plan as planned
from nocap.launch.run_result import RunResult
from nocap.launch.runner import Runner
from nocap.launch.seed_request import seed_requests
from nocap.launch.this_machine import ThisMachine
from nocap.sessions.places import BENCH, CURVE, DECODING, PACE, PARTS, PLACES
from nocap.sessions.session import Session
from nocap.store.record import Record, read_record
from nocap.store.record_files import RunStatus, digest, read_ended
from nocap.study.spec import Study, engine_of
from nocap.study.study_plan import StudyPlan, other_lengths

PROFILE_REPEATS = 2  # of a step, in each session


# --- runs -----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Training:
    """A run that a study needs: an arm with a seed."""

    arm: str
    seed: int
    composed: Composed  # with the seed
    plan: Plan
    other_length: int | None = None  # its steps where the schedule has another; None: the arm's own
    # the arm, as records name it, whose loss at another length it is to show
    length_of: str | None = None

    @property
    def steps(self) -> int:
        return self.composed.run.trainer.steps

    def record(self) -> Record | None:
        """Return the record of a run that finished or diverged.

        Errors:
            ValueError: it was changed.
        """
        ended = read_ended(self.plan.run_dir, identity=self.plan.identity)
        if ended is None:
            return None
        return read_record(self.plan.run_dir)


def loss_of(record: Record) -> float:
    """Return the final loss; infinite where it diverged."""
    if record.status == RunStatus.diverged or record.val_loss is None:
        return math.inf
    return record.val_loss


def trainings(
    arms: Mapping[str, Composed],
    seeds: Mapping[int, Sequence[str]],
    *,
    of_other_length: bool = False,
) -> list[Training]:
    """List the runs of arms. `seeds`: seed → arms. `of_other_length`: their schedules have another
    length than the arms' own.

    Errors:
        ValueError: a run that cannot be planned.
    """
    runs = list[Training]()
    datasets = Datasets()
    for seed, names in seeds.items():
        for arm in names:
            if arm not in arms:
                continue
            composed = _with_seed(arms[arm], seed)
            plan = planned(composed.run, choices=composed.choices, datasets=datasets)
            other_length = composed.run.trainer.steps if of_other_length else None
            training = Training(
                arm=arm, seed=seed, composed=composed, plan=plan, other_length=other_length
            )
            runs.append(training)
    return runs


def _with_seed(arm: Composed, seed: int) -> Composed:
    overrides = (*arm.overrides, f"seed={seed}")
    return replace(arm, overrides=overrides, run=replace(arm.run, seed=seed))


def length_trainings(
    plan: StudyPlan, arms: Mapping[str, Composed], seeds: Mapping[str, Sequence[int]]
) -> list[Training]:
    """Return the runs of the baselines at their other lengths. `seeds`: baseline → its seeds.

    Errors:
        ValueError: a run that cannot be planned.
    """
    runs = list[Training]()
    for name, of_arm in seeds.items():
        own = trainings({name: arms[name]}, {of_arm[0]: [name]})
        for length in other_lengths(arms[name]):
            seeds_of_arm = {seed: [name] for seed in of_arm}
            of_length = trainings({name: length}, seeds_of_arm, of_other_length=True)
            runs += [replace(run, length_of=own[0].plan.arm) for run in of_length]
    return runs


def grid_of(runs: Sequence[Training], label: str) -> Grid:
    """Return runs as the cells of a grid, where two arms may be the same run."""
    swept = _swept([run.composed.overrides for run in runs])
    distinct = {run.plan.identity: run for run in reversed(runs)}
    name = f"{label}-{digest(sorted(distinct))[:8]}"
    requests = seed_requests((run.plan.arm, run.plan.run.seed) for run in runs)
    cells = list[Cell]()
    for run in runs:
        if distinct[run.plan.identity] is not run:
            continue
        words = [label, run.arm]
        if run.other_length is not None:
            words.append(f"steps={run.other_length}")
        words.append(f"seed={run.seed}")
        own = replace(requests[run.plan.arm], length_of=run.length_of)
        plan = replace(run.plan, grid=name, swept=swept, request=own)
        cell = Cell(
            overrides=run.composed.overrides, label=" ".join(words), plan=plan, varied=tuple(words)
        )
        cells.append(cell)
    folder = runs[0].plan.run_dir.parents[1] / "grids" / name
    return Grid(name=name, folder=folder, swept=swept, cells=tuple(cells))


def _swept(overrides: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """Return the keys whose overrides are not the same in all runs."""
    common = set.intersection(*map(set, overrides))
    keys = dict[str, None]()
    for words in overrides:
        for word in words:
            if word not in common:
                keys[key_of(word)] = None
    return tuple(keys)


def train(
    runs: Sequence[Training],
    label: str,
    *,
    between: Callable[[], None] = lambda: None,
    watch: Callable[[Cell, str], None] = lambda cell, status: None,
) -> dict[str, RunResult]:
    """Train what is missing, the runs of a seed at once as far as the machine has room, and return
    by identity how each ended. `between` is called before each seed, `watch` with each cell and how
    it ended.

    Errors:
        StoppedError: somebody asked to stop.
    """
    results: dict[str, RunResult] = {}
    if not any(run.plan.end().is_open for run in runs):
        return results
    grid = grid_of(runs, label)
    grid.write()
    with closing(ThisMachine()) as devices:
        for seed in dict.fromkeys(run.seed for run in runs):
            between()
            cells = tuple(cell for cell in grid.cells if cell.plan.run.seed == seed)
            runner = Runner(replace(grid, cells=cells), devices, watch=watch)
            results |= runner.run()
            if runner.stopping:
                raise StoppedError(
                    "stopped; nocap keeps the finished runs; to continue, type the same "
                    "command again"
                )
    return results


# --- sessions -------------------------------------------------------------------------------------


def sessions(plan: StudyPlan, arms: Mapping[str, Composed]) -> list[Session]:
    """List what one repetition of the timing measures. `arms`: as they are trained."""
    study = plan.study
    at = plan.at
    bench = plan.bench

    def of(place: str) -> list[str]:
        kind = PLACES[place].kind
        return study.arms_needing(lambda metric: metric.made_by == kind)

    rounds = {"rounds": at.rounds}
    racing = study.arms_needing(lambda metric: metric.name == "time_to_target_s")
    all_sessions = [
        _session(PACE, arms, racing, rounds),
        _session(BENCH, bench, of(BENCH), rounds),
    ]
    profiled = {*of(PARTS), *_bounding(study)}
    for arm in study.arms:
        if arm in profiled:
            all_sessions.append(_session(PARTS, bench, [arm], {"repeats": PROFILE_REPEATS}))
    all_sessions.append(_session(CURVE, bench, of(CURVE), {"T": at.curve}))
    text = dict[str, object]()
    if at.decode:
        engines = {arm: engine_of(study, at, arm) for arm in of(DECODING)}
        text = {**asdict(at.decode), "engines": engines}
    all_sessions.append(_session(DECODING, bench, of(DECODING), text))
    return [session for session in all_sessions if session.arms]


def _bounding(study: Study) -> list[str]:
    """List the baselines whose profile bounds a claim."""
    return [study.against(claim) for claim in study.claims if claim.mechanism.rule is Rule.amdahl]


def _session(
    place: str, composed: Mapping[str, Composed], names: Collection[str], how: Mapping[str, object]
) -> Session:
    """Return a session of the arms with these names, in their own order: the baseline is the
    first."""
    arms = {arm: config for arm, config in composed.items() if arm in names}
    return Session(place=place, arms=arms, how=how)
