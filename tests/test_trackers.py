"""Trackers beside W&B, and several at once: each gets the same rows, and none stops another."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from nocap.config.compose import compose
from nocap.options.tracker import RunFacts
from nocap.options.tracker.none import NoTracker
from nocap.store.tracking import gathered, open_tracker
from tests.conftest import REPO
from tests.test_tracking import child

FACTS = {"identity": "0123abcd4567", "name": "gqa lr=0.1 s0", "arm": "gqa lr=0.1", "seed": 0, "group": "grid"}
BOTH = f"""
import json, os
from pathlib import Path
from nocap.options.tracker import RunFacts
from nocap.options.tracker.none import NoTracker
from nocap.store.tracking import gathered, open_tracker

rows = [{{"step": i, "tokens": 10 * i, "val/loss": 3.0 - i if i % 2 else None,
    "clock/train_s": i / 2}} for i in range(4)]
facts = RunFacts(**{FACTS!r}, run_dir=Path.cwd(), config={{"a": {{"b": 1}}}},
    options={{"attention": "gqa"}}, swept={{"lr": 0.1}})
for attempt in ("killed", "resumed"):  # the second has the first's rows again
    session = open_tracker(NoTracker(also=["tensorboard", "trackio"]), facts, rows=rows[:2])
    for row in rows[2:]:
        session.log(row)
    ends = {{"val_loss": 0.5, "arm": "x", "clock_s": {{"train": 9.0}}}}
    session.finish(summary=ends if attempt == "resumed" else {{}}, status="finished")
"""


@pytest.mark.slow
def test_tensorboard_and_trackio_have_the_same_rows_once(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    read = """
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from trackio import Api
from trackio.sqlite_storage import SQLiteStorage
board = EventAccumulator("tensorboard")
board.Reload()
(run,) = Api().runs("nocap")
shown = [{key: value for key,
    value in row.items() if key != "timestamp"} for row in SQLiteStorage.get_logs("nocap", run.name)]
found = {
    "hint": session.url_or_hint,
    "board": {tag: [(at.step, at.value) for at in board.Scalars(tag)] for tag in board.Tags()["scalars"]},
    "trackio": {"name": run.name, "options": run.config["options"], "rows": shown},
}
print(json.dumps(found))
"""
    done = child(BOTH + read, run_dir, TRACKIO_DIR=str(tmp_path / "trackio"))
    assert (done.returncode, done.stderr) == (0, "")
    stored: dict[str, Any] = json.loads(done.stdout)
    assert stored["hint"] == f"tensorboard --logdir {tmp_path}; trackio show --project nocap"
    board, rows = stored["board"], stored["trackio"]["rows"]
    assert (
        board["val/loss"]
        == [[1, 2.0], [3, 0.0]]
        == [[row["step"], row["val/loss"]] for row in rows if "val/loss" in row]
    )
    assert (
        board["tokens"]
        == [[i, 10.0 * i] for i in range(4)]
        == [[row["step"], row["tokens"]] for row in rows if "tokens" in row]
    )
    ends = {"summary/val/loss": 0.5, "summary/clock/train_s": 9.0}
    assert {tag: values[0][1] for tag, values in board.items() if tag.startswith("summary/")} == ends
    assert rows[-1] == {**ends, "step": 3}
    assert (stored["trackio"]["name"], stored["trackio"]["options"]) == (
        "gqa lr=0.1 s0 0123ab",
        {"attention": "gqa"},
    )


def test_a_grid_s_runs_stand_together_for_tensorboard_by_their_arms(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
    from torch.utils.tensorboard import SummaryWriter

    monkeypatch.chdir(tmp_path)
    runs = {label: tmp_path / "runs" / label[:1] for label in ("lr=0.1 seed=0", "path=x/y seed=0", "none")}
    for run in [*runs.values()][:2]:
        with SummaryWriter(log_dir=str(run / "tensorboard")) as writer:
            writer.add_scalar("val/loss", 3.0, global_step=1)
    board, tracker = tmp_path / "grids" / "a grid" / "tensorboard", NoTracker(also=["tensorboard"])
    board.parent.mkdir(parents=True)
    for _ in range(2):  # the same command again
        assert gathered(tracker, board.parent, runs) == ["tensorboard --logdir 'grids/a grid/tensorboard'"]
    shown = EventMultiplexer().AddRunsFromDirectory(str(board)).Reload()
    assert {name: [point.step for point in shown.Tensors(name, "val/loss")] for name in shown.Runs()} == {
        "lr=0.1 seed=0": [1],
        "path=x_y seed=0": [1],
    }
    board.rename(board.parent / "elsewhere")
    board.symlink_to("elsewhere")  # somebody's link is not deleted through
    gathered(tracker, board.parent, {})
    assert len(list((board.parent / "elsewhere").iterdir())) == 2
    assert gathered(NoTracker(), board.parent, runs) == []


def test_a_missing_package_costs_one_line_and_no_other_tracker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    monkeypatch.setitem(sys.modules, "trackio", None)
    session = open_tracker(
        NoTracker(also=["tensorboard", "trackio"]), RunFacts(**FACTS, run_dir=tmp_path, config={})
    )  # type: ignore[arg-type]
    session.log({"step": 0})
    session.finish(summary={}, status="finished")
    assert session.url_or_hint is None
    assert capsys.readouterr().err.splitlines() == [
        f"nocap: tracker={name}: no mirror of this run from here on: it needs {name}: pip "
        f"install 'nocap[{name}]'"
        for name in ("tensorboard", "trackio")
    ]


@pytest.mark.parametrize("also", ["[wandb]", "[none]", "[trackio,trackio]", "[nothing]"])
def test_only_other_trackers_without_keys_stand_beside_one(also: str) -> None:
    with pytest.raises(
        ValueError, match=r"^tracker.also must hold trackers beside tracker=none that need no keys: "
    ):
        compose(["tracker=none", f"tracker.also={also}"])
    assert compose(["tracker=wandb", "tracker.also=[none,trackio]"]).tracker.also == ["none", "trackio"]


def test_the_words_of_a_sweep_s_agent_are_overrides() -> None:
    """An agent of W&B types `${args_no_hyphens}` as KEY=VALUE."""
    sweep = yaml.safe_load((REPO / "conf" / "sweep.wandb.yaml").read_text())
    assert sweep["command"][-1] == "${args_no_hyphens}"
    run = compose([f"{key}={parameter['values'][-1]}" for key, parameter in sweep["parameters"].items()])
    assert (run.attention.n_kv_heads < run.model.n_head, run.optimizer.lr, run.seed) == (True, 0.003, 2)
