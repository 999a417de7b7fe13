"""Cells as jobs of Slurm: the keys of its jobs."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from nocap.config.keys import key
from nocap.options.launcher import OfCluster

if TYPE_CHECKING:
    from nocap.launch.slurm_jobs import SlurmJobs

# submitit's own names, for any cluster
EVERY = ("timeout_min", "cpus_per_task", "gpus_per_node", "mem_gb", "name", "stderr_to_stdout")


@dataclass(kw_only=True, slots=True)
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
        from nocap.launch.slurm_jobs import SlurmJobs

        return SlurmJobs(
            folder,
            _parameters(self),
            max_num_timeout=self.max_num_timeout,
            stderr_to_stdout=self.stderr_to_stdout,
        )


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
