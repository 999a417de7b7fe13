"""A mirror's session with a client in place of W&B's own, which takes a second to import, and a
real server. What W&B's client itself sends is in `tests/test_wandb.py`."""

from __future__ import annotations

import json
import os
import re
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar
from unittest.mock import MagicMock

import pytest

from nocap.config.compose import compose
from nocap.launch.grid import REPORT
from nocap.options.tracker import NoLoginError, RunFacts, TrackerSession
from nocap.options.tracker.wandb import Wandb, WandbMode
from nocap.runs import __main__ as runs
from tests.sealing import seal
from tests.test_compare import STEPS, write_run
from tests.wandb_server import ENTITY, KEY, StoredRun, WandbServer, wandb_server

SERVICE = "WANDB_SERVICE"


@dataclass
class Page:
    """A file that a run's page shows."""

    path: str
    inject: bool


@dataclass
class Artifact:
    """Files with a name."""

    name: str
    type: str
    paths: list[str] = field(default_factory=list)

    def add_file(self, path: str, *, name: str) -> None:
        self.paths.append(path)

    def add_dir(self, path: str) -> None:
        self.paths.append(path)


@dataclass
class Client:
    """What a session calls of the module `wandb`."""

    Settings: ClassVar[Any] = SimpleNamespace
    Table: ClassVar[Any] = SimpleNamespace
    Html: ClassVar[Any] = Page
    Artifact: ClassVar[Any] = Artifact

    server: WandbServer
    logged_in: bool = True
    api_key: str | None = KEY
    services: list[str | None] = field(default_factory=list)  # what `setup` finds of a service
    runs: list[Run] = field(default_factory=list)
    torn_down: int = 0
    refuses: bool = False  # the server takes no rows

    def setup(self, settings: Any) -> Any:
        """Begin a service, as W&B's client does, and leave its address to all processes."""
        self.services.append(os.environ.get(SERVICE))
        os.environ[SERVICE] = f"service {len(self.services)}"
        known = {"base_url": self.server.url, "app_url": self.server.url, "api_key": self.api_key}
        return SimpleNamespace(settings=SimpleNamespace(**known))

    def login(self, **how: bool) -> bool:
        return self.logged_in

    def init(self, **described: Any) -> Run:
        self.runs.append(Run(self, described))
        return self.runs[-1]

    def teardown(self) -> None:
        self.torn_down += 1


class Run:
    """A run of the client. Its rows are on the server at once."""

    def __init__(self, client: Client, described: dict[str, Any]) -> None:
        self.described = described
        self.client = client
        self.id = described["id"]
        self.entity = described["entity"] or ENTITY
        self.project = described["project"]
        self.offline = described["mode"] == "offline"
        self.url = f"{client.server.url}/{self.id}"
        self.settings = SimpleNamespace(base_url=client.server.url, api_key=KEY)
        self.summary = dict[str, Any]()
        self.ended = list[int]()
        self.artifacts = list[Artifact]()
        self.preempting = False
        self.alerts = list[str]()
        self.stored = StoredRun(id=self.id, project=self.project, entity=self.entity)
        if not self.offline:
            self.stored = client.server.runs.setdefault(self.id, self.stored)
        steps = [row["step"] for row in self.stored.history if "step" in row]
        self.starting_step = max(steps, default=len(self.stored.history) - 1) + 1

    def log(self, values: dict[str, Any], **how: Any) -> None:
        """Send a row. A page or a file has its name there."""
        if self.client.refuses:
            return
        lines = self.stored.lines.setdefault("wandb-history.jsonl", {})
        lines[len(lines)] = json.dumps(values, default=str)

    def define_metric(self, name: str, **how: Any) -> None:
        """Take it."""

    def mark_preempting(self) -> None:
        self.preempting = True

    def alert(self, *, title: str, text: str) -> None:
        self.alerts.append(title)

    def log_artifact(self, artifact: Artifact) -> None:
        self.artifacts.append(artifact)

    def finish(self, exit_code: int) -> None:
        self.ended.append(exit_code)


@pytest.fixture
def server() -> Iterator[WandbServer]:
    with wandb_server() as made:
        yield made


@pytest.fixture
def client(server: WandbServer, monkeypatch: pytest.MonkeyPatch) -> Client:
    """The client is what `import wandb` gives, and there is a login."""
    made = Client(server)
    monkeypatch.setitem(sys.modules, "wandb", made)
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    monkeypatch.delenv(SERVICE, raising=False)
    return made


