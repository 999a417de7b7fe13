"""Cells as jobs of Slurm, by submitit's own API."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from nocap.config.keys import key, require
from nocap.config.run import Run
from nocap.options.launcher import Cluster, End, Job, OfCluster, last_words

MOST_JOBS = 1000  # of an array: Slurm takes so many unless its MaxArraySize says otherwise
EVERY = ("timeout_min", "cpus_per_task", "gpus_per_node", "mem_gb", "name", "stderr_to_stdout")  # submitit's own names, for any cluster


@dataclass(kw_only=True)
class Slurm(OfCluster):
    """`hydra/launcher=slurm`: a job of Slurm for each cell, which saves near its time limit, and is requeued"""

    kind: str = "slurm"
    timeout_min: int = key(ge=1, le=10**6, default=60)  # of a job
    cpus_per_task: int | None = key(ge=1, le=10**4, default=None)  # cores of a job
    gpus_per_node: int | None = key(ge=0, le=10**3, default=None)  # GPUs of a job
    mem_gb: int | None = key(ge=1, le=10**6, default=None)  # memory of a job
    name: str = "nocap"  # of the jobs
    stderr_to_stdout: bool = False  # one log a job
    partition: str | None = None  # of the nodes
    qos: str | None = None  # quality of service
    comment: str | None = None  # kept with the jobs
    constraint: str | None = None  # features that the nodes must have
    exclude: str | None = None  # nodes that are left out
    gres: str | None = None  # generic resources, as gpu:h100:1
    cpus_per_gpu: int | None = key(ge=1, le=10**4, default=None)  # cores
    gpus_per_task: int | None = key(ge=0, le=10**3, default=None)  # GPUs of a job
    mem_per_gpu: str | None = None  # as 80G
    mem_per_cpu: str | None = None  # as 4G
    account: str | None = None  # that is charged
    signal_delay_s: int = key(ge=0, le=10**6, default=120)  # before the time limit, when the job saves
    max_num_timeout: int = key(ge=0, le=10**4, default=0)  # times that a job is requeued at its time limit
    additional_parameters: dict[str, Any] = field(default_factory=dict)  # of sbatch
    array_parallelism: int = key(ge=1, le=10**6, default=256)  # jobs at once, at most
    setup: list[str] = field(default_factory=list)  # commands before srun

    def slots(self) -> None:
        require(find_spec("submitit") is not None, "hydra/launcher=slurm", "find submitit installed: pip install 'nocap[slurm]'", "none")

    def cluster(self, folder: Path) -> Cluster:
        import submitit

        asked = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("kind", "target", "max_num_timeout")}
        try:
            executor = submitit.AutoExecutor(folder / "%j", cluster="slurm", slurm_max_num_timeout=self.max_num_timeout)
            executor.update_parameters(**{name if name in EVERY else f"slurm_{name}": value for name, value in asked.items()})
        except (RuntimeError, TypeError, ValueError) as error:
            raise ValueError(f"hydra/launcher=slurm must be given on a machine of a Slurm cluster, got {error}") from error
        return Jobs(executor, folder / "%j", asked)


class Jobs:
    """What was handed over since the last look becomes arrays of jobs."""

    restarts = 0  # Slurm requeues them itself

    def __init__(self, executor: Any, folder: Path, asked: Mapping[str, Any]) -> None:
        self._executor, self._folder, self._asked, self._new = executor, folder, asked, list[Submitted]()
        self.one_log = asked["stderr_to_stdout"]

    def describe(self, runs: Sequence[Run]) -> str:
        return f"slurm: a job of {self._asked['timeout_min']} min a cell, {self._asked['array_parallelism']} at once at most"

    def submit(self, job: Job) -> Submitted:
        self._new.append(made := Submitted(self, job))
        return made

    def send(self) -> None:
        """Hand over what is new, unless a job of an earlier command still has it."""
        from submitit import SlurmJob

        new, self._new = self._new, []
        for made in new:  # all are known before the first is asked for: then one call of sacct answers for all
            made.sent = SlurmJob(self._folder, made.number.read_text()) if made.number.is_file() else None
        for made in new:
            if made.sent is not None and (made.sent.state == "UNKNOWN" or made.sent.done()):
                made.sent = None
        todo = [made for made in new if made.sent is None]
        for part in (todo[first : first + MOST_JOBS] for first in range(0, len(todo), MOST_JOBS)):
            try:
                for made, sent in zip(part, self._executor.submit_array([made.job.train for made in part]), strict=True):
                    made.sent = sent
                    made.number.write_text(sent.job_id)
            except Exception as error:  # submitit's, of no class of their own: sbatch has refused the array
                for made in part:
                    made.end = End(reason=_last_line(error))

    def close(self) -> None:
        pass


class Submitted:
    """A job of Slurm's."""

    def __init__(self, cluster: Jobs, job: Job) -> None:
        self._cluster, self.job = cluster, job
        self.number = job.log.with_suffix(".job")  # holds that of Slurm
        self.sent: Any = None
        self.end: End | None = None

    def poll(self) -> End | None:
        self._cluster.send()
        if self.end is None and self.sent.done():
            error = self.sent.exception()
            printed = last_words(self.sent.stdout() if self._cluster.one_log else self.sent.stderr())
            self.end = End(reason=printed if error is None else _last_line(error))
        return self.end

    def stop(self) -> None:
        """It goes on as it is: Slurm's jobs outlive the command that handed them over."""
        self._cluster.send()
        self.end = self.end or End(reason=f"goes on as Slurm's job {self.sent.job_id}")


def _last_line(error: Exception) -> str:
    lines = re.findall(r"\S.*", str(error))
    return f"{type(error).__name__}: {lines[-1].strip() if lines else ''}"
