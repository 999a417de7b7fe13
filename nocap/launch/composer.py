"""Compose the cells of a grid as Hydra does, without doing twice what is the same for all of them."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import ConfigRepository
from hydra.core.config_loader import ConfigLoader
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.plugins.config_source import ConfigResult
from omegaconf import DictConfig, OmegaConf, open_dict

from nocap.config.compose import CONFIG_ERRORS, explain, parse
from nocap.config.run import Run
from nocap.launch.grid import Compose

Choices = dict[str, str | None]


class _Remembered(ConfigRepository):
    """Each yaml is read once a grid, and not once a cell. Hydra writes into what it is given, so that is a copy."""

    def __init__(self, search_path: ConfigSearchPath) -> None:
        super().__init__(search_path)
        self._known: dict[str, ConfigResult | None] = {}

    def __deepcopy__(self, memo: dict[int, Any]) -> _Remembered:
        return self

    def initialize_sources(self, config_search_path: ConfigSearchPath) -> None:
        super().initialize_sources(config_search_path)
        self._known = {}

    def load_config(self, config_path: str) -> ConfigResult | None:
        if config_path not in self._known:
            self._known[config_path] = super().load_config(config_path)
        return copy.deepcopy(self._known[config_path])


def composer(loader: ConfigLoader, config: DictConfig) -> Compose:
    """A function from a cell's words to its checked run. `config` is the grid's own.

    An arm is composed once: its seeds differ in one plain key, which Hydra sets after everything else as well.
    """
    arms: dict[tuple[str, ...], tuple[DictConfig, Choices] | str] = {}
    parser = OverridesParser.create()
    if isinstance(loader, ConfigLoaderImpl):
        loader.repository = _Remembered(loader.config_search_path)
    HydraConfig.instance().set_config(copy.deepcopy(config))  # for a config that asks Hydra something; it makes its own read-only

    def arm(words: tuple[str, ...]) -> tuple[DictConfig, Choices]:
        if words not in arms:
            try:
                composed = loader.load_sweep_config(config, list(words))
                choices = dict(composed.hydra.runtime.choices)
                with open_dict(composed):
                    del composed["hydra"]
                arms[words] = composed, choices
            except CONFIG_ERRORS as error:
                arms[words] = explain(error)
        found = arms[words]
        if isinstance(found, str):
            raise ValueError(found)
        return found

    def compose(words: Sequence[str]) -> tuple[Run, Choices]:
        seeds = [word for word in words if word.startswith("seed=")]
        cfg, choices = arm(tuple(word for word in words if word not in seeds))
        try:
            for override in parser.parse_overrides(seeds):
                OmegaConf.update(cfg, "seed", override.value())
            return parse(cfg), choices
        except CONFIG_ERRORS as error:
            raise ValueError(explain(error)) from error

    return compose
