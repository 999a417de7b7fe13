"""Cells as jobs of Slurm, by submitit's own API, each in a process of its own."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from nocap.config.keys import key, require
from nocap.launch.executor import Executor, last_words
from nocap.options.launcher import OfCluster

if TYPE_CHECKING:
    from nocap.launch.grid import Cell, Result

MOST_JOBS = 1000  # of an array: Slurm takes so many unless its MaxArraySize says otherwise
# submitit's own names, for any cluster
EVERY = ("timeout_min", "cpus_per_task", "gpus_per_node", "mem_gb", "name", "stderr_to_stdout")


@dataclass(kw_only=True)
class Slurm(OfCluster):
    """`hydra/launcher=slurm`: a job of Slurm for each cell, which saves near its time limit, and is
    requeued"""

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

    def executor(self, folder: Path) -> SlurmJobs:
        require(
            find_spec("submitit") is not None,
            "hydra/launcher=slurm",
            "find submitit installed: pip install 'nocap[slurm]'",
            "none",
        )
        return SlurmJobs(folder, self)


class SlurmJobs(Executor):
    """What was submitted since the last look becomes arrays of jobs. Slurm restarts them itself."""

    goes_on: ClassVar[str] = "handed over; the same command without --detach waits for the jobs and reports"

    def __init__(self, folder: Path, asked: Slurm) -> None:
        import submitit

        self.folder, self.asked, self._new = folder, asked, list[SlurmJob]()
        self.logs = folder / "jobs" / "%j"
        keys = {
            f.name: getattr(asked, f.name)
            for f in fields(asked)
            if f.name not in ("kind", "target", "max_num_timeout")
        }
        try:
            self._executor = submitit.AutoExecutor(
                self.logs, cluster="slurm", slurm_max_num_timeout=asked.max_num_timeout
            )
            self._executor.update_parameters(
                **{name if name in EVERY else f"slurm_{name}": value for name, value in keys.items()}
            )
        except (RuntimeError, TypeError, ValueError) as error:
            raise ValueError(
                f"hydra/launcher=slurm must be given on a machine of a Slurm cluster, got {error}"
            ) from error

    def submit(self, cell: Cell) -> SlurmCell:
        from nocap.launch.cell import CellJob

        job = CellJob(str(self.folder), cell.plan.identity)
        return SlurmCell(self.hand_over(job, job.log.with_suffix(".job")))

    def hand_over(
        self, job: Callable[[], Any], number: Path, finished: Callable[[], bool] = lambda: False
    ) -> SlurmJob:
        """Anything that can be pickled. `number`: the file that holds Slurm's own of it, so that a later
        command finds it. `finished`: whether a job that ended has left its result."""
        self._new.append(made := SlurmJob(self, job, number, finished))
        return made

    def send(self) -> None:
        """Hand over what is new, unless a job of an earlier command still has it."""
        import submitit

        new, self._new = self._new, []
        # all are known before the first is asked for: then one call of sacct answers for all
        for made in new:
            made.sent = (
                submitit.SlurmJob(self.logs, made.number.read_text()) if made.number.is_file() else None
            )
        todo = [
            made
            for made in new
            if made.sent is None or made.sent.state == "UNKNOWN" or (made.sent.done() and not made.finished())
        ]
        for part in (todo[first : first + MOST_JOBS] for first in range(0, len(todo), MOST_JOBS)):
            try:
                for made, sent in zip(
                    part, self._executor.submit_array([made.job for made in part]), strict=True
                ):
                    made.sent = sent
                    made.number.write_text(sent.job_id)
            except Exception as error:  # submitit's, of no class of their own: sbatch has refused the array
                for made in part:
                    made.reason = _last_line(error)


class SlurmJob:
    def __init__(
        self, jobs: SlurmJobs, job: Callable[[], Any], number: Path, finished: Callable[[], bool]
    ) -> None:
        self.job, self.number, self.finished, self._jobs = job, number, finished, jobs
        self.sent: Any = None
        self.reason: str | None = None  # why there is no record to come

    def poll(self) -> str | None:
        self._jobs.send()
        if self.reason is None and self.sent.done():
            error = self.sent.exception()
            printed = last_words(
                self.sent.stdout() if self._jobs.asked.stderr_to_stdout else self.sent.stderr()
            )
            self.reason = (printed if error is None else _last_line(error)) or f"see {self.number.parent}"
        return self.reason

    def cancel(self) -> None:
        if self.sent is not None:
            self.sent.cancel(check=False)


class SlurmCell:
    """A cell as a job."""

    def __init__(self, job: SlurmJob) -> None:
        self._job = job
        self._stopping = False

    def poll(self) -> Result | str | None:
        from nocap.launch.plan import Result

        reason = self._job.poll()
        if reason is not None and self._job.sent is None:
            raise ValueError(reason)  # no job came of it
        if reason is None and self._stopping:
            left = f"goes on as Slurm's job {self._job.sent.job_id}"
            return Result(summary={"status": "waiting", "error": left}, trained=True)
        return reason

    def stop(self) -> None:
        """Leave it as it is: Slurm's jobs outlive the command that handed them over."""
        self._stopping = True


def _last_line(error: Exception) -> str:
    lines = re.findall(r"\S.*", str(error))
    return f"{type(error).__name__}: {lines[-1].strip() if lines else ''}"
