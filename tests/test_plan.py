"""What a grid would cost: a measured step, and the start of each run."""

from __future__ import annotations

from pathlib import Path

import pytest

from nocap.config.defaults import COLD_S
from nocap.config.flags import GridFlags
from nocap.config.trainer import Compile
from nocap.display import duration
from nocap.launch.multirun import print_plan
from nocap.sessions import grid_plan
from nocap.sessions.session import Session
from nocap.sessions.session_file import SessionFile
from nocap.study import plan_preview
from nocap.study.study_plan import prepare
from tests.studies import LOSS, RACE, at, loaded, study
from tests.studies import session as made_session

WORDS = ("model=nano", "data=synthetic", "tracker=none", "trainer.steps=20", "trainer.threads=1")
TIMED = {
    "tokens_per_s": 1024.0,
    "step_ms": 1000.0,
    "memory_mib": {"parameters": 100.0, "optimizer": 200.0, "peak": 900.0},
}
LOST = {"tokens_per_s": None, "step_ms": None, "memory_mib": None}


def measured(session: Session, folder: Path) -> SessionFile:
    return made_session({arm: LOST if "mqa" in arm else TIMED for arm in session.arms})


@pytest.fixture(autouse=True)
def _measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Session, "run", measured)
    monkeypatch.setattr(grid_plan, "START_S", 7.0)


def test_a_grids_plan_is_arithmetic_on_a_measured_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def told(*words: str) -> list[str]:
        print_plan([*WORDS, *words], GridFlags(), grid_plan.of_grid)
        return capsys.readouterr().out.splitlines()

    monkeypatch.chdir(tmp_path)
    kept = ["trainer.keep_checkpoints=2", "trainer.keep_steps=[20]"]
    more = ["seed=0,1", "trainer.batch_tokens=1024", *kept]
    out = told("attention=flash,gqa", *more)
    assert out[0].endswith(": 4 cells, 0 done, 4 to train")
    # 20 steps of a second, and 15% more, and 7 s; 300 MiB, twice in the cell that trains, and once
    # for each
    expected = []
    for arm in ("flash", "gqa"):
        expected.append([f"attention={arm}", "2", "0", "1,000", "ms", "30", "s", "1.2", "GiB"])
    assert [row.split() for row in out[2:4]] == expected
    assert out[4] == "together 2.0 min, if the cells train one after the other"
    assert out[5].startswith("checkpoints 2.3 GiB at most, free ")
    assert not (tmp_path / "outputs" / "runs").exists()
    assert "this sum leaves out arms whose step could not be timed: " in "\n".join(
        told("attention=mqa", "seed=0,1")
    )
    # and a guess at compilation
    cold = f" {duration(30 + COLD_S[Compile.regional])} "
    assert cold in "\n".join(told("trainer.compile=regional", *more))
    searched = ["search=random", *WORDS, "optimizer.lr=interval(1e-4,1e-2)"]
    with pytest.raises(ValueError, match="--plan does not work with search="):
        print_plan(searched, GridFlags(), grid_plan.of_grid)


def test_an_arm_has_all_of_a_value_with_blanks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = [f"{number} squared is {number**2}" for number in range(4_000)]
    for name in ("a seed=1", "a seed=2"):
        Path(name).write_text("\n".join(lines))
        lines.append("and so on")
    words = [word for word in WORDS if not word.startswith("data=")]
    swept = ["data.path='a seed=1','a seed=2','no  file'", "seed=0,1"]
    words += ["data=text", "trainer.val_tokens=4096", *swept]
    print_plan(words, GridFlags(skip_refused=True), grid_plan.of_grid)
    out = capsys.readouterr().out
    assert "left out: data.path='no  file': data.path must " in out
    assert " 4 cells, 0 done, 4 to train" in out
    assert [row.split("  ")[0] for row in out.splitlines() if row.startswith("data.path")] == [
        "data.path='a seed=1'",
        "data.path='a seed=2'",
    ]


def test_a_studys_plan_has_its_search_its_runs_and_its_shorter_schedules(tmp_path: Path) -> None:
    trials = [["optimizer.lr=1e-3"], ["optimizer.lr=2e-3"]]
    tune = {"seeds": [7], "trials": {"mha": trials, "mqa": trials}}
    scales = at(lengths=[0.25, 0.5])
    seeds = list(range(6))
    raced = study(claims=[RACE, LOSS], scales=scales, tune=tune, seeds=seeds)
    output_dir = str(tmp_path / "out")
    plan = prepare(loaded(tmp_path / "made", raced), "cpu", output_dir=output_dir)
    out = plan_preview.render(plan).splitlines()
    # 2 × 2 trials, 2 × 3 runs, each at 2 lengths, too
    assert out[1].endswith(": 22 cells, 0 done, 22 to train")
    rows = {row.split("  ")[0]: row.split() for row in out[3:]}
    assert rows["made mqa at 6 steps"][5:7] == ["3", "0"]
    assert rows["made mha"][2:4] == ["3", "0"]
    assert rows["made mha, trial 2"][4:6] == ["1", "0"]
    assert rows["pace"][1:] == ["mha,", "mqa", "3", "0"]
    assert (
        "analysis 1 has 3 pairs; a claim that it does not decide gets more pairs, in at most 2 "
        "analyses" in out
    )
    assert "M.loss: val_loss of mqa, expected" in out[-1]
    assert not (tmp_path / "out" / "runs").exists()


@pytest.mark.parametrize("width", [60, 80, 127])
def test_a_plan_fits_the_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    plan = prepare(loaded(tmp_path / "made", study()), "cpu", output_dir=str(tmp_path / "out"))
    text = plan_preview.render(plan)
    long = [line for line in text.splitlines() if len(line) > width]
    assert [line for line in long if " " in line] == []  # a folder's name is not broken
    assert "M.loss: val_loss of mqa, expected" in " ".join(text.split())
