"""A study that is carried out without training or timing: its runs and sessions are made by
functions, and everything else is real."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import platform
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nocap.config import hardware
from nocap.launch.plan import Plan
from nocap.sessions.places import PLACES
from nocap.sessions.session import Session
from nocap.sessions.session_file import SessionFile, read_session
from nocap.store.record import Record
from nocap.store.record_files import write_json
from nocap.study.carry_out import StudyOutcome, carry_out
from nocap.study.log import FILE, RunLine, SessionLine, read_log
from nocap.study.result_maker import result_of
from nocap.study.result_writer import to_json
from nocap.study.standing import name_of
from nocap.study.study_plan import StudyPlan, prepare
from nocap.study.tasks import Training
from tests.studies import SEEN, Json, loaded, record, study

RECORD = "record.pickle"  # of a made run, in its folder
FORK = multiprocessing.get_context("fork")
BEGAN = datetime.fromisoformat("2025-11-22T12:00:00+00:00")
SESSION_S = 60.0


@dataclass
class Lab:
    root: Path
    # null: it diverges
    loss: Callable[[Training], float | None] = lambda run: 3.0 + 0.001 * run.seed
    speed: Callable[[str, int], float] = lambda arm, number: (
        1000.0 * (1.25 if arm == "mqa" else 1) + number
    )
    pace: Callable[[Training], float] | None = None  # µs a token of a run; None: no record has it
    train_s: float = 0.0  # of a run
    host: str = "here"  # this machine's name
    # of so many tasks: the process is killed when the next one begins
    dies_after: float = float("inf")
    said: list[str] = field(default_factory=list)  # by the last study
    waits: list[float] = field(default_factory=list)  # minutes
    # seconds; a killed process's go on
    _clock: Any = field(default_factory=lambda: FORK.Value("d", 0.0))

    # --- the study --------------------------------------------------------------------------------

    def plan(self, out: str = "out", folder: str = "made", **changed: Any) -> StudyPlan:
        """Of the first scale."""
        made = loaded(self.root / folder, study(**changed))
        scales = next(iter(made.scales))
        output_dir = str(self.root / out)
        return prepare(made, scales, output_dir=output_dir)

    def done(
        self, out: str = "out", folder: str = "made", *, run: bool = True, **changed: Any
    ) -> StudyOutcome:
        self.said.clear()
        study_plan = self.plan(out, folder, **changed)
        return carry_out(study_plan, may_run=run, say=self.said.append)

    def carry(
        self, out: str = "out", folder: str = "made", *, run: bool = True, **changed: Any
    ) -> dict[str, Json]:
        """Claim → its row."""
        done = self.done(out, folder, run=run, **changed)
        t = done.plan.trainer
        machine = hardware.describe(t.device, t.threads)
        result = result_of(done, hardware=machine, command="made")
        content = json.loads(json.dumps(to_json(result)))
        return {claim["id"]: claim for claim in content["claims"]}

    def killed(self, after: int, *place: str, **changed: Any) -> None:
        """The same in a process that gets SIGKILL when so many tasks are done, of all that there
        were."""
        self.dies_after = after
        child = FORK.Process(target=self.done, args=place, kwargs=changed)
        child.start()
        child.join(60)
        assert child.exitcode == -signal.SIGKILL
        self.dies_after = float("inf")

    @property
    def log(self) -> Path:
        return self.root / "made" / FILE

    def lines(self, *events: str) -> list[Json]:
        """List the log's lines of such events, as its file has them."""
        if self.log.exists():
            lines = [json.loads(raw) for raw in self.log.read_text().splitlines()]
        else:
            lines = []
        return [line for line in lines if not events or line["event"] in events]

    @property
    def logged(self) -> list[str]:
        """Name the runs and sessions of the log, as `tasks` does."""
        log = read_log(self.log)
        runs = [name_of(line, line.arm) for line in log.of(RunLine)]
        return runs + [name_of(line, "") for line in log.of(SessionLine)]

    @property
    def tasks(self) -> list[str]:
        """What was done, in order, as the log's lines are named: `mqa, seed 0`, `bench session
        1`."""
        path = self.root / "tasks.txt"
        if path.exists():
            return path.read_text().splitlines()
        return []

    # --- what stands in for the machine -----------------------------------------------------------

    def clock(self) -> datetime:
        self._clock.value += 1
        return BEGAN + timedelta(seconds=self._clock.value)

    def now(self) -> str:
        return self.clock().isoformat(timespec="seconds")

    def sleep(self, seconds: float) -> None:
        self.waits.append(seconds / 60)
        self._clock.value += seconds

    def _begin(self) -> None:
        if len(self.tasks) >= self.dies_after:
            os.kill(os.getpid(), signal.SIGKILL)

    def _end(self, task: str) -> None:
        with (self.root / "tasks.txt").open("a") as file:
            file.write(task + "\n")

    def train(
        self, runs: Sequence[Training], label: str, *, between: Callable[[], None]
    ) -> dict[str, Any]:
        for seed in (
            dict.fromkeys(run.seed for run in runs)
            if any(outcome(run.plan) is None for run in runs)
            else ()
        ):
            between()
            for run in runs:
                made = run.plan
                if run.seed == seed and outcome(made) is None:
                    self._begin()
                    steps = run.composed.run.trainer.steps
                    machine = hardware.describe(run.composed.run.trainer.device, 1)
                    more: Json = {}
                    if self.pace:
                        more = {"token_us": self.pace(run), "tokens": 512 * steps}
                    trained = record(
                        run.arm,
                        seed,
                        steps,
                        self.loss(run),
                        started=self.now(),
                        hardware=machine,
                        **more,
                    )
                    self._clock.value += self.train_s
                    made.run_dir.mkdir(parents=True)
                    content = replace(trained, folder=made.run_dir, identity=made.identity)
                    (made.run_dir / RECORD).write_bytes(pickle.dumps(content))
                    self._end(
                        f"{run.arm}, seed {seed}"
                        + (f", {run.other_length} steps" if run.other_length else "")
                    )
        return {}

    def time(self, session: Session, folder: Path, number: int) -> SessionFile:
        path = session.path(folder, number)
        if not path.exists():
            self._begin()
            started = self.now()
            self._clock.value += SESSION_S
            rows = {}
            for arm in session.arms:
                rows[arm] = {
                    **SEEN,
                    "kv_bytes": 8.0,
                    "tokens_per_s": self.speed(arm, number),
                    "step_ms": 1.0,
                }
            asked = {
                "kind": PLACES[session.place].kind,
                "place": session.place,
                "key": session.key,
                "number": number,
                "how": dict(session.how),
            }
            words = {arm: list(made.overrides) for arm, made in session.arms.items()}
            times = {"started": started, "ended": self.now()}
            content = {**asked, **times, "arms": words, "measured": {"arms": rows}}
            write_json(path, content)
            self._end(f"{session.place} session {number}")
        file = read_session(path)
        assert file is not None
        return file


