"""Where a grid's cells run: a pool of local devices, and a cluster's jobs. Whatever the place, the records are the same."""

from __future__ import annotations

import json
import os
import re
import signal
from importlib.util import find_spec
from pathlib import Path

import pytest

from nocap.config import hardware
from nocap.config.compose import compose
from nocap.config.run import Run
from nocap.config.trainer import Device
from nocap.launch import elsewhere
from nocap.launch.plan import plan
from nocap.options.launcher import One, Share
from nocap.options.launcher.pool import Devices
from tests.attempts import wait_until
from tests.conftest import SMALL, Door
from tests.grids import ARMS, CELL, Background, Trained, grid_of, records, summaries, train_small_grid
from tests.tools import slurm

needs_submitit = pytest.mark.skipif(find_spec("submitit") is None, reason="submitit is not installed: pip install 'nocap[slurm]'")


def run(*words: str) -> Run:
    return compose([*SMALL, *words])


def test_one_cell_at_a_time() -> None:
    slots = One()
    share = slots.take(run())
    assert share is not None
    assert share.env == {}
    assert slots.take(run()) is None
    slots.give_back(share)
    assert slots.take(run()) is not None


def test_pool_gives_each_cell_cores_of_its_own() -> None:
    pool = Devices(jobs=None, units={Device.cpu: ["0", "1", "2", "5", "6"], Device.cuda: []})
    one, two = run("trainer.threads=1"), run("trainer.threads=2")
    first, second = pool.take(two), pool.take(two)
    assert first is not None
    assert second is not None
    assert (first.units, second.units) == (("0", "1"), ("2", "5"))
    assert pool.take(two) is None  # one core is left
    third = pool.take(one)
    assert third is not None
    assert third.units == ("6",)
    pool.give_back(first)
    assert pool.take(two) is not None
    assert [pool.at_once(run(f"trainer.threads={n}")) for n in (1, 2, 5, 64)] == [5, 2, 1, 1]
    assert pool.at_once(run("trainer.threads=1", "trainer.devices=2")) == 2


def test_pool_gives_each_cell_gpus_of_its_own() -> None:
    cell = run()
    cell.trainer.device, cell.trainer.devices = Device.cuda, 2
    pool = Devices(jobs=None, units={Device.cpu: ["0"], Device.cuda: ["3", "4", "GPU-ab", "7", "8"]})
    first, second = pool.take(cell), pool.take(cell)
    assert first is not None
    assert second is not None
    assert [share.env for share in (first, second)] == [{"CUDA_VISIBLE_DEVICES": "3,4"}, {"CUDA_VISIBLE_DEVICES": "GPU-ab,7"}]
    assert pool.take(cell) is None


def test_pool_of_at_most_so_many_jobs() -> None:
    pool = Devices(jobs=2, units={Device.cpu: [str(core) for core in range(8)], Device.cuda: []})
    assert [pool.take(run()) is not None for _ in range(3)] == [True, True, False]
    assert pool.at_once(run()) == 2


def test_pool_says_why_it_is_a_pool_of_one() -> None:
    pool = Devices(jobs=None, units={Device.cpu: ["0", "1"], Device.cuda: []})
    hint = "(trainer.threads=2; trainer.threads=1 makes room for 2)"
    assert pool.describe([run("trainer.threads=2")]) == f"pool: 1 at once, 2 of 2 cores each {hint}"
    assert pool.describe([run("trainer.threads=1")]) == "pool: 2 at once, 1 of 2 cores each"


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no process can be kept on a core here")
def test_share_keeps_a_process_on_its_cores() -> None:
    before = os.sched_getaffinity(0)
    try:
        Share(device=Device.cpu, units=(str(min(before)),)).pin(0)
        assert os.sched_getaffinity(0) == {min(before)}
    finally:
        os.sched_setaffinity(0, before)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("hydra/launcher=pool", "hydra.launcher.jobs=0"), "hydra.launcher.jobs must be at least 1"),
        (("hydra.sweeper.max_batch_size=1",), "hydra.sweeper.max_batch_size must be left alone"),
        (("hydra.sweep.dir=mine",), "hydra.sweep.dir must be left alone"),
    ],
    ids=["jobs", "sweeper", "folder"],
)
def test_refused(tmp_path: Path, door: Door, words: tuple[str, ...], expected: str) -> None:
    done = door("--multirun", *CELL, "seed=0,1", *words)
    assert (done.code, len(done.err.splitlines())) == (2, 1), done
    assert expected in done.err
    assert not list(tmp_path.glob("outputs/runs"))


