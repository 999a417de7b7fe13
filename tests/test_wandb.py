"""The mirror as a W&B server gets it from W&B's own client: the rows of the record, each once, in
any order of kills, resumes, outages and uploads. The server is on 127.0.0.1."""

from __future__ import annotations

import json
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from nocap.config.compose import compose
from nocap.config.flags import parse
from nocap.launch.plan import located_and_checked
from nocap.options.tracker.wandb.names import cut
from tests.conftest import REPO
from tests.test_faults import FAULTS
from tests.test_tracking import environment, history, recorded
from tests.wandb_server import ENTITY, HANG, KEY, StoredRun, WandbServer, wandb_server

WORDS = (
    "model=nano",
    "data=synthetic",
    "trainer.steps=30",
    "trainer.val_every=10",
    "output_dir=out",
)
# what W&B's client reads of its environment: a post to the file stream every so many seconds
QUICK = {"WANDB__FILE_STREAM_TRANSMIT_INTERVAL": "0.1"}


@pytest.fixture
def server() -> Iterator[WandbServer]:
    with wandb_server() as made:
        yield made


def nocap(here: Path, server: WandbServer | None, command: str, *words: str, **extra: str) -> Any:
    """`python -m nocap.COMMAND WORDS…` in this folder, with a login at this server or without
    one."""
    if server:
        login = {"WANDB_BASE_URL": server.url, "WANDB_API_KEY": KEY}
    else:
        login = {}
    env = environment(here, **QUICK, **login, **extra)
    return subprocess.run(
        [sys.executable, "-m", f"nocap.{command}", *words],
        cwd=here,
        env=env,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def folder_of(here: Path) -> Path:
    (folder,) = (here / "out" / "runs").iterdir()
    return folder


def summary_of(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return content


def only(server: WandbServer) -> StoredRun:
    (run,) = server.runs.values()
    return run


@pytest.mark.gate
def test_a_server_gets_the_rows_of_the_record_and_its_summary(
    tmp_path: Path, server: WandbServer
) -> None:
    done = nocap(tmp_path, server, "train", *WORDS)
    assert done.returncode == 0
    assert done.stderr == ""
    folder = folder_of(tmp_path)
    run = only(server)
    assert run.rows == recorded(folder)
    lengths = len(run.rows)
    assert lengths == 31
    losses = summary_of(folder)["val_loss"]
    assert run.summary["eval/loss"] == losses
    assert run.exit_code == 0
    assert f"{server.url}/{ENTITY}/nocap/runs/{run.id}" in done.stdout


# --- one record, sent in parts --------------------------------------------------------------------

# A training as its tracker sees it: a part of a record's rows comes again, the next ones come, and
# it is killed, stopped or ends.
PLAY = """
import os, signal, sys, time
from dataclasses import replace
from pathlib import Path
from nocap.launch.run_facts import run_facts
from nocap.launch.upload import config_of, tracker_of
from nocap.options.tracker.wandb import WandbMode
from nocap.store.rows_file import RowsFile
from nocap.store.record import read_record
from nocap.store.tracking import open_tracker

folder, mode, how = Path(sys.argv[1]), *sys.argv[2:4]
first, last = map(int, sys.argv[4:])
record = read_record(folder)
rows = RowsFile(folder / "metrics.jsonl").rows()
config = config_of(record)
tracker = replace(tracker_of(config), mode=WandbMode(mode), init_timeout_s=4)
session = open_tracker(tracker, run_facts(config, folder, record.manifest), rows=rows[:first])
for row in rows[first:last]:
    session.log(row)
    time.sleep(0.02)
if how == "kill":
    time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGKILL)
summary = record.summary if how == "end" else {}
session.finish(summary=summary, status="finished" if how == "end" else "preempted")
print(session.url_or_hint)
os._exit(0)
"""


@dataclass
class Lab:
    """A record of 31 rows in a folder of its own, and the whole of it elsewhere."""

    here: Path
    folder: Path
    whole: Path

    def play(
        self, server: WandbServer, mode: str, how: str, first: int, last: int
    ) -> subprocess.CompletedProcess[str]:
        """Train from row `first` to row `last`, as the record then has it."""
        shutil.rmtree(self.folder / "checkpoints", ignore_errors=True)
        lines = (self.whole / "metrics.jsonl").read_bytes().splitlines(keepends=True)
        content = b"".join(lines[:last])
        (self.folder / "metrics.jsonl").write_bytes(content)
        (self.folder / "summary.json").unlink(missing_ok=True)
        if how == "end":
            shutil.copy(self.whole / "summary.json", self.folder)
        folder = str(self.folder)
        words = [folder, mode, how, str(first), str(last)]
        env = environment(self.here, **QUICK, WANDB_BASE_URL=server.url, WANDB_API_KEY=KEY)
        command = [sys.executable, "-c", PLAY, *words]
        return subprocess.run(
            command,
            cwd=self.here,
            env=env,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def sync(self, server: WandbServer) -> Any:
        path = str(self.folder.relative_to(self.here))
        return nocap(self.here, server, "runs", "sync", path)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was trained without a tracker."""
    here = tmp_path_factory.mktemp("trained")
    done = nocap(here, None, "train", *WORDS, "tracker=none")
    assert done.returncode == 0, done.stderr
    return folder_of(here)


@pytest.fixture
def lab(trained: Path, tmp_path: Path) -> Lab:
    folder = tmp_path / "out" / "runs" / trained.name
    shutil.copytree(trained, folder)
    return Lab(here=tmp_path, folder=folder, whole=trained)


def has_record(server: WandbServer, lab: Lab) -> None:
    """The server has the record's rows, each once, and its summary."""
    run = only(server)
    assert run.rows == recorded(lab.whole)
    losses = summary_of(lab.whole)["val_loss"]
    assert run.summary["eval/loss"] == losses
    assert run.exit_code == 0


@pytest.mark.slow
@pytest.mark.parametrize("status", [401, 403, 404, 500, HANG])
def test_what_a_server_has_not_taken_is_said_with_the_command_that_sends_it(
    status: int, lab: Lab, server: WandbServer
) -> None:
    server.fail(status, after=2)
    done = lab.play(server, "auto", "end", 0, 31)
    assert done.returncode == 0
    (line,) = done.stderr.splitlines()
    assert line.startswith("nocap: W&B: nocap did not upload everything (")
    command = line.partition("this command sends the rest: ")[2]
    assert done.stdout == f"{command}\n"
    server.fail(200)
    module, *words = shlex.split(command)[2:]
    again = nocap(lab.here, server, module.removeprefix("nocap."), *words)
    assert again.returncode == 0
    assert again.stderr == ""
    has_record(server, lab)


@pytest.mark.slow
def test_a_run_without_a_tracker_is_sent_and_the_second_time_nothing(
    lab: Lab, server: WandbServer
) -> None:
    first = lab.sync(server)
    assert first.returncode == 0
    assert first.stderr == ""
    assert first.stdout.endswith("the server has 1 of 1 run; nocap sent 31 rows now\n")
    second = lab.sync(server)
    assert second.stdout.endswith("the server has 1 of 1 run; nocap sent 0 rows now\n")
    has_record(server, lab)


@pytest.mark.slow
def test_a_run_that_was_deleted_on_the_server_is_sent_anew(lab: Lab, server: WandbServer) -> None:
    assert lab.sync(server).returncode == 0
    old = only(server).id
    server.delete(old)
    again = lab.sync(server)
    assert (
        again.stderr
        == f"nocap: W&B: run {old} was deleted on the server, so nocap sends it again as {old}-2\n"
    )
    assert only(server).id == f"{old}-2"
    has_record(server, lab)


@pytest.mark.slow
def test_each_row_has_its_own_time(lab: Lab, server: WandbServer) -> None:
    assert lab.sync(server).returncode == 0
    walls = [row["clock/wall_s"] for row in recorded(lab.whole)]
    times = [row["_timestamp"] for row in only(server).history]
    expected = [wall - walls[0] for wall in walls]
    times_apart = [at - times[0] for at in times]
    assert times_apart == pytest.approx(expected, abs=1e-5)


@pytest.mark.slow
def test_an_offline_run_has_one_folder_with_each_row_once(lab: Lab, server: WandbServer) -> None:
    lab.play(server, "offline", "kill", 0, 15)
    lab.play(server, "offline", "stop", 8, 20)
    done = lab.play(server, "offline", "end", 20, 31)
    assert done.stdout == f"python -m nocap.runs sync {lab.folder.relative_to(lab.here)}\n"
    paths = lab.folder.glob("wandb/offline-run-*")
    assert len(list(paths)) == 1
    assert history(lab.folder) == recorded(lab.whole)
    assert not server.runs


@pytest.mark.slow
def test_the_same_config_trained_again_elsewhere_is_another_run(
    lab: Lab, server: WandbServer, tmp_path: Path
) -> None:
    assert lab.sync(server).returncode == 0
    other = tmp_path / "colleague"
    other.mkdir()
    done = nocap(other, server, "train", *WORDS)
    assert done.returncode == 0
    first, second = server.runs.values()
    assert len(first.rows) == 31
    assert len(second.rows) == 31
    assert second.rows == recorded(folder_of(other))
    for key in ("displayName", "jobType"):
        assert first.described[key] == second.described[key]
    assert first.config["arm_id"] == second.config["arm_id"]


@pytest.mark.slow
def test_without_a_login_sync_refuses(lab: Lab) -> None:
    path = str(lab.folder.relative_to(lab.here))
    done = nocap(lab.here, None, "runs", "sync", path)
    assert done.returncode == 2
    assert done.stderr == "nocap: W&B needs a login: type wandb login, or set WANDB_API_KEY\n"
    folder = str(lab.folder)
    done = nocap(lab.here, None, "runs", "sync", folder, WANDB_API_KEY="short")
    assert done.returncode == 2
    assert done.stderr == "nocap: WANDB_API_KEY must have at least 40 characters, got 5\n"


@pytest.mark.slow
def test_a_server_that_does_not_answer_ends_sync_with_1(lab: Lab, server: WandbServer) -> None:
    server.fail(500)
    done = lab.sync(server)
    assert done.returncode == 1
    assert done.stderr.startswith("nocap: W&B does not answer: HTTP Error 500")
    assert done.stderr.count("\n") == 1


@pytest.mark.slow
def test_a_training_that_a_kill_sets_back_is_one_run_with_each_step_once(
    tmp_path: Path, server: WandbServer
) -> None:
    """Steps that are trained again keep the times of the first time; their losses are the same."""
    fault = {"PYTHONPATH": FAULTS, "NOCAP_FAULT": "kill@13", "NOCAP_FAULT_DIR": str(tmp_path)}
    done = nocap(tmp_path, server, "train", *WORDS, "trainer.checkpoint_every=5", **fault)
    assert done.returncode == 0
    assert "starting again from the last checkpoint (1 of 1)" in done.stderr
    run = only(server)
    expected = recorded(folder_of(tmp_path))
    steps = [row["step"] for row in run.rows]
    assert steps == list(range(31))
    for name in ("step", "tokens", "eval/loss", "train/loss", "train/lr"):
        values = [row.get(name) for row in run.rows]
        assert values == [row.get(name) for row in expected]
    losses = summary_of(folder_of(tmp_path))["val_loss"]
    assert run.summary["eval/loss"] == losses


@pytest.mark.slow
def test_a_server_that_starts_late_gets_all_rows(tmp_path: Path) -> None:
    """It begins when the client has asked for it in vain."""
    words = ("tracker.mode=online", "tracker.init_timeout_s=120")
    with socket.create_server(("127.0.0.1", 0)) as early:
        port = early.getsockname()[1]
        login = {"WANDB_BASE_URL": f"http://127.0.0.1:{port}", "WANDB_API_KEY": KEY}
        command = [sys.executable, "-m", "nocap.train", *WORDS, *words]
        at_work = environment(tmp_path, **QUICK, **login)
        training = subprocess.Popen(
            command,
            cwd=tmp_path,
            env=at_work,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        early.accept()[0].close()
    with wandb_server(port) as server:
        _, err = training.communicate(timeout=300)
        assert training.returncode == 0
        assert err == ""
        assert only(server).rows == recorded(folder_of(tmp_path))
        assert only(server).exit_code == 0


# Kills, resumes, outages and uploads: mode, how it goes on, first and last row; or an upload.
SYNC = ("sync", "", 0, 0)
ORDERS = {
    "killed, resumed": [("online", "kill", 0, 15), ("online", "end", 8, 31)],
    "killed, sent, resumed": [("online", "kill", 0, 15), SYNC, ("online", "end", 8, 31)],
    "stopped, resumed": [("online", "stop", 0, 15), ("online", "end", 15, 31)],
    "stopped, down, sent": [("online", "stop", 0, 15), ("down", "end", 15, 31), SYNC],
    "down, resumed": [("down", "stop", 0, 15), ("online", "end", 15, 31)],
    "down, killed, sent": [("down", "kill", 0, 15), ("down", "end", 8, 31), SYNC],
    "offline, sent": [("offline", "end", 0, 31), SYNC, SYNC],
    "offline, sent, resumed, sent": [
        ("offline", "stop", 0, 15),
        SYNC,
        ("offline", "end", 15, 31),
        SYNC,
    ],
    "offline, killed, sent": [("offline", "kill", 0, 15), SYNC, ("offline", "end", 8, 31), SYNC],
    "offline, then online": [("offline", "stop", 0, 15), ("online", "end", 15, 31)],
    "online, then offline": [("online", "kill", 0, 15), ("offline", "end", 8, 31), SYNC],
    "all of them": [
        ("online", "kill", 0, 9),
        ("down", "stop", 5, 14),
        SYNC,
        ("offline", "kill", 14, 22),
        SYNC,
        ("online", "stop", 18, 27),
        ("offline", "end", 27, 31),
        SYNC,
        SYNC,
    ],
}


@pytest.mark.slow
@pytest.mark.parametrize("order", ORDERS)
def test_in_whatever_order_the_server_has_the_rows_of_the_record_each_once(
    order: str, lab: Lab, server: WandbServer
) -> None:
    for mode, how, first, last in ORDERS[order]:
        server.fail(500 if mode == "down" else 200)
        if mode == "sync":
            done = lab.sync(server)
            assert done.returncode == 0
            assert done.stderr == ""
        else:
            lab.play(server, "online" if mode == "down" else mode, how, first, last)
    has_record(server, lab)


@pytest.mark.slow
def test_the_page_of_a_run_begins_with_the_validation_loss_then_speed_and_memory(
    lab: Lab, server: WandbServer
) -> None:
    """W&B sorts sections by name, and draws no panel of a hidden metric."""
    assert lab.sync(server).returncode == 0
    run = only(server)
    drawn = {name for row in run.rows for name in row} - run.hidden
    sections = dict.fromkeys(sorted(name.partition("/")[0] for name in drawn))
    assert [*sections] == ["eval", "perf", "resources", "train"]
    assert {"step", "tokens", "hours", "clock/train_s"} <= run.hidden
    shown = {key: value for key, value in run.summary.items() if key[0] != "_"}
    assert len(shown) <= 20
    losses = [row["eval/loss"] for row in run.rows if "eval/loss" in row]
    assert shown["eval/best"] == min(losses)
    assert shown["eval/loss"] == losses[-1]
    assert shown["status"] == "finished"
    assert "steps_to_target" not in shown
    of_machine = [key for key in shown if key.startswith(("hardware", "params", "memory_", "data"))]
    assert not of_machine


@pytest.mark.slow
def test_keys_for_a_target_and_a_checkpoint(tmp_path: Path, server: WandbServer) -> None:
    words = ("tracker.target=4.5", "tracker.checkpoint=true", "tracker.system=true")
    often = {"WANDB__STATS_SAMPLING_INTERVAL": "0.5"}
    done = nocap(tmp_path, server, "train", *WORDS, *words, **often)
    assert done.returncode == 0
    assert done.stderr == ""
    run = only(server)
    there = [row["step"] for row in run.rows if row.get("eval/loss", 9.0) <= 4.5]
    assert run.summary["steps_to_target"] == there[0]
    (artifact,) = server.artifacts
    assert artifact["artifactTypeName"] == "model"
    assert run.file("wandb-events.jsonl")


@pytest.mark.slow
def test_a_stopped_run_is_marked_and_a_diverged_one_alerts(lab: Lab, server: WandbServer) -> None:
    lab.play(server, "online", "stop", 0, 9)
    assert only(server).preempting
    assert only(server).exit_code == 1
    exploding = ("--config-dir", str(REPO / "tests" / "exploding"), "schedule=exploding")
    done = nocap(
        lab.here, server, "train", *WORDS, *exploding, "tracker.alert=true", "output_dir=hot"
    )
    assert done.returncode == 1
    (alert,) = server.alerts
    assert alert["title"] == "diverged"


# --- W&B's agent ----------------------------------------------------------------------------------


def agent(here: Path, run_id: str, **values: object) -> dict[str, str]:
    """The environment and the file of parameters that `wandb agent` gives to a command."""
    path = here / f"{run_id}.yaml"
    text = "".join(f"{key}:\n  value: {value}\n" for key, value in values.items())
    path.write_text(text)
    ids = {"WANDB_SWEEP_ID": "sweep", "WANDB_RUN_ID": run_id, "WANDB_SWEEP_PARAM_PATH": str(path)}
    return {**ids, "WANDB_PROJECT": "swept", "WANDB_ENTITY": ENTITY}


@pytest.mark.slow
def test_an_agents_run_has_its_id_and_a_finished_one_is_reported_again(
    tmp_path: Path, server: WandbServer
) -> None:
    words = (*WORDS, "attention=gqa", "optimizer.lr=0.001")
    values: dict[str, object] = {"attention": "gqa", "optimizer.lr": 0.001}
    first = nocap(tmp_path, server, "train", *words, **agent(tmp_path, "first", **values))
    assert first.returncode == 0
    assert first.stderr == ""
    again = nocap(tmp_path, server, "train", *words, **agent(tmp_path, "again", **values))
    assert "the run has already finished, so there is nothing to train" in again.stdout
    assert [*server.runs] == ["first", "again"]
    for run in server.runs.values():
        assert run.rows == recorded(folder_of(tmp_path))
        assert run.project == "swept"
        assert run.described["sweep"] == "sweep"
        assert run.config["attention"] == "gqa"
        assert run.config["attention.n_kv_heads"] == 2
        assert run.config["optimizer.lr"] == 0.001
    grid = nocap(tmp_path, server, "train", "-m", *words, **agent(tmp_path, "third", **values))
    assert grid.returncode == 2
    assert grid.stderr.startswith("nocap: --multirun must not run under W&B's agent: ")


def test_a_sweeps_words_with_hyphens_are_refused_with_the_form_that_works(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError,
        match=r"write a key without hyphens before it; in a W&B sweep, use \$\{args_no_hyphens\}\)",
    ):
        parse(["--attention=gqa"])


# --- the start ------------------------------------------------------------------------------------

REFUSED = {
    "WANDB_API_KEY=short": "WANDB_API_KEY must have at least 40 characters, got 5",
    "WANDB_IDENTITY_TOKEN_FILE=token.jwt": "WANDB_IDENTITY_TOKEN_FILE must be unset, because "
    "nocap reads rows from W&B with an API key (set WANDB_API_KEY, or type wandb login), got "
    "token.jwt",
    "WANDB_BASE_URL=notaurl": "WANDB_BASE_URL must be a server's address, such as "
    "https://api.wandb.ai, got "
    "notaurl",
    "WANDB_MODE=onlin": "tracker.mode: WANDB_MODE: Invalid value 'onlin', expected one of [auto, "
    "online, "
    "offline, disabled]",
    "WANDB_PROJECT=a/b": r"tracker.project must be a non-empty name without / \ # ? % or :, "
    "got 'a/b'",
    f"WANDB_TAGS=a,{'b' * 65}": "tracker.tags must have at most 64 characters, got 65",
    f"WANDB_NAME={'n' * 129}": "tracker.name must have at most 128 characters, got 129",
}


@pytest.mark.parametrize("setting", REFUSED)
def test_a_setting_that_cannot_work_is_refused_before_the_start(
    setting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, _, value = setting.partition("=")
    monkeypatch.setenv(name, value)
    with pytest.raises(ValueError) as refused:
        located_and_checked(compose(["model=nano", "data=synthetic", "tracker=wandb"]))
    assert str(refused.value) == REFUSED[setting]


def test_variables_fill_what_the_config_leaves_at_its_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("PROJECT", "ENTITY", "NAME", "RUN_GROUP", "JOB_TYPE", "NOTES"):
        monkeypatch.setenv(f"WANDB_{name}", f"of {name}")
    monkeypatch.setenv("WANDB_TAGS", "one, two words")
    monkeypatch.setenv("WANDB_MODE", "offline")
    tracker: Any = compose(["tracker=wandb", "tracker.project=typed"]).tracker

    assert tracker.project == "typed"
    assert tracker.entity == "of ENTITY"
    assert tracker.name == "of NAME"
    assert tracker.group == "of RUN_GROUP"
    assert tracker.job_type == "of JOB_TYPE"
    assert tracker.notes == "of NOTES"
    assert tracker.tags == ["one", "two words"]
    assert tracker.mode.value == "offline"


@pytest.mark.parametrize(("variable", "mode"), [("dryrun", "offline"), ("run", "online")])
def test_the_older_names_of_modes_are_taken(
    variable: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", variable)
    tracker: Any = compose(["tracker=wandb"]).tracker
    assert tracker.mode.value == mode


def test_a_long_name_is_cut_so_that_it_stays_unique() -> None:
    first, second = (cut("x" * 200 + end, 128) for end in "ab")
    assert len(first) == 128
    assert len(second) == 128
    assert first != second
    assert cut("short", 128) == "short"


@pytest.mark.slow
def test_the_start_says_where_and_sends_what_is_known(tmp_path: Path, server: WandbServer) -> None:
    done = nocap(tmp_path, server, "train", *WORDS, "tracker.name=mine", WANDB_TAGS="a b")
    assert done.returncode == 0
    run = only(server)
    link = f"tracker: {server.url}/{ENTITY}/nocap/runs/{run.id}"
    assert done.stdout.index(link) < done.stdout.index("step      0/30")
    assert run.described["displayName"] == "mine"
    assert "a b" in run.described["tags"]
    summary = summary_of(folder_of(tmp_path))
    text = (folder_of(tmp_path) / "manifest.json").read_text()
    manifest = json.loads(text)
    assert run.config["params.total"] == summary["params"]["total"]
    assert run.config["hardware.fingerprint"] == summary["hardware"]["fingerprint"]
    expected = manifest["git"].get("commit")
    assert run.config.get("commit") == expected
    assert run.config["identity"] == summary["identity"]
    assert run.config["swept"] == "steps, val_every"
    noise = {"output_dir", "cache_dir", "store", "tracker", "options"}
    assert not [key for key in run.config if key.partition(".")[0] in noise]
    keys = [key for key in run.config if key == "attention" or key.endswith("/attention")]
    assert keys == ["attention"]


GRID = ("-m", *WORDS, "seed=0,1", "trainer.steps=5")


@pytest.mark.slow
def test_a_grid_prints_the_link_of_its_group(tmp_path: Path, server: WandbServer) -> None:
    done = nocap(tmp_path, server, "train", *GRID)
    assert done.returncode == 0
    assert done.stderr == ""
    (folder,) = (tmp_path / "out" / "grids").iterdir()
    assert f"tracker: {server.url}/{ENTITY}/nocap/groups/{folder.name}\n" in done.stdout
    runs = server.runs.values()
    assert {run.described["groupName"] for run in runs} == {folder.name}
    assert len(server.runs) == 3, "two cells and the comparison"
    again = nocap(tmp_path, server, "runs", "sync", f"out/grids/{folder.name}")
    assert again.stdout.endswith("the server has 2 of 2 runs; nocap sent 0 rows now\n")
    assert len(server.runs) == 3


@pytest.mark.slow
def test_an_unreachable_server_is_asked_once_a_grid_and_sync_sends_all(
    tmp_path: Path, server: WandbServer
) -> None:
    server.fail(500)
    done = nocap(tmp_path, server, "train", *GRID)
    assert done.returncode == 0
    assert server.refused == 1
    assert "tracker: offline: W&B does not answer: HTTP Error 500" in done.stdout
    (folder,) = (tmp_path / "out" / "grids").iterdir()
    command = f"python -m nocap.runs sync out/grids/{folder.name}"
    line = (
        f"tracker: nocap did not upload 2 of 2 runs and the comparison; send the rest with "
        f"{command}\n"
    )
    assert line in done.stdout
    server.fail(200)
    sent = nocap(tmp_path, server, "runs", "sync", f"out/grids/{folder.name}")
    assert sent.returncode == 0
    assert sent.stderr == ""
    assert len(server.runs) == 3
    runs = server.runs.values()
    rows = {run.described["displayName"].split()[-1]: len(run.rows) for run in runs}
    assert rows == {"s0": 6, "s1": 6, folder.name: 1}
