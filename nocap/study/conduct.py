"""A study carried out: its claims registered, what is missing trained and timed, and everything there is collected as evidence."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from itertools import count
from pathlib import Path
from statistics import fmean
from typing import Any

from nocap.config import hardware
from nocap.config.compose import Composed
from nocap.config.keys import require
from nocap.config.trainer import Device
from nocap.judge.interval import analyses, analysis_of
from nocap.judge.verdict import Reason, Verdict
from nocap.launch.plan import outcome
from nocap.store.formats import duration
from nocap.store.metrics import is_count
from nocap.store.record import read_json
from nocap.store.runs import Record, dig, number
from nocap.study import rows
from nocap.study.evidence import PLACE_OF, Evidence, judge
from nocap.study.log import FILE, Line, Log, append, read, writable
from nocap.study.plan import StudyPlan, compose_trials, more, shorter
from nocap.study.registration import Provenance, content_of, provenance, registrations
from nocap.study.spec import FILE as STUDY
from nocap.study.tasks import FailedError, Session, StoppedError, Training, Trainings, sessions, trainings

FIGURE = {"steps": "tokens_per_s", "parts": "step_ms", "lengths": "exponent", "decoding": "decode_tokens_per_s"}  # of a kind, for the log
PRINT: Callable[[str], None] = partial(print, flush=True)  # a study may then wait for minutes


@dataclass(frozen=True, kw_only=True, slots=True)
class TuningTrial:
    arm: str
    words: list[str]  # its overrides, by the name that results have had
    seeds: list[int]
    val_loss: float | None  # mean over the seeds; null where a seed diverged or was not run
    picked: bool


@dataclass(kw_only=True)
class Done:
    """What there is after a study was carried out, or as far as it was."""

    part: StudyPlan  # the plan of the last analyses
    evidence: Evidence
    stands: dict[str, Provenance]  # claim → what its study's log says
    seeds: list[int]  # that the analyses needed
    trials: list[TuningTrial] = field(default_factory=list)
    records: list[tuple[Training, Record]] = field(default_factory=list)  # of this machine, trials and shorter runs too
    problems: list[str] = field(default_factory=list)  # sessions that failed, records that cannot be read whole


def carry_out(plan: StudyPlan, *, run: bool, log: Callable[[str], None] = PRINT) -> Done:
    """Train and time what is missing, analysis by analysis until each claim is decided, or with `run=False` only collect what there is.

    Errors:
        ValueError: an invalid run, a damaged log.
        tasks.StoppedError: somebody asked to stop; everything that finished is kept.
        tasks.FailedError: a run failed that all else depends on.
    """
    study = _Conductor(plan, run=run, log=log)
    study.register()
    trials = study.tune()
    numbers = {claim.id: 1 for claim in plan.study.claims}
    while True:
        part = up_to(plan, numbers)
        evidence = study.measure(part, trials)
        verdicts = {claim.id: judge(claim, part.study, plan.scale, evidence) for claim in part.study.claims}
        stands = study.analysed(part, evidence, verdicts)
        open_ = [name for name, verdict in verdicts.items() if verdict.reason is Reason.undecided]
        further = [name for name in open_ if numbers[name] < analysis_of(len(plan.study.seeds)) and study.rests_on_runs(name)]
        if not further:
            break
        if run:
            log(f"not decided, and another analysis follows: {', '.join(further)}")
        numbers |= {name: numbers[name] + 1 for name in further}
    seeds = plan.study.seeds[: max(len(claim.seeds) for claim in part.study.claims)]
    problems = list(dict.fromkeys(study.problems))
    return Done(part=part, evidence=evidence, stands=stands, seeds=seeds, trials=trials, records=study.records, problems=problems)


def up_to(plan: StudyPlan, numbers: Mapping[str, int]) -> StudyPlan:
    """The plan of no more than these analyses need: claim → number of its analysis, from 1."""
    claims = [replace(claim, seeds=claim.seeds[: analyses()[numbers[claim.id] - 1]]) for claim in plan.study.claims]
    return replace(plan, study=replace(plan.study, claims=claims))


def seeds_of(plan: StudyPlan, arms: Sequence[str]) -> dict[int, list[str]]:
    """Seed → those of the arms that a claim about trained runs needs with it."""
    study, needed = plan.study, dict[int, set[str]]()
    for claim in study.claims:
        if any(metric.made_by == "train" for metric in claim.metrics):
            for seed in claim.seeds:
                needed.setdefault(seed, set()).update(study.sides(claim))
    return {seed: [arm for arm in arms if arm in needed[seed]] for seed in study.seeds if seed in needed}


def sessions_wanted(plan: StudyPlan, place: str) -> int:
    """How many sessions a place has: one where only counts are taken of it."""
    metrics = [metric for claim in plan.study.claims for metric in claim.metrics if PLACE_OF[metric.made_by] == place]
    counted = metrics and all(is_count(metric, on_cuda=plan.trainer.device is Device.cuda) for metric in metrics)
    return 1 if counted else plan.at.sessions


class _Conductor:
    """Of a study at one scale on this machine."""

    def __init__(self, plan: StudyPlan, *, run: bool, log: Callable[[str], None]) -> None:
        self.plan, self.run, self.log = plan, run, log
        self.problems: list[str] = []
        self.failed: set[str] = set()  # places of which a session failed: they have no more
        self.damaged: set[tuple[str, int]] = set()  # (arm, seed)
        self.records: list[tuple[Training, Record]] = []  # of this machine
        t, folder = plan.trainer, plan.study.folder
        self.path = Path(folder) / FILE if folder else None
        self.writes = run and self.path is not None and writable(self.path)
        if run and not self.writes:
            log(f"{folder or plan.study.name} cannot be written: nothing is registered, and no README or results are left there")
        self.common = {"machine": str(hardware.describe(t.device, t.threads)["fingerprint"]), "scale": plan.scale}

    # --- the log ----------------------------------------------------------------------------------------------------------------------

    def _append(self, new: Callable[[Log], Sequence[Line]]) -> None:
        if self.writes and self.path is not None:
            append(self.path, new, self.common)

    def _add(self, lines: Sequence[Line], *, once: Sequence[str]) -> None:
        """Those that are not there with the same of these keys."""
        self._append(lambda log: [line for line in lines if not log.of(line["event"], **{key: line[key] for key in once})])

    def register(self) -> None:
        """Before anything of the study runs. A claim whose arms, metric, ends or margins changed is another registration."""
        made = registrations(self.plan)
        lines = [
            {"event": "registration", "claim": name, "hash": one.hash, "subject": one.subject, **self.common} for name, one in made.items()
        ]
        self._add(lines, once=("hash", "machine"))

    def analysed(self, plan: StudyPlan, evidence: Evidence, verdicts: Mapping[str, Verdict]) -> dict[str, Provenance]:
        """Where each claim stands. What is said of it is written where it is new."""
        stands = self._stands(plan, evidence)

        def new(log: Log) -> list[Line]:
            lines = list[Line]()
            for name, verdict in verdicts.items():
                own = {"claim": name, "hash": stands[name].hash, "number": verdict.primary.analysis, "n": verdict.n}
                line = {"event": "analysis", **own, "word": verdict.word.value, "exploratory": stands[name].exploratory or ""}
                same = {key: line[key] for key in ("hash", "number")}
                last = log.of("analysis", **same, machine=self.common["machine"])[-1:]
                if verdict.reason is not Reason.missing and not any(all(one[key] == line[key] for key in line) for one in last):
                    lines.append(line)
            return lines

        self._append(new)
        return self._stands(plan, evidence) if self.writes else stands  # the second time, it is this analysis that the log has

    def _stands(self, plan: StudyPlan, evidence: Evidence) -> dict[str, Provenance]:
        """By the log and by those of the studies beside it."""
        beside = [path for path in sorted(self.path.parents[1].glob(f"*/{FILE}")) if path != self.path] if self.path else []
        logs = [read(self.path) if self.path else Log(), *(read(path) for path in beside if path.with_name(STUDY).exists())]
        return {claim.id: provenance(plan, claim, evidence, logs, machine=self.common["machine"]) for claim in plan.study.claims}

    def _came_out(self, records: Sequence[tuple[Training, Record]]) -> None:
        """All runs that have a result, also those that something else trained."""
        lines = []
        for run, record in records:
            who = {"arm": run.arm, "content": content_of(self.plan, run.composed, "train"), "seed": run.seed, "short": run.short}
            how = {"identity": record.identity, "status": record.status, "started": record.started, "val_loss": record.val_loss}
            lines.append({"event": "run", **who, **how})
        self._add(lines, once=("content", "seed", "identity", "started"))

    # --- runs -------------------------------------------------------------------------------------------------------------------------

    def tune(self) -> list[TuningTrial]:
        """Train the trials that are missing, and pick each arm's best mean final loss.

        Errors:
            ValueError: an arm of which every trial diverged.
            FailedError: a trial has a run that neither finished nor diverged.
        """
        tune = self.plan.study.tune
        if tune is None or not self.plan.train:
            return []
        made = {f"{arm}, trial {i + 1}": one for (arm, i), one in compose_trials(self.plan.study, self.plan.train).items()}
        ended = {
            (one.arm, one.seed): record for one, record in self._trained(trainings(made, {seed: [*made] for seed in tune.seeds}), "tuning")
        }
        trials = []
        for arm, listed in tune.trials.items():
            means = [_mean_loss([ended.get((f"{arm}, trial {i + 1}", seed)) for seed in tune.seeds]) for i in range(len(listed))]
            missing, finite = any(map(math.isnan, means)), [mean for mean in means if math.isfinite(mean)]
            if self.run and missing:
                raise FailedError(f"the search of {arm} has runs that failed, and picks nothing")
            require(not self.run or bool(finite), f"tune.trials.{arm}", "have a trial that does not diverge", f"{len(means)} that all did")
            best = None if missing or not finite else means.index(min(finite))
            for i, (words, mean) in enumerate(zip(listed, means, strict=True)):
                known = mean if math.isfinite(mean) else None
                trials.append(TuningTrial(arm=arm, words=words, seeds=tune.seeds, val_loss=known, picked=i == best))
        return trials

    def _trained(self, runs: Sequence[Training], label: str, between: Callable[[], None] = lambda: None) -> list[tuple[Training, Record]]:
        """Runs with a result, after those that had none were trained."""
        if not runs:
            return []
        group, log = Trainings(runs, label=label), Log() if self.path is None else read(self.path)
        bare = {run.seed for run in runs} - {cell.plan.run.seed for _, cell in group.cells if outcome(cell.plan) is not None}
        taken = rows.taken(self.plan, [run for run in runs if run.seed in bare], log)
        try:
            if self.run:
                group.train(between=between, without={run.seed for run, _ in taken})
        finally:
            made = group.records(self.problems)
            self._came_out(made)
            self.damaged |= group.damaged
        self.records += made
        return [*taken, *made]

    def rests_on_runs(self, claim: str) -> bool:
        """Whether more seeds would say more of it; of what is timed, more sessions do."""
        return any(metric.made_by == "train" for one in self.plan.study.claims if one.id == claim for metric in one.metrics)

    def measure(self, plan: StudyPlan, trials: Sequence[TuningTrial]) -> Evidence:
        """Train and time what is missing, and collect what there is."""
        best = {trial.arm: trial.words for trial in trials if trial.picked}
        arms = {name: more(arm, *best.get(name, ())) for name, arm in plan.train.items()}
        timed = Timings(plan, arms, log=self.log)
        due = partial(self._hold, timed, wait=False)
        needed = seeds_of(plan, list(arms))
        short = {name: shorter(plan, arms[name]) for name in plan.study.racing if name in arms}
        runs = {(one.arm, one.seed): record for one, record in self._trained(trainings(arms, needed), plan.study.name, due)}
        wanted = [
            one
            for i in range(len(plan.at.lengths) if short else 0)
            for one in trainings({name: of[i] for name, of in short.items()}, needed, short=True)
            if (record := runs.get((one.arm, one.seed))) is not None and record.status != "diverged"
        ]
        shorts: dict[tuple[str, int], dict[int, Record]] = {}
        for one, record in self._trained(wanted, f"{plan.study.name}, shorter:", due):
            shorts.setdefault((one.arm, one.seed), {})[one.short] = record
        self._hold(timed, wait=True)
        files = timed.results()
        self._add([self._session_line(one, arms) for place in files.values() for one in place], once=("key", "number", "started"))
        bench = {name: [arm] for name, arm in plan.bench.items()}
        composed = dict.fromkeys(("bench", "parts", "curve", "decoding"), bench)
        composed |= {
            "train": {name: [arm, *short.get(name, ())] for name, arm in arms.items()},
            "pace": {name: [arm] for name, arm in arms.items()},
        }
        return Evidence(runs=runs, shorter=shorts, damaged=frozenset(self.damaged), sessions=files, arms=composed)

    def _hold(self, timed: Timings, *, wait: bool) -> None:
        """The sessions that are due, or all that are left. A place of which one fails has no more."""
        while self.run and (waiting := timed.next(self.failed)):
            due_in_s = timed.due_in_s(waiting[0].number)
            if due_in_s > 0 and not wait:
                return
            if due_in_s > 0:
                self.log(f"waiting {duration(due_in_s)}: sessions of timing are {self.plan.at.apart_min:g} minutes apart")
                try:
                    time.sleep(due_in_s)
                except KeyboardInterrupt as stop:
                    raise StoppedError("stopped while waiting; what was trained and timed is kept, and the same command goes on") from stop
            for session in waiting:
                try:
                    timed.hold(session)
                except FailedError as error:
                    self.problems.append(str(error))
                    self.failed.add(session.place)

    def _session_line(self, one: Mapping[str, Any], train: Mapping[str, Composed]) -> Line:
        """Of a session's file."""
        arms = train if one["place"] == "pace" else self.plan.bench
        contents = {name: content_of(self.plan, arms[name], one["place"]) for name in one["arms"]}
        measured = {name: number(dig(row, FIGURE[one["kind"]])) for name, row in one["measured"]["arms"].items()}
        names = {"place": one["place"], "number": one["number"], "key": one["key"], "contents": contents}
        return {"event": "session", **names, "started": one["started"], "measured": measured}