def tracker(**keys: Any) -> Wandb:
    chosen = {
        "project": "p",
        "entity": None,
        "group": None,
        "mode": WandbMode.auto,
        "init_timeout_s": 4,
    }
    return Wandb(**{**chosen, **keys})


def facts_of(folder: Path) -> RunFacts:
    return RunFacts(
        identity="0123abcd4567", name="a run", arm="gqa", seed=0, run_dir=folder, config={}
    )


def test_no_process_shares_the_service_of_another(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that a run shared with its grid would end with the grid's, and the rows with it."""
    monkeypatch.setenv(SERVICE, "of another process")
    assert tracker().begin_grid("a grid") == f"{client.server.url}/{ENTITY}/p/groups/a%20grid"
    assert client.services == [None]
    assert SERVICE not in os.environ


def test_only_a_run_that_finished_waits_long_for_its_checkpoint(
    client: Client,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A run that is asked to stop has the short time, whatever the client does."""
    stuck = threading.Event()
    monkeypatch.setattr(Run, "finish", lambda run, exit_code: stuck.wait(60))
    for name in ("FINISH_TIMEOUT_S", "ASK_S", "GRACE_S"):
        monkeypatch.setattr(f"nocap.options.tracker.wandb.mirror_session.{name}", 0.05)
    session = tracker(checkpoint=True).open(facts_of(tmp_path))
    assert session.finish_s > 3600
    session.finish(summary={}, status="failed")
    assert "nocap did not upload everything (wandb does not answer)" in capsys.readouterr().err
    stuck.set()


def test_a_start_that_waits_longer_than_a_training_may_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^tracker\.init_timeout_s must be at most 300, got 301$"):
        compose(["tracker=wandb", "tracker.init_timeout_s=301"])


ROW = {"tokens": 1, "train/loss": 2.0}


def test_rows_that_a_resumed_record_has_otherwise_are_no_loss(
    client: Client, tmp_path: Path
) -> None:
    """It may log less often than before: the server has rows that the record has no more."""
    first = tracker().open(facts_of(tmp_path))
    for step in range(4):
        first.log({"step": step, **ROW})
    first.finish(summary={}, status="preempted")
    assert first.complete
    second = tracker().open(facts_of(tmp_path))
    for step in (0, 2, 4, 6):
        second.log({"step": step, **ROW})
    second.finish(summary={}, status="finished")
    assert second.sent == 2
    assert second.complete
    (run,) = client.server.runs.values()
    steps = [row["step"] for row in run.rows]
    assert steps == [0, 1, 2, 3, 4, 6]


def test_a_resumed_record_is_not_complete_by_the_rows_of_before(
    client: Client,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The server has more rows than the record, and refuses those that are new."""
    monkeypatch.setattr("nocap.options.tracker.wandb.mirror_session.ASK_S", 2.0)
    first = tracker().open(facts_of(tmp_path))
    for step in range(4):
        first.log({"step": step, **ROW})
    first.finish(summary={}, status="preempted")
    client.refuses = True
    second = tracker().open(facts_of(tmp_path))
    for step in (0, 4):
        second.log({"step": step, **ROW})
    second.finish(summary={}, status="finished")

    assert not second.complete
    assert "(the server has 4 of 5 rows)" in capsys.readouterr().err
    assert Wandb.has_unsent(tmp_path)


def test_a_changed_comparison_that_was_refused_is_not_complete(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nocap.options.tracker.wandb.mirror_session.ASK_S", 2.0)
    report = tmp_path / "report.html"
    report.write_text("first")
    assert compared(tmp_path, report).complete
    report.write_text("second")
    client.refuses = True
    assert not compared(tmp_path, report).complete
    assert Wandb.has_unsent(tmp_path)
    client.refuses = False
    again = compared(tmp_path, report)
    assert again.complete
    assert again.sent == 1
    assert compared(tmp_path, report).sent == 0


def compared(folder: Path, report: Path) -> TrackerSession:
    """Send a grid's comparison."""
    session = tracker().open_comparison(facts_of(folder))
    session.log_comparison({}, report)
    session.finish(summary={}, status="finished")
    return session


def test_a_record_that_is_sent_later_may_take_its_time(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its upload takes longer than the end of a training may."""
    for name in ("FINISH_TIMEOUT_S", "GRACE_S"):
        monkeypatch.setattr(f"nocap.options.tracker.wandb.mirror_session.{name}", 0.0)
    monkeypatch.setattr("nocap.options.tracker.wandb.mirror_session.ASK_S", 2.0)
    monkeypatch.setattr(Run, "finish", lambda run, exit_code: time.sleep(1.0))
    session = tracker().resend(facts_of(tmp_path))
    session.log({"step": 0, **ROW})
    session.finish(summary={}, status="diverged")
    assert session.complete
    assert client.runs[-1].described["settings"].finish_timeout >= 600


def test_a_mirror_that_could_not_be_opened_is_left_to_sync(
    client: Client,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(**described: Any) -> None:
        raise RuntimeError("no room\non the disk")

    monkeypatch.setattr(client, "init", fail)
    session = tracker().open(facts_of(tmp_path))
    assert type(session) is TrackerSession
    assert capsys.readouterr().err == "nocap: W&B: no mirror of this run: no room on the disk\n"
    assert Wandb.has_unsent(tmp_path)


def test_a_client_whose_process_has_failed_does_not_end_this_one(
    client: Client,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """W&B's client ends the program by `sys.exit` there."""

    def fail_online(**described: Any) -> Run:
        if described["mode"] == "online":
            raise RuntimeError("it is gone")
        return Run(client, described)

    def fail(run: Run, exit_code: int) -> None:
        raise RuntimeError("gone again")

    monkeypatch.setattr(client, "init", fail_online)
    monkeypatch.setattr(client, "teardown", MagicMock(side_effect=SystemExit(1)))
    monkeypatch.setattr(Run, "finish", fail)
    session = tracker().open(facts_of(tmp_path))
    session.finish(summary={}, status="finished")
    first, second = capsys.readouterr().err.splitlines()
    assert first == "nocap: W&B: offline: it is gone"
    assert second.startswith("nocap: W&B: nocap did not upload everything (gone again); ")


def test_a_folder_of_before_that_cannot_be_removed_costs_no_mirror(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def remove(folder: Path, *, ignore_errors: bool = False) -> None:
        if not ignore_errors:
            raise PermissionError(f"{folder} is another user's")

    (tmp_path / "wandb" / "offline-run-1").mkdir(parents=True)
    monkeypatch.setattr("shutil.rmtree", remove)
    link = tracker().open(facts_of(tmp_path)).link
    assert link == client.runs[0].url


def with_checkpoint(folder: Path) -> RunFacts:
    (folder / "checkpoints" / "step-3").mkdir(parents=True)
    return facts_of(folder)


def ended(session: TrackerSession, status: str) -> TrackerSession:
    session.log({"step": 0, **ROW})
    session.finish(summary={}, status=status)
    return session


@pytest.mark.parametrize(("status", "exit_code"), [("finished", 0), ("diverged", 1)])
def test_a_checkpoint_or_an_alert_is_sent_once_and_only_to_a_server(
    status: str, exit_code: int, client: Client, tmp_path: Path
) -> None:
    facts = with_checkpoint(tmp_path)
    chosen = tracker(checkpoint=True, alert=True)
    watched = tracker(checkpoint=True, alert=True, mode=WandbMode.offline)
    ended(watched.open(facts), status)
    assert not client.runs[0].artifacts
    assert not client.runs[0].alerts
    for _ in range(2):
        assert ended(chosen.resend(facts), status).complete
    sent = []
    for run in client.runs[1:]:
        kinds = [artifact.type for artifact in run.artifacts]
        sent.append(kinds + run.alerts)
    assert sent == [["model" if status == "finished" else "diverged"], []]
    assert [run.ended for run in client.runs] == [[exit_code]] * 3


def test_a_checkpoint_that_cannot_be_sent_ends_the_run_there_and_is_sent_later(
    client: Client,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(run: Run, artifact: Artifact) -> None:
        raise RuntimeError("too large")

    facts = with_checkpoint(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(Run, "log_artifact", fail)
        assert not ended(tracker(checkpoint=True).open(facts), "finished").complete
    assert "nocap did not upload everything (too large)" in capsys.readouterr().err
    assert client.runs[0].ended == [0]
    assert ended(tracker(checkpoint=True).resend(facts), "finished").complete
    assert len(client.runs[1].artifacts) == 1


def test_a_record_that_is_sent_later_has_no_metrics_of_the_machine_that_sends_it(
    client: Client, tmp_path: Path
) -> None:
    chosen = tracker(system=True)
    for session in (chosen.open(facts_of(tmp_path)), chosen.resend(facts_of(tmp_path))):
        session.finish(summary={}, status="finished")
    assert [run.described["settings"].x_disable_stats for run in client.runs] == [False, True]


def test_a_login_without_an_api_key_is_one_line(
    client: Client, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """W&B's client takes an identity token of its settings too, by which its server cannot be asked
    here."""
    client.api_key = None
    line = (
        "an identity token of W&B must be unset, because nocap reads rows from W&B with an API key "
    )
    line += "(set WANDB_API_KEY, or type wandb login), got one"
    with pytest.raises(NoLoginError, match=f"^{re.escape(line)}$"):
        tracker().resend(facts_of(tmp_path))

    assert tracker().open(facts_of(tmp_path)).link is None
    assert client.runs[0].offline
    assert capsys.readouterr().err == f"nocap: W&B: offline: {line}\n"


def test_a_session_leaves_no_thread(client: Client, tmp_path: Path) -> None:
    before = {*threading.enumerate()}
    session = tracker().open(facts_of(tmp_path))
    mirrors = [each for each in threading.enumerate() if each.name == "wandb mirror"]
    (thread,) = {*mirrors} - before
    session.finish(summary={}, status="finished")
    thread.join(60)
    assert not thread.is_alive()


# --- nocap.runs sync ------------------------------------------------------------------------------


def record(root: Path, *, seed: int, **about: Any) -> Path:
    """A record that can be sent. Its attempt names no grid."""
    run = write_run(root, seed=seed, **about)
    (run / "config.yaml").write_text(f"seed: {seed}\n")
    return seal(run)


@pytest.fixture
def outputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder `outputs` of the current one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("nocap.options.tracker.wandb.mirror_session.ASK_S", 2.0)
    return tmp_path / "outputs"


def test_sync_sends_what_it_can_and_names_the_rest(
    client: Client, outputs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A bad record or folder does not stop the others."""
    record(outputs, seed=2)
    folder = record(outputs, seed=1, started="2025-01-01T00:00:00")
    (folder / ".lease").write_text("somebody's")
    config = record(outputs, seed=0, started="2025-01-02T00:00:00")
    (config / "config.yaml").write_text("[")
    seal(config)
    assert runs.main(["sync"]) == 1
    said = capsys.readouterr()
    assert said.out.endswith(f"the server has 1 of 3 runs; nocap sent {len(STEPS)} rows now\n")
    first, second = said.err.splitlines()
    assert first.startswith(f"nocap: not sent: {folder.name}: ")
    assert second.startswith(f"nocap: not sent: {config.name}: ")
    assert len(client.server.runs) == 1


def test_a_comparison_that_was_not_uploaded_ends_sync_with_1(
    client: Client, outputs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = record(outputs, seed=0)
    grid = outputs / "grids" / "a-grid"
    grid.mkdir(parents=True)
    cell = {"identity": run.name.rpartition("-")[2], "run": run.name}
    content = {"name": grid.name, "cells": [cell]}
    (grid / "grid.json").write_text(json.dumps(content))
    assert runs.main(["sync"]) == 0
    (grid / REPORT).write_text("a report")
    client.refuses = True
    assert runs.main(["sync"]) == 1
    said = capsys.readouterr()
    assert said.out.endswith("the server has 1 of 1 run; nocap sent 0 rows now\n")
    assert "nocap.runs sync outputs/grids/a-grid" in said.err
    client.refuses = False
    assert runs.main(["sync"]) == 0
    (place,) = grid.glob("wandb/mirror.json")
    there = json.loads(place.read_text())["id"]
    assert len(client.server.runs[there].history) == 1
    assert runs.main(["sync"]) == 0
    assert len(client.server.runs[there].history) == 1
    client.server.delete(there)
    assert runs.main(["sync"]) == 0
    history = client.server.runs[f"{there}-2"].history
    assert len(history) == 1, "what the server says counts"


def test_a_server_that_does_not_answer_is_not_asked_for_each_run(
    client: Client, outputs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for seed in range(3):
        record(outputs, seed=seed)
    client.server.fail(500)
    assert runs.main(["sync"]) == 1
    assert client.server.refused == 1
    assert (
        capsys.readouterr().err
        == "nocap: W&B does not answer: HTTP Error 500: Internal Server Error\n"
    )
