"""Train what a study misses, time what is due, and collect what there is as evidence."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from itertools import chain, product
from statistics import fmean

from nocap.config.compose import Composed
from nocap.config.errors import FailedError, StoppedError
from nocap.display import duration
from nocap.launch.run_result import RunResult
from nocap.sessions.places import PLACES, TRAIN
from nocap.sessions.session import Session
from nocap.sessions.session_file import SessionFile
from nocap.store.record import Record
from nocap.store.record_files import ENDED, RunStatus
from nocap.study.arm_facts import TuningTrial
from nocap.study.evidence import Evidence, places
from nocap.study.log_writer import LogWriter
from nocap.study.spec import Study
from nocap.study.study_plan import StudyPlan, compose_trials, more, shorter, trials_of
from nocap.study.tasks import Training, length_trainings, loss_of, sessions, train, trainings

Records = list[tuple[Training, Record]]
ByRun = dict[tuple[str, int], Record]  # (arm, seed) → its record
ByLength = dict[tuple[str, int], dict[int, Record]]  # (arm, seed) → steps → the run of so many


class Conductor:
    """The conductor of a study at one scale on this machine."""

    def __init__(
        self,
        plan: StudyPlan,
        writer: LogWriter,
        *,
        may_run: bool,
        say: Callable[[str], None],
        files: Sequence[SessionFile],
    ) -> None:
        self.plan = plan
        self.writer = writer
        self.may_run = may_run
        self.say = say
        self.files = files
        self.problems: list[str] = []
        self.failed: set[str] = set()  # places of which a session failed: they have no more
        self.damaged: set[tuple[str, int]] = set()  # (arm, seed)

    # --- the search before a study ----------------------------------------------------------------

    def tune(self) -> list[TuningTrial]:
        """Train the trials that are missing, and pick each arm's best mean final loss; null where a
        seed diverged or was not run.

        Errors:
            FailedError: an arm of which a trial has a run that failed, or every trial diverged.
        """
        tune = self.plan.study.tune
        composed = compose_trials(self.plan.study, self.plan.train)
        runs = trainings(composed, {seed: list(composed) for seed in tune.seeds})
        losses = {(run.arm, run.seed): loss_of(record) for run, record in self._train(runs)}
        trials = list[TuningTrial]()
        for arm in tune.trials:
            if arm in self.plan.train:
                trials += self._pick(arm, losses)
        return trials

    def _pick(self, arm: str, losses: Mapping[tuple[str, int], float]) -> list[TuningTrial]:
        """Return an arm's trials, the best of them picked."""
        seeds = self.plan.study.tune.seeds
        listed = trials_of(self.plan.study, arm)
        means = dict[str, float]()
        for name in listed:
            means[name] = fmean(losses.get((name, seed), math.nan) for seed in seeds)
        best = min(means, key=means.__getitem__)
        is_complete = not any(map(math.isnan, means.values()))
        picks = is_complete and math.isfinite(means[best])
        if self.may_run and not picks:
            why = "a run of the search failed, or all trials diverged"
            raise FailedError(f"the search (tune) of arm {arm} has no result: {why}")
        trials = list[TuningTrial]()
        for name, words in listed.items():
            mean = means[name]
            trial = TuningTrial(
                arm=arm,
                words=words,
                seeds=seeds,
                val_loss=mean if math.isfinite(mean) else None,
                picked=picks and name == best,
            )
            trials.append(trial)
        return trials

    # --- what there is of a study -----------------------------------------------------------------

    def measure(self, plan: StudyPlan, trials: Sequence[TuningTrial]) -> Evidence:
        """Train and time what is missing, and return what there is."""
        picked = {trial.arm: trial.words for trial in trials if trial.picked}
        arms = {name: more(arm, *picked.get(name, ())) for name, arm in plan.train.items()}
        schedules = dict[str, list[Composed]]()
        for name in plan.study.racing_arms:
            if name in arms:
                schedules[name] = shorter(plan, arms[name])
        group = sessions(plan, arms)
        due = partial(self._hold, plan, group, wait=False)
        runs, other_lengths = self._train_arms(plan, arms, due)
        of_shorter = self._train_shorter(plan, schedules, runs, due)
        self._hold(plan, group, wait=True)
        return Evidence(
            runs=runs,
            shorter=of_shorter,
            other_lengths=other_lengths,
            damaged=frozenset(self.damaged),
            sessions=self._files(plan, group, arms),
            arms=_by_place(plan, arms, schedules),
        )

    def _train_arms(
        self, plan: StudyPlan, arms: Mapping[str, Composed], due: Callable[[], None]
    ) -> tuple[ByRun, ByLength]:
        """Return the runs of the arms, and those of the baselines' other lengths. They are trained
        in one grid, whose comparison then tells the time at equal loss, too."""
        runs: ByRun = {}
        other_lengths: ByLength = {}
        needed = trainings(arms, seeds_of(plan.study))
        needed += length_trainings(plan, arms, plan.study.seeds_of_lengths)
        for run, record in self._train(needed, due):
            if run.length_of is None:
                runs[run.arm, run.seed] = record
            else:
                other_lengths.setdefault((run.arm, run.seed), {})[run.steps] = record
        return runs, other_lengths

    def _train_shorter(
        self,
        plan: StudyPlan,
        schedules: Mapping[str, Sequence[Composed]],
        runs: ByRun,
        due: Callable[[], None],
    ) -> ByLength:
        """Return the shorter runs of the arms that race. Nothing is learnt from those of an arm and
        seed that diverged."""
        records: ByLength = {}
        for key, record in runs.items():
            if record.status != RunStatus.diverged:
                records[key] = {}
        needed = list[Training]()
        for of_length in zip(*schedules.values(), strict=True):
            arms = dict(zip(schedules, of_length, strict=True))
            for run in trainings(arms, seeds_of(plan.study), of_other_length=True):
                if (run.arm, run.seed) in records:
                    needed.append(run)
        for run, record in self._train(needed, due):
            records[run.arm, run.seed][run.steps] = record
        return records

    # --- runs -------------------------------------------------------------------------------------

    def _train(
        self, runs: Sequence[Training], between: Callable[[], None] = lambda: None
    ) -> Records:
        """Train the runs that have no record; return all that have one. `between` is called before
        each seed."""
        try:
            if self.may_run:
                results = train(runs, self.plan.study.name, between=between)
                self.problems += _failures(runs, results)
        finally:
            records = self._read(runs)
        return records

    def _read(self, runs: Sequence[Training]) -> Records:
        """Read the records of runs, also of those that something else trained, and log them."""
        records = Records()
        if self.files:
            return records  # those that are here are of another machine
        for run in runs:
            try:
                record = run.record()
            except ValueError as error:
                self.problems.append(f"{RunStatus.damaged}: {error}")
                self.damaged.add((run.arm, run.seed))
                continue
            if record is not None:
                records.append((run, record))
        self.writer.add_runs(records)
        return records

    # --- sessions ---------------------------------------------------------------------------------

    def _files(
        self, plan: StudyPlan, group: Sequence[Session], arms: Mapping[str, Composed]
    ) -> dict[str, list[SessionFile]]:
        """Return the files of sessions by their places, and log them."""
        files: dict[str, list[SessionFile]] = {place: [] for place in PLACES}
        for file in self.files:
            files[file.place].append(file)
        for session in group:
            if not self.files:
                files[session.place] += session.results(plan.folder)
        self.writer.add_sessions(chain(*files.values()), arms)
        return files

    def _hold(self, plan: StudyPlan, group: Sequence[Session], *, wait: bool) -> None:
        """Hold the sessions that are due, or all that are left. A place of which one fails has no
        more."""
        if not self.may_run:
            return
        for number, session in product(range(1, plan.at.sessions + 1), group):
            if session.path(plan.folder, number).exists() or session.place in self.failed:
                continue
            due_in_s = _due_in_s(plan, group, number)
            if due_in_s > 0 and not wait:
                return
            try:
                self._wait(due_in_s)
                self._time(session, number)
            except FailedError as error:
                self.problems.append(str(error))
                self.failed.add(session.place)
            except KeyboardInterrupt as stop:
                raise StoppedError(
                    "stopped; nocap keeps the finished runs and sessions; to continue, type "
                    "the same command again"
                ) from stop

    def _wait(self, due_in_s: float) -> None:
        """Wait until the next session is due."""
        if due_in_s > 0:
            apart = f"sessions of timing are {self.plan.at.apart_min:g} minutes apart"
            self.say(f"waiting {duration(due_in_s)}: {apart}")
            time.sleep(due_in_s)

    def _time(self, session: Session, number: int) -> None:
        """Hold a session, and say how long it took."""
        began = time.monotonic()
        session.run(self.plan.folder, number)
        seconds = time.monotonic() - began
        self.say(f"{session.name}, session {number}: {', '.join(session.arms)}  {seconds:.0f} s")


