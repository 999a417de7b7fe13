"""Two ranks start however busy the machine is, and the rank that failed first says why."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import FAULTS, SMALL, Door, the_run

TWO = (*SMALL, "trainer.devices=2")


@pytest.mark.slow
def test_the_terminal_shows_the_cause_of_the_rank_that_failed_first(tmp_path: Path, door: Door) -> None:
    env = {"PYTHONPATH": FAULTS, "NOCAP_FAULT": "error@3:rank1", "NOCAP_FAULT_DIR": str(tmp_path)}
    done = door(*TWO, f"output_dir={tmp_path / 'out'}", env=env)
    assert done.code == 1
    run_dir = the_run(tmp_path / "out")
    cause = "rank 1: ArithmeticError: this rank's own fault"
    # not what rank 0 says, whose connection broke
    assert done.err == f"nocap: {cause}; see {run_dir / 'train.log'}\n"
    summary = json.loads((run_dir / "summary.json").read_text())
    assert (summary["status"], summary["error"]) == ("failed", cause)
    assert "Traceback (most recent call last)" in (run_dir / "train.log").read_text()
    assert door(*TWO, f"output_dir={tmp_path / 'out'}").code == 0


@pytest.mark.slow
def test_two_ranks_start_beside_other_work(tmp_path: Path, door: Door) -> None:
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(3)]
    try:
        done = door(*TWO, "trainer.steps=1", f"output_dir={tmp_path / 'out'}")
    finally:
        for process in busy:
            process.kill()
            process.wait()
    assert (done.code, done.err) == (0, "")
