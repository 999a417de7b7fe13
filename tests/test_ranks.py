"""Several devices give what one gives, under nocap's own torchrun and somebody else's, and no rank is left behind."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from tests.attempts import attempt, processes, state_of
from tests.conftest import MEDIUM, Door, Undisturbed, the_run

linux = pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")
FOUR = ("trainer.batch_tokens=4096", "trainer.steps=16")  # four micro-batches a step


@linux
def test_two_devices_equal_one_and_a_killed_rank_ends_the_run(tmp_path: Path, door: Door, undisturbed: Undisturbed) -> None:
    out = tmp_path / "out"
    with attempt(out, "trainer.devices=2") as running:
        running.wait_for_row(10)
        (rank,) = [pid for pid, role in processes(running.run_dir).items() if role == "rank 1"]
        os.kill(rank, signal.SIGKILL)
        code, _, err = running.end()
        assert code == 1
        assert "rank 1 ended with signal 9" in err
        assert not processes(running.run_dir)
    assert json.loads((the_run(out) / "summary.json").read_text())["status"] == "failed"
    done = door(*MEDIUM, "trainer.devices=2", f"output_dir={out}")
    assert done.code == 0
    assert "resuming from step 8" in done.out
    assert state_of(the_run(out)) == state_of(undisturbed.run_dir)  # two micro-batches a step: to the last bit


TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "nocap.train")


@linux
def test_outer_torchrun_gives_the_same(tmp_path: Path, undisturbed: Undisturbed) -> None:
    out = tmp_path / "out"
    with attempt(out, "trainer.devices=2", command=TORCHRUN) as running:
        code, printed, err = running.end()
    assert code == 0, err
    assert printed.count("finished at step 30") == 1
    assert state_of(the_run(out)) == state_of(undisturbed.run_dir)


def test_outer_torchrun_of_another_size_is_refused(tmp_path: Path, door: Door) -> None:
    env = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}
    done = door(*MEDIUM, f"output_dir={tmp_path / 'out'}", env=env)
    assert (done.code, done.err) == (2, "nocap: trainer.devices must be torchrun's 2 ranks, got 1\n")
    assert not (tmp_path / "out").exists()