@pytest.fixture(scope="module")
def small_grid(tmp_path_factory: pytest.TempPathFactory, cache_dir: Path) -> Trained:
    """Copy it before changing it."""
    return train_small_grid(tmp_path_factory.mktemp("grid") / "out", cache_dir)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_pool_gives_the_same_records(small_grid: Trained, tmp_path: Path, door: Door) -> None:
    out = tmp_path / "out"
    done = door(*CELL, ARMS, "--multirun", "seed=0,1", f"output_dir={out}", "hydra/launcher=pool")
    assert (done.code, done.err) == (0, "")
    cores = len(os.sched_getaffinity(0))
    assert f"pool: {cores} at once, 1 of {cores} core" in done.out
    assert records(out) == records(small_grid.out)


@needs_submitit
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_submitit_gives_the_same_records(small_grid: Trained, tmp_path: Path, door: Door) -> None:
    out = tmp_path / "out"
    words = (*CELL, ARMS, "--multirun", "seed=0,1", f"output_dir={out}", "hydra/launcher=submitit_local")
    done = door(*words, timeout=300)
    assert (done.code, done.err) == (0, "")
    assert "4 finished; 4 trained now" in done.out
    assert records(out) == records(small_grid.out)
    jobs = sorted(out.glob("grids/*/.submitit/*"))
    again = door(*words)
    assert "4 cells, 4 done, 0 to train" in again.out
    assert sorted(out.glob("grids/*/.submitit/*")) == jobs  # nothing was handed over


@needs_submitit
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_submitit_requeues_a_preempted_job_and_it_resumes(tmp_path: Path) -> None:
    out = tmp_path / "out"
    running = Background(out, *SMALL, "trainer.steps=400", "trainer.val_tokens=1024", "seed=0", "hydra/launcher=submitit_local")
    wait_until(lambda: any(path.stat().st_size for path in out.glob("runs/*/metrics.jsonl")), "a row")
    (holder,) = out.glob("runs/*/.lease/*/holder")
    os.kill(int(holder.read_text().split()[1]), signal.SIGUSR2)  # Slurm's warning, to the job
    (run_dir,) = out.glob("runs/*")
    wait_until(lambda: "resuming from step" in (run_dir / "train.log").read_text(), "the requeued job")
    done = running.end()
    assert done.code == 0, done.err
    ((_, summary),) = summaries(out).items()
    assert (summary["status"], summary["attempts"], summary["steps"]) == ("finished", 2, 400)
    logs = "".join(path.read_text() for path in out.glob("grids/*/.submitit/*/*_log.*"))
    assert re.search(r"Requeued job", logs)


# --- other machines ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(bool(hardware.cuda_devices()), reason="the GPU is here")
def test_a_machine_without_a_gpu_plans_for_those_that_have_one(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"trainer\.device=cuda needs a "):
        compose([*SMALL, "trainer.device=cuda"])
    one, two = grid_of(tmp_path, ("trainer.device=cuda", "seed=0"), ("trainer.device=cuda", "seed=1")).cells
    assert one.plan.identity != two.plan.identity


def test_a_cells_key_is_the_same_on_every_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cells = (), ("trainer.precision=fp32",), ("trainer.precision=bf16",), ("seed=7",)
    here = grid_of(tmp_path, *cells)
    monkeypatch.setattr(hardware, "_cpu", lambda: ("Another CPU", frozenset({"avx512_bf16"})))
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(61)))
    assert grid_of(tmp_path, *cells).keys == here.keys
    assert len(set(here.keys)) == 3  # what a key names counts, and SMALL names fp32


def test_a_grid_finds_the_runs_that_its_cells_became(tmp_path: Path) -> None:
    grid = grid_of(tmp_path, ("seed=0",), ("seed=1",))
    grid.folder.mkdir(parents=True)
    grid.write()
    there = plan(compose([*SMALL, f"output_dir={tmp_path}", "seed=1"]), choices={"model": "nano"})
    elsewhere.note(grid.folder, grid.cells[1].overrides, there)
    first, second = elsewhere.decided(grid).cells
    assert first == grid.cells[0]
    assert (second.plan.identity, second.plan.run_dir) == (there.identity, there.run_dir)
    path = grid.folder / elsewhere.CELLS / f"{grid.keys[1]}.json"
    path.write_text(json.dumps({"identity": there.identity, "run": f"../../{there.run_dir.name}", "arm": "x"}))
    with pytest.raises(ValueError, match="must name a run and its identity"):
        elsewhere.decided(grid)


