"""The mirror against the record it mirrors. Nothing leaves this machine: the only servers are on
127.0.0.1.

wandb keeps one process and one login per Python process, so every scenario is a child with an
environment of its own.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
import yaml

from nocap import outside
from nocap.config.compose import compose, composed
from nocap.config.outgoing_text import redact
from nocap.config.plain import to_plain
from nocap.launch import worker
from nocap.launch.grid import plan_grid
from nocap.launch.heartbeat import Heartbeat
from nocap.launch.plan import Plan, typed_keys
from nocap.launch.record_head import manifest, write_record_head
from nocap.launch.run_facts import run_facts
from nocap.launch.signals import StopNow
from nocap.launch.upload import send_left
from nocap.options.tracker import RunFacts, TrackerSession
from nocap.options.tracker.none import NoTracker
from nocap.options.tracker.wandb.mirror_place import MirrorPlace
from nocap.options.tracker.wandb.names import curve_name
from nocap.store.record_files import read_json
from nocap.store.rows_file import RowsFile
from nocap.store.tracking import open_tracker, show_commands
from nocap.training.job import Job
from tests.attempts import on_a_terminal
from tests.conftest import REPO
from tests.in_process import TINY, planned, start

IDENTITY = "0123abcd4567"
KEY = "f" * 40
ROWS = 40

# What every child starts with. `mirror(...)` opens the tracker as the trainer does; `record(n)`
# gives the first n rows.
PRELUDE = f"""
import json, os, signal, sys, time
from contextlib import suppress
from pathlib import Path
from nocap.config.outgoing_text import redact
from nocap.options.tracker import RunFacts
from nocap.options.tracker.none import NoTracker
from nocap.options.tracker.wandb import Wandb, WandbMode
from nocap.store.tracking import open_tracker

def record(n):
    return [json.loads(line) for line in Path("metrics.jsonl").read_text().splitlines()[:n]]

def mirror(*, mode="auto", timeout_s=4, rows=(), config=None):
    tracker = Wandb(project="p", entity=None, group="g", tags=["t"], mode=WandbMode(mode),
        init_timeout_s=timeout_s)
    facts = RunFacts(identity="{IDENTITY}", name="d12-{IDENTITY}", arm="gqa", seed=0,
                     run_dir=Path.cwd(), config={{}}, counted=config or {{"model.n_layer": 2}},
                     tags=("attention=gqa",),
                     options={{"attention": "gqa"}}, swept={{"lr": 0.1}})
    return open_tracker(tracker, facts, rows=rows)

def send(name):
    # a signal to wandb's own processes
    children = Path(f"/proc/self/task/{{os.getpid()}}/children").read_text().split()
    for pid in children:
        if b"wandb-core" in Path(f"/proc/{{pid}}/cmdline").read_bytes():
            os.kill(int(pid), getattr(signal, name))
            with suppress(OSError):  # it is gone
                stat = Path(f"/proc/{{pid}}/stat")
                while stat.read_text().rpartition(")")[2].split()[0] not in "TZ":
                    time.sleep(0.002)
"""


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run folder with a record whose floats use all their digits and whose unknowns are null."""
    folder = tmp_path / "run"
    folder.mkdir()
    rows = []
    for step in range(ROWS):
        if step % 10:
            validation = {}
        else:
            validation = {"val/loss": 10.967978 / (step + 1), "val/bpb": None}
        rows.append(
            {
                "step": step * 3,
                "tokens": step * 3 * 524_288,
                "train/loss": 11 / (step + 3),
                "train/lr": 1e-7 * step,
                "perf/mfu": None,
                "perf/tokens_per_s": 1e5 / 3 + step,
                "memory/peak_mib": 9829.25,
                "clock/train_s": step / 7,
                "clock/val_s": 0.0,
                **validation,
            }
        )
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "metrics.jsonl").write_text(text)
    return folder


