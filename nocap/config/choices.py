"""What overrides choose: Hydra composes the options, by its public API, and nothing of it runs what
a yaml says."""

from __future__ import annotations

import dataclasses
import os
import re
import sys
import time
from collections.abc import Collection, Hashable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, cast

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.types import Override, Quote, QuotedString
from hydra.core.plugins import Plugins
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from nocap import outside
from nocap.config.explain import explain, one_line_errors, suggest
from nocap.config.keys import flat, require
from nocap.config.other_trainers import hint_for
from nocap.config.overrides import (
    is_choice,
    is_launcher,
    option_folders,
    overrides_of,
    parse_override,
)
from nocap.config.paths import conf_dir
from nocap.config.plain import run_tree
from nocap.config.resolvers import register_resolver
from nocap.config.run import Run
from nocap.config.untrusted_files import read_text, read_yaml

# 1.3 warns without it, 1.4 with it
HYDRA: dict[str, Any] = {"version_base": "1.3"} if hydra.__version__.startswith("1.3.") else {}


def of_a_grid(overrides: Sequence[Override]) -> DictConfig:
    """Return what Hydra composes for a grid: its part has the launcher, and the sweeps of a yaml.

    Errors:
        ValueError: as for `by_hydra`, or a key of a launcher that is not chosen.
    """
    of_launcher = [override for override in overrides if is_launcher(override)]
    is_chosen = any(override.key_or_group == "hydra/launcher" for override in of_launcher)
    for override in of_launcher:
        rule = "be set only in a command that also chooses a launcher (as in hydra/launcher=pool)"
        require(is_chosen, override.key_or_group, rule, override.input_line)
    words = list[str]()
    for override in overrides:
        is_one_choice = is_choice(override) and not override.is_sweep_override()
        if is_launcher(override) or is_one_choice:
            words.append(str(override.input_line))
    return by_hydra(words)


def has_sweeps(words: Sequence[str]) -> bool:
    """Return whether a yaml that these overrides choose sweeps over keys, which makes a grid.

    Errors:
        ValueError: as for `by_hydra`, or an override that cannot be parsed.
    """
    return bool(of_a_grid(overrides_of(words, grid=True)).hydra.sweeper.get("params"))


def option_config(words: Sequence[str]) -> tuple[DictConfig, dict[str, str | None]]:
    """Return what the options that these words choose give, typed, and their names. It is
    remembered while the yamls and the options from outside are the same.

    Errors:
        ValueError: as for `by_hydra`.
    """
    return _option_config_cached(tuple(words), (outside.in_use(), *_yamls()))


@lru_cache(maxsize=512)  # `read_from` is a part of the key, and nothing else
def _option_config_cached(
    words: tuple[str, ...], read_from: tuple[Hashable, ...]
) -> tuple[DictConfig, dict[str, str | None]]:
    """Return what these options give, and their names."""
    config = by_hydra(words)
    choices = dict(config.hydra.runtime.choices)  # without those that are a list
    parts = {f.name for f in dataclasses.fields(Run)}
    groups = (parts & option_folders()) - {"ideas"}
    for group in sorted(groups):
        require(
            group in choices, group, f"be one option, as in {group}=NAME", "a list, or no option"
        )
    plain = cast(dict[str, Any], OmegaConf.to_container(config))
    del plain["hydra"]
    return run_tree(plain), choices


@one_line_errors()
def by_hydra(words: Sequence[str]) -> DictConfig:
    """Return what Hydra composes of these choices, with its own part. It runs nothing of what it
    reads.

    Errors:
        ValueError: an unknown option, or a yaml that cannot be composed.
    """
    # what Hydra cannot read, or would run, is refused before it composes, in nocap's words
    yamls = list(_yamls_in(words))
    for name in yamls:
        _choose(name)
    if not outside.folders():
        return _by_hydra_cached(tuple(words), _yamls())
    if any(map(_has_defaults, yamls)):
        for name in _yamls_of(words):
            _choose(name)
    config = _by_hydra_cached(tuple(words), _yamls())
    # a folder may have a yaml of the name of a default, too
    for group, name in config.hydra.runtime.choices.items():
        _choose(f"{group}/{name}")
    return config


# A command asks for its sweeps, and then for its config. `read_from` is a part of the key, and
# nothing else.
@lru_cache(maxsize=512)
def _by_hydra_cached(words: tuple[str, ...], read_from: tuple[Hashable, ...]) -> DictConfig:
    prepare_hydra()
    with hydra.initialize_config_dir(str(conf_dir()), **HYDRA), _hydras_errors():
        config = hydra.compose("train", [*words, *search_path()], return_hydra_config=True)
    register_resolver("now", _now, replace=True)  # Hydra's own reads the clock for each cell
    return config


def _yamls_in(words: Sequence[str]) -> Iterator[str]:
    """Yield the yamls that these choices name, such as "attention/mine".

    Errors:
        ValueError: there is no such option.
    """
    for override in map(parse_override, words):
        if is_choice(override) and not override.is_delete():
            for name in option_names(override):
                yield f"{override.key_or_group}/{name}"


