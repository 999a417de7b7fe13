"""Cells on the nodes of a Ray cluster."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from nocap.config.keys import key, require
from nocap.options.launcher import OfCluster

if TYPE_CHECKING:
    from nocap.launch.runner import Executor


@dataclass(kw_only=True)
class Ray(OfCluster):
    """`hydra/launcher=ray`: a task of a Ray cluster for each cell, which sets aside its GPUs, or its CPU cores."""

    kind: str = "ray"
    address: str  # of the cluster, HOST:PORT; auto: the one that this machine is in; local: one of this machine alone, for this grid
    restarts: int = key(ge=0, le=1000)  # of a cell whose node was lost

    def __post_init__(self) -> None:
        ok = self.address in ("auto", "local") or re.fullmatch(r"[\w.-]+:\d{1,5}", self.address) is not None
        require(ok, "hydra.launcher.address", "be auto, local or HOST:PORT", self.address)

    def executor(self, folder: Path) -> Executor:
        require(find_spec("ray") is not None, "hydra/launcher=ray", "find Ray installed: pip install 'nocap[ray]'", "none")
        from nocap.launch.clusters import RayTasks, connected

        return RayTasks(ray=connected(self.address), folder=folder, restarts=self.restarts)
