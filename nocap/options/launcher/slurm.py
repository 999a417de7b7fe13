"""Cells as jobs of Slurm, by submitit's own API, each in a process of its own."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from nocap.config.keys import key
from nocap.launch.executor import Executor, last_words
from nocap.options.launcher import OfCluster

if TYPE_CHECKING:
    from nocap.launch.cluster_cell import CellJob
    from nocap.launch.grid import Cell
    from nocap.launch.run_result import RunResult

MOST_JOBS = 1000  # of an array: Slurm takes so many unless its MaxArraySize says otherwise
# submitit's own names, for any cluster
EVERY = ("timeout_min", "cpus_per_task", "gpus_per_node", "mem_gb", "name", "stderr_to_stdout")


@dataclass(kw_only=True)
class Slurm(OfCluster):
    """`hydra/launcher=slurm`: each cell is a job of Slurm, which saves near its time limit, and is
    requeued if max_num_timeout allows it"""

    kind: str = "slurm"
    has_queue: ClassVar[bool] = True
    timeout_min: int = key(ge=1, le=10**6, default=60)  # time limit of a job in minutes
    cpus_per_task: int | None = key(ge=1, le=10**4, default=None)  # cores of a job
    gpus_per_node: int | None = key(ge=0, le=10**3, default=None)  # GPUs of a job
    mem_gb: int | None = key(ge=1, le=10**6, default=None)  # memory of a job in GB
    name: str = "nocap"  # name of the jobs
    stderr_to_stdout: bool = False  # write one log for each job, not two
    partition: str | None = None  # partition of the nodes
    qos: str | None = None  # quality of service
    comment: str | None = None  # comment that Slurm keeps with the jobs
    constraint: str | None = None  # features that the nodes must have
    exclude: str | None = None  # nodes that the jobs must not use
    gres: str | None = None  # generic resources, such as gpu:h100:1
    cpus_per_gpu: int | None = key(ge=1, le=10**4, default=None)  # cores for each GPU
    gpus_per_task: int | None = key(ge=0, le=10**3, default=None)  # GPUs of a job
    mem_per_gpu: str | None = None  # memory for each GPU, such as 80G
    mem_per_cpu: str | None = None  # memory for each core, such as 4G
    account: str | None = None  # account that Slurm charges
    # seconds before the time limit at which a job saves
    signal_delay_s: int = key(ge=0, le=10**6, default=120)
    # how often Slurm requeues a job at its time limit
    max_num_timeout: int = key(ge=0, le=10**4, default=0)
    additional_parameters: dict[str, Any] = field(default_factory=dict)  # more options of sbatch
    array_parallelism: int = key(ge=1, le=10**6, default=256)  # most jobs at once
    setup: list[str] = field(default_factory=list)  # commands before srun

    def executor(self, folder: Path) -> SlurmJobs:
        """Return what runs the cells of the grid in this folder as jobs.

        Errors:
            ValueError: submitit is not installed, or there is no cluster.
        """
        if find_spec("submitit") is None:
            raise ValueError("hydra/launcher=slurm needs submitit: pip install 'nocap[slurm]'")
        return SlurmJobs(folder, self)


class SlurmJobs(Executor):
    """What was submitted since the last look becomes arrays of jobs. Slurm restarts them itself."""

    goes_on: ClassVar[str] = (
        "handed over; the same command without --detach waits for the jobs and reports"
    )

    def __init__(self, folder: Path, launcher: Slurm) -> None:
        """Check that this machine is one of a cluster.

        Errors:
            ValueError: it is not.
        """
        import submitit

        self.folder = folder
        self.launcher = launcher
        self.logs = folder / "jobs" / "%j"
        self._new = list[SlurmCell]()
        try:
            self._executor = submitit.AutoExecutor(
                self.logs, cluster="slurm", slurm_max_num_timeout=launcher.max_num_timeout
            )
            self._executor.update_parameters(**_parameters(launcher))
        except (RuntimeError, TypeError, ValueError) as error:
            raise ValueError(
                f"hydra/launcher=slurm works only on a machine of a Slurm cluster: {error}"
            ) from error

    def submit(self, cell: Cell) -> SlurmCell:
        """Return the cell as a job, which is handed over at the next look."""
        from nocap.launch.cluster_cell import CellJob

        job = CellJob(str(self.folder), cell.plan.identity)
        slurm_cell = SlurmCell(self, job)
        self._new.append(slurm_cell)
        return slurm_cell

    def send(self) -> None:
        """Hand over what is new, unless a job of an earlier command still has it."""
        import submitit

        new = self._new
        self._new = []
        # all are known before the first is asked for: then one call of sacct answers for all
        for cell in new:
            if cell.number_file.is_file():
                cell.sent = submitit.SlurmJob(self.logs, cell.number_file.read_text())
        without_job = [cell for cell in new if cell.is_over]
        for first in range(0, len(without_job), MOST_JOBS):
            self._send_array(without_job[first : first + MOST_JOBS])

    def _send_array(self, cells: Sequence[SlurmCell]) -> None:
        """Hand over an array of jobs; where `sbatch` refuses it, every cell has the reason."""
        try:
            jobs = self._executor.submit_array([cell.job for cell in cells])
            for cell, sent in zip(cells, jobs, strict=True):
                cell.sent = sent
                cell.number_file.write_text(sent.job_id)
        except Exception as error:  # submitit's, of no class of their own
            for cell in cells:
                cell.reason = _last_line(error)


class SlurmCell:
    """A cell as a job."""

    def __init__(self, jobs: SlurmJobs, job: CellJob) -> None:
        self.job = job
        # holds Slurm's number, so that a later command finds it
        self.number_file = job.log.with_suffix(".job")
        self.sent: Any = None  # submitit's job
        self.reason: str | None = None  # why there is no record to come
        self._jobs = jobs
        self._stopping = False

    @property
    def is_over(self) -> bool:
        """Say whether no job has the cell now."""
        return self.sent is None or self.sent.state == "UNKNOWN" or self.sent.done()

    def poll(self) -> RunResult | str | None:
        """Return why no record is to come; None while the job goes on.

        Errors:
            ValueError: Slurm has refused the job.
        """
        from nocap.launch.run_result import RunResult

        self._jobs.send()
        if self.reason is None and self.sent.done():
            self.reason = self._why_over()
        if self.reason is not None and self.sent is None:
            raise ValueError(self.reason)
        if self.reason is None and self._stopping:
            reason = f"continues as Slurm's job {self.sent.job_id}"
            return RunResult.elsewhere(reason)
        return self.reason

    def _why_over(self) -> str:
        """Return the last words of a job that has ended."""
        error = self.sent.exception()
        if error is not None:
            return _last_line(error)
        if self._jobs.launcher.stderr_to_stdout:
            printed = self.sent.stdout()
        else:
            printed = self.sent.stderr()
        return last_words(printed) or f"see {self.number_file.parent}"

    def stop(self) -> None:
        """Leave it as it is: Slurm's jobs outlive the command that handed them over."""
        self._stopping = True


def _parameters(launcher: Slurm) -> dict[str, Any]:
    """Return the keys by the names that submitit has for them."""
    own = ("kind", "target", "max_num_timeout")
    parameters = dict[str, Any]()
    for each in fields(launcher):
        if each.name in own:
            continue
        parameter = f"slurm_{each.name}"
        if each.name in EVERY:
            parameter = each.name
        parameters[parameter] = getattr(launcher, each.name)
    return parameters


def _last_line(error: Exception) -> str:
    """Return the error's kind and the last line of what it says."""
    last = ""
    for line in re.findall(r"\S.*", str(error)):
        last = line.strip()
    return f"{type(error).__name__}: {last}"
