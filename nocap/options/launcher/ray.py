"""Cells as tasks of a Ray cluster, each in a process of its own."""

from __future__ import annotations

import logging
import os
import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nocap import outside
from nocap.config.keys import key, require
from nocap.config.trainer import Device
from nocap.launch.executor import Executor, last_words
from nocap.options.launcher import OfCluster

if TYPE_CHECKING:
    from nocap.config.run import Run
    from nocap.launch.grid import Cell

# until an address that does not answer is nobody's: Ray itself tries for minutes, and then ends the
# process
NOBODY_S = 10.0
PASSED_ON = (
    outside.VARIABLE,
    "NOCAP_CACHE",
    "PYTHONPATH",
)  # no secrets: Ray shows what it is given


@dataclass(kw_only=True)
class Ray(OfCluster):
    """`hydra/launcher=ray`: a task of a Ray cluster for each cell, which sets aside its GPUs, or
    its CPU cores"""

    kind: str = "ray"
    # address of the cluster, HOST:PORT; auto: the cluster that this machine is in; local: a cluster
    # of this machine alone, for this grid
    address: str
    restarts: int = key(ge=0, le=1000)  # how often a cell starts again after its node was lost

    def __post_init__(self) -> None:
        ok = (
            self.address in ("auto", "local")
            or re.fullmatch(r"[\w.-]+:\d{1,5}", self.address) is not None
        )
        require(ok, "hydra.launcher.address", "be auto, local or HOST:PORT", self.address)

    def executor(self, folder: Path) -> RayTasks:
        require(
            find_spec("ray") is not None,
            "hydra/launcher=ray",
            "find Ray installed: pip install 'nocap[ray]'",
            "none",
        )
        return RayTasks(ray=connected(self.address), folder=folder, restarts=self.restarts)


def connected(address: str) -> Any:
    """Ray's module, in the cluster of this address.

    Errors:
        ValueError: nobody answers there.
    """
    os.environ.setdefault(
        "RAY_USAGE_STATS_ENABLED", "0"
    )  # a cluster of this grid alone reports to nobody
    target = os.environ.get("RAY_ADDRESS", address) if address == "auto" else address
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
            "be a running Ray cluster (ray start --head)",
            f"{target} ({str(error).strip()})",
        )
    return ray


def needs(run: Run) -> dict[str, int]:
    """Return what Ray sets aside for a run."""
    t = run.trainer
    return {
        "num_cpus": t.devices * t.threads,
        "num_gpus": t.devices if t.device is Device.cuda else 0,
    }


@dataclass(kw_only=True)
class RayTasks(Executor):
    """Which nodes run the tasks, and when, is Ray's to say. A cell whose node is lost goes on on
    another one."""

    ray: Any
    folder: Path  # the grid's
    restarts: int

    def describe(self, runs: Sequence[Run]) -> str:
        need = max(map(needs, runs), key=lambda need: (need["num_gpus"], need["num_cpus"]))
        nodes = [node["Resources"] for node in self.ray.nodes() if node["Alive"]]
        fit = sum(
            node.get("CPU", 0) >= need["num_cpus"] and node.get("GPU", 0) >= need["num_gpus"]
            for node in nodes
        )
        waits = "" if fit else ": it waits for one that has"
        return (
            f"ray: {fit} of {len(nodes)} nodes have the {need['num_cpus']} CPUs and "
            f"{need['num_gpus']} GPUs of a cell{waits}"
        )

    def submit(self, cell: Cell) -> RayTask:
        return RayTask(self, cell)

    def close(self) -> None:
        self.ray.shutdown()


class RayTask:
    def __init__(self, tasks: RayTasks, cell: Cell) -> None:
        from nocap.launch.cell import CellJob

        self._cell, self._tasks, self._losses, self._stopping = cell, tasks, 0, False
        self._job = CellJob(str(tasks.folder), cell.plan.identity)
        self._job.log.parent.mkdir(exist_ok=True)
        self._submit()

    def _submit(self) -> None:
        ray, need = self._tasks.ray, needs(self._cell.plan.run)
        env = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
        # what Ray gave to nobody, the cell must not take
        hidden = {} if need["num_gpus"] else {"CUDA_VISIBLE_DEVICES": ""}
        task = ray.remote(max_retries=0)(_task()).options(name=self._job.identity, **need)
        self._reference = task.remote(
            self._job.words, env | hidden, os.getcwd(), str(self._job.log)
        )

    def poll(self) -> str | None:
        ray = self._tasks.ray
        if not ray.wait([self._reference], timeout=0)[0]:
            return None
        try:
            ray.get(self._reference)
            return last_words(self._job.log.read_text(errors="replace")) or f"see {self._job.log}"
        except ray.exceptions.TaskCancelledError:
            return "not started"
        except ray.exceptions.RayTaskError as error:  # such as a folder that is not there
            return str(error.cause)
        except ray.exceptions.RayError as error:
            reason = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]:.200}"
        if self._losses == self._tasks.restarts or self._stopping:
            return reason
        self._losses += 1
        print(
            f"lost     {self._cell.label}  {reason}; goes on elsewhere ({self._losses} of "
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
