"""From Hydra's composed config to a checked `Run`: the schemas in Hydra's store, the resolvers behind the yaml's defaults, the refusals."""

from __future__ import annotations

import copy
import dataclasses
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast, get_type_hints

import yaml
from hydra import initialize_config_dir
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import ConfigRepository
from hydra.core.config_loader import ConfigLoader
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigResult
from hydra.plugins.search_path_plugin import SearchPathPlugin
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from nocap import outside
from nocap.config import hardware, registry
from nocap.config.errors import CONFIG_ERRORS, explain, suggest
from nocap.config.paths import conf_dir
from nocap.config.run import Run
from nocap.config.trainer import Compile, Device, Trainer
from nocap.options.attention.softmax import Kernel
from nocap.options.ideas import Idea

T = TypeVar("T")


def register() -> None:
    """Tell Hydra of the schemas, under `schema/`, of the resolvers and of the folders from outside. Safe to call twice.

    Errors:
        ValueError: an option from outside cannot be imported.
    """
    store = ConfigStore.instance()
    store.store(group="schema", name="run", node=Run, package="_global_")
    store.store(group="schema/trainer", name="trainer", node=Trainer)
    for group in registry.groups():
        for kind, schema in registry.options(group).items():
            store.store(group=f"schema/{group}", name=kind, node=schema)
    Plugins.instance().register(_OutsideSearchPath)
    for name, resolver in _RESOLVERS.items():
        OmegaConf.register_new_resolver(f"nocap.{name}", resolver, replace=True)


class _OutsideSearchPath(SearchPathPlugin):
    """The folders of `--config-dir` and of installed packages."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        for folder in outside.folders():
            search_path.append(provider="nocap", path=f"file://{folder}")


def _gqa_heads(n_head: int) -> int:
    """Key/value heads for groups of 3, 2 or 5 query heads: the first that divides."""
    for group in (3, 2, 5):
        if n_head % group == 0:
            return n_head // group
    raise ValueError(f"attention=gqa needs model.n_head divisible by 3, 2 or 5, or an explicit attention.n_kv_heads, got {n_head}")


def _device(value: Device | str) -> Device:
    """An interpolated enum arrives as a member, or as text where a default's own interpolation made it."""
    return value if isinstance(value, Device) else Device[value]


# What a yaml may ask for instead of a number. Device, precision and threads are decided here, once, and travel as plain values.
_RESOLVERS: dict[str, Callable[..., object]] = {
    "gqa_heads": _gqa_heads,
    "fraction": lambda share, whole: math.floor(share * whole),
    "times": lambda a, b: a * b,
    "device": lambda: hardware.default_device().name,
    "precision": lambda device: hardware.default_precision(_device(device)).name,
    "threads": lambda device, devices: hardware.default_threads(_device(device), max(1, devices)),
    "compile": lambda device: (Compile.off if _device(device) is Device.cpu else Compile.regional).name,
    "hang_timeout_s": lambda device: 3600.0 if _device(device) is Device.cpu else 600.0,  # one micro-batch of d48 takes a CPU core an hour
    "local_kernel": lambda device: (Kernel.blocks if _device(device) is Device.cpu else Kernel.flex).name,
}


def parse(cfg: DictConfig) -> Run:
    """A composed config as a checked `Run`.

    Errors:
        ValueError: a wrong key, type or value; one line with key, rule and value.
    """
    _refuse_unknown_keys(cfg, Run, "")
    try:
        run = OmegaConf.to_object(cfg)
    except OmegaConfBaseException as error:
        raise ValueError(explain(error)) from error
    assert isinstance(run, Run)
    hardware.check_device(run.trainer.device, run.trainer.devices)
    return run


def _refuse_unknown_keys(cfg: DictConfig, schema: type, prefix: str) -> None:
    """Hydra's `+key=value` writes past a schema; nothing may be parsed and then ignored."""
    known = [f.name for f in dataclasses.fields(schema)]
    for key in map(str, cfg):
        name = f"{prefix}{key}"
        if key not in known:
            raise ValueError(f"{name} is no key of {schema.__name__.lower()}{suggest(key, known)}")
        node = cfg._get_node(key)
        if isinstance(node, DictConfig) and dataclasses.is_dataclass(node._metadata.object_type):
            _refuse_unknown_keys(node, node._metadata.object_type, f"{name}.")
        elif isinstance(node, DictConfig) and name == "ideas":
            _refuse_untyped_ideas(node)


