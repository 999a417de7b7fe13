"""What a person sees while runs train: how much is left, a line a row, and what was chosen for this
machine."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nocap.config.compose import compose
from nocap.config.defaults import reasons
from nocap.launch import runner
from nocap.launch.grid import Cell, Grid
from nocap.launch.plan import Plan, Result, headline
from nocap.launch.runner import Runner
from nocap.training import terminal
from nocap.training.terminal import Reporter, left
from tests.conftest import SMALL


class Clock:
    """Seconds that only a test lets pass."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *modules: Any) -> None:
        self.now = 1000.0
        for module in modules:
            monkeypatch.setattr(module.time, "monotonic", lambda: self.now)


@pytest.mark.parametrize(
    ("done", "to_do", "spent_s", "says"),
    [
        (10, 90, 5.0, "about 45 s left"),
        (10, 90, 60.0, "about 9.0 min left"),
        (1, 1000, 60.0, "about 16.7 h left"),
        (0, 100, 5.0, ""),  # no pace yet
        (100, 0, 5.0, ""),
    ],
)
def test_what_is_left_follows_the_pace_so_far(done: int, to_do: int, spent_s: float, says: str) -> None:
    assert left(done, to_do, spent_s) == says


def test_a_log_has_a_line_a_validation_and_one_in_five_seconds_with_what_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock, reporter = Clock(monkeypatch, terminal), Reporter(log_path=tmp_path / "train.log", steps=100)
    for step in range(50, 71):  # a resumed run: its pace is of this attempt
        row = {"step": step, "train/loss": 3.0, "perf/tokens_per_s": 1234.0}
        reporter.row(row | ({"val/loss": 3.5, "val/bpb": 1.25} if step == 60 else {}))
        clock.now += 1.0
    reporter.row({"step": 100, "val/loss": None})
    lines = capsys.readouterr().out.splitlines()
    assert [int(re.findall(r"step +(\d+)/100", line)[0]) for line in lines] == [50, 55, 60, 65, 70, 100]
    assert lines[0] == "step     50/100  train 3.0000  1,234 tokens/s"
    said = "train 3.0000  val 3.5000 (1.250 bits per byte)  1,234 tokens/s  about 40 s left"
    assert (lines[2], lines[5]) == (f"step     60/100  {said}", "step    100/100  val not a number")
    log = (tmp_path / "train.log").read_text().splitlines()
    assert [line.partition("step")[2] for line in log] == [printed[4:] for printed in lines]


class Pretended:
    """An executor whose cells take 10 seconds a step, one after the other."""

    event = "start"
    poll_s = 0.0

    def __init__(self, clock: Clock, statuses: dict[str, str]) -> None:
        self.clock, self.statuses, self.busy = clock, statuses, False

    def submit(self, cell: Cell) -> Any:
        if self.busy:
            return None
        self.busy, self.cell = True, cell
        return self

    def poll(self) -> Result:
        self.busy, steps = False, self.cell.plan.run.trainer.steps
        status = self.statuses.get(self.cell.label, "finished")
        steps = steps if status == "finished" else steps // 2
        self.clock.now += 10.0 * steps
        summary = {"status": status, "steps": steps, "val_loss": 3.0, "tokens_per_s": 100.0}
        return Result(summary={**summary, "clock_s": {"wall": 10.0 * steps}}, trained=True)

    def stop(self) -> None: ...


def test_a_grid_has_aligned_lines_by_arm_with_what_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = Clock(monkeypatch, runner)
    run = compose([*SMALL, "trainer.steps=6"])
    labels = [f"attention={name} seed=0" for name in ("flash", "gqa", "mqa", "mha")]
    cells = [Cell(overrides=(), label=label, plan=planned(run, tmp_path / label)) for label in labels]
    monkeypatch.setattr(runner, "ended", lambda cell: None)
    monkeypatch.setattr(runner.time, "sleep", lambda seconds: None)
    grid = Grid(name="made", folder=tmp_path, swept=("attention",), cells=tuple(cells))
    ended = Runner(grid, Pretended(clock, {labels[1]: "failed"})).run()  # type: ignore[arg-type]
    assert [result.status for result in ended.values()] == ["finished", "failed", "finished", "finished"]
    lines = [line for line in capsys.readouterr().out.splitlines() if "start" not in line]
    left_of_all = [re.findall(r"about (.*) left", line) for line in lines]
    assert left_of_all == [["3.0 min"], ["2.0 min"], ["60 s"], []]
    said = "attention=flash seed=0  val 3.0000  100 tokens/s  60.0 s  about 3.0 min left"
    assert lines[0] == f"[1/4] done     {said}"
    assert lines[1] == "[2/4] failed   attention=gqa seed=0    about 2.0 min left"
    assert len({line.index("val") for line in lines if "val" in line}) == 1


def planned(run: Any, folder: Path) -> Plan:
    return Plan(
        run=run, dataset=None, name=folder.name, arm="a", parts={}, identity=folder.name, run_dir=folder
    )  # type: ignore[arg-type]


def test_the_first_screen_says_what_is_trained_and_why_so(tmp_path: Path) -> None:
    run = compose([*SMALL, "trainer.device=cpu", "trainer.threads=2", "trainer.steps=1200"])
    head, precision, compiled = headline(planned(run, tmp_path / "nano")).splitlines()
    assert re.fullmatch(r"nano: 1,200 steps of [\d,]+ tokens on 1 × .* with 2 threads", head)
    why = reasons(run)
    for line, key in ((precision, "precision"), (compiled, "compile")):
        assert line == f"{key} {why[key]}"
    other = replace(run.trainer, compile=type(run.trainer.compile)("max"))
    last = headline(planned(replace(run, trainer=other), tmp_path)).splitlines()[-1]
    assert last == f"compile max (by default {why['compile']})"
