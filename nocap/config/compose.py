"""From overrides to a checked `Run`, by Hydra."""

from __future__ import annotations

import copy
import dataclasses
import re
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar, cast, get_type_hints

from hydra import initialize_config_dir
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import ConfigRepository
from hydra.core.config_loader import ConfigLoader
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.global_hydra import GlobalHydra
from hydra.plugins.config_source import ConfigResult
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from nocap import outside
from nocap.config import gate, hardware, registry
from nocap.config.defaults import reasons
from nocap.config.errors import CONFIG_ERRORS, explain, suggest
from nocap.config.keys import check_keys, require
from nocap.config.outward import redact
from nocap.config.paths import conf_dir
from nocap.config.plain import load as load
from nocap.config.plain import refuse_interpolations as refuse_interpolations
from nocap.config.plain import to_plain as to_plain
from nocap.config.run import Run
from nocap.config.schemas import register
from nocap.config.trainer import Device
from nocap.options.ideas import Idea

T = TypeVar("T")


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
    _refuse_secrets(to_plain(run))
    hardware.check_device(run.trainer.device, run.trainer.devices)
    return run


def _refuse_secrets(plain: dict[str, Any], prefix: str = "") -> None:
    """Refuse a secret where the run needs it later, as in a path: its record would hold it. A tracker's texts are redacted instead."""
    for key, value in plain.items():
        if isinstance(value, dict) and prefix + key != "tracker":
            _refuse_secrets(value, f"{prefix}{key}.")
        elif not isinstance(value, dict) and (shown := redact(value)) != value:
            raise ValueError(f"{prefix}{key} must hold no secret, which the run's record would show, got {shown}")


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
    defaults: tuple[str, ...] = ()  # what of `trainer` follows from the machine and the shape


def compose(overrides: Iterable[str]) -> Run:
    """The `Run` of these command-line overrides.

    Errors:
        ValueError: as for `parse`, and for an unknown option or malformed override.
    """
    return composed(overrides).run


def composed(overrides: Iterable[str]) -> Composed:
    """The same with the names of the chosen options. The yamls are read again where one was changed.

    Errors:
        ValueError: as for `compose`.
    """
    return _composer(outside.state(), _yamls()).composed(tuple(overrides))


@dataclasses.dataclass(frozen=True, slots=True)
class Unchecked:
    """A config with the options and keys of a command line, whose values nobody has looked at."""

    config: DictConfig
    choices: dict[str, str | None]


def unchecked(overrides: Sequence[str]) -> Unchecked:
    """What can be said of these overrides before every key that must be given is.

    Errors:
        ValueError: an unknown option, or a malformed override.
    """
    return _composer(outside.state(), _yamls()).unchecked(tuple(overrides))


def as_in(baseline: Composed | None, overrides: Sequence[str], compose: Callable[[Sequence[str]], Composed] = composed) -> Composed:
    """These overrides with the baseline's precision and compilation, unless they choose their own: arms differ in nothing else.

    Errors:
        ValueError: as for `compose`.
    """
    if baseline is None:
        return compose(overrides)
    with hardware.elsewhere(None):  # what it would get by default counts for nothing
        found = compose(overrides)
    mine, theirs = found.run.trainer, baseline.run.trainer
    keys = [key for key in ("precision", "compile") if key in found.defaults and getattr(mine, key) is not getattr(theirs, key)]
    return compose((*overrides, *(f"trainer.{key}={getattr(theirs, key).value}" for key in keys))) if keys else found


def compose_measured(overrides: Sequence[str]) -> Run:
    """A run whose step is measured: with one thread, whose process time is a fair clock on a machine that others use, and on a CPU not
    compiled, which no measurement is long enough to pay for; unless the overrides choose otherwise.

    Errors:
        ValueError: as for `compose`.
    """
    found = composed(["trainer.threads=1", *overrides])
    left = "compile" in found.defaults and found.run.trainer.device is Device.cpu
    return compose([*found.overrides, "trainer.compile=off"]) if left else found.run


@lru_cache(maxsize=1)  # as the schemas that Hydra is told of
def _composer(state: str, yamls: tuple[tuple[Path, int], ...]) -> Composer:
    return Composer()


def _yamls() -> tuple[tuple[Path, int], ...]:
    """Every yaml, and when it was changed."""
    folders = (conf_dir(), *outside.folders())
    return tuple((path, path.stat().st_mtime_ns) for folder in folders for path in sorted(folder.rglob("*.yaml")))


_PLAIN = re.compile(r"(?!hydra\b)[a-z][\w.]*=[^$]*")  # an option or a key, and no interpolation
_KEY = re.compile(r"(output_dir|cache_dir|\w+\.[\w.]+)=.*", re.DOTALL)