def _mean_loss(records: Sequence[Record | None]) -> float:
    """Infinite where one diverged, nan where one is missing."""
    losses = [
        math.nan if one is None else math.inf if one.status == "diverged" or one.val_loss is None else one.val_loss for one in records
    ]
    return fmean(losses)


class Timings:
    """The sessions of a study, in order of their numbers. `arms`: as they are trained."""

    def __init__(self, plan: StudyPlan, arms: Mapping[str, Composed], *, log: Callable[[str], None] = PRINT) -> None:
        self._plan, self._arms, self._log = plan, arms, log
        self._made: dict[int, list[tuple[Session, Path]]] = {}

    def at(self, n: int) -> list[tuple[Session, Path]]:
        if n not in self._made:
            self._made[n] = [(one, one.path(self._plan.folder)) for one in sessions(self._plan, self._arms, n)]
        return self._made[n]

    def wanted(self) -> list[tuple[Session, Path]]:
        every = range(1, self._plan.at.sessions + 1)
        return [(one, path) for n in every for one, path in self.at(n) if n <= sessions_wanted(self._plan, one.place)]

    def next(self, failed: Collection[str]) -> list[Session]:
        """What is missing of the first session that is not whole."""
        left = [one for one, path in self.wanted() if not path.exists() and one.place not in failed]
        return [one for one in left if one.number == left[0].number]

    def due_in_s(self, n: int) -> float:
        """Until session n may begin."""
        ends = [datetime.fromisoformat(one["ended"]) for place in self.results().values() for one in place if one["number"] == n - 1]
        due = max(ends, default=datetime.now().astimezone()) + timedelta(minutes=self._plan.at.apart_min)
        return (due - datetime.now().astimezone()).total_seconds() if ends else 0.0

    def hold(self, session: Session) -> None:
        began = time.monotonic()
        session.run(self._plan.folder)
        self._log(f"{session.name}, session {session.number}: {', '.join(session.arms)}  {time.monotonic() - began:.0f} s")

    def results(self) -> dict[str, list[dict[str, Any]]]:
        """Place → everything that there is, also beyond the sessions that are asked for now."""
        files: dict[str, list[dict[str, Any]]] = {}
        for n in count(1):
            here = [(one.place, content) for one, path in self.at(n) if (content := read_json(path)) is not None]
            if not here and n > self._plan.at.sessions:
                return files
            for place, content in here:
                files.setdefault(place, []).append(content)
        raise AssertionError("unreachable")
