"""Write into a study's log, each line once: claims before anything runs, runs and sessions as they
are read, analyses as they are made. By that log a claim has its standing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from nocap.config.compose import Composed
from nocap.judge.verdict import Reason, Verdict
from nocap.sessions.places import PLACES, TRAIN
from nocap.sessions.session_file import SessionFile
from nocap.store.record import Record
from nocap.store.record import number as number_of
from nocap.study.evidence import Evidence
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
from nocap.study.registration import content_of, registrations
from nocap.study.standing import Standing, standing_of
from nocap.study.study_folder import FILE as STUDY
from nocap.study.study_plan import StudyPlan
from nocap.study.tasks import Training


class LogWriter:
    """The writer of a study's log, at one scale on one machine."""

    def __init__(
        self, plan: StudyPlan, *, machine: str, wanted: bool, say: Callable[[str], None]
    ) -> None:
        """`wanted`: whether the command writes at all. Where the folder cannot be written, `say`
        tells it once."""
        self.plan = plan
        self.machine = machine
        self.path = Path(plan.study.folder) / FILE
        self.writes = wanted and writable(self.path)
        if wanted and not self.writes:
            consequence = "nocap registers no claims, and writes no README and no results there"
            say(f"{self.path.parent} cannot be written: {consequence}")

    def register(self) -> None:
        """Register the claims before anything of the study runs. A claim whose arms, metric, ends
        or margins changed is another registration."""
        lines = list[RegistrationLine]()
        for name, claim in registrations(self.plan).items():
            lines.append(RegistrationLine(claim=name, hash=claim.hash, subject=claim.subject))
        self._add(lines, once=("hash", "machine"))

    def add_runs(self, records: Iterable[tuple[Training, Record]]) -> None:
        """Add the runs that have a record."""
        lines = [self._run_line(run, record) for run, record in records]
        self._add(lines, once=("content", "seed", "identity", "started"))

    def add_sessions(self, files: Iterable[SessionFile], trained: Mapping[str, Composed]) -> None:
        """Add sessions. `trained`: the arms as they are trained."""
        lines = [self._session_line(file, trained) for file in files]
        self._add(lines, once=("key", "number", "started"))

    def analyse(
        self, plan: StudyPlan, evidence: Evidence, verdicts: Mapping[str, Verdict]
    ) -> dict[str, Standing]:
        """Return where each claim stands, and write its verdict where it is new."""
        standings = self._standings(plan, evidence)
        lines = list[AnalysisLine]()
        for name, verdict in verdicts.items():
            if verdict.reason is Reason.missing:
                continue
            standing = standings[name]
            line = AnalysisLine(
                claim=name,
                hash=standing.hash,
                number=verdict.primary.analysis,
                n=verdict.n,
                word=verdict.word.value,
                exploratory=standing.exploratory or "",
            )
            lines.append(line)
        self._add(
            lines, once=("hash", "number", "machine"), says=("claim", "n", "word", "exploratory")
        )
        if not self.writes:
            return standings
        # now the log has this analysis, too
        return self._standings(plan, evidence)

    def _standings(self, plan: StudyPlan, evidence: Evidence) -> dict[str, Standing]:
        """Return where each claim stands, by the log and by those of the studies beside it."""
        logs = [read_log(self.path)]
        for path in sorted(self.path.parents[1].glob(f"*/{FILE}")):
            if path != self.path and path.with_name(STUDY).exists():
                logs.append(read_log(path))
        standings = dict[str, Standing]()
        for claim in plan.study.claims:
            standings[claim.id] = standing_of(plan, claim, evidence, logs, machine=self.machine)
        return standings

    def _add(
        self, lines: Sequence[LogLine], *, once: Sequence[str], says: Sequence[str] = ()
    ) -> None:
        """Add the lines that are new, as `log.append` has it."""
        if self.writes:
            append(
                self.path,
                lines,
                machine=self.machine,
                scale=self.plan.scale,
                once=once,
                says=says,
            )

    def _run_line(self, run: Training, record: Record) -> RunLine:
        """Return the log's line of a run."""
        return RunLine(
            arm=run.arm,
            content=content_of(self.plan, run.composed, TRAIN),
            seed=run.seed,
            short=run.other_length or 0,
            identity=record.identity,
            status=record.status,
            started=record.started,
            val_loss=record.val_loss,
        )

    def _session_line(self, file: SessionFile, trained: Mapping[str, Composed]) -> SessionLine:
        """Return the log's line of a session."""
        place = PLACES[file.place]
        arms = trained if place.as_trained else self.plan.bench
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