class Composer:
    """Composes many command lines: reads each yaml once, composes the same options once, and what differs only in the seed once."""

    def __init__(self, loader: ConfigLoader | None = None, application: DictConfig | None = None) -> None:
        """Inside Hydra's application: its loader, and its config, whose overrides of `hydra.*` hold for all."""
        register()
        self._loader, self._application = loader or _loader(), application
        if isinstance(self._loader, ConfigLoaderImpl):
            self._loader.repository = _Remembered(self._loader.config_search_path)
        self._arms: dict[tuple[tuple[str, ...], bool], tuple[DictConfig, dict[str, str | None], tuple[str, ...]] | str] = {}
        self._chosen: dict[tuple[str, ...], tuple[DictConfig, dict[str, str | None]] | str] = {}

    def composed(self, overrides: Sequence[str]) -> Composed:
        """
        Errors:
            ValueError: as for `compose`.
        """
        gate.check_words(overrides)
        seeds = [override for override in overrides if re.fullmatch(r"seed=(0|-?[1-9]\d*)", override)]
        arm = tuple(override for override in overrides if override not in seeds)
        key = arm, bool(seeds)
        if key not in self._arms:
            with hardware.elsewhere(None):  # OmegaConf resolves what it merges over
                self._arms[key] = self._arm(arm)
        if isinstance(found := self._arms[key], str):
            raise ValueError(found)
        cfg, choices, defaults = found
        try:
            if seeds:
                cfg.seed = int(seeds[-1].partition("=")[2])
            with hardware.elsewhere(None if hardware.is_here() else True):
                run = parse(cfg)  # what is wrong is refused before anything is measured
            if "precision" in defaults and "precision" not in reasons(run):
                run = parse(cfg)
            return Composed(overrides=tuple(overrides), run=run, choices=choices, defaults=defaults)
        except CONFIG_ERRORS as error:
            raise ValueError(explain(error)) from error

    def unchecked(self, overrides: tuple[str, ...]) -> Unchecked:
        """
        Errors:
            ValueError: as for the function.
        """
        gate.check_words(overrides)
        if isinstance(found := self._compose(overrides), str):
            raise ValueError(found)
        return Unchecked(*found)

    def _arm(self, overrides: tuple[str, ...]) -> tuple[DictConfig, dict[str, str | None], tuple[str, ...]] | str:
        """The config without its `hydra` part, the choices, and what is left to a default. Or why it cannot be composed.

        Hydra chooses all options before it sets a key, so plain keys are set in a copy of what the same options gave.
        """
        keys = [override for override in overrides if _KEY.fullmatch(override)]
        if not keys or not all(map(_PLAIN.fullmatch, overrides)):
            return self._whole(overrides)
        chosen = tuple(override for override in overrides if override not in keys)
        if chosen not in self._chosen:
            self._chosen[chosen] = self._compose(chosen)
        found = _with_keys(self._chosen[chosen], keys)
        return self._whole(overrides) if found is None else _with_defaults(found)

    def _whole(self, overrides: tuple[str, ...]) -> tuple[DictConfig, dict[str, str | None], tuple[str, ...]] | str:
        """The same, all of it by Hydra."""
        return _with_defaults(self._compose(overrides))

    def _compose(self, overrides: tuple[str, ...]) -> tuple[DictConfig, dict[str, str | None]] | str:
        """By Hydra: the config without its `hydra` part, and the choices. Or why it cannot be composed."""
        common = list(self._application.hydra.overrides.hydra) if self._application is not None else []
        try:
            gate.check_overrides(overrides)
            cfg = self._loader.load_configuration("train", [*common, *overrides], RunMode.RUN, from_shell=False)
            if self._application is not None:
                OmegaConf.copy_cache(from_config=self._application, to_config=cfg)  # one ${now:…} for all
            gate.check_hydra(cfg)
            choices = _choices(cfg)
            with open_dict(cfg):
                del cfg["hydra"]
            return cfg, choices
        except (ValueError, *CONFIG_ERRORS) as error:
            return explain(error)


def _with_keys(
    composed: tuple[DictConfig, dict[str, str | None]] | str, overrides: list[str]
) -> tuple[DictConfig, dict[str, str | None]] | str | None:
    """A copy of what was composed, with keys set. None where one is wrong: composed whole, it is told in Hydra's words."""
    if isinstance(composed, str):
        return composed
    cfg, choices = copy.deepcopy(composed[0]), composed[1]
    try:
        parsed = list(map(gate.parsed, overrides))
        if any(override.is_sweep_override() for override in parsed):
            return None
        ConfigLoaderImpl._apply_overrides_to_config(parsed, cfg)
    except (ValueError, *CONFIG_ERRORS):
        return None
    return cfg, choices


def _with_defaults(
    composed: tuple[DictConfig, dict[str, str | None]] | str,
) -> tuple[DictConfig, dict[str, str | None], tuple[str, ...]] | str:
    if isinstance(composed, str):
        return composed
    cfg, choices = composed
    left = [key for key in ("precision", "compile", "device", "threads") if str(cfg.trainer._get_node(key)).startswith("${nocap.")]
    return cfg, choices, tuple(left)


def _choices(cfg: DictConfig) -> dict[str, str | None]:
    """Group → the option that was chosen.

    Errors:
        ValueError: several of a group that has one.
    """
    choices = dict(cfg.hydra.runtime.choices)  # without those that are a list
    for f in dataclasses.fields(Run):
        several = f.name in registry.groups() and f.name != "ideas" and f.name not in choices
        require(not several, f.name, f"be one option, as in {f.name}=NAME", "a list or none")
    return choices


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


# --- other requests ---------------------------------------------------------------------------------------------------------------------


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
    asked = schema(**given)
    check_keys("", asked)
    return asked
