"""Workers that are forked from a server: as a fresh process trains, and gone with the grid, however
it ends."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from nocap.config.compose import composed
from nocap.launch.attempt import Attempt
from nocap.launch.grid import Cell
from nocap.launch.plan import plan
from nocap.launch.this_machine import ThisMachine
from tests.attempts import linux, steady, wait_until
from tests.conftest import MEDIUM, REPO, Door, Undisturbed, the_run
from tests.grids import Background, records, summaries

pytestmark = linux
THREE = (*MEDIUM, "trainer.max_restarts=3", "seed=0,1,2")


def cell(out: Path, *words: str) -> Cell:
    composition = composed([*MEDIUM, *words, f"output_dir={out}"])
    return Cell(overrides=composition.overrides, label="", plan=plan(composition.run, choices={}))


def begun(devices: ThisMachine, out: Path, *words: str) -> Attempt:
    work = devices.submit(cell(out, *words))
    assert isinstance(work, Attempt)
    return work


def servers(parent: int) -> list[int]:
    """The servers that this process has started."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
            text = (entry / "stat").read_text()
            above = int(text.rpartition(")")[2].split()[1])
        except OSError:  # it ended while we looked
            continue
        if b"nocap.launch.forker" in words and above == parent:
            found.append(int(entry.name))
    return found


def all_below(parent: int) -> set[int]:
    """The server of a grid, and the workers that are forked from it."""
    (*found,) = servers(parent)
    return {*found, *(pid for server in found for pid in servers(server))}


@pytest.mark.slow
def test_a_forked_worker_trains_as_a_fresh_process(
    tmp_path: Path, undisturbed: Undisturbed
) -> None:
    devices = ThisMachine(jobs=1)
    work = begun(devices, tmp_path / "out")
    (server,) = servers(os.getpid())
    threads = len([*Path(f"/proc/{server}/task").iterdir()])
    paths = Path(f"/proc/{server}/fd").iterdir()
    files = [str(fd.readlink()) for fd in paths]
    assert work.wait().status == "finished"
    devices.close()
    assert steady(the_run(tmp_path / "out")) == steady(undisturbed.run_dir)
    assert threads == 1
    assert not [name for name in files if name.startswith("/dev/nvidia")]
    assert servers(os.getpid()) == []


BROKEN = """
import importlib.abc, sys

class Broken(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "torch" and "nocap.launch.forker" in sys.orig_argv:
            raise ImportError("no such library")

sys.meta_path.insert(0, Broken())
"""


def test_a_server_that_cannot_import_torch_says_why(tmp_path: Path, door: Door) -> None:
    (tmp_path / "sitecustomize.py").write_text(BROKEN)
    path = os.pathsep.join([str(tmp_path), str(REPO)])
    done = door("--multirun", *THREE, "--fail-fast", env={"PYTHONPATH": path})
    assert done.code == 1
    assert "the process that starts the workers failed: ImportError: no such library" in done.out


@pytest.mark.gate
def test_a_grid_goes_on_after_its_server_was_killed(
    tmp_path: Path, undisturbed: Undisturbed
) -> None:
    running = Background(tmp_path / "out", *MEDIUM, "trainer.max_restarts=1", "seed=0,1")
    wait_until(lambda: rows_in(tmp_path / "out"), "a cell trains")
    (server,) = servers(running.process.pid)
    os.kill(server, signal.SIGKILL)
    done = running.end()
    assert done.code == 0
    assert done.err == ""
    attempts = [summary["attempts"] for summary in summaries(tmp_path / "out").values()]
    assert attempts == [2, 1]
    paths = sorted((tmp_path / "out" / "runs").iterdir())
    assert steady(paths[0]) == steady(undisturbed.run_dir)


def rows_in(out: Path) -> int:
    paths = out.glob("runs/*/metrics.jsonl")
    return sum(path.read_text().count("\n") for path in paths)


def ended_in(out: Path) -> int:
    return len(summaries(out))


MOMENTS: dict[str, Callable[[Path, Background], object]] = {
    "the server begins": lambda out, grid: servers(grid.process.pid),
    "a worker begins": lambda out, grid: len(all_below(grid.process.pid)) > 1,
    "a first row": lambda out, grid: rows_in(out) >= 1,
    "a checkpoint": lambda out, grid: [*out.glob("runs/*/checkpoints/*")],
    "a cell has ended": lambda out, grid: ended_in(out) >= 1,
    "a second cell's row": lambda out, grid: ended_in(out) >= 1 and rows_in(out) > ROWS,
    "two cells have ended": lambda out, grid: ended_in(out) >= 2,
}
ROWS = 8  # of a whole run


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The grid of three cells that nobody kills."""
    out = tmp_path_factory.mktemp("three") / "out"
    assert Background(out, *THREE).end().code == 0
    return out


@pytest.mark.slow
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("victim", ["grid", "server", "worker"])
def test_a_killed_process_of_a_grid_loses_nothing(
    tmp_path: Path, three: Path, victim: str, moment: str
) -> None:
    """Nothing is lost, no process is left, and the grid goes on: by itself, or by the same
    command."""
    out = tmp_path / "out"
    running = Background(out, *THREE)
    wait_until(lambda: MOMENTS[moment](out, running), moment)
    found = servers(running.process.pid)
    below = all_below(running.process.pid)
    pids = {
        "grid": [running.process.pid],
        "server": found,
        "worker": sorted(below - set(found))[:1],
    }
    for pid in pids[victim]:
        os.kill(pid, signal.SIGKILL)
    if victim == "grid":
        assert running.end().code == -signal.SIGKILL
        wait_until(
            lambda: not any(Path(f"/proc/{pid}").exists() for pid in below),
            "they end with the grid",
        )
        running = Background(out, *THREE)
    assert running.end().code == 0
    statuses = {summary["status"] for summary in summaries(out).values()}
    assert statuses == {"finished"}
    assert records(out) == records(three)


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", [("trainer.threads=2",), ("trainer.devices=2",)], ids=["threads", "ranks"]
)
def test_forked_workers_of_two_threads_or_ranks_train_as_fresh_processes(
    tmp_path: Path, door: Door, words: tuple[str, ...]
) -> None:
    work = begun(devices := ThisMachine(jobs=1), tmp_path / "out", *words)
    assert work.wait().status == "finished"
    devices.close()
    alone = door(*MEDIUM, *words, f"output_dir={tmp_path / 'alone'}")
    assert alone.code == 0
    run_dir = the_run(tmp_path / "out")
    assert steady(run_dir) == steady(the_run(tmp_path / "alone"))
