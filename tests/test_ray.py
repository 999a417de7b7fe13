"""Cells as tasks of Ray's: what is asked of it, what is refused, and a grid that outlives a
node."""

import _thread
import os
import re
import signal
import tempfile
import threading
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest

from nocap.config.compose import compose
from nocap.config.trainer import Device
from nocap.launch.cluster_cell import CellJob
from nocap.launch.ray_tasks import RayTasks, _task, connected, need_of
from nocap.launch.runner import Runner
from nocap.options.launcher.ray import Ray
from tests.attempts import processes, wait_until
from tests.conftest import FAULTS, SMALL, rows_of
from tests.grids import CELL, Background, grid_of, summaries

WHY = "ray is not installed: pip install 'nocap[ray]'"


@pytest.mark.parametrize(
    ("device", "threads", "devices", "cpus", "gpus"),
    [("cpu", 2, 2, 4, 0), ("cuda", 1, 2, 2, 2)],
)
def test_what_a_cell_has_set_aside(device, threads, devices, cpus, gpus):
    run = compose([*SMALL, f"trainer.threads={threads}"])
    run.trainer.device = Device[device]
    run.trainer.devices = devices
    need = need_of(run)
    assert need.cpus == cpus
    assert need.gpus == gpus


@pytest.mark.parametrize(
    ("threads", "told"),
    [(2, "2 of 3 nodes can run a cell (CPUs: 2, GPUs: 0)"), (9, "0 of 3 nodes")],
)
def test_which_nodes_have_room_for_a_cell(threads, told):
    have = [{"CPU": 8.0, "GPU": 2.0}, {"CPU": 3.0}, {"memory": 1e9}, {"CPU": 9.0}]
    nodes = [{"Resources": each, "Alive": n < 3} for n, each in enumerate(have)]
    ray = SimpleNamespace(nodes=lambda: nodes)
    tasks = RayTasks(ray=ray, folder=Path(), restarts=0)
    said = tasks.describe([compose([*SMALL, f"trainer.threads={threads}"])])
    assert said.startswith(f"ray: {told}")
    assert said.endswith("the grid waits for such a node") is (threads == 9)


def test_a_wrong_address_is_refused(monkeypatch):
    with pytest.raises(
        ValueError, match=r"^hydra\.launcher\.address must be auto, .*, got nowhere$"
    ):
        Ray(address="nowhere", restarts=0)
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:70000")
    with pytest.raises(
        ValueError, match=r"^hydra\.launcher\.address must be the address of a running Ray .*:70000"
    ):
        connected("auto")


def test_without_ray_the_command_that_installs_it_is_named(here, monkeypatch):
    monkeypatch.setattr("nocap.options.launcher.ray.find_spec", lambda name: None)
    done = here("--multirun", *CELL, "seed=0", "hydra/launcher=ray")
    line = "nocap: hydra/launcher=ray needs Ray: pip install 'nocap[ray]'\n"
    assert done.code == 2
    assert done.err == line


class RayError(Exception):
    """As Ray's, of a node that died."""


class Losing:
    """In place of Ray's module: a cluster that loses the first so many tasks, and runs none."""

    exceptions = SimpleNamespace(
        TaskCancelledError=KeyError, RayTaskError=KeyError, RayError=RayError
    )

    def __init__(self, lose, stop_at=None):
        self.lose = lose
        self.stop_at = stop_at
        self.started = []
        self.stopped = []
        self.cancel = self.stopped.append

    def remote(self, **ignored):
        def options(name, **need):
            return SimpleNamespace(
                remote=lambda *words: self.started.append(name) or len(self.started)
            )

        return lambda task: SimpleNamespace(options=options)

    def wait(self, references, timeout):
        if self.stop_at == len(self.started):
            self.stop_at = None
            os.kill(os.getpid(), signal.SIGTERM)
            return [], references
        return references, []

    def get(self, reference):
        if reference <= self.lose:
            raise RayError("its node died")


def runner(grid, ray, restarts=3):
    grid.write()
    (grid.folder / "jobs").mkdir()
    for cell in grid.cells:
        folder = str(grid.folder)
        log = CellJob(folder, cell.plan.identity).log
        log.write_text("nocap: it said so\n")
    tasks = RayTasks(ray=ray, folder=grid.folder, restarts=restarts)
    return Runner(grid, tasks)


def test_a_lost_cell_goes_on_elsewhere_a_few_times(tmp_path, capsys):
    cases = ((2, 3, 3, "it said so"), (9, 1, 2, "RayError: its node died"))
    for lose, restarts, started, reason in cases:
        grid = grid_of(tmp_path / str(lose), ("seed=0",))
        ray = Losing(lose=lose)
        ((key, result),) = runner(grid, ray, restarts=restarts).run().items()
        assert ray.started == [key] * started
        assert result.status == "waiting"
        assert result.reason == reason
    out = capsys.readouterr().out
    assert re.search(r"lost .* RayError: its node died; continues on another node \(2 of 3\)", out)


