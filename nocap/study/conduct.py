"""A study carried out: its claims registered, what is missing trained and timed, and everything there is
collected as evidence."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from itertools import product
from pathlib import Path
from statistics import fmean

from nocap.config import hardware
from nocap.config.compose import Composed
from nocap.config.errors import FailedError, StoppedError
from nocap.judge.claim import Claim
from nocap.judge.interval import analyses, analysis_of
from nocap.judge.verdict import Reason, Verdict
from nocap.launch.plan import DAMAGED, RunResult
from nocap.sessions.figures import PLACES, TRAIN, SessionFile
from nocap.sessions.session import Session
from nocap.store.formats import duration
from nocap.store.record import ENDED
from nocap.store.runs import Record, number
from nocap.study.evidence import Evidence, places, verdict_of
from nocap.study.log import (
    FILE,
    AnalysisLine,
    LogLine,
    RegistrationLine,
    RunLine,
    SessionLine,
    append,
    read,
    writable,
)
from nocap.study.plan import StudyPlan, compose_trials, more, shorter, trials_of
from nocap.study.registration import Provenance, content_of, provenance, registrations
from nocap.study.schema import TuningTrial
from nocap.study.spec import FILE as STUDY
from nocap.study.spec import Study
from nocap.study.tasks import (
    Training,
    length_trainings,
    loss_of,
    sessions,
    train,
    trainings,
)

PRINT: Callable[[str], None] = partial(print, flush=True)  # a study may then wait for minutes
Records = list[tuple[Training, Record]]


@dataclass(kw_only=True)
class Done:
    """What there is after a study was carried out, or as far as it was."""

    part: StudyPlan  # the plan of the last analyses
    evidence: Evidence
    stands: dict[str, Provenance]  # claim → what its study's log says

    trials: list[TuningTrial] = field(default_factory=list)  # of the search
    # sessions that failed, records that cannot be read whole
    problems: list[str] = field(default_factory=list)


def carry_out(plan: StudyPlan, *, run: bool, log: Callable[[str], None] = PRINT) -> Done:
    """Train and time what is missing, analysis by analysis until each claim is decided, or with `run=False`
    only collect what there is.

    Errors:
        ValueError: an invalid run, a damaged log.
        StoppedError: somebody asked to stop; everything that finished is kept.
        FailedError: a run failed that all else depends on.
    """
    study = _Conductor(plan, run=run, log=log)
    study.register()
    trials = study.tune()
    numbers = {claim.id: 1 for claim in plan.study.claims}  # of the next analysis of each
    most = analysis_of(len(plan.study.seeds))
    further = True
    while further:
        part = up_to(plan, numbers)
        evidence = study.measure(part, trials)
        verdicts = {
            claim.id: verdict_of(claim, part.study, plan.scale, evidence) for claim in part.study.claims
        }
        stands = study.analysed(part, evidence, verdicts)
        open_claims = list[str]()
        for claim in part.study.claims:
            # more seeds say nothing of what is timed
            may_go_on = TRAIN in places(claim) and numbers[claim.id] < most
            if may_go_on and verdicts[claim.id].is_open and _has_all(evidence, claim, part.study):
                open_claims.append(claim.id)
        further = bool(open_claims)
        if run and further:
            log(f"not decided, and another analysis follows: {', '.join(open_claims)}")
        for name in open_claims:
            numbers[name] += 1
    return Done(
        part=part,
        evidence=evidence,
        stands=stands,
        trials=trials,
        problems=list(dict.fromkeys(study.problems)),
    )


def _failures(runs: Sequence[Training], results: Mapping[str, RunResult]) -> Iterator[str]:
    """Name each run that came to no end. A damaged one is named where it is read."""
    for run in runs:
        result = results.get(run.plan.identity)
        if result is not None and result.status not in (*ENDED, DAMAGED):
            steps = f", {run.short} steps" if run.short else ""
            yield f"{run.arm}, seed {run.seed}{steps}: {result.status}, {result.reason}"


def _has_all(evidence: Evidence, claim: Claim, study: Study) -> bool:
    """Ask whether all runs are there: pairs count in their order, and none is passed over."""
    whole = all((arm, seed) in evidence.runs for arm in study.sides(claim) for seed in claim.seeds)
    base = study.against(claim)
    return whole and (
        not claim.at_equal_loss or all(evidence.has_lengths(base, seed) for seed in claim.seeds)
    )


def up_to(plan: StudyPlan, numbers: Mapping[str, int]) -> StudyPlan:
    """Return the plan of no more than these analyses need: claim → number of its analysis, from 1."""
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


def _due_in_s(plan: StudyPlan, asked: Sequence[Session], number: int) -> float:
    """Return the seconds until sessions with this number are due; below 0: they are."""
    ended = list[datetime]()
    for session in asked:
        held = session.results(plan.folder)
        ended += [datetime.fromisoformat(each.ended) for each in held if each.number < number]
    if not ended:
        return -math.inf
    rest = datetime.now().astimezone() - max(ended)
    return 60 * plan.at.apart_min - rest.total_seconds()


class _Conductor:
    """Of a study at one scale on this machine."""

    def __init__(self, plan: StudyPlan, *, run: bool, log: Callable[[str], None]) -> None:
        self.plan = plan
        self.run = run
        self.log = log
        self.problems: list[str] = []
        self.failed: set[str] = set()  # places of which a session failed: they have no more
        self.damaged: set[tuple[str, int]] = set()  # (arm, seed)
        self.path = Path(plan.study.folder) / FILE
        self.writes = run and writable(self.path)
        if run and not self.writes:
            log(
                f"{self.path.parent} cannot be written: nothing is registered, and no README or "
                "results are left there"
            )
        described = hardware.describe(plan.trainer.device, plan.trainer.threads)
        self.machine = str(described["fingerprint"])

    # --- the log --------------------------------------------------------------------------------------------

    def _add(self, lines: Sequence[LogLine], *, once: Sequence[str], says: Sequence[str] = ()) -> None:
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
        """Before anything of the study runs. A claim whose arms, metric, ends or margins changed is another
        registration."""
        lines = list[RegistrationLine]()
        for name, of_claim in registrations(self.plan).items():
            lines.append(RegistrationLine(claim=name, hash=of_claim.hash, subject=of_claim.subject))
        self._add(lines, once=("hash", "machine"))

    def analysed(
        self, plan: StudyPlan, evidence: Evidence, verdicts: Mapping[str, Verdict]
    ) -> dict[str, Provenance]:
        """Return where each claim stands, and write what is said of it where that is new."""
        stands = self._stands(plan, evidence)
        lines = list[AnalysisLine]()
        for name, verdict in verdicts.items():
            if verdict.reason is not Reason.missing:
                line = AnalysisLine(
                    claim=name,
                    hash=stands[name].hash,
                    number=verdict.primary.analysis,
                    n=verdict.n,
                    word=verdict.word.value,
                    exploratory=stands[name].exploratory or "",
                )
                lines.append(line)
        self._add(lines, once=("hash", "number", "machine"), says=("claim", "n", "word", "exploratory"))
        # the second time, it is this analysis that the log has
        return self._stands(plan, evidence) if self.writes else stands

    def _stands(self, plan: StudyPlan, evidence: Evidence) -> dict[str, Provenance]:
        """Return where each claim stands, by the log and by those of the studies beside it."""
        others = [path for path in sorted(self.path.parents[1].glob(f"*/{FILE}")) if path != self.path]
        logs = [read(self.path), *(read(path) for path in others if path.with_name(STUDY).exists())]
        return {
            claim.id: provenance(plan, claim, evidence, logs, machine=self.machine)
            for claim in plan.study.claims
        }

    # --- runs -----------------------------------------------------------------------------------------------

    def tune(self) -> list[TuningTrial]:
        """Train the trials that are missing, and pick each arm's best mean final loss; null where a seed
        diverged or was not run.

        Errors:
            FailedError: an arm of which a trial has a run that failed, or every trial diverged.
        """
        tune = self.plan.study.tune
        made = compose_trials(self.plan.study, self.plan.train)
        ended = self._trained(trainings(made, {seed: [*made] for seed in tune.seeds}))
        losses = {(run.arm, run.seed): loss_of(record) for run, record in ended}
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
        picks = math.isfinite(means[best]) and not any(map(math.isnan, means.values()))
        if self.run and not picks:
            why = "a run of it failed, or all its trials diverged"
            raise FailedError(f"the search of {arm} picks nothing: {why}")
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

    def _trained(
        self,
        runs: Sequence[Training],
        between: Callable[[], None] = lambda: None,
    ) -> Records:
        """Return runs with a result, after those that had none were trained."""
        try:
            if self.run:
                results = train(runs, self.plan.study.name, between=between)
                self.problems += _failures(runs, results)
        finally:
            made = self._read(runs)
        return made

    def _read(self, runs: Sequence[Training]) -> Records:
        """Read what came out of them, also of those that something else trained, and log it."""
        made = Records()
        for run in runs:
            try:
                record = run.record()
                if record is not None:
                    made.append((run, record))
            except ValueError as error:
                self.problems.append(f"{DAMAGED}: {error}")
                self.damaged.add((run.arm, run.seed))
        lines = list[RunLine]()
        for run, record in made:
            line = RunLine(
                arm=run.arm,
                content=content_of(self.plan, run.composed, "train"),
                seed=run.seed,
                short=run.short,
                identity=record.identity,
                status=record.status,
                started=record.started,
                val_loss=record.val_loss,
            )
            lines.append(line)
        self._add(lines, once=("content", "seed", "identity", "started"))
        return made

    # --- all of it ------------------------------------------------------------------------------------------

    def measure(self, plan: StudyPlan, trials: Sequence[TuningTrial]) -> Evidence:
        """Train and time what is missing, and collect what there is."""
        best = {trial.arm: trial.words for trial in trials if trial.picked}
        arms = {name: more(arm, *best.get(name, ())) for name, arm in plan.train.items()}
        short = {name: shorter(plan, arms[name]) for name in plan.study.racing_arms if name in arms}
        asked = sessions(plan, arms)
        needed = seeds_of(plan.study)
        due = partial(self._hold, plan, asked, wait=False)
        get = partial(self._trained, between=due)
        runs: dict[tuple[str, int], Record] = {}
        others: dict[tuple[str, int], dict[int, Record]] = {}
        # in one grid, whose comparison then tells the time at equal loss, too
        first = [*trainings(arms, needed), *length_trainings(plan, arms, plan.study.seeds_of_lengths)]
        for run, record in get(first):
            if run.length_of is None:
                runs[run.arm, run.seed] = record
            else:
                others.setdefault((run.arm, run.seed), {})[run.short] = record
        # nothing is learnt from one that diverged
        sound = [key for key, record in runs.items() if record.status != "diverged"]
        shorts: dict[tuple[str, int], dict[int, Record]] = {key: {} for key in sound}
        wanted = list[Training]()
        for made in zip(*short.values(), strict=True):
            of_length = dict(zip(short, made, strict=True))
            wanted += trainings(of_length, needed, short=True)
        for run, record in get([run for run in wanted if (run.arm, run.seed) in shorts]):
            shorts[run.arm, run.seed][run.short] = record
        self._hold(plan, asked, wait=True)
        files: dict[str, list[SessionFile]] = {place: [] for place in PLACES}
        for session in asked:
            files[session.place] += session.results(plan.folder)
        lines = list[SessionLine]()
        for some in files.values():
            lines += [self._session_line(file, arms) for file in some]
        self._add(lines, once=("key", "number", "started"))
        composed = dict[str, dict[str, list[Composed]]]()
        for place in PLACES:
            of_place = arms if PLACES[place].as_trained else plan.bench
            composed[place] = {name: [arm] for name, arm in of_place.items()}
        composed[TRAIN] = {name: [arm, *short.get(name, ())] for name, arm in arms.items()}
        return Evidence(
            runs=runs,
            shorter=shorts,
            lengths=others,
            damaged=frozenset(self.damaged),
            sessions=files,
            arms=composed,
        )

    def _hold(self, plan: StudyPlan, asked: Sequence[Session], *, wait: bool) -> None:
        """Hold the sessions that are due, or all that are left. A place of which one fails has no more."""
        if not self.run:
            return
        for n, session in product(range(1, plan.at.sessions + 1), asked):
            if session.path(plan.folder, n).exists() or session.place in self.failed:
                continue
            due_in_s = _due_in_s(plan, asked, n)
            if due_in_s > 0 and not wait:
                return
            try:
                if due_in_s > 0:
                    self.log(
                        f"waiting {duration(due_in_s)}: sessions of timing are "
                        f"{plan.at.apart_min:g} minutes apart"
                    )
                    time.sleep(due_in_s)
                began = time.monotonic()
                session.run(plan.folder, n)
                self.log(
                    f"{session.name}, session {n}: {', '.join(session.arms)}  "
                    f"{time.monotonic() - began:.0f} s"
                )
            except FailedError as error:
                self.problems.append(str(error))
                self.failed.add(session.place)
            except KeyboardInterrupt as stop:
                raise StoppedError(
                    "stopped; what was trained and timed is kept, and the same command goes on"
                ) from stop

    def _session_line(self, file: SessionFile, train: Mapping[str, Composed]) -> SessionLine:
        """Return the log's line of a session."""
        place = PLACES[file.place]
        arms = train if place.as_trained else self.plan.bench
        return SessionLine(
            place=file.place,
            number=file.number,
            key=file.key,
            contents={name: content_of(self.plan, arms[name], file.place) for name in file.arms},
            started=file.started,
            measured={name: number(getattr(row, place.logged)) for name, row in file.figures.items()},
        )
