"""A grid of four cells: killed, run again; and what a cell costs beside its training."""

import random
import resource
import signal
import subprocess
import sys
import time

import pytest

from tests.conftest import SMALL
from tests.grids import CELL, Background, records, summaries, trained

BIG = (*SMALL, "trainer.max_restarts=0", "attention=flash,gqa", "seed=0,1")


@pytest.fixture(scope="module")
def big_grid(tmp_path_factory, cache_dir):
    """Four cells that nobody disturbed. Copy it before changing it."""
    out = tmp_path_factory.mktemp("big") / "out"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NOCAP_CACHE", str(cache_dir))
        done = Background(out, *BIG).end()
    assert (done.code, done.err) == (0, "")
    assert len(trained(done.out)) == 4
    return out


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_killed_at_random_moments_a_grid_ends_with_the_same_losses(big_grid, tmp_path, door):
    out, chance = tmp_path / "out", random.Random(24)
    for most in (1, 3):  # cells that are done by then: a fast machine is killed earlier
        running = Background(out, *BIG)
        deadline = time.monotonic() + chance.uniform(5, 20)
        while time.monotonic() < deadline and len(list(out.glob("runs/*/summary.json"))) < most:
            time.sleep(0.05)
        assert running.end(signal.SIGKILL).code == -signal.SIGKILL
    done = door("--multirun", *BIG, f"output_dir={out}", timeout=600)
    assert (done.code, done.err) == (0, "")
    assert {summary["status"] for summary in summaries(out).values()} == {"finished"}
    assert len(list(out.glob("runs/*"))) == 4
    assert records(out) == records(big_grid)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_rerun_of_a_finished_grid_is_quick(big_grid, door):
    times = []
    for _ in range(2):  # the better: the machine may be doing something else
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = door("--multirun", *BIG, f"output_dir={big_grid}")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        assert (done.code, trained(done.out)) == (0, [])
    assert min(times) < 5  # CPU-seconds


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_overhead_of_a_cell_is_at_most_three_imports_of_torch(big_grid):
    began = time.monotonic()
    for _ in range(3):
        subprocess.run([sys.executable, "-c", "import torch"], check=True)
    import_s = (time.monotonic() - began) / 3
    clocks = [summary["clock_s"] for summary in summaries(big_grid).values()]
    overheads = sorted(clock["wall"] - clock["train"] - clock["val"] - clock["compile"] for clock in clocks)
    assert overheads[len(overheads) // 2] <= 3 * import_s, (overheads, import_s)


@pytest.mark.slow
def test_cell_on_two_devices_has_processes_of_its_own(tmp_path, door):
    out = tmp_path / "out"
    done = door(*CELL, "trainer.devices=2", "seed=0,1", "--multirun", f"output_dir={out}")
    assert (done.code, done.err) == (0, "")
    assert [(summary["status"], summary["devices"]) for summary in summaries(out).values()] == [
        ("finished", 2)
    ] * 2
    for run_dir in out.glob("runs/*"):
        assert not (run_dir / ".lease").exists()
