"""What nocap adds to Hydra: a sweeper that checks, orders and resumes a grid, and a launcher for a pool of local devices.

Hydra imports this module in every application of the environment, so it holds the doors only; what is behind them is in `nocap.run`.
Hydra takes plugins from the package `hydra_plugins` and from nowhere else, and executes their modules in a way of its own: annotations
must not be put off (`from __future__ import annotations`), or a dataclass cannot be made.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.config_store import ConfigStore
from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig


@dataclass
class SweeperConf:
    _target_: str = "hydra_plugins.nocap_grid.GridSweeper"
    params: dict[str, str] = field(default_factory=dict)  # sweeps that a file brings along, as in Hydra's own sweeper


@dataclass
class PoolConf:
    _target_: str = "hydra_plugins.nocap_grid.PoolLauncher"
    jobs: int | None = None  # cells at once, at most; null: as many as the devices hold


ConfigStore.instance().store(group="hydra/sweeper", name="nocap", node=SweeperConf, provider="nocap")
ConfigStore.instance().store(group="hydra/launcher", name="pool", node=PoolConf, provider="nocap")


class GridSweeper(BasicSweeper):
    """Expands the sweeps as Hydra's own does; everything after that is nocap's."""

    def __init__(self, params: dict[str, str] | None = None) -> None:
        super().__init__(max_batch_size=None, params=params)
        self.task_function: TaskFunction | None = None

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """The launcher is made later, when the grid is checked and has a folder."""
        self.hydra_context, self.task_function, self.config = hydra_context, task_function, config

    def sweep(self, arguments: list[str]) -> Any:
        from nocap.launch.sweep import sweep

        assert self.hydra_context is not None
        assert self.task_function is not None
        assert self.config is not None
        arguments = [*self._parse_config(), *arguments]
        return sweep(arguments, split=self.split_arguments, context=self.hydra_context, task=self.task_function, config=self.config)


class PoolLauncher(Launcher):
    """Says how many cells may run at once; the sweeper of nocap runs them."""

    def __init__(self, jobs: int | None = None) -> None:
        if jobs is not None and jobs < 1:
            raise ValueError(f"hydra.launcher.jobs must be at least 1, or null for as many as the devices hold, got {jobs}")
        self.jobs = jobs

    def slots(self) -> Any:
        """Where the sweeper may run cells."""
        from nocap.launch.slots import Pool

        return Pool(jobs=self.jobs)

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        pass

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        raise ValueError("hydra/launcher=pool needs hydra/sweeper=nocap")