def _by_place(
    plan: StudyPlan, arms: Mapping[str, Composed], schedules: Mapping[str, Sequence[Composed]]
) -> dict[str, dict[str, list[Composed]]]:
    """Return place → arm → as it is composed there: where it is trained, shorter ones too."""
    composed = dict[str, dict[str, list[Composed]]]()
    for name, place in PLACES.items():
        of_place = arms if place.as_trained else plan.bench
        composed[name] = {arm: [of_place[arm]] for arm in of_place}
    composed[TRAIN] = {arm: [arms[arm], *schedules.get(arm, ())] for arm in arms}
    return composed


def _failures(runs: Sequence[Training], results: Mapping[str, RunResult]) -> Iterator[str]:
    """Name each run that came to no end. A damaged one is named where it is read."""
    for run in runs:
        result = results.get(run.plan.identity)
        if result is not None and result.status not in (*ENDED, RunStatus.damaged):
            steps = f", {run.other_length} steps" if run.other_length is not None else ""
            yield f"{run.arm}, seed {run.seed}{steps}: {result.status}, {result.reason}"


def seeds_of(study: Study) -> dict[int, list[str]]:
    """Return, for each seed, the arms that a claim about trained runs needs with it."""
    needed = dict[int, list[str]]()
    for seed in study.seeds:
        arms = set[str]()
        for claim in study.claims:
            if TRAIN in places(claim) and seed in claim.seeds:
                arms.update(study.sides(claim))
        if arms:
            needed[seed] = [arm for arm in study.arms if arm in arms]
    return needed


def _due_in_s(plan: StudyPlan, group: Sequence[Session], number: int) -> float:
    """Return the seconds until these sessions with this number are due; below 0: they are."""
    ends = list[datetime]()
    for session in group:
        for file in session.results(plan.folder):
            if file.number < number:
                ends.append(datetime.fromisoformat(file.ended))
    if not ends:
        return -math.inf
    passed = datetime.now().astimezone() - max(ends)
    return 60 * plan.at.apart_min - passed.total_seconds()
