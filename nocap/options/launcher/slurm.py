"""Cells as jobs of Slurm."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nocap.config.keys import key, require
from nocap.options.launcher import OfCluster

if TYPE_CHECKING:
    from nocap.launch.runner import Executor


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

    def executor(self, folder: Path) -> Executor:
        require(find_spec("submitit") is not None, "hydra/launcher=slurm", "find submitit installed: pip install 'nocap[slurm]'", "none")
        from nocap.launch.clusters import SlurmJobs

        return SlurmJobs(folder, {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("kind", "target")})
