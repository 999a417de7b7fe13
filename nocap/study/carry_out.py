"""A study is carried out: its claims are registered, what is missing is trained and timed, and
everything there is becomes its evidence."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from itertools import chain, product
from pathlib import Path
from statistics import fmean

from nocap.config import hardware
from nocap.config.compose import Composed
from nocap.config.errors import FailedError, StoppedError
from nocap.display import duration
from nocap.judge.claim import Claim
from nocap.judge.interval import analyses, analysis_of
from nocap.judge.verdict import Reason, Verdict
from nocap.launch.run_result import RunResult
from nocap.sessions.places import PLACES, TRAIN
from nocap.sessions.session import Session
from nocap.sessions.session_file import SessionFile
from nocap.store.record import Record
from nocap.store.record import number as number_of
from nocap.store.record_files import ENDED, RunStatus
from nocap.study.claim_measurements import verdict_of
from nocap.study.evidence import Evidence, places
from nocap.study.log import (
    FILE,
    AnalysisLine,
    LogLine,
    RegistrationLine,
    RunLine,
    SessionLine,
    append,
    read_log,
    writable,
)
from nocap.study.registration import Provenance, content_of, provenance_of, registrations
from nocap.study.spec import Study
from nocap.study.study_folder import FILE as STUDY
from nocap.study.study_plan import StudyPlan, compose_trials, more, shorter, trials_of
from nocap.study.study_schema import TuningTrial
from nocap.study.tasks import Training, length_trainings, loss_of, sessions, train, trainings

PRINT: Callable[[str], None] = partial(print, flush=True)  # a study may then wait for minutes
Records = list[tuple[Training, Record]]
ByRun = dict[tuple[str, int], Record]  # (arm, seed) → its record
ByLength = dict[tuple[str, int], dict[int, Record]]  # (arm, seed) → steps → the run of so many


@dataclass(kw_only=True)
class StudyOutcome:
    """What there is after a study was carried out, or as far as it was."""

    plan: StudyPlan  # of the last analyses
    evidence: Evidence
    provenances: dict[str, Provenance]  # claim → what its study's log says
    trials: list[TuningTrial] = field(default_factory=list)  # of the search
    # sessions that failed, records that cannot be read whole
    problems: list[str] = field(default_factory=list)


def carry_out(
    plan: StudyPlan,
    *,
    run: bool,
    log: Callable[[str], None] = PRINT,
    files: Sequence[SessionFile] = (),
) -> StudyOutcome:
    """Train and time what is missing, analysis by analysis until each claim is decided, or with
    `run=False` only collect what there is. `files`: sessions from elsewhere, which are all that
    counts then: nothing runs here.

    Errors:
        ValueError: an invalid run, a damaged log.
        StoppedError: somebody asked to stop; everything that finished is kept.
        FailedError: a run failed that all else depends on.
    """
    conductor = _Conductor(plan, run=run and not files, log=log, files=files)
    conductor.register()
    trials = conductor.tune()
    numbers = {claim.id: 1 for claim in plan.study.claims}  # of the next analysis of each
    most = analysis_of(len(plan.study.seeds))
    while True:
        part = up_to(plan, numbers)
        evidence = conductor.measure(part, trials)
        verdicts = dict[str, Verdict]()
        for claim in part.study.claims:
            verdicts[claim.id] = verdict_of(claim, part.study, plan.scale, evidence)
        provenances = conductor.analyse(part, evidence, verdicts)
        undecided = list[str]()
        for claim in part.study.claims:
            # more seeds say nothing of what is timed
            may_go_on = TRAIN in places(claim) and numbers[claim.id] < most
            if may_go_on and verdicts[claim.id].is_open and _has_all(evidence, claim, part.study):
                undecided.append(claim.id)
        if not undecided:
            break
        if run:
            log(f"not decided, and another analysis follows: {', '.join(undecided)}")
        for name in undecided:
            numbers[name] += 1
    return StudyOutcome(
        plan=part,
        evidence=evidence,
        provenances=provenances,
        trials=trials,
        problems=list(dict.fromkeys(conductor.problems)),
    )


def _failures(runs: Sequence[Training], results: Mapping[str, RunResult]) -> Iterator[str]:
    """Name each run that came to no end. A damaged one is named where it is read."""
    for run in runs:
        result = results.get(run.plan.identity)
        if result is not None and result.status not in (*ENDED, RunStatus.damaged):
            steps = f", {run.short} steps" if run.short else ""
            yield f"{run.arm}, seed {run.seed}{steps}: {result.status}, {result.reason}"


def _has_all(evidence: Evidence, claim: Claim, study: Study) -> bool:
    """Say whether all runs are there: pairs count in their order, and none is passed over."""
    for arm, seed in product(study.sides(claim), claim.seeds):
        if (arm, seed) not in evidence.runs:
            return False
    if not claim.at_equal_loss:
        return True
    base = study.against(claim)
    return all(evidence.has_lengths(base, seed) for seed in claim.seeds)


def up_to(plan: StudyPlan, numbers: Mapping[str, int]) -> StudyPlan:
    """Return the plan of no more than these analyses need: claim → number of its analysis, from
    1."""
    claims = list[Claim]()
    for claim in plan.study.claims:
        seeds = analyses()[numbers[claim.id] - 1]
        claims.append(replace(claim, seeds=claim.seeds[:seeds]))
    return replace(plan, study=replace(plan.study, claims=claims))


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


def machine_of(plan: StudyPlan, files: Sequence[SessionFile]) -> dict[str, hardware.Fact]:
    """Describe the machine of sessions from elsewhere; where there are none, this one."""
    if files:
        return dict(files[0].hardware)
    return hardware.describe(plan.trainer.device, plan.trainer.threads)


class _Conductor:
    """The conductor of a study at one scale on this machine."""

    def __init__(
        self,
        plan: StudyPlan,
        *,
        run: bool,
        log: Callable[[str], None],
        files: Sequence[SessionFile],
    ) -> None:
        self.plan = plan
        self.run = run
        self.files = files
        self.log = log
        self.problems: list[str] = []
        self.failed: set[str] = set()  # places of which a session failed: they have no more
        self.damaged: set[tuple[str, int]] = set()  # (arm, seed)
        self.path = Path(plan.study.folder) / FILE
        wanted = run or bool(files)
        self.writes = wanted and writable(self.path)
        if wanted and not self.writes:
            consequence = "nothing is registered, and no README or results are left there"
            log(f"{self.path.parent} cannot be written: {consequence}")
        facts = machine_of(plan, files)
        self.machine = str(facts["fingerprint"])

    # --- the log ----------------------------------------------------------------------------------

    def _add(
        self, lines: Sequence[LogLine], *, once: Sequence[str], says: Sequence[str] = ()
    ) -> None:
        if self.writes:
            append(
                self.path,
                lines,
                machine=self.machine,
                scale=self.plan.scale,
                once=once,
                says=says,
            )

    def register(self) -> None:
        """Register the claims before anything of the study runs. A claim whose arms, metric, ends
        or margins changed is another registration."""
        lines = list[RegistrationLine]()
        for name, claim in registrations(self.plan).items():
            lines.append(RegistrationLine(claim=name, hash=claim.hash, subject=claim.subject))
        self._add(lines, once=("hash", "machine"))

    def analyse(
        self, plan: StudyPlan, evidence: Evidence, verdicts: Mapping[str, Verdict]
    ) -> dict[str, Provenance]:
        """Return where each claim stands, and write its verdict where it is new."""
        provenances = self._provenances(plan, evidence)
        lines = list[AnalysisLine]()
        for name, verdict in verdicts.items():
            if verdict.reason is Reason.missing:
                continue
            provenance = provenances[name]
            line = AnalysisLine(
                claim=name,
                hash=provenance.hash,
                number=verdict.primary.analysis,
                n=verdict.n,
                word=verdict.word.value,
                exploratory=provenance.exploratory or "",
            )
            lines.append(line)
        self._add(
            lines, once=("hash", "number", "machine"), says=("claim", "n", "word", "exploratory")
        )
        if not self.writes:
            return provenances
        # now the log has this analysis, too
        return self._provenances(plan, evidence)

    def _provenances(self, plan: StudyPlan, evidence: Evidence) -> dict[str, Provenance]:
        """Return where each claim stands, by the log and by those of the studies beside it."""
        logs = [read_log(self.path)]
        for path in sorted(self.path.parents[1].glob(f"*/{FILE}")):
            if path != self.path and path.with_name(STUDY).exists():
                logs.append(read_log(path))
        provenances = dict[str, Provenance]()
        for claim in plan.study.claims:
            provenances[claim.id] = provenance_of(plan, claim, evidence, logs, machine=self.machine)
        return provenances

    # --- runs -------------------------------------------------------------------------------------

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
        if self.run and not picks:
            why = "one of its runs failed, or all its trials diverged"
            raise FailedError(f"the search of {arm} has no result: {why}")
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

    def _train(
        self, runs: Sequence[Training], between: Callable[[], None] = lambda: None
    ) -> Records:
        """Train the runs that have no record; return all that have one. `between` is called before
        each seed."""
        try:
            if self.run:
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
        lines = [self._run_line(run, record) for run, record in records]
        self._add(lines, once=("content", "seed", "identity", "started"))
        return records

    def _run_line(self, run: Training, record: Record) -> RunLine:
        """Return the log's line of a run."""
        return RunLine(
            arm=run.arm,
            content=content_of(self.plan, run.composed, "train"),
            seed=run.seed,
            short=run.short,
            identity=record.identity,
            status=record.status,
            started=record.started,
            val_loss=record.val_loss,
        )

    # --- all of it --------------------------------------------------------------------------------

    def measure(self, plan: StudyPlan, trials: Sequence[TuningTrial]) -> Evidence:
        """Train and time what is missing, and return what there is."""
        picked = {trial.arm: trial.words for trial in trials if trial.picked}
        arms = {name: more(arm, *picked.get(name, ())) for name, arm in plan.train.items()}
        short = {name: shorter(plan, arms[name]) for name in plan.study.racing_arms if name in arms}
        group = sessions(plan, arms)
        due = partial(self._hold, plan, group, wait=False)
        runs, lengths = self._train_arms(plan, arms, due)
        shorts = self._train_shorter(plan, short, runs, due)
        self._hold(plan, group, wait=True)
        return Evidence(
            runs=runs,
            shorter=shorts,
            lengths=lengths,
            damaged=frozenset(self.damaged),
            sessions=self._files(plan, group, arms),
            arms=_by_place(plan, arms, short),
        )

    def _train_arms(
        self, plan: StudyPlan, arms: Mapping[str, Composed], due: Callable[[], None]
    ) -> tuple[ByRun, ByLength]:
        """Return the runs of the arms, and those of the baselines' other lengths. They are trained
        in one grid, whose comparison then tells the time at equal loss, too."""
        runs: ByRun = {}
        lengths: ByLength = {}
        needed = trainings(arms, seeds_of(plan.study))
        needed += length_trainings(plan, arms, plan.study.seeds_of_lengths)
        for run, record in self._train(needed, due):
            if run.length_of is None:
                runs[run.arm, run.seed] = record
            else:
                lengths.setdefault((run.arm, run.seed), {})[run.short] = record
        return runs, lengths

    def _train_shorter(
        self,
        plan: StudyPlan,
        short: Mapping[str, Sequence[Composed]],
        runs: ByRun,
        due: Callable[[], None],
    ) -> ByLength:
        """Return the shorter runs of the arms that race. Nothing is learnt from those of an arm and
        seed that diverged."""
        shorts: ByLength = {}
        for key, record in runs.items():
            if record.status != RunStatus.diverged:
                shorts[key] = {}
        needed = list[Training]()
        for of_length in zip(*short.values(), strict=True):
            arms = dict(zip(short, of_length, strict=True))
            for run in trainings(arms, seeds_of(plan.study), short=True):
                if (run.arm, run.seed) in shorts:
                    needed.append(run)
        for run, record in self._train(needed, due):
            shorts[run.arm, run.seed][run.short] = record
        return shorts

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
        lines = [self._session_line(file, arms) for file in chain(*files.values())]
        self._add(lines, once=("key", "number", "started"))
        return files

    def _hold(self, plan: StudyPlan, group: Sequence[Session], *, wait: bool) -> None:
        """Hold the sessions that are due, or all that are left. A place of which one fails has no
        more."""
        if not self.run:
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
                    "stopped; finished runs and sessions are kept, and the same command goes on"
                ) from stop

    def _wait(self, due_in_s: float) -> None:
        """Wait until the next session is due."""
        if due_in_s > 0:
            apart = f"sessions of timing are {self.plan.at.apart_min:g} minutes apart"
            self.log(f"waiting {duration(due_in_s)}: {apart}")
            time.sleep(due_in_s)

    def _time(self, session: Session, number: int) -> None:
        """Hold a session, and say how long it took."""
        began = time.monotonic()
        session.run(self.plan.folder, number)
        seconds = time.monotonic() - began
        self.log(f"{session.name}, session {number}: {', '.join(session.arms)}  {seconds:.0f} s")

    def _session_line(self, file: SessionFile, train: Mapping[str, Composed]) -> SessionLine:
        """Return the log's line of a session."""
        place = PLACES[file.place]
        arms = train if place.as_trained else self.plan.bench
        contents = {name: content_of(self.plan, arms[name], file.place) for name in file.arms}
        measured = dict[str, float | None]()
        for name, figures in file.figures.items():
            measured[name] = number_of(getattr(figures, place.logged))
        return SessionLine(
            place=file.place,
            number=file.number,
            key=file.key,
            contents=contents,
            started=file.started,
            measured=measured,
        )


def _by_place(
    plan: StudyPlan, arms: Mapping[str, Composed], short: Mapping[str, Sequence[Composed]]
) -> dict[str, dict[str, list[Composed]]]:
    """Return place → arm → as it is composed there: where it is trained, shorter ones too."""
    composed = dict[str, dict[str, list[Composed]]]()
    for name, place in PLACES.items():
        of_place = arms if place.as_trained else plan.bench
        composed[name] = {arm: [of_place[arm]] for arm in of_place}
    composed[TRAIN] = {arm: [arms[arm], *short.get(arm, ())] for arm in arms}
    return composed