def _refuse_untyped_ideas(ideas: DictConfig) -> None:
    """Each idea has a place of its own below `ideas`, which its yaml names."""
    for name in map(str, ideas):
        node = ideas._get_node(name)
        kind = node._metadata.object_type if isinstance(node, DictConfig) else None
        if not isinstance(node, DictConfig) or not isinstance(kind, type) or not issubclass(kind, Idea) or kind is Idea:
            rule = "be an idea, whose yaml begins with '# @package ideas.NAME' and has defaults: [/schema/ideas/KIND@_here_]"
            raise ValueError(f"ideas.{name} must {rule}, got {node}")
        _refuse_unknown_keys(node, kind, f"ideas.{name}.")


# --- composing ---------------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class Composed:
    """A command line, the run it makes, and the names of the options it chose: group → yaml, None for no yaml."""

    overrides: tuple[str, ...]
    run: Run
    choices: dict[str, str | None]


def compose(overrides: Iterable[str]) -> Run:
    """The `Run` of these command-line overrides, without Hydra's application around it.

    Errors:
        ValueError: as for `parse`, and for an unknown option or malformed override.
    """
    return Composer().composed(tuple(overrides)).run


def composed(overrides: Iterable[str]) -> Composed:
    """The same with the names of the chosen options, remembered: do not change its `run`.

    Errors:
        ValueError: as for `compose`.
    """
    return _composer(outside.state()).composed(tuple(overrides))


@cache
def _composer(state: str) -> Composer:
    return Composer()


class Composer:
    """Composes many command lines: reads each yaml once, and composes overrides that differ only in the seed once."""

    def __init__(self, loader: ConfigLoader | None = None, application: DictConfig | None = None) -> None:
        """Inside Hydra's application: its loader, and its config, whose overrides of `hydra.*` hold for all."""
        register()
        self._loader, self._application = loader or _loader(), application
        if isinstance(self._loader, ConfigLoaderImpl):
            self._loader.repository = _Remembered(self._loader.config_search_path)
        self._arms: dict[tuple[tuple[str, ...], bool], tuple[DictConfig, dict[str, str | None]] | str] = {}

    def composed(self, overrides: Sequence[str]) -> Composed:
        """
        Errors:
            ValueError: as for `compose`.
        """
        seeds = [override for override in overrides if re.fullmatch(r"seed=(0|[1-9]\d*)", override)]
        arm = tuple(override for override in overrides if override not in seeds)
        key = arm, bool(seeds)
        if key not in self._arms:
            self._arms[key] = self._compose(arm)
        if isinstance(found := self._arms[key], str):
            raise ValueError(found)
        cfg, choices = found
        try:
            if seeds:
                cfg.seed = int(seeds[-1].partition("=")[2])
            return Composed(overrides=tuple(overrides), run=parse(cfg), choices=choices)
        except CONFIG_ERRORS as error:
            raise ValueError(explain(error)) from error

    def _compose(self, overrides: tuple[str, ...]) -> tuple[DictConfig, dict[str, str | None]] | str:
        """The config without its `hydra` part, and the choices. Or why it cannot be composed."""
        name, common = "train", list[str]()
        if self._application is not None:
            name, common = self._application.hydra.job.config_name, list(self._application.hydra.overrides.hydra)
        try:
            cfg = self._loader.load_configuration(name, [*common, *overrides], RunMode.RUN, from_shell=False)
            if self._application is not None:
                OmegaConf.copy_cache(from_config=self._application, to_config=cfg)  # one ${now:…} for all
            choices = dict(cfg.hydra.runtime.choices)
            with open_dict(cfg):
                del cfg["hydra"]
            return cfg, choices
        except CONFIG_ERRORS as error:
            return explain(error)


def _loader() -> ConfigLoader:
    """A loader of nocap's yamls and those from outside, whatever Hydra application is around."""
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        hydra = GlobalHydra.instance().hydra
        assert hydra is not None
        return hydra.config_loader


