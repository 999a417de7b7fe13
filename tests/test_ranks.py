"""Ranks that somebody else's torchrun started give what one device gives. nocap's own ranks: tests/test_faults.py."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

from tests.attempts import attempt, state_of, wait_until
from tests.conftest import FAULTS, MEDIUM, Door, Undisturbed, the_run

linux = pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")

TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "nocap.train")


@pytest.mark.slow
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


@linux
@pytest.mark.slow
def test_killed_agent_leaves_no_rank(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with attempt(out, "trainer.devices=2", "trainer.steps=2000", command=TORCHRUN) as running:
        running.wait_for_row(3)
        ranks = {pid for entry in Path("/proc").iterdir() if (pid := entry.name).isdigit() and str(out) in cmdline(entry)} - {
            str(running.process.pid)
        }
        assert len(ranks) == 2
        running.end(signal.SIGKILL)
        wait_until(lambda: not any(Path("/proc", pid).exists() for pid in ranks), "the ranks end with their agent")


def cmdline(entry: Path) -> str:
    try:
        return (entry / "cmdline").read_bytes().decode(errors="replace")
    except OSError:  # it ended while we looked
        return ""


@linux
@pytest.mark.slow
def test_hung_rank_is_named(tmp_path: Path) -> None:
    faults = tmp_path / "faults"
    faults.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NOCAP_FAULT", "hang@13:rank1")
        patch.setenv("NOCAP_FAULT_DIR", str(faults))
        patch.setenv("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "3")
        with attempt(tmp_path / "out", "trainer.devices=2", "trainer.hang_timeout_s=15", command=TORCHRUN, path=FAULTS) as running:
            code, _, err = running.end()
    assert code != 0
    assert "furthest behind: rank 1 at step 13" in err
