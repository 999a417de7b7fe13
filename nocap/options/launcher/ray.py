"""Cells on the nodes of a Ray cluster: one task a cell, and in it a process of its own."""

from __future__ import annotations

import logging
import os
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from nocap.config.keys import key, require
from nocap.config.run import Run
from nocap.config.trainer import Device
from nocap.options.launcher import Cluster, End, Job, OfCluster, last_words

NOBODY_S = 10.0  # until an address that does not answer is nobody's: Ray itself tries for minutes, and then ends the process


@dataclass(kw_only=True)
class Ray(OfCluster):
    """`hydra/launcher=ray`: a task of a Ray cluster for each cell, which sets aside its GPUs, or its CPU cores."""

    kind: str = "ray"
    address: str  # of the cluster, HOST:PORT; auto: the one that this machine is in; local: one of this machine alone, for this grid
    restarts: int = key(ge=0, le=1000)  # of a cell whose node was lost

    def __post_init__(self) -> None:
        ok = self.address in ("auto", "local") or re.fullmatch(r"[\w.-]+:\d{1,5}", self.address) is not None
        require(ok, "hydra.launcher.address", "be auto, local or HOST:PORT", self.address)

    def slots(self) -> None:
        require(find_spec("ray") is not None, "hydra/launcher=ray", "find Ray installed: pip install 'nocap[ray]'", "none")

    def cluster(self, folder: Path) -> Cluster:
        return Tasks(ray=_connected(self.address), restarts=self.restarts)


def _connected(address: str) -> Any:
    """Ray's module, in the cluster of this address."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a cluster of this grid alone reports to nobody
    asked = os.environ.get("RAY_ADDRESS", address) if address == "auto" else address
    host, _, port = asked.rpartition(":")
    try:
        if host:
            socket.create_connection((host, int(port)), timeout=NOBODY_S).close()
        import ray

        ray.init(address=asked, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    except Exception as error:  # Ray's are of no class of their own where it cannot start
        require(False, "hydra.launcher.address", "be a running Ray cluster (ray start --head)", f"{asked} ({str(error).strip()})")
    return ray


def needs(run: Run) -> dict[str, int]:
    """What Ray sets aside for a run."""
    t = run.trainer
    return {"num_cpus": t.devices * t.threads, "num_gpus": t.devices if t.device is Device.cuda else 0}


def at_once(need: Mapping[str, int], nodes: Sequence[Mapping[str, float]]) -> int:
    """How many jobs with this need there is room for, on nodes with these resources."""
    asked = [(n, {"num_cpus": "CPU", "num_gpus": "GPU"}[name]) for name, n in need.items() if n]
    return sum(min(int(node.get(resource, 0) // n) for n, resource in asked) for node in nodes)


@dataclass(kw_only=True)
class Tasks:
    """The jobs as tasks of Ray's. Which nodes run them, and when, is Ray's to say."""

    ray: Any
    restarts: int

    def describe(self, runs: Sequence[Run]) -> str:
        nodes = [node["Resources"] for node in self.ray.nodes() if node["Alive"]]
        need = min(map(needs, runs), key=lambda need: at_once(need, nodes))
        most, each = at_once(need, nodes), f"{need['num_cpus']} CPUs and {need['num_gpus']} GPUs"
        return f"ray: {most} at once on {len(nodes)} nodes, {each} each" if most else f"ray: no node has {each}: it waits for one that has"

    def submit(self, job: Job) -> Task:
        need = needs(job.run)
        hidden = {} if need["num_gpus"] else {"CUDA_VISIBLE_DEVICES": ""}  # what Ray gave to nobody, the cell must not take
        task = self.ray.remote(max_retries=0)(_task()).options(name=job.key, **need)
        return Task(ray=self.ray, log=job.log, reference=task.remote(list(job.words), {**job.env, **hidden}, os.getcwd(), str(job.log)))

    def close(self) -> None:
        self.ray.shutdown()


@dataclass(kw_only=True)
class Task:
    ray: Any
    reference: Any
    log: Path

    def poll(self) -> End | None:
        if not self.ray.wait([self.reference], timeout=0)[0]:
            return None
        errors = self.ray.exceptions
        try:
            self.ray.get(self.reference)
        except errors.TaskCancelledError:
            return End(reason="not started")
        except errors.RayTaskError as error:  # such as a folder that is not there
            return End(reason=str(error.cause))
        except errors.RayError as error:
            return End(reason=f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]:.200}", lost=True)
        return End(reason=last_words(self.log.read_text(errors="replace")))

    def stop(self) -> None:
        self.ray.cancel(self.reference)


def _task() -> Any:
    """What runs on a node. It is sent there as it stands here, by value, and needs nothing but Python there."""

    def run(words: list[str], env: dict[str, str], folder: str, log: str) -> int:
        import os
        import signal
        import subprocess
        import sys

        signal.signal(signal.SIGINT, signal.default_int_handler)  # a node that was started in the background ignores it
        env = {**os.environ, **env, "NOCAP_PARENT": str(os.getpid())}
        with open(log, "ab") as file:
            process = subprocess.Popen([sys.executable, *words], env=env, cwd=folder, stdin=subprocess.DEVNULL, stdout=file, stderr=file)
        while True:
            try:
                return process.wait(timeout=0.2)
            except subprocess.TimeoutExpired:
                pass
            except KeyboardInterrupt:  # how Ray cancels a task: the cell saves and ends
                process.terminate()

    return run
