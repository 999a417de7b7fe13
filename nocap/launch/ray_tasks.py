"""Cells as tasks of a Ray cluster, each in a process of its own."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nocap import outside
from nocap.config.keys import require
from nocap.config.run import Run
from nocap.config.trainer import Device
from nocap.launch.cluster_cell import CellJob
from nocap.launch.executor import Executor, JobEnd, last_words
from nocap.launch.grid import Cell

# until an address that does not answer is nobody's: Ray itself tries for minutes, and then ends the
# process
NOBODY_S = 10.0
# of the environment, for a cell; no secrets: Ray shows what it is given
VARIABLES = (outside.VARIABLE, "NOCAP_CACHE", "PYTHONPATH")


def connected(address: str) -> Any:
    """Connect to the cluster of this address, and return Ray's module.

    Errors:
        ValueError: nobody answers there.
    """
    # a cluster of this grid alone reports to nobody
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    target = address
    if address == "auto":
        target = os.environ.get("RAY_ADDRESS", address)
    host, _, port = target.rpartition(":")
    try:
        if host:
            socket.create_connection((host, int(port)), timeout=NOBODY_S).close()
        import ray

        ray.init(
            address=target,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
    except Exception as error:  # Ray's are of no class of their own where it cannot start
        require(
            False,
            "hydra.launcher.address",
            "be the address of a running Ray cluster (ray start --head starts one)",
            f"{target} ({str(error).strip()})",
        )
    return ray


@dataclass(frozen=True, kw_only=True, slots=True, order=True)
class Need:
    """What Ray sets aside for a run. The greater need has more GPUs, or as many and more cores."""

    gpus: int
    cpus: int

    def fits(self, resources: Mapping[str, float]) -> bool:
        """Say whether a node with these resources, by Ray's names, has enough of both."""
        has_cpus = resources.get("CPU", 0) >= self.cpus
        return has_cpus and resources.get("GPU", 0) >= self.gpus


def need_of(run: Run) -> Need:
    """Return what Ray sets aside for a run."""
    t = run.trainer
    gpus = 0
    if t.device is Device.cuda:
        gpus = t.devices
    return Need(gpus=gpus, cpus=t.devices * t.threads)


@dataclass(kw_only=True)
class RayTasks(Executor):
    """Which nodes run the tasks, and when, is Ray's to say. A cell whose node is lost goes on on
    another one."""

    ray: Any
    folder: Path  # the grid's
    restarts: int

    def describe(self, runs: Sequence[Run]) -> str:
        greatest = max(map(need_of, runs))
        nodes = [node["Resources"] for node in self.ray.nodes() if node["Alive"]]
        n_fit = sum(map(greatest.fits, nodes))
        line = (
            f"ray: {n_fit} of {len(nodes)} nodes can run a cell (CPUs: {greatest.cpus}, GPUs: "
            f"{greatest.gpus})"
        )
        if n_fit == 0:
            line = f"{line}; the grid waits for such a node"
        return line

    def submit(self, cell: Cell) -> RayTask:
        return RayTask(self, cell)

    def close(self) -> None:
        self.ray.shutdown()


class RayTask:
    def __init__(self, tasks: RayTasks, cell: Cell) -> None:
        self._cell = cell
        self._tasks = tasks
        self._losses = 0  # of the node that ran it
        self._stopping = False
        self._job = CellJob(str(tasks.folder), cell.plan.identity)
        self._job.log.parent.mkdir(exist_ok=True)
        self._submit()

    def _submit(self) -> None:
        """Hand the cell over to Ray."""
        need = need_of(self._cell.plan.run)
        env = {name: os.environ[name] for name in VARIABLES if name in os.environ}
        if need.gpus == 0:
            env["CUDA_VISIBLE_DEVICES"] = ""  # what Ray gave to nobody, the cell must not take
        remote = self._tasks.ray.remote(max_retries=0)(_task())
        task = remote.options(name=self._job.identity, num_cpus=need.cpus, num_gpus=need.gpus)
        self._reference = task.remote(self._job.words, env, os.getcwd(), str(self._job.log))

    def poll(self) -> JobEnd | None:
        ray = self._tasks.ray
        ready, _ = ray.wait([self._reference], timeout=0)
        if not ready:
            return None
        try:
            ray.get(self._reference)
            printed = self._job.log.read_text(errors="replace")
            return JobEnd(last_words(printed) or f"see {self._job.log}")
        except ray.exceptions.TaskCancelledError:
            return JobEnd("not started")
        except ray.exceptions.RayTaskError as error:  # such as a folder that is not there
            return JobEnd(str(error.cause))
        except ray.exceptions.RayError as error:  # its node was lost
            first_line = next(iter(str(error).splitlines()), "")
            reason = f"{type(error).__name__}: {first_line:.200}"
        if self._losses == self._tasks.restarts or self._stopping:
            return JobEnd(reason)
        self._losses += 1
        print(
            f"lost     {self._cell.label}  {reason}; continues on another node ({self._losses} of "
            f"{self._tasks.restarts})",
            flush=True,
        )
        self._submit()
        return None

    def stop(self) -> None:
        if not self._stopping:
            self._stopping = True
            self._tasks.ray.cancel(self._reference)


def _task() -> Any:
    """Return what runs on a node. It is sent there as it stands here, by value, and needs nothing
    but Python there."""

    def run(words: list[str], env: dict[str, str], folder: str, log: str) -> int:
        import os
        import signal
        import subprocess
        import sys

        # a node that was started in the background ignores it
        signal.signal(signal.SIGINT, signal.default_int_handler)
        env = {**os.environ, **env, "NOCAP_PARENT": str(os.getpid())}
        with open(log, "ab") as file:
            process = subprocess.Popen(
                [sys.executable, *words],
                env=env,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
            )
        while True:
            try:
                return process.wait(timeout=0.2)
            except subprocess.TimeoutExpired:
                pass
            except KeyboardInterrupt:  # how Ray cancels a task: the cell saves and ends
                process.terminate()

    return run