def test_cells_beyond_an_array_are_handed_over_after_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that is killed takes none of the later ones with it."""
    monkeypatch.setattr(elsewhere, "MOST_JOBS", 2)
    grid, handed = grid_of(tmp_path, *((f"seed={n}",) for n in range(5))), []

    class Launcher:
        def launch(self, words: list[list[str]], first: int) -> None:
            handed.append((first, [word.partition("'")[2][:-1] for line in words for word in line if word.startswith("+cell=")]))
            if first == 0:
                raise RuntimeError("killed")

    grid.folder.mkdir(parents=True)
    _, results, stopped = elsewhere.train(grid, Launcher())  # type: ignore[arg-type]
    assert handed == [(first, list(grid.keys[first : first + 2])) for first in (0, 2, 4)]
    assert {result.status for result in results.values()} == {"waiting"}
    assert not stopped


@needs_submitit
@pytest.mark.slow
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="there is no other hardware than one core")
def test_slurm_decides_where_a_cell_runs_requeues_and_resumes(tmp_path: Path, door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    """The node has one core, and this machine more: it plans no run of its own."""
    for name, value in slurm.install(tmp_path / "slurm").items():
        monkeypatch.setenv(name, value)
    out = tmp_path / "out"
    small = [word for word in SMALL if not word.startswith("trainer.threads")]
    words = (*small, "trainer.steps=100", "trainer.val_every=0", "trainer.checkpoint_every=50", "seed=0,1")
    words = (*words, "hydra/launcher=submitit_slurm", "hydra.launcher.max_num_timeout=1")
    running = Background(out, *words)
    wait_until(lambda: any(path.stat().st_size for path in out.glob("runs/*-s0-*/metrics.jsonl")), "a row")
    (tmp_path / "slurm" / "state" / "limit-1_0").touch()
    done = running.end()
    assert (done.code, done.err) == (0, "")
    assert "2 cells, 0 done, 2 to train" in done.out
    assert "decided there: device, precision, compilation and threads" in done.out
    assert {s["seed"]: (s["status"], s["attempts"]) for s in summaries(out).values()} == {0: ("finished", 2), 1: ("finished", 1)}
    for path in out.glob("runs/*/manifest.json"):
        assert json.loads(path.read_text())["parts"]["environment"]["threads"] == 1
    again = door("--multirun", *words, f"output_dir={out}")
    assert (again.code, "2 cells, 2 done, 0 to train" in again.out) == (0, True), again


@needs_submitit
@pytest.mark.slow
@pytest.mark.skipif(bool(hardware.cuda_devices()), reason="the GPU is here")
def test_each_partition_of_slurm_decides_for_its_nodes(tmp_path: Path, door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in slurm.install(tmp_path / "slurm").items():
        monkeypatch.setenv(name, value)
    out = tmp_path / "out"
    small = [word for word in CELL if not word.startswith("trainer.threads")]
    words = ("--multirun", *small, "seed=0", f"output_dir={out}", "hydra/launcher=submitit_slurm")
    done = door(*words, "trainer.device=cpu,cuda", "hydra.launcher.partition=one")
    assert (done.code, "1 finished, 1 not started" in done.out) == (1, True), done
    (line,) = done.err.splitlines()
    assert line.startswith("nocap: not finished: trainer.device=cuda (")
    logs = [path.read_text() for path in out.glob("grids/*/.submitit/*/*_log.err")]
    assert sum(text.startswith("nocap: trainer.device=cuda needs a ") for text in logs) == 1, logs
    done = door(*words, "hydra.launcher.partition=two")
    assert (done.code, done.err) == (0, ""), done
    found = {json.loads(path.read_text())["parts"]["environment"]["threads"] for path in out.glob("runs/*/manifest.json")}
    assert found == {1, min(2, len(os.sched_getaffinity(0)))}
    done = door(*words, "trainer.steps=4", "hydra.launcher.partition=three")
    assert (done.code, "1 not started" in done.out) == (1, True), done
    assert "Invalid partition name specified" in done.err
