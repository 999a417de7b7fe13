"""What nocap adds to Hydra: a sweeper that checks, orders and resumes a grid, its launchers, and options from outside.

Hydra imports this module in every application of the environment, so it holds the doors only; what is behind them is in `nocap`.
Hydra takes plugins from the package `hydra_plugins` and from nowhere else, and executes their modules in a way of its own: annotations
must not be put off (`from __future__ import annotations`), or a dataclass cannot be made.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.config_store import ConfigStore
from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.plugins.search_path_plugin import SearchPathPlugin
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig


@dataclass
class SweeperConf:
    _target_: str = "hydra_plugins.nocap_grid.GridSweeper"
    params: dict[str, str] = field(default_factory=dict)  # sweeps that a file brings along, as in Hydra's own sweeper


ConfigStore.instance().store(group="hydra/sweeper", name="nocap", node=SweeperConf, provider="nocap")


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


class OptionLauncher(Launcher):
    """A launcher option of nocap's group `launcher`: its keys, by its kind."""

    def __init__(self, kind: str, **keys: Any) -> None:
        from nocap.config import registry
        from nocap.config.keys import require

        option = registry.options("launcher")[kind]
        known = [f.name for f in fields(option)]
        for key in keys:
            require(key in known, f"hydra.launcher.{key}", f"be a key of {kind}, which has {', '.join(known[2:]) or 'none'}", keys[key])
        self.option: Any = option(kind=kind, **keys)

    def slots(self) -> Any:
        """Where the sweeper may run cells."""
        return self.option.slots()

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        pass

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        raise ValueError("this launcher needs hydra/sweeper=nocap")


class OutsideSearchPath(SearchPathPlugin):
    """The folders of `--config-dir` and of installed packages, for what nocap composes; other applications of the environment see none."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        if "NOCAP_OUTSIDE" in os.environ:
            from nocap import outside

            for folder in outside.folders():
                search_path.append(provider="nocap", path=f"file://{folder}")
