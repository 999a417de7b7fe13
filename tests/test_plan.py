"""What a grid and a study would cost: a measured step, and the start of each run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nocap.config import hardware
from nocap.config.compose import compose
from nocap.launch.multirun import multirun
from nocap.study import grid_plan, startup
from nocap.study.sessions import Session
from tests.sealing import seal
from tests.test_compare import write_run

WORDS = ("model=nano", "data=synthetic", "tracker=none", "trainer.steps=20", "trainer.threads=1")


def test_the_start_of_a_run_is_that_of_runs_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(startup, "imports_s", lambda: 3.0)
    run, compiled = compose([*WORDS, "trainer.compile=off"]), compose([*WORDS, "trainer.compile=regional"])
    assert startup.startups({"plain": run, "compiled": compiled}, tmp_path / "runs")[0] == {"plain": 3.0, "compiled": 23.0}
    here = hardware.describe(run.trainer.device, run.trainer.threads)["fingerprint"]
    for seed, (machine, seconds) in enumerate([(here, 7.0), (here, 9.0), (here, 50.0), ("another", 1.0)]):
        folder = write_run(tmp_path, seed=seed, fingerprint=machine, config={"trainer.compile": "off"})
        summary = json.loads((folder / "summary.json").read_text())
        summary["clock_s"] |= {"startup": seconds - 2.0, "compile": 2.0}
        (folder / "summary.json").write_text(json.dumps(summary))
        seal(folder)
    found, source = startup.startups({"plain": run, "compiled": compiled}, tmp_path / "runs")
    assert found == {"plain": 9.0, "compiled": 23.0}
    assert source == "from 3 runs of this machine"


def test_a_grids_plan_is_arithmetic_on_a_measured_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen = {"tokens_per_s": 1024.0, "step_ms": 1000.0, "memory_mib": {"parameters": 100.0, "optimizer": 200.0, "peak": 900.0}}

    def measured(session: Session, folder: Path) -> dict[str, Any]:
        lost = {"tokens_per_s": None, "step_ms": None, "memory_mib": None}
        return {"measured": {"arms": {arm: lost if "-mqa-" in arm else seen for arm in session.arms}}}

    monkeypatch.setattr(Session, "run", measured)
    monkeypatch.setattr(grid_plan, "startups", lambda arms, folder: (dict.fromkeys(arms, 7.0), "from nowhere"))
    monkeypatch.chdir(tmp_path)
    words = [*WORDS, "attention=flash,gqa", "seed=0,1", "trainer.keep_checkpoints=2", "trainer.batch_tokens=1024"]
    assert multirun(words, look=grid_plan.render) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0].endswith(": 4 cells, 0 done, 4 to train")
    assert [row.split() for row in out[2:4]] == [  # 20 steps of a second, and 15% more, and 7 s; 300 MiB, twice, for two cells
        [f"attention={arm}", "2", "0", "1,000", "ms", "30", "s", "1.2", "GiB"] for arm in ("flash", "gqa")
    ]
    assert out[4] == "together 2.0 min, one cell after the other; in it 7 s for each run's start, from nowhere"
    assert out[5].startswith("checkpoints 2.3 GiB at most, free ")
    assert not (tmp_path / "outputs" / "runs").exists()
    assert multirun([*words[:-4], "attention=mqa"], look=grid_plan.render) == 0
    assert "not in it: 1 arm whose step could not be timed" in capsys.readouterr().out
    with pytest.raises(ValueError, match="--plan must be left out of a search"):
        multirun(["search=random", *WORDS, "optimizer.lr=interval(1e-4,1e-2)"], look=grid_plan.render)
