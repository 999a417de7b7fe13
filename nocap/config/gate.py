"""What Hydra may read, and what a config may ask of it: yamls and words that somebody else wrote run no code.

Hydra instantiates what a config names, configures logging by dotted names, sets environment variables and imports packages for their yamls.
nocap uses none of it but launchers, so all of it is closed here, before Hydra acts: `FileSource` and `PackageSource` are all that it reads
through, and a config's `hydra` part must be nocap's own, but for the launcher that the command line chose.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra._internal.core_plugins.importlib_resources_config_source import ImportlibResourcesConfigSource
from hydra._internal.sources_registry import SourcesRegistry
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigLoadError, ConfigResult
from hydra.plugins.launcher import Launcher
from omegaconf import DictConfig, OmegaConf

from nocap.config.bounded import DEPTH, DIGITS, check_yaml, read_text
from nocap.config.interpolation import check_interpolations
from nocap.config.keys import check_text, require
from nocap.config.paths import conf_dir

LAUNCHERS = "hydra/launcher/"
OF_A_GRID = ("hydra/launcher", "hydra.launcher", "hydra.sweep", "hydra.mode")  # see nocap.launch.multirun
BASIC = "hydra._internal.core_plugins.basic_launcher.BasicLauncher"
_QUIET = {"version": 1, "root": None, "disable_existing_loggers": False}
CLOSED: dict[str, Any] = {
    "callbacks": {},
    "searchpath": [],
    "hydra_logging": _QUIET,
    "job_logging": _QUIET,
    "run": {"dir": "."},
    "output_subdir": None,
    "verbose": False,
    "job.env_set": {},
    "job.env_copy": [],
    "job.chdir": False,
}


# --- what Hydra reads ----------------------------------------------------------------------------------------------------------------


class FileSource(FileConfigSource):
    """Folders of yamls. One that is not nocap's own may hold options, and nothing that is Hydra's."""

    def load_config(self, config_path: str) -> ConfigResult:
        """
        Errors:
            ValueError: a file that is no yaml within `nocap.config.bounded`'s limits, or that would reach Hydra.
        """
        place = self._normalize_file_name(config_path)
        path = Path(self.path, place)
        if not os.path.exists(path):  # false too for a name that no file can have
            raise ConfigLoadError(f"Config not found : {path}")
        text = read_text(path)
        try:
            check_yaml(text)
            config, header = OmegaConf.load(io.StringIO(text)), self._get_header_dict(text)
        except ValueError as error:
            raise ValueError(f"{path} cannot be read: {error}") from None
        require(isinstance(config, DictConfig), str(path), "hold keys and values", type(config).__name__)
        if not path.resolve().is_relative_to(conf_dir().resolve()):
            _check_from_outside(place, path, header.get("package") or "", config)
        return ConfigResult(config=config, path=f"file://{self.path}", provider=self.provider, header=header)


def _check_from_outside(place: str, path: Path, package: str, config: Any) -> None:
    if place.startswith(LAUNCHERS):
        known = ConfigStore.instance().repo["hydra"]["launcher"]
        require(Path(place).name not in known, str(path), "have another name: an installed launcher has it", Path(place).stem)
        return
    require(not place.startswith(("hydra/", "schema/")), str(path), "be an option's yaml, in its group's folder", place)
    plain: Any = OmegaConf.to_container(config)
    defaults = plain.get("defaults") or []
    ok = isinstance(defaults, list) and all(map(_is_default, defaults))
    require(ok, f"{path}: defaults", "be options' names, as in [/schema/GROUP/KIND@_here_]", defaults)
    reached = [package, *map(str, config), *map(str, defaults)]
    into = [words for words in reached if re.search(r"(?<![\w-])hydra(?![\w-])", words)]
    require(not into, str(path), f"leave Hydra alone: only a yaml in {LAUNCHERS} is about it", ", ".join(into))


def _is_default(entry: Any) -> bool:
    """Whether Hydra can read an entry of a defaults list: a name, or a group with one or several."""
    if not isinstance(entry, dict):
        return isinstance(entry, str)
    return len(entry) == 1 and all(isinstance(group, str) and _are_names(names) for group, names in entry.items())


def _are_names(value: Any) -> bool:
    return value is None or all(isinstance(name, str) for name in (value if isinstance(value, list) else [value]))


class PackageSource(ImportlibResourcesConfigSource):
    """Yamls inside packages: Hydra's own and its plugins'. Another package would be imported to read them."""

    def __init__(self, provider: str, path: str) -> None:
        super().__init__(provider, path)
        require(self.path == "hydra.conf" or self.path.startswith("hydra_plugins."), "hydra.searchpath", "be left alone", path)

    def is_group(self, config_path: str) -> bool:
        return _is_name(config_path) and bool(super().is_group(config_path))

    def is_config(self, config_path: str) -> bool:
        return _is_name(config_path) and bool(super().is_config(config_path))


def _is_name(path: str) -> bool:
    """Whether files can have such names."""
    return all(len(os.fsencode(part)) <= 200 for part in path.split("/"))


def use_sources() -> None:
    """Let Hydra read through these."""
    Plugins.instance()  # it registers its own first
    SourcesRegistry.instance().types |= {"file": FileSource, "pkg": PackageSource}


@contextmanager
def hydras_own_sources() -> Iterator[None]:
    """Inside the block Hydra's registry is as Hydra made it: a cluster's launcher sends it with its jobs, where Hydra makes it again.

    What the jobs read there has been read here, through nocap's.
    """
    types = SourcesRegistry.instance().types
    types |= {"file": FileConfigSource, "pkg": ImportlibResourcesConfigSource}
    try:
        yield
    finally:
        use_sources()


# --- what is asked ---------------------------------------------------------------------------------------------------------------------

_OPENS, _CLOSES = "([{", ")]}"
_LONG = rf"(?:[=,:(\[{{]|^)\s*[-+]?[\d_]{{{DIGITS + 1},}}(?=[],)}}\s]|$)"


def check_words(words: Sequence[str]) -> None:
    """Refuse overrides that would take a parser long, or that no key can hold.

    Errors:
        ValueError: the first of them.
    """
    for word in words:
        key = word.partition("=")[0]
        check_text(key if key.isprintable() else repr(key)[:80], word)
        depth = most = 0
        for character in word:
            depth += (character in _OPENS) - (character in _CLOSES)
            most = max(most, depth)
        require(most <= DEPTH // 2, key[:80], f"have lists at most {DEPTH // 2} deep", most)
        require(not re.search(_LONG, word), key[:80], f"have integers of at most {DIGITS} digits", f"{word[:80]}…")


def keys(words: Sequence[str]) -> list[str]:
    """The keys or groups that overrides are about.

    Errors:
        HydraException, ValueError: an override that cannot be parsed.
    """
    check_words(words)
    return [parsed(word).key_or_group for word in words]


@lru_cache(maxsize=4096)  # the words of a study come again with each of its arms, seeds and looks
def parsed(word: str) -> Override:
    """By Hydra's grammar.

    Errors:
        HydraException: it cannot be parsed.
    """
    (override,) = OverridesParser.create().parse_overrides([word])
    return override


def check_overrides(words: Sequence[str], *, grid: bool = False) -> None:
    """Refuse overrides of Hydra's own part but a grid's launcher.

    Errors:
        HydraException, ValueError: an override that cannot be parsed, or that is Hydra's own.
    """
    for override in map(parsed, words):
        key, value = override.key_or_group, override.value()
        ok = "." in key or not isinstance(value, list) or _are_names(value)
        require(ok, key, "be given options' names, as in ideas=[NAME]", override.input_line)
        if re.match(r"hydra\b", key) or re.search(r"\bhydra\b", override.package or ""):
            ok = grid and any(re.match(rf"{re.escape(known)}(\.|$)", key) for known in OF_A_GRID)
            rule = "be left alone: of Hydra's own keys only a grid's launcher can be chosen, beside --multirun"
            require(ok and not override.package, key, rule, override.input_line)


def check_hydra(config: DictConfig) -> None:
    """Refuse a composed config that would have Hydra do more than compose: callbacks, logging, environment variables, folders.

    Errors:
        ValueError: the first such key, and whatever would take long to resolve.
    """
    check_interpolations(config)
    for key, own in CLOSED.items():
        node = OmegaConf.select(config.hydra, key)
        found = OmegaConf.to_container(node) if OmegaConf.is_config(node) else node
        require(found == own, f"hydra.{key}", "be left alone: nothing that a config names is run", found)


def check_launcher(config: DictConfig) -> None:
    """Refuse a launcher that is not an installed plugin, or whose keys would be instantiated themselves.

    Errors:
        ValueError: it is one of these.
    """
    keys: Any = OmegaConf.to_container(config.hydra.launcher, resolve=True)
    target = keys.pop("_target_", None)
    if config.hydra.runtime.choices["hydra/launcher"] == "basic":
        require(not keys and target == BASIC, "hydra.launcher", "be chosen before its keys, as in hydra/launcher=pool", keys or target)
    known = [name for name, kind in Plugins.instance().class_name_to_class.items() if issubclass(kind, Launcher)]
    require(target in known, "hydra.launcher._target_", f"be an installed launcher, one of {', '.join(known)}", target)
    special = _special(keys)
    require(not special, "hydra.launcher", "hold plain values", ", ".join(special))


def _special(value: Any) -> list[str]:
    """Keys by which Hydra would make an object of a value."""
    if isinstance(value, dict):
        return [str(key) for key in value if re.fullmatch(r"_\w+_", str(key))] + [key for one in value.values() for key in _special(one)]
    return [key for one in value for key in _special(one)] if isinstance(value, list) else []
