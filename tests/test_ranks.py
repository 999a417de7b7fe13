"""Several devices give what one gives, under nocap's own torchrun and somebody else's, and no rank is left behind."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from tests.attempts import attempt, processes, state_of, steady, wait_until
from tests.conftest import MEDIUM, Door, Undisturbed, the_run

linux = pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")
FOUR = ("trainer.batch_tokens=4096", "trainer.steps=16")  # four micro-batches a step


def equal_within(first: Path, second: Path, tolerance: float) -> None:
    """Losses and gradient norms of every row."""
    rows, others = steady(first), steady(second)
    assert [set(row) for row in rows] == [set(row) for row in others]
    for row, other in zip(rows, others, strict=True):
        assert row == pytest.approx(other, rel=0, abs=tolerance)


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


@linux
def test_other_number_of_devices_goes_on_with_four_micro_batches(tmp_path: Path, door: Door) -> None:
    out = tmp_path / "out"
    assert door(*MEDIUM, *FOUR, f"output_dir={tmp_path / 'one'}").code == 0
    with attempt(out, *FOUR, "trainer.devices=2") as running:
        running.wait_for_row(10)
        assert sorted(processes(running.run_dir).values()) == ["rank 0", "rank 1", "worker"]
        running.end(signal.SIGKILL)
        wait_until(lambda: not processes(running.run_dir), "the agent and its ranks die with the parent")
    done = door(*MEDIUM, *FOUR, f"output_dir={out}")
    assert done.code == 0
    assert "resuming from step 8" in done.out
    equal_within(the_run(out), the_run(tmp_path / "one"), 1e-6)
    attempts = json.loads((the_run(out) / "manifest.json").read_text())["attempts"]
    assert [each["devices"] for each in attempts] == [2, 1]


def test_stop_reaches_every_rank_and_one_checkpoint_is_saved(tmp_path: Path) -> None:
    with attempt(tmp_path / "out", "trainer.devices=2", "trainer.steps=1000", "trainer.checkpoint_every=0") as running:
        running.wait_for_row(10)
        running.process.send_signal(signal.SIGUSR2)  # Slurm's warning
        code, _, _ = running.end(signal.SIGTERM)
        assert code == 75
        summary = json.loads((running.run_dir / "summary.json").read_text())
        assert summary["status"] == "preempted"
        assert [path.name for path in (running.run_dir / "checkpoints").iterdir()] == [f"step-{summary['steps']:08d}"]


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