def environment(tmp_path: Path, **extra: str) -> dict[str, str]:
    """No account, no settings, no proxy: nothing of the person who runs the tests."""
    left_out = ("WANDB", "NETRC", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
    environ = {}
    for name, value in os.environ.items():
        if not name.upper().startswith(left_out):
            environ[name] = value
    home = str(tmp_path)
    homes = dict.fromkeys(("HOME", "WANDB_DIR", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR"), home)
    own = {
        "NETRC": f"{home}/netrc",
        "PYTHONPATH": str(REPO),
        "WANDB_BASE_URL": "http://127.0.0.1:9",
    }
    return environ | homes | own | extra


def child(code: str, run_dir: Path, **extra: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", "-c", PRELUDE + code]
    environ = environment(run_dir.parent, **extra)
    return subprocess.run(
        command, cwd=run_dir, env=environ, capture_output=True, text=True, timeout=90, check=False
    )


def inspect(run_dir: Path) -> list[dict[str, dict]]:
    """The records of the one offline run, as wandb's own reader gives them."""
    (folder,) = (run_dir / "wandb").glob("*run-*-*")
    path = str(Path(sys.executable).with_name("wandb"))
    command = [path, "leet", "inspect", "--json", str(folder)]
    environ = environment(run_dir.parent)
    lines = subprocess.check_output(command, env=environ, text=True, stderr=subprocess.PIPE)
    return [json.loads(line) for line in lines.splitlines()]


def history(run_dir: Path) -> list[dict[str, object]]:
    items = []
    for record in inspect(run_dir):
        if record["type"] == "history":
            items.append(record["history"]["item"])
    for item in items:
        assert item["_step"] == item["step"]
    values: list[dict[str, object]] = []
    for item in items:
        values.append({key: value for key, value in item.items() if not key.startswith("_")})
    return values


def recorded(folder: Path) -> list[dict[str, Any]]:
    """The rows of a record, without their nulls, as W&B has them: under its names, and with
    hours."""
    expected = list[dict[str, Any]]()
    for row in RowsFile(folder / "metrics.jsonl").rows():
        values = {curve_name(key): value for key, value in row.items() if value is not None}
        expected.append({**values, "hours": row["clock/train_s"] / 3600})
    return expected


@pytest.mark.gate
def test_offline_run_reads_back_as_the_record(run_dir: Path) -> None:
    code = """
tracker = mirror(config={"data.name": ["a", "hub-" + os.environ["HF_TOKEN"]]})
for row in record(None):
    tracker.log(row)
tracker.finish(summary={
    "val_loss": 3.25, "clock_s": {"train": 2.5}, "mfu": None, "arm": "gqa", "params": {"total": 7},
        "step_ms": {"median": 31.5},
}, status="finished")
print(tracker.url_or_hint)
"""
    done = child(code, run_dir, HF_TOKEN="hf_secret_value", SHELL_ARGUMENT="visible")
    assert done.returncode == 0
    assert done.stderr == ""
    assert done.stdout == "python -m nocap.runs sync .\n"
    assert history(run_dir) == recorded(run_dir)
    records = inspect(run_dir)
    run = next(record["run"] for record in records if record["type"] == "run")
    facts = ("run_id", "display_name", "run_group", "job_type", "tags", "project")
    named = [IDENTITY, f"d12-{IDENTITY}", "g", "gqa", ["t", "attention=gqa"], "p"]
    assert [run[key] for key in facts] == named
    told = [run["config"]["update"][key] for key in ("arm", "attention", "swept")]
    assert told == ["gqa", "gqa", "lr"]
    updates = [record.get("summary", {}).get("update", {}) for record in records]
    summary = {}
    for update in updates:
        for key, value in update.items():
            summary[key] = value
    named = ["eval/loss", "clock/train_s", "perf/step_ms"]
    values = [summary.get(key) for key in named]
    assert values == [3.25, 2.5, 31.5]
    # the final loss has one name
    assert not {"val_loss", "val/loss", "arm", "perf/mfu"} & {*summary}
    assert records[-1]["exit"]["exit_code"] == 0
    assert "hf_secret_value" not in json.dumps(records)
    assert "hub-<redacted:HF_TOKEN>" in json.dumps(records)
    axes = [record["metric"] for record in records if record["type"] == "metric"]
    shown = set()
    for axis in axes:
        if "name" in axis and not axis.get("options", {}).get("hidden"):
            shown.add(axis["name"])
    steps = [name for name in shown if name in ("step", "tokens") or name.startswith("clock/")]
    assert not steps
    axis_names = {(axis.get("glob_name"), axis.get("step_metric")) for axis in axes}
    assert {("*", "step")} <= axis_names


def test_cells_are_told_apart_by_what_their_grid_sweeps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And one command sends what all of them left offline."""
    monkeypatch.chdir(tmp_path)
    words = (*TINY, "tracker=wandb", "tracker.tags=[mine]", "output_dir=out")
    arms = (("optimizer.lr=1e-3", "ideas=[x0,smear]"), ("optimizer.lr=3e-3", "ideas=[]"))
    swept = ("optimizer.lr", "ideas", "seed")
    cells = [[*words, *arm] for arm in arms]
    grid = plan_grid(cells, swept=swept, compose=composed, log=print)
    plans = [cell.plan for cell in grid.cells]
    told = [run_facts(to_plain(plan.run), plan.run_dir, manifest(plan, [])) for plan in plans]
    names = [facts.name for facts in told]
    assert names == ["lr=0.001 smear,x0 s0", "lr=0.003 ideas=none s0"]
    expected = [
        {"lr": 0.001, "ideas": "smear,x0", "seed": 0},
        {"lr": 0.003, "ideas": "none", "seed": 0},
    ]
    assert [facts.swept for facts in told] == expected
    tags = {
        "lr=0.001 smear,x0",
        "ideas=x0",
        "ideas=smear",
        "attention=flash",
        "data=synthetic",
        "model=nano",
    }
    assert tags <= {*told[0].tags}
    trackers = [tag for tag in (*told[0].tags, *told[0].options) if tag.startswith("tracker")]
    assert not trackers
    for plan in plans:
        MirrorPlace(id=plan.identity).write(made_folder(plan.run_dir))
    line = send_left(plans, grid.folder)
    command = f"python -m nocap.runs sync out/grids/{grid.name}"
    assert line == f"nocap did not upload 2 of 2 runs; send the rest with {command}"
    MirrorPlace(id="grid").write(made_folder(grid.folder))
    line = send_left(plans, grid.folder)
    assert (
        line == f"nocap did not upload 2 of 2 runs and the comparison; send the rest with {command}"
    )
    for plan in plans:
        MirrorPlace(id=plan.identity, complete=True).write(plan.run_dir)
    line = send_left(plans, grid.folder)
    assert line == f"nocap did not upload the comparison; send the rest with {command}"


def made_folder(path: Path) -> Path:
    path.mkdir(parents=True)
    return path


def test_runs_of_one_arm_alone_have_one_arm_id(tmp_path: Path) -> None:
    """Two arms of two grids may have one name."""
    plan = planned(tmp_path / "out")
    parts = {**plan.identity_parts, "source": {"nocap.model.gpt": "0" * 12}}
    others = {
        "a seed": planned(tmp_path / "out", "seed=5"),
        "a key": planned(tmp_path / "out", "optimizer.weight_decay=0.5"),
        "code": replace(plan, identity_parts=parts),
        "data": replace(plan, identity_parts={**plan.identity_parts, "data": "0" * 12}),
        "machine": replace(
            plan, identity_parts={**plan.identity_parts, "environment": {"device": "Another CPU"}}
        ),
    }
    facts = run_facts(to_plain(plan.run), plan.run_dir, manifest(plan, []))
    told = {}
    for what, other in others.items():
        of_plan = manifest(other, [])
        told[what] = run_facts(to_plain(other.run), other.run_dir, of_plan)
    arms = {other.arm for other in told.values()}
    assert arms == {facts.arm}
    assert len(facts.arm_id) == 12
    same = [what for what, other in told.items() if other.arm_id == facts.arm_id]
    assert same == ["a seed", "machine"]


def test_a_run_outside_of_grids_is_named_by_its_options_and_the_keys_that_were_typed() -> None:
    words = (
        "model=nano",
        "data=synthetic",
        "attention=gqa",
        "optimizer.lr=0.002",
        "tracker=none",
        "seed=3",
    )
    swept = typed_keys(composed(words).run, words)
    plan = replace(planned(Path("absent"), *words), swept=swept)
    facts = run_facts(to_plain(plan.run), plan.run_dir, manifest(plan, []))
    arm = "nano-gqa-gelu4x-wsd-adamw lr=0.002"

    assert facts.name == f"{arm} s3"
    assert facts.arm == arm
    assert facts.group is None
    assert facts.swept == {"lr": 0.002}


@pytest.mark.gate
def test_kill_and_resume_leaves_one_run_with_each_step_once(run_dir: Path) -> None:
    killed = child(
        """
tracker = mirror()
for row in record(30):
    tracker.log(row | {"train/loss": -1.0})
os.kill(os.getpid(), signal.SIGKILL)
""",
        run_dir,
    )
    assert killed.returncode == -signal.SIGKILL
    resumed = child(
        """
tracker = mirror(rows=record(20))
for row in record(None)[20:]:
    tracker.log(row)
tracker.finish(summary={}, status="preempted")
""",
        run_dir,
    )
    assert resumed.returncode == 0
    assert resumed.stdout == ""
    assert resumed.stderr == ""
    assert history(run_dir) == recorded(run_dir)
    assert inspect(run_dir)[-1]["exit"]["exit_code"] == 1


# case → mode, environment, reason
OFFLINE = {
    "a server that never answers": ("auto", {"WANDB_API_KEY": KEY, "WANDB_BASE_URL": "{url}"}, ""),
    "no login": ("online", {"WANDB_MODE": "offline"}, "no login\n"),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", OFFLINE)
def test_what_keeps_the_mirror_offline_is_one_warning(run_dir: Path, case: str) -> None:
    mode, extra, reason = OFFLINE[case]
    code = f"""
import wandb
tracker = mirror(mode="{mode}", timeout_s=2, rows=record(None))
tracker.finish(summary={{}}, status="finished")
"""
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        values = {name: value.format(url=url) for name, value in extra.items()}
        done = child(code, run_dir, **values)
    assert done.stderr.startswith(f"nocap: W&B: offline: {reason}")
    assert done.stderr.count("\n") == 1
    assert history(run_dir) == recorded(run_dir)


@pytest.mark.slow
def test_no_account_on_a_terminal_never_prompts(run_dir: Path) -> None:
    code = (
        PRELUDE + "assert sys.stdin.isatty()\nmirror(rows=record(None)).finish(summary={}, "
        "status='finished')"
    )
    variables = environment(run_dir.parent)
    assert on_a_terminal("-c", code, cwd=run_dir, env=variables) == (0, "")
    assert history(run_dir) == recorded(run_dir)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sent", "steps", "warning"),
    [("SIGKILL", ROWS, "stopped mirroring at step"), ("SIGSTOP", 500, "wandb does not answer")],
)
def test_a_mirror_that_dies_or_freezes_is_one_warning(
    run_dir: Path, sent: str, steps: int, warning: str
) -> None:
    """It holds up neither a step nor the end."""
    code = f"""
from nocap.options.tracker.wandb import mirror_session
mirror_session.FINISH_TIMEOUT_S = mirror_session.GRACE_S = 0.5
tracker = mirror()
send({sent!r})
row = record(1)[0] | {{f"key{{k}}": "x" * 100 for k in range(100)}}
for step in range({steps}):
    tracker.log(row | {{"step": step}})
tracker.finish(summary={{}}, status="finished")
send("SIGKILL")
os._exit(0)  # as a worker ends
"""
    if not Path(f"/proc/self/task/{os.getpid()}/children").exists():
        pytest.skip("this system does not list a process's children in /proc")
    done = child(code, run_dir)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("\n") == 1
    assert warning in done.stderr


@pytest.mark.slow
def test_comparison_is_a_run_with_a_table_and_the_report(run_dir: Path) -> None:
    code = """
from nocap.judge.comparison_json import result_of
from nocap.judge.comparison_schema import to_json
from nocap.report.flat_rows import tables_of
from nocap.store.tracking import ComparisonFacts, track_comparison
from tests.made_grid import made
comparison = to_json(result_of(made(3, broken=False)))
Path("report.html").write_text("the report")
tracker = Wandb(project="p", entity=None, group=None, mode=WandbMode.offline, init_timeout_s=4)
facts = RunFacts(identity="grid-1", name="grid", arm="comparison", seed=0, run_dir=Path.cwd(),
    config={}, group="grid")
tables = tables_of(made(3, broken=False))
track_comparison(
    tracker, ComparisonFacts(facts=facts, tables=tables, report=Path("report.html"), summary={})
)
arms = [[a["label"], a["n"], a["val_loss"], (a["difference"] or {}).get("verdict", "baseline")]
    for a in comparison["arms"]]
levels = [[f"{f['key']}={l['level']}", f["baseline"],
     l["difference"]["mean"], l["difference"]["verdict"]]
    for f in comparison["by_factor"]["factors"] for l in f["levels"]]
print(json.dumps({"verdicts": arms, "by_factor": levels}))
"""
    done = child(code, run_dir, XDG_DATA_HOME=str(run_dir), WANDB_DATA_DIR=str(run_dir))
    # wandb itself leaves a temporary folder to the interpreter's exit, and is told so
    assert done.returncode == 0
    assert "nocap:" not in done.stderr
    expected = json.loads(done.stdout)
    assert len(expected["by_factor"]) == 5
    for name, shown in {
        "verdicts": ("arm", "n", "val_loss", "verdict"),
        "by_factor": ("level", "against", "difference", "verdict"),
    }.items():
        (file,) = run_dir.glob(f"wandb/offline-run-*/files/media/table/{name}_*.json")
        table = json.loads(file.read_text())
        columns = [table["columns"].index(column) for column in shown]
        rows = [[row[i] for i in columns] for row in table["data"]]
        assert rows == expected[name]
    (page,) = run_dir.glob("wandb/offline-run-*/files/media/html/report_*.html")
    assert page.read_text() == "the report"
    run = next(record["run"] for record in inspect(run_dir) if record["type"] == "run")
    assert run["run_group"] == "grid"
    assert run["job_type"] == "comparison"


def test_disabled_and_none_import_nothing(run_dir: Path) -> None:
    code = """
mirror(mode="disabled", rows=record(None)).finish(summary={}, status="finished")
facts = RunFacts(identity="i", name="n", arm="a", seed=0, run_dir=Path.cwd(), config={})
tracker = open_tracker(NoTracker(), facts, rows=record(None))
tracker.finish(summary={}, status="finished")
assert tracker.url_or_hint is None
assert not {"wandb", "torch"} & set(sys.modules)
"""
    done = child(code, run_dir)
    assert done.returncode == 0
    assert done.stderr == ""
    assert not (run_dir / "wandb").exists()


def test_redact_replaces_secrets_wherever_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    environ = {
        "WANDB_API_KEY": "abcdefgh",
        "LONG_TOKEN": "abcdefgh-and-more",
        "MY_PASSWORD": "short",
    }
    for name, value in {**environ, "PATH": "/visible/path"}.items():
        monkeypatch.setenv(name, value)
    expected = {
        "a": "<redacted:LONG_TOKEN>",
        "b": ["x=<redacted:WANDB_API_KEY>;", {"c": "short", "d": 3}],
        "e": None,
        "f": "/visible/path",
    }
    secrets = {
        "a": "abcdefgh-and-more",
        "b": ["x=abcdefgh;", {"c": "short", "d": 3}],
        "e": None,
        "f": "/visible/path",
    }
    assert redact(secrets) == expected


# --- trackers beside W&B, and several at once -----------------------------------------------------

FACTS = {
    "identity": "0123abcd4567",
    "name": "gqa lr=0.1 s0",
    "arm": "gqa lr=0.1",
    "seed": 0,
    "group": "grid",
}
TRACKIO_ROWS = REPO / "tests" / "strangers" / "trackio_rows"
BOTH = f"""
from nocap import outside
rows = [{{"step": i, "tokens": 10 * i, "val/loss": 3.0 - i if i % 2 else None,
    "clock/train_s": i / 2}} for i in range(4)]
facts = RunFacts(**{FACTS!r}, run_dir=Path.cwd(), config={{"a": {{"b": 1}}}},
    options={{"attention": "gqa"}}, swept={{"lr": 0.1}})
outside.use([{str(TRACKIO_ROWS)!r}])
outside.find("tracker", "trackio_rows")
for attempt in ("killed", "resumed"):  # the second has the first's rows again
    session = open_tracker(NoTracker(also=["tensorboard", "trackio_rows"]), facts, rows=rows[:2])
    for row in rows[2:]:
        session.log(row)
    ends = {{"val_loss": 0.5, "arm": "x", "clock_s": {{"train": 9.0}}}}
    session.finish(summary=ends if attempt == "resumed" else {{}}, status="finished")
"""


@pytest.mark.slow
def test_tensorboard_and_a_tracker_from_outside_have_the_same_rows_once(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    read = """
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from trackio import Api
from trackio.sqlite_storage import SQLiteStorage
board = EventAccumulator("tensorboard")
board.Reload()
(run,) = Api().runs("nocap")
shown = []
for row in SQLiteStorage.get_logs("nocap", run.name):
    shown.append({key: value for key, value in row.items() if key != "timestamp"})
stored = {
    "hint": session.url_or_hint,
    "board": {tag: [(at.step, at.value) for at in board.Scalars(tag)]
        for tag in board.Tags()["scalars"]},
    "trackio": {"name": run.name, "options": run.config["options"], "rows": shown},
}
print(json.dumps(stored))
"""
    done = child(BOTH + read, run_dir, TRACKIO_DIR=str(tmp_path / "trackio"))
    assert done.returncode == 0
    assert done.stderr == ""
    stored: dict[str, Any] = json.loads(done.stdout)
    assert stored["hint"] == f"tensorboard --logdir {tmp_path}; trackio show --project nocap"
    board = stored["board"]
    trackio = stored["trackio"]
    rows = trackio["rows"]
    expected = [[row["step"], row["val/loss"]] for row in rows if "val/loss" in row]
    assert board["val/loss"] == expected
    losses = [[row["step"], row["val/loss"]] for row in rows if "val/loss" in row]
    assert losses == [[1, 2.0], [3, 0.0]]
    assert board["tokens"] == [[row["step"], row["tokens"]] for row in rows if "tokens" in row]
    tokens = [[row["step"], row["tokens"]] for row in rows if "tokens" in row]
    assert tokens == [[0, 0.0], [1, 10.0], [2, 20.0], [3, 30.0]]
    ends = {"summary/val/loss": 0.5, "summary/clock/train_s": 9.0}
    summary = {tag: values[0][1] for tag, values in board.items() if tag.startswith("summary/")}
    assert summary == ends
    assert rows[-1] == {**ends, "step": 3}
    assert trackio["name"] == "gqa lr=0.1 s0 0123ab"
    assert trackio["options"] == {"attention": "gqa"}


def test_a_grid_s_runs_stand_together_for_tensorboard_by_their_arms(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
    from torch.utils.tensorboard import SummaryWriter

    monkeypatch.chdir(tmp_path)
    runs = {}
    for label in ("lr=0.1 seed=0", "path=x/y seed=0", "none"):
        runs[label] = tmp_path / "runs" / label[:1]
    for run in [*runs.values()][:2]:
        with SummaryWriter(log_dir=str(run / "tensorboard")) as writer:
            writer.add_scalar("val/loss", 3.0, global_step=1)
    board = tmp_path / "grids" / "a grid" / "tensorboard"
    tracker = NoTracker(also=["tensorboard"])
    board.parent.mkdir(parents=True)
    for _ in range(2):  # the same command again
        assert show_commands(tracker, board.parent, runs) == [
            "tensorboard --logdir 'grids/a grid/tensorboard'"
        ]
    shown = EventMultiplexer().AddRunsFromDirectory(str(board)).Reload()
    expected = {"lr=0.1 seed=0": [1], "path=x_y seed=0": [1]}
    steps = {}
    for name in shown.Runs():
        steps[name] = [point.step for point in shown.Tensors(name, "val/loss")]
    assert steps == expected
    board.rename(board.parent / "elsewhere")
    board.symlink_to("elsewhere")  # somebody's link is not deleted through
    show_commands(tracker, board.parent, {})
    paths = (board.parent / "elsewhere").iterdir()
    assert len(list(paths)) == 2
    assert show_commands(NoTracker(), board.parent, runs) == []


def test_a_missing_package_costs_one_line_and_no_other_tracker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    monkeypatch.setitem(sys.modules, "trackio", None)
    outside.use([TRACKIO_ROWS])
    outside.find("tracker", "trackio_rows")
    both = NoTracker(also=["tensorboard", "trackio_rows"])
    facts = RunFacts(**FACTS, run_dir=tmp_path, config={})
    session = open_tracker(both, facts)  # type: ignore[arg-type]
    session.log({"step": 0})
    session.finish(summary={}, status="finished")
    assert session.url_or_hint is None
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "nocap: tracker=tensorboard: no mirror of this run from here on: tensorboard is not "
        "installed: pip install "
        "'nocap[tensorboard]'",
        "nocap: tracker=trackio_rows: no mirror of this run from here on: import of trackio "
        "halted; None in "
        "sys.modules",
    ]


@pytest.mark.parametrize("also", ["[wandb]", "[none]", "[tensorboard,tensorboard]", "[nothing]"])
def test_only_other_trackers_without_keys_stand_beside_one(also: str) -> None:
    with pytest.raises(
        ValueError,
        match=r"^tracker.also must list any of .*, each once \(not none, nor ",
    ):
        compose(["tracker=none", f"tracker.also={also}"])
    beside = ["none", "tensorboard"]
    run = compose(["tracker=wandb", "tracker.also=[none,tensorboard]"])
    assert run.tracker.also == beside


def test_the_words_of_a_sweep_s_agent_are_overrides() -> None:
    """An agent of W&B types `${args_no_hyphens}` as KEY=VALUE."""
    sweep = yaml.safe_load((REPO / "conf" / "sweep.wandb.yaml").read_text())
    assert sweep["command"][-1] == "${args_no_hyphens}"
    run = compose(
        [f"{key}={parameter['values'][-1]}" for key, parameter in sweep["parameters"].items()]
    )
    assert run.attention.n_kv_heads < run.model.n_head
    assert run.optimizer.lr == 0.003
    assert run.seed == 2


# --- how a worker ends a tracker ------------------------------------------------------------------


class SlowSession(TrackerSession):
    """Takes long to end: until the next heartbeat."""

    finish_s = 60.0

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.ending = threading.Event()
        self.alive = threading.Event()
        self.recorded = ""  # the status in the record when it began to end

    def beat(self, step: int) -> None:
        if self.ending.is_set():
            self.alive.set()

    def finish(self, *, summary: Mapping[str, object], status: str) -> None:
        written = read_json(self.run_dir / "summary.json")
        assert written is not None
        self.recorded = written["status"]
        self.ending.set()
        assert self.alive.wait(60), "no heartbeat came"
        self.url_or_hint = "the address at the end"


def test_a_tracker_that_ends_slowly_does_not_seem_to_hang_and_the_record_is_there_before(
    tmp_path: Path,
) -> None:
    plan = planned(tmp_path / "out")
    session = SlowSession(plan.run_dir)
    start(plan, session=session, beat=session.beat)
    assert session.alive.is_set()
    assert session.recorded == "finished"
    summary = read_json(plan.run_dir / "summary.json")
    assert summary is not None
    assert summary["tracker"] == "the address at the end"


class RecordingSession(TrackerSession):
    """Keeps what it is told at its end."""

    def __init__(self) -> None:
        self.ends = list[tuple[Mapping[str, object], str]]()

    def finish(self, *, summary: Mapping[str, object], status: str) -> None:
        self.ends.append((summary, status))


@pytest.fixture
def begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Plan]:
    """Return what writes the head of a run's record, so that a worker can begin in this process."""
    monkeypatch.setenv("NOCAP_STAGE", str(tmp_path))
    monkeypatch.setattr(worker, "catch_stops", lambda handler: {})

    def begin(*words: str) -> Plan:
        plan = planned(tmp_path / "out", *words)
        plan.run_dir.mkdir(parents=True)
        write_record_head(plan)
        Heartbeat.create(plan.run_dir, ranks=1)
        return plan

    return begin


@pytest.mark.parametrize(
    ("error", "status"), [(RuntimeError("no"), "failed"), (StopNow(), "preempted")]
)
def test_a_run_that_has_no_end_tells_its_tracker_so(
    error: BaseException, status: str, begun: Callable[..., Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    session = RecordingSession()
    monkeypatch.setattr(worker, "TrackerSession", lambda: session)
    monkeypatch.setattr(worker, "train", MagicMock(side_effect=error))
    plan = begun()
    assert worker.work(plan.run, plan.run_dir, started=time.monotonic()) == status
    assert session.ends == [({"status": status}, status)]


@pytest.mark.parametrize(
    ("words", "times"),
    [
        ((), 0),
        (("tracker.also=[tensorboard]",), 1),
        (("tracker=wandb", "tracker.mode=disabled"), 1),
    ],
)
def test_parameters_are_counted_only_where_a_tracker_gets_them(
    words: tuple[str, ...], times: int, begun: Callable[..., Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    def begin(job: Job) -> None:
        job.on_start([])
        raise StopNow

    count = MagicMock(return_value={})
    monkeypatch.setattr(worker, "_parameters", count)
    monkeypatch.setattr(worker, "train", begin)
    plan = begun(*words)
    assert worker.work(plan.run, plan.run_dir, started=time.monotonic()) == "preempted"
    assert count.call_count == times
