"""nocap for programs and notebooks: the same runs and records as the commands'."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import hydra
import pytest
from omegaconf import OmegaConf

from nocap import api
from nocap.config.paths import conf_dir
from nocap.config.plain import to_plain
from nocap.launch.plan import plan
from nocap.store.lease import acquire
from tests.conftest import Door, the_run
from tests.fuzz.process import workers_here
from tests.grids import CELL, steady


def test_compose_gives_the_run_and_refuses_in_a_line() -> None:
    run = api.compose("model=nano", "attention=gqa", "seed=3")
    assert run.seed == 3
    assert run.attention.n_kv_heads == 2
    assert run.model.n_head == 4
    run.seed = 5  # it is the caller's own
    assert api.compose("model=nano", "attention=gqa", "seed=3").seed == 3
    with pytest.raises(ValueError, match=r"^trainer.steps must be at least 1, got 0$"):
        api.compose("trainer.steps=0")
    with pytest.raises(ValueError, match="gqq"):
        api.compose("attention=gqq")


@pytest.mark.slow
def test_what_api_trains_is_what_the_command_trains(
    tmp_path: Path, here: Door, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "api"
    command = tmp_path / "command"
    with workers_here():
        summary = api.train(*CELL, f"output_dir={out}", quiet=True)
    assert capfd.readouterr().out == ""
    assert here(*CELL, f"output_dir={command}").code == 0
    run_dir = the_run(out)
    other = the_run(command)
    assert run_dir.name == other.name
    assert steady(run_dir) == steady(other)
    text = (run_dir / "summary.json").read_text()
    assert summary == json.loads(text)
    assert summary["status"] == "finished"
    run = api.compose(*CELL, f"output_dir={out}")
    # it is done
    assert api.train(*CELL, f"output_dir={out}") == summary
    assert api.train(run) == summary
    with workers_here():
        trained = api.train(dataclasses.replace(run, seed=1), quiet=True)
        assert trained["seed"] == 1
    content = api.load(out)
    seeds = sorted(record.summary["seed"] for record in content)
    assert seeds == [0, 1]
    arms = api.compare([out])["arms"]
    assert [len(arm["runs"]) for arm in arms] == [2]
    assert len(api.frame(out)) == 2


def test_logs_are_compared_as_the_command_does(tmp_path: Path, here: Door) -> None:
    rows = ["record,seed,loss"]
    for arm, base in (("a", 3), ("b", 2)):
        for seed in range(3):
            rows.append(f"{arm},{seed},{base + 0.01 * seed}")
    board = tmp_path / "board.csv"
    board.write_text("\n".join(rows) + "\n")
    columns = "arm=record,val_loss=loss"
    answer = tmp_path / "answer.json"
    answered = here(str(board), "--columns", columns, "--json", str(answer), module="nocap.compare")
    assert answered.code == 0
    written = json.loads(answer.read_text())
    compared = api.compare(board, columns=columns)
    assert compared == {key: written[key] for key in compared}
    assert api.compare(answer) == compared


def test_errors_are_exceptions(tmp_path: Path) -> None:
    run = api.compose(*CELL, f"output_dir={tmp_path}")
    with pytest.raises(ValueError, match="must match at least one file"):
        api.train(
            "data=shards", "data.train=none.bin", "data.val=none.bin", f"output_dir={tmp_path}"
        )
    with pytest.raises(ValueError, match="no run"):
        api.load(tmp_path)
    run_dir = plan(run, choices={}).run_dir
    run_dir.mkdir(parents=True)
    with acquire(run_dir), pytest.raises(ValueError, match="must have one writer"):
        api.train(run)
    (run_dir / "checkpoints").write_text("a file where the worker makes a folder")
    with pytest.raises(api.TrainingError, match="checkpoints"), workers_here():
        api.train(run, quiet=True)


def test_a_whole_config_that_somebody_else_composed_is_a_run():
    words = ("model=nano", "data=synthetic", "ideas=[x0]", "seed=3")
    with hydra.initialize_config_dir(str(conf_dir()), version_base="1.3"):
        config = hydra.compose("train", [*words])
    run = api.compose(*words)
    assert (
        api.compose(config) == run == api.compose(OmegaConf.create(to_plain(api.compose(*words))))
    )
    cases = (
        ({"seed": "x"}, "seed: .*Integer"),
        ({"foo": 1}, "foo is no key of run"),
        ({"model": 1}, "model must be one option"),
    )
    for change, rule in cases:
        with pytest.raises(ValueError, match=rule):
            api.compose(OmegaConf.create({**to_plain(api.compose(*words)), **change}))