def outcome(plan: Plan) -> Json | None:
    if (plan.run_dir / RECORD).exists():
        return {"status": "finished"}
    return None


def record_of(run: Training) -> Record | None:
    if outcome(run.plan):
        return pickle.loads((run.plan.run_dir / RECORD).read_bytes())
    return None


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    made = Lab(tmp_path)
    monkeypatch.setattr("nocap.study.conductor.train", made.train)
    monkeypatch.setattr(Training, "record", record_of)
    monkeypatch.setattr(
        Session, "run", lambda session, folder, number: made.time(session, folder, number)
    )
    monkeypatch.setattr("nocap.study.log.now", made.now)
    datetimes = SimpleNamespace(now=made.clock, fromisoformat=datetime.fromisoformat)
    monkeypatch.setattr("nocap.study.conductor.datetime", datetimes)
    clock = SimpleNamespace(sleep=lambda s: made.sleep(s), monotonic=lambda: 0.0)
    monkeypatch.setattr("nocap.study.conductor.time", clock)
    monkeypatch.setattr(platform, "node", lambda: made.host)
    # a third of the time; what comes out is the same
    for place in ("nocap.sessions.session", "nocap.store.identity"):
        monkeypatch.setattr(f"{place}.source_hashes", lambda run, of="identity": {})
    return made
