"""Cells as tasks of a Ray cluster: its address."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from nocap.config.keys import key, require
from nocap.options.launcher import OfCluster

if TYPE_CHECKING:
    from nocap.launch.ray_tasks import RayTasks


@dataclass(kw_only=True, slots=True)
class Ray(OfCluster):
    """`hydra/launcher=ray`: a task on a Ray cluster for each cell, which reserves its GPUs, or
    its CPU cores"""

    kind: str = "ray"
    # address of the cluster, HOST:PORT; auto: the cluster to which this machine belongs;
    # local: a new cluster on this machine only, for this grid
    address: str
    restarts: int = key(ge=0, le=1000)  # how often a cell starts again after its node was lost

    def __post_init__(self) -> None:
        has_port = re.fullmatch(r"[\w.-]+:\d{1,5}", self.address) is not None
        is_address = has_port or self.address in ("auto", "local")
        require(is_address, "hydra.launcher.address", "be auto, local or HOST:PORT", self.address)

    def executor(self, folder: Path) -> RayTasks:
        if find_spec("ray") is None:
            raise ValueError("hydra/launcher=ray needs Ray: pip install 'nocap[ray]'")
        from nocap.launch.ray_tasks import RayTasks, connected

        return RayTasks(ray=connected(self.address), folder=folder, restarts=self.restarts)