class _Remembered(ConfigRepository):
    """Reads each yaml once. Hydra writes into what it is given, so that is a copy."""

    def __init__(self, search_path: ConfigSearchPath) -> None:
        super().__init__(search_path)
        self._known: dict[str, ConfigResult | None] = {}

    def __deepcopy__(self, memo: dict[int, Any]) -> _Remembered:
        return copy.copy(self)

    def initialize_sources(self, config_search_path: ConfigSearchPath) -> None:
        super().initialize_sources(config_search_path)
        self._known = {}

    def load_config(self, config_path: str) -> ConfigResult | None:
        if config_path not in self._known:
            self._known[config_path] = super().load_config(config_path)
        return copy.deepcopy(self._known[config_path])


# --- records and requests -----------------------------------------------------------------------------------------------------------


def from_overrides(schema: type[T], overrides: Iterable[str]) -> T:
    """`key=value …` as a checked dataclass that is no part of a `Run`. Text is taken as it stands: a prompt may hold what Hydra's grammar,
    yaml or an interpolation would read as something else.

    Errors:
        ValueError: a wrong or missing key, type or value; one line with key, rule and value.
    """
    kinds, cfg, given = get_type_hints(schema), OmegaConf.structured(schema), dict[str, Any]()
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals:
            raise ValueError(f"{override!r} must be key=value{suggest(key, list(kinds))}")
        if key not in kinds:
            raise ValueError(f"{key} is no key of {schema.__name__.lower()}{suggest(key, list(kinds))}")
        if kinds[key] is not str:
            cfg[key] = text
        given[key] = text if kinds[key] is str else cfg[key]
    for f in dataclasses.fields(cast(Any, schema)):
        if f.name not in given and f.default is dataclasses.MISSING:
            raise ValueError(f"{f.name} must be given")
    return schema(**given)


def to_plain(run: Run) -> dict[str, Any]:
    """The run as plain JSON types: what `config.yaml`, the identity and the trackers see."""
    return {f.name: _plain(getattr(run, f.name)) for f in dataclasses.fields(run)}


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value.name if isinstance(value, Enum) else value


def dump(plain: Mapping[str, Any]) -> str:
    return yaml.safe_dump(dict(plain), sort_keys=False, allow_unicode=True)


def load(path: Path) -> Run:
    """The `Run` in a record's `config.yaml`. Each option's `kind` names its schema.

    Errors:
        ValueError: the file is no config of this version.
    """
    try:
        plain = yaml.safe_load(path.read_text())
        refuse_interpolations(plain)
        cfg = OmegaConf.structured(Run)
        ideas = plain.setdefault("ideas", {})  # a record from before there were any
        cfg.ideas = {name: _typed("ideas", f"ideas.{name}", ideas[name]) for name in list(ideas)}
        for group in [f.name for f in dataclasses.fields(Run) if f.name in registry.groups() and f.name != "ideas"]:
            cfg[group] = _typed(group, group, plain.pop(group))
        del plain["ideas"]
        run = OmegaConf.to_object(OmegaConf.merge(cfg, plain))
    except (OSError, KeyError, AttributeError, TypeError, ValueError, RecursionError, yaml.YAMLError, OmegaConfBaseException) as error:
        raise ValueError(f"{path} must be a run's config.yaml: {explain(error)}") from error
    assert isinstance(run, Run)
    return run


def _typed(group: str, place: str, plain: dict[str, Any]) -> Any:
    """An option's plain form with its schema, which its kind names; a record from before every option had one has its group's first."""
    rows = registry.options(group)
    kind = plain.get("kind", next(iter(rows)) if group == place else None)
    if kind not in rows:
        rule = f"be one of {', '.join(rows)}, or of an option that --config-dir brings (--allow-code takes the record's own copy)"
        raise ValueError(f"{place}.kind must {rule}, got {kind!r}")
    return OmegaConf.merge(OmegaConf.structured(rows[kind]), plain)


def refuse_interpolations(plain: Any) -> None:
    """A record holds values. `${oc.env:…}` in a record from elsewhere would read this machine's environment."""
    if isinstance(plain, str) and "${" in plain:
        raise ValueError(f"values must be plain, got the interpolation {plain}")
    for item in plain.values() if isinstance(plain, dict) else plain if isinstance(plain, list) else ():
        refuse_interpolations(item)
