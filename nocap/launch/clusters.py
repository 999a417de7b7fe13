"""Cells as jobs of a cluster: of Slurm, by submitit's own API, or as tasks of Ray's, each in a process of its own."""

from __future__ import annotations

import logging
import os
import re
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from nocap import outside
from nocap.config.keys import require
from nocap.config.run import Run
from nocap.config.trainer import Device
from nocap.launch.cell import CellJob
from nocap.launch.grid import Cell, Result
from nocap.launch.runner import left_by

MOST_JOBS = 1000  # of an array: Slurm takes so many unless its MaxArraySize says otherwise
EVERY = ("timeout_min", "cpus_per_task", "gpus_per_node", "mem_gb", "name", "stderr_to_stdout")  # submitit's own names, for any cluster
NOBODY_S = 10.0  # until an address that does not answer is nobody's: Ray itself tries for minutes, and then ends the process
PASSED_ON = (outside.VARIABLE, "NOCAP_CACHE", "PYTHONPATH")  # no secrets: Ray shows what it is given


def last_words(printed: str | None) -> str | None:
    """The last line in which a job says what is wrong."""
    lines = re.findall(r"^nocap: (.*)", printed or "", re.MULTILINE)
    return str(lines[-1]) if lines else None


# --- Slurm -------------------------------------------------------------------------------------------------------------------------------


class SlurmJobs:
    """What was submitted since the last look becomes arrays of jobs. Slurm restarts them itself."""

    event: ClassVar[str] = "sent"
    poll_s: ClassVar[float] = 0.5

    def __init__(self, folder: Path, asked: Mapping[str, Any]) -> None:
        """`asked`: the launcher's keys."""
        import submitit

        self.folder, self.asked, self._new = folder, asked, list[SlurmJob]()
        self.logs = folder / "jobs" / "%j"
        given = {key if key in EVERY else f"slurm_{key}": value for key, value in asked.items() if key != "max_num_timeout"}
        try:
            self._executor = submitit.AutoExecutor(self.logs, cluster="slurm", slurm_max_num_timeout=asked["max_num_timeout"])
            self._executor.update_parameters(**given)
        except (RuntimeError, TypeError, ValueError) as error:
            raise ValueError(f"hydra/launcher=slurm must be given on a machine of a Slurm cluster, got {error}") from error

    def describe(self, runs: Sequence[Run]) -> str:
        return f"slurm: a job of {self.asked['timeout_min']} min a cell, {self.asked['array_parallelism']} at once at most"

    def submit(self, cell: Cell, begun: Callable[[], None]) -> SlurmJob:
        self._new.append(made := SlurmJob(self, cell))
        return made

    def send(self) -> None:
        """Hand over what is new, unless a job of an earlier command still has it."""
        import submitit

        new, self._new = self._new, []
        for made in new:  # all are known before the first is asked for: then one call of sacct answers for all
            made.sent = submitit.SlurmJob(self.logs, made.number.read_text()) if made.number.is_file() else None
        for made in new:
            if made.sent is not None and (made.sent.state == "UNKNOWN" or made.sent.done()):
                made.sent = None
        todo = [made for made in new if made.sent is None]
        for part in (todo[first : first + MOST_JOBS] for first in range(0, len(todo), MOST_JOBS)):
            try:
                for made, sent in zip(part, self._executor.submit_array([made.job for made in part]), strict=True):
                    made.sent = sent
                    made.number.write_text(sent.job_id)
            except Exception as error:  # submitit's, of no class of their own: sbatch has refused the array
                for made in part:
                    made.reason = _last_line(error)

    def close(self) -> None:
        pass


class SlurmJob:
    def __init__(self, jobs: SlurmJobs, cell: Cell) -> None:
        self.cell, self.job, self._jobs = cell, CellJob(str(jobs.folder), cell.plan.identity), jobs
        self.number = self.job.log.with_suffix(".job")  # holds that of Slurm
        self.sent: Any = None
        self.reason: str | None = None  # why there is no record to come

    def poll(self) -> Result | None:
        self._jobs.send()
        if self.reason is None and self.sent.done():
            error = self.sent.exception()
            printed = last_words(self.sent.stdout() if self._jobs.asked["stderr_to_stdout"] else self.sent.stderr())
            self.reason = (printed if error is None else _last_line(error)) or f"see {self.number.parent}"
        return None if self.reason is None else left_by(self.cell, self.reason)

    def stop(self) -> None:
        """It goes on as it is: Slurm's jobs outlive the command that handed them over."""
        self._jobs.send()
        self.reason = self.reason or f"goes on as Slurm's job {self.sent.job_id}"


def _last_line(error: Exception) -> str:
    lines = re.findall(r"\S.*", str(error))
    return f"{type(error).__name__}: {lines[-1].strip() if lines else ''}"


# --- Ray ---------------------------------------------------------------------------------------------------------------------------------


def connected(address: str) -> Any:
    """Ray's module, in the cluster of this address.

    Errors:
        ValueError: nobody answers there.
    """
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
class RayTasks:
    """Which nodes run the tasks, and when, is Ray's to say. A cell whose node is lost goes on on another one."""

    ray: Any
    folder: Path  # the grid's
    restarts: int
    event: ClassVar[str] = "sent"
    poll_s: ClassVar[float] = 0.5

    def describe(self, runs: Sequence[Run]) -> str:
        nodes = [node["Resources"] for node in self.ray.nodes() if node["Alive"]]
        need = min(map(needs, runs), key=lambda need: at_once(need, nodes))
        most, each = at_once(need, nodes), f"{need['num_cpus']} CPUs and {need['num_gpus']} GPUs"
        return f"ray: {most} at once on {len(nodes)} nodes, {each} each" if most else f"ray: no node has {each}: it waits for one that has"

    def submit(self, cell: Cell, begun: Callable[[], None]) -> RayTask:
        return RayTask(self, cell)

    def close(self) -> None:
        self.ray.shutdown()


class RayTask:
    def __init__(self, tasks: RayTasks, cell: Cell) -> None:
        self.cell, self._tasks, self._losses, self._stopping = cell, tasks, 0, False
        self._job = CellJob(str(tasks.folder), cell.plan.identity)
        self._job.log.parent.mkdir(exist_ok=True)
        self._submit()

    def _submit(self) -> None:
        ray, need = self._tasks.ray, needs(self.cell.plan.run)
        env = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
        hidden = {} if need["num_gpus"] else {"CUDA_VISIBLE_DEVICES": ""}  # what Ray gave to nobody, the cell must not take
        task = ray.remote(max_retries=0)(_task()).options(name=self._job.identity, **need)
        self._reference = task.remote(self._job.words, env | hidden, os.getcwd(), str(self._job.log))

    def poll(self) -> Result | None:
        ray = self._tasks.ray
        if not ray.wait([self._reference], timeout=0)[0]:
            return None
        try:
            ray.get(self._reference)
            reason = last_words(self._job.log.read_text(errors="replace")) or f"see {self._job.log}"
        except ray.exceptions.TaskCancelledError:
            reason = "not started"
        except ray.exceptions.RayTaskError as error:  # such as a folder that is not there
            reason = str(error.cause)
        except ray.exceptions.RayError as error:
            reason = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]:.200}"
            if self._losses < self._tasks.restarts and not self._stopping:
                self._losses += 1
                print(f"lost     {self.cell.label}  {reason}; goes on elsewhere ({self._losses} of {self._tasks.restarts})", flush=True)
                self._submit()
                return None
        return left_by(self.cell, reason)

    def stop(self) -> None:
        if not self._stopping:
            self._stopping = True
            self._tasks.ray.cancel(self._reference)


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