def test_a_request_to_stop_reaches_the_cluster_once_and_starts_nothing_again(tmp_path):
    grid = grid_of(tmp_path, ("seed=0",), ("seed=1",))
    ray = Losing(lose=9, stop_at=4)
    running = runner(grid, ray)
    running.run()

    assert running.stopping
    assert len(ray.started) == 4
    assert len(ray.stopped) == 2


def test_a_cancelled_task_lets_its_cell_save(tmp_path):
    """What runs on a node, run here: Ray interrupts the main thread as `interrupt_main` does."""
    code = (
        "import os, signal\nsignal.signal(15, lambda *_: os._exit(75))\n"
        "print(os.environ['NOCAP_PARENT'], os.environ['A'], flush=True)\nwhile True: signal.pause()"
    )
    log = tmp_path / "log"

    def interrupt():
        wait_until(lambda: log.exists() and log.stat().st_size, "a line")
        _thread.interrupt_main()

    # as in a node that was started in the background
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        threading.Thread(target=interrupt).start()
        task = _task()
        assert task(["-c", code], {"A": "b"}, str(tmp_path), str(log)) == 75
    finally:
        signal.signal(signal.SIGINT, before)
    assert log.read_text() == f"{os.getpid()} b\n"


# --- a real cluster -------------------------------------------------------------------------------


@pytest.fixture
def cluster(monkeypatch, tmp_path):
    """Start a head without room and two nodes with room for one cell each, on this machine.
    `raylets` has the nodes by process id. The first cell that comes to its step 3 stops there."""
    # Ray starts its workers at niceness 15: beside other work they would stand still
    monkeypatch.setenv("RAY_worker_niceness", "0")
    monkeypatch.setenv("NOCAP_FAULT", "stop@3")
    monkeypatch.setenv("NOCAP_FAULT_DIR", str(tmp_path))
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    cluster_utils = pytest.importorskip("ray.cluster_utils", reason=WHY)
    # short: there are sockets in it
    with (
        tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder,
        ExitStack() as undo,
    ):
        # a new machine has no /tmp/ray, and Ray writes there before it makes it
        monkeypatch.setenv("RAY_TMPDIR", folder)
        (Path(folder) / "ray").mkdir()
        made = cluster_utils.Cluster()
        undo.callback(made.shutdown)
        small = {"num_gpus": 0, "object_store_memory": 80 * 2**20, "temp_dir": folder}
        try:
            nodes = [made.add_node(**small, num_cpus=n, include_dashboard=False) for n in (0, 1, 1)]
        # Ray gives a node 30 s to start, and its agents 15: too few on a machine that is busy
        # otherwise
        except Exception as error:
            pytest.skip(f"Ray started no three nodes: {error}")
        made.raylets = {node.all_processes["raylet"][0].process.pid: node for node in nodes}
        yield made


def status_of(pid):
    """Return a process's state and its parent's id; "gone" and 0 where it has just ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
        state, parent, *_ = text.rpartition(")")[2].split()
    except OSError:
        return "gone", 0
    return state, int(parent)


def stopped(out):
    """Find the run whose worker has stopped, and that worker's process id."""
    for run_dir in out.glob("runs/*"):
        for worker in processes(run_dir):
            if status_of(worker)[0] == "T":
                return run_dir, worker
    return None


@pytest.mark.gate
@pytest.mark.timeout(1200)
@pytest.mark.filterwarnings("ignore")  # Ray's own, about processes that it leaves to their end
def test_a_grid_outlives_a_node(cluster, tmp_path):
    out = tmp_path / "out"
    found = []
    words = (*CELL, "trainer.steps=5", f"seed={','.join(map(str, range(6)))}")
    words = (*words, "hydra/launcher=ray", f"hydra.launcher.address={cluster.address}")
    running = Background(out, *words, path=FAULTS)
    wait_until(lambda: found.append(stopped(out)) or found[-1], "a run in the middle", limit_s=600)
    lost, worker = found[-1]
    task = status_of(status_of(worker)[1])[1]  # what started the command that started the worker
    node = cluster.raylets[status_of(task)[1]]
    os.kill(task, signal.SIGKILL)  # as all processes of a node end with it
    cluster.remove_node(node, allow_graceful=False)
    done = running.end()
    assert done.code == 0, done
    assert done.err == "", done
    assert "6 finished; 6 trained now" in done.out
    assert re.search(r"^lost .* continues on another node \(1 of 3\)$", done.out, re.M), done.out
    attempts = {name: summary["attempts"] for name, summary in summaries(out).items()}
    # a worker that its node's end lets go on may have ended before it is killed: then it is not
    # trained again
    assert attempts.pop(lost.name) in (1, 2)
    assert set(attempts.values()) == {1}
    if summaries(out)[lost.name]["attempts"] == 2:
        text = (lost / "train.log").read_text()
        assert re.search(r"resuming from step [1-5]$", text, re.M)
    for run_dir in out.glob("runs/*"):
        # whoever trained it, once
        steps = [row["step"] for row in rows_of(run_dir)]
        assert steps == list(range(6)), run_dir
        assert (run_dir / "train.log").read_text().count("step      5/5") == 1