@contextmanager
def _hydras_errors() -> Iterator[None]:
    """Turn the error that Hydra raises about a yaml into a ValueError of one line."""
    try:
        yield
    except HydraException as error:
        raise ValueError(explain(error.__cause__ or error)) from None
    except (AssertionError, AttributeError, KeyError, TypeError) as error:
        raise ValueError(
            f"the list 'defaults' of a yaml must hold option names, as in [other]; Hydra raised "
            f"{type(error).__name__}"
        ) from error


def _yamls_of(words: Sequence[str]) -> list[str]:
    """List the yamls that Hydra reads for these choices, also those that another yaml's defaults
    name."""
    prepare_hydra()
    with hydra.initialize_config_dir(str(conf_dir()), **HYDRA), _hydras_errors():
        loader = GlobalHydra.instance().config_loader()
        words_and_path = [*words, *search_path()]
        rows = loader.compute_defaults_list("train", words_and_path, RunMode.RUN).defaults
    return [row.config_path for row in rows if row.config_path]


def _choose(name: str) -> None:
    """Choose the option of a yaml from outside, such as "attention/mine"; do nothing for nocap's
    own."""
    for group, option in _group_of(name):
        path = outside.yaml_of(group, option)
        if path is None or path.is_relative_to(conf_dir()):
            continue
        _check_from_outside(path)
        if group != "experiment":
            outside.choose(group, option)


def _has_defaults(name: str) -> bool:
    """Return whether a yaml chooses options of its own."""
    paths = [outside.yaml_of(group, option) for group, option in _group_of(name)]
    return any("defaults" in read_yaml(path) for path in paths if path is not None)


def _group_of(name: str) -> Iterator[tuple[str, str]]:
    """Yield the group of a yaml and its name there, if it is of a group or an experiment."""
    for group in (*outside.groups(), "experiment"):
        prefix = f"{outside.place(group)}/"
        if name.startswith(prefix):
            yield group, name.removeprefix(prefix)


@cache
def _now(form: str) -> str:
    """Return one ${now:…} for all cells of a grid, and all trials of a search."""
    return time.strftime(form)


def option_names(override: Override) -> list[str]:
    """Return the options that an override chooses.

    Errors:
        ValueError: there is no such option.
    """
    group = override.key_or_group
    value: Any = override.value()
    names = value if isinstance(value, list) else [value]
    are_texts = all(isinstance(name, str) for name in names)
    rule = "hold names of options (as in mlp=NAME or ideas=[NAME])"
    require(are_texts, group, rule, override.input_line)
    if "/" in group:  # Hydra's own, such as the launcher's: it refuses what it does not know
        return names
    yamls = outside.yamls(group)
    for name in names:
        if name not in yamls:
            raise ValueError(f"{group}/{name} is no option{_suggestion(name, yamls)}")
    return names


def _suggestion(name: str, yamls: Collection[str]) -> str:
    """Return what was probably meant by a name that its group does not have, in parentheses: the
    experiment of that name, what is known of such a guess, else an option of the group."""
    if name in outside.yamls("experiment"):
        return f" (did you mean experiment={name}?)"
    return hint_for(name) or suggest(name, yamls)


def _check_from_outside(path: Path) -> None:
    """Refuse a yaml with a part of Hydra's, which would be dropped in silence, but for a grid's
    sweeps."""
    plain = read_yaml(path)
    text = read_text(path)
    require(
        isinstance(plain, dict),
        str(path),
        "be a yaml of keys with values (KEY: VALUE)",
        type(plain).__name__,
    )
    hydras = [key for key, _ in flat(plain) if re.match(r"hydra(\.(?!sweeper\.params\.)|$)", key)]
    hydras += re.findall(r"@(?:package +)?[\w.]*\bhydra\b[\w.]*", text)
    rule = "set no keys of Hydra except hydra.sweeper.params"
    require(not hydras, str(path), rule, ", ".join(hydras))


def search_path() -> list[str]:
    """Return the folders from outside, for Hydra."""
    urls = list[str]()
    for folder in outside.folders():
        url = QuotedString(text=f"file://{folder}", quote=Quote.single)
        urls.append(url.with_quotes())
    if not urls:
        return []
    return [f"hydra.searchpath=[{','.join(urls)}]"]


@cache
def prepare_hydra() -> None:
    """Hydra's plugins are all that `hydra_plugins` on the path holds: not those of the working
    directory, where `python -m` looks first."""
    path = sys.path[:]
    sys.path[:] = [folder for folder in path if folder and Path(folder).resolve() != Path.cwd()]
    Plugins.instance()
    sys.path[:] = path


def _yamls() -> tuple[tuple[str, int], ...]:
    """List what Hydra can read, and when each was changed. Each cell of a grid asks for it."""
    yamls = list[tuple[str, int]]()
    for top in (conf_dir(), *outside.folders()):
        for folder, _, names in os.walk(top):
            paths = [os.path.join(folder, name) for name in names if name.endswith(".yaml")]
            yamls += [(path, _changed_ns(path)) for path in paths]
    return tuple(sorted(yamls))


def _changed_ns(path: str) -> int:
    """Return when a yaml was changed; 0 where it is none, as an editor's lock is, or gone by
    now."""
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return 0
