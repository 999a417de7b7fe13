"""From overrides to a checked `Run`. Hydra chooses the options; keys are set afterwards, on a copy
of what the same options gave."""

from __future__ import annotations

import copy
import dataclasses
import re
import sys
import time
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, lru_cache
from pathlib import Path
from types import NoneType
from typing import Any, TypeVar, cast

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, Quote, QuotedString
from hydra.core.plugins import Plugins
from hydra.errors import HydraException, OverrideParseException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from nocap import outside
from nocap.config import hardware
from nocap.config.bounded import read_text, read_yaml
from nocap.config.defaults import fits_a_graph, register_resolver
from nocap.config.guesses import guessed
from nocap.config.keys import check_keys, check_text, flat, require
from nocap.config.outward import redact
from nocap.config.paths import conf_dir
from nocap.config.plain import (
    check_type,
    explain,
    explained,
    made,
    suggest,
    to_plain,
    typed,
    types_of,
)
from nocap.config.run import Run
from nocap.config.trainer import Device
from nocap.config.words import as_text

T = TypeVar("T")
OF_ARMS = (
    "precision",
    "compile",
    "micro_batch",
    "cuda_graphs",
)  # what the baseline's shape decides for all
LEFT = (*OF_ARMS, "device", "threads")  # of `trainer`: what follows from the machine and the shape
# 1.3 warns without it, 1.4 with it
HYDRA: dict[str, Any] = {"version_base": "1.3"} if hydra.__version__.startswith("1.3.") else {}


@dataclasses.dataclass(frozen=True, slots=True)
class Composed:
    """A command line, the run it makes, and the names of the options it chose: group → yaml, None
    for no yaml."""

    overrides: tuple[str, ...]
    run: Run
    choices: dict[str, str | None]
    defaults: tuple[str, ...] = ()  # what of `trainer` follows from the machine and the shape


def compose(overrides: Iterable[str]) -> Run:
    """Return the `Run` of these command-line overrides.

    Errors:
        ValueError: an unknown option, a malformed override, or a wrong key, type or value; one line
            with key, rule and value.
    """
    return composed(overrides).run


def composed(overrides: Iterable[str]) -> Composed:
    """Return the same with the names of the chosen options. The yamls are read again where one was
    changed.

    Errors:
        ValueError: as for `compose`.
    """
    words = tuple(overrides)
    config, choices = unchecked(words)
    trainer = cast(dict[str, Any], OmegaConf.to_container(config.trainer))
    # an experiment may have another rule for the same key, as for a micro-batch
    left = tuple(key for key in LEFT if str(trainer[key]).startswith(f"${{nocap.{key}:"))
    return Composed(overrides=words, run=_run(config), choices=choices, defaults=left)


def checked(words: Sequence[str]) -> tuple[DictConfig, Run]:
    """Compose the config of these overrides as it is printed, and the run that it makes.

    Errors:
        ValueError: as for `compose`.
    """
    config, _ = unchecked(words)
    return config, _run(config)


@explained()
def _run(config: DictConfig) -> Run:
    run = cast(Run, OmegaConf.to_object(config))
    plain = to_plain(run)
    for (key, value), (_, shown) in zip(flat(plain), flat(redact(plain)), strict=True):
        # a tracker's texts are redacted where they are written; the run needs the others as they
        # are, as a path
        require(
            key.startswith("tracker.") or shown == value,
            key,
            "hold no secret, which the run's record would show",
            shown,
        )
    hardware.check_device(run.trainer.device, run.trainer.devices)
    hardware.check_malloc(run.trainer.malloc)
    return run


@explained()
def of_config(config: DictConfig) -> Run:
    """Return the `Run` in a whole config that somebody else composed.

    Errors:
        ValueError: as for `compose`.
    """
    return _run(typed(OmegaConf.to_container(config)))


@explained()
def unchecked(words: Sequence[str]) -> tuple[DictConfig, dict[str, str | None]]:
    """Return the config of these overrides, typed, whose values nobody has looked at, and the
    options that were chosen.

    Errors:
        ValueError: an unknown option or key, a value of a wrong type, or a malformed override.
    """
    overrides = overrides_of(words)
    for override in overrides:
        require(
            not override.is_sweep_override(),
            override.key_or_group,
            "be one value: --multirun sweeps over several, [a,b] is a list, and quotes make a text",
            override.input_line,
        )
    words_of_choices = tuple(
        str(override.input_line) for override in overrides if is_choice(override)
    )
    chosen, choices = _chosen(words_of_choices, _read_from())
    config = copy.deepcopy(chosen)
    for override in overrides:
        if not is_choice(override):
            key = override.key_or_group
            value = _typed(config, key, override.value(), as_text(str(override.input_line)))
            require(
                not override.is_delete(),
                key,
                "stay: a key cannot be taken out",
                override.input_line,
            )
            require(
                not isinstance(value, int) or abs(value) < 2**1023,
                key,
                "be a number that a float holds",
                value,
            )
            OmegaConf.update(config, key, value, merge=True)
    return config, choices


def _read_from() -> tuple[Hashable, ...]:
    """Return what a typed config depends on beside the words: it is remembered while that is
    equal."""
    return outside.in_use(), *_yamls()


def _yamls() -> tuple[tuple[Path, int], ...]:
    """List what Hydra can read, and when each was changed."""
    folders = [conf_dir(), *outside.folders()]
    yamls = [path for folder in folders for path in sorted(folder.rglob("*.yaml"))]
    return tuple((path, _changed_ns(path)) for path in yamls)


def _changed_ns(path: Path) -> int:
    """Return when a yaml was changed; 0 where it is none, as an editor's lock is, or gone by
    now."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def _typed(config: DictConfig, key: str, value: Any, text: Any) -> Any:
    """Return an override's value in the type of its key: the `text` that was typed where the key is
    a text's, and Hydra's `value` elsewhere.

    Errors:
        ValueError: Hydra's value is of a type that OmegaConf would change in silence.
    """
    if isinstance(value, dict):
        require(bool(value), key, "be an option's name or hold keys: it changes nothing", "{}")
        return {
            name: _typed(config, f"{key}.{name}", item, text[name]) for name, item in value.items()
        }
    place, _, name = key.rpartition(".")
    parent = OmegaConf.select(config, place) if place else config
    schema = OmegaConf.get_type(parent)
    types = types_of(schema).get(name, ()) if dataclasses.is_dataclass(schema) else ()
    if value is None and NoneType in types:
        return None
    typed = text if str in types or list[str] in types else value
    check_type(types, typed, key)
    return typed


def as_in(
    baseline: Composed | None,
    overrides: Sequence[str],
    compose: Callable[[Sequence[str]], Composed] = composed,
) -> Composed:
    """Return these overrides with the baseline's precision, compilation, micro-batch and CUDA
    graphs, unless they choose their own: arms differ in nothing else.

    Errors:
        ValueError: as for `compose`.
    """
    if baseline is None:
        return compose(overrides)
    arm = compose(overrides)
    own, of_baseline = arm.run.trainer, baseline.run.trainer
    left = [key for key in OF_ARMS if key in arm.defaults]
    keys = [key for key in left if getattr(own, key) != getattr(of_baseline, key)]
    if not keys:
        return arm
    plain = to_plain(baseline.run)["trainer"]
    return compose((*overrides, *(f"trainer.{key}={str(plain[key]).lower()}" for key in keys)))


def as_baseline(
    baseline: Composed,
    others: Iterable[Sequence[str]],
    compose: Callable[[Sequence[str]], Composed] = composed,
) -> tuple[Composed, Sequence[str] | None]:
    """Return the baseline of these other arms, and the first of them that a CUDA graph is not known
    to hold. Where there is one, a baseline that would have a graph by default has none, and with it
    no arm that does not choose."""
    if not (baseline.run.trainer.cuda_graphs and "cuda_graphs" in baseline.defaults):
        return baseline, None
    for overrides in others:
        try:
            arm = compose(overrides)
        except ValueError:
            continue  # refused where it is composed beside the baseline
        if "cuda_graphs" in arm.defaults and not fits_a_graph(arm.run):
            return compose((*baseline.overrides, "trainer.cuda_graphs=false")), overrides
    return baseline, None


def compose_measured(overrides: Sequence[str], baseline: Composed | None = None) -> Composed:
    """Return a run whose step is measured: with one thread, whose process time is a fair clock on a
    machine that others use, and on a CPU not compiled, which pays in no measurement; unless the
    overrides choose otherwise or give a length, `trainer.steps`, whose default then is measured.
    Beside a `baseline`: `as_in` it.

    Errors:
        ValueError: as for `compose`.
    """
    words = ("trainer.threads=1", *overrides)
    made = as_in(baseline, words)
    if baseline or made.run.trainer.device is not Device.cpu or "compile" not in made.defaults:
        return made
    has_length = any(word.startswith("trainer.steps=") for word in overrides)
    return made if has_length else composed([*words, "trainer.compile=off"])


# --- what Hydra does ------------------------------------------------------------------------------


def overrides_of(words: Sequence[str], *, grid: bool = False) -> list[Override]:
    """Return the overrides that words are. Hydra's own keys are refused, but for the launcher of a
    grid.

    Errors:
        ValueError: the first wrong one.
    """
    overrides = [parsed(word) for word in words]
    for override in overrides:
        own = re.search(r"\bhydra\b", f"{override.key_or_group} {override.package}")
        require(
            not own or (grid and is_launcher(override)),
            override.key_or_group,
            "be left alone: of Hydra's own keys only a grid's launcher can be chosen, beside "
            "--multirun",
            override.input_line,
        )
    return overrides


@lru_cache(maxsize=4096)  # the words of a study come again with each of its arms, seeds and looks
def parsed(word: str) -> Override:
    """Return an override by Hydra's grammar.

    Errors:
        ValueError: it cannot be parsed.
    """
    key = word.partition("=")[0]
    check_text(key if key.isprintable() else repr(key)[:80], word)
    try:
        (override,) = OverridesParser.create().parse_overrides([word])
    except (OverrideParseException, RecursionError) as error:
        said = next(iter(str(error).splitlines()), "")
        if said.startswith("LexerNoViable") or "expecting <EOF>" in said:
            said = f'put the value in quotes, as in "{key}={_in_quotes(word.partition("=")[2])}"'[
                :200
            ]
        raise ValueError(f"{word[:80]!a} cannot be read: {said}") from None
    return override


def _in_quotes(text: str) -> str:
    """Quote a value, or each element of a list, as Hydra reads it."""
    if text.startswith("[") and text.endswith("]"):
        return f"[{','.join(_in_quotes(part.strip()) for part in text[1:-1].split(','))}]"
    return QuotedString(text=text.strip("'\""), quote=Quote.single).with_quotes()


def is_choice(override: Override) -> bool:
    """Say whether an override is Hydra's to apply: it chooses options."""
    group, package = override.key_or_group, override.package
    return (group in _folders() or "/" in group or package is not None) and not isinstance(
        override.value(), dict
    )


@cache
def _folders() -> frozenset[str]:
    return frozenset({"experiment", *map(outside.place, outside.groups())})


def is_launcher(override: Override) -> bool:
    """Say whether an override chooses a grid's launcher, or is one of its keys."""
    return (
        re.match(r"hydra[/.]launcher(\.|$)", override.key_or_group) is not None
        and override.package is None
    )


def of_a_grid(overrides: Sequence[Override]) -> DictConfig:
    """Return what Hydra composes for a grid: its part has the launcher, and the sweeps of a yaml.

    Errors:
        ValueError: as for `by_hydra`, or a key of a launcher that is not chosen.
    """
    of_launcher = [override for override in overrides if is_launcher(override)]
    is_chosen = any(override.key_or_group == "hydra/launcher" for override in of_launcher)
    for override in of_launcher:
        rule = "stand beside its launcher, as in hydra/launcher=pool"
        require(is_chosen, override.key_or_group, rule, override.input_line)
    return by_hydra(
        [
            str(override.input_line)
            for override in overrides
            if is_launcher(override) or (is_choice(override) and not override.is_sweep_override())
        ]
    )


def has_sweeps(words: Sequence[str]) -> bool:
    """Return whether a yaml that these overrides choose sweeps over keys, which makes a grid.

    Errors:
        ValueError: as for `by_hydra`, or an override that cannot be parsed.
    """
    return bool(of_a_grid(overrides_of(words, grid=True)).hydra.sweeper.get("params"))


@lru_cache(maxsize=512)
def _chosen(
    words: tuple[str, ...], read_from: tuple[Hashable, ...]
) -> tuple[DictConfig, dict[str, str | None]]:
    """Return what these options give, and their names."""
    config = by_hydra(words)
    choices = dict(config.hydra.runtime.choices)  # without those that are a list
    for group in sorted({f.name for f in dataclasses.fields(Run)} & _folders() - {"ideas"}):
        require(group in choices, group, f"be one option, as in {group}=NAME", "a list or none")
    plain = cast(dict[str, Any], OmegaConf.to_container(config))
    del plain["hydra"]
    return typed(plain), choices


@explained()
def by_hydra(words: Sequence[str]) -> DictConfig:
    """Return what Hydra composes of these choices, with its own part. It runs nothing of what it
    reads.

    Errors:
        ValueError: an unknown option, or a yaml that cannot be composed.
    """
    # what Hydra cannot read, or would run, is refused before it composes, in nocap's words
    chosen = list(_yamls_in(words))
    for name in chosen:
        _choose(name)
    if not outside.folders():
        return _by_hydra(tuple(words), _yamls())
    if any(map(_has_defaults, chosen)):
        for name in _yamls_of(words):
            _choose(name)
    config = _by_hydra(tuple(words), _yamls())
    # a folder may have a yaml of the name of a default, too
    for group, name in config.hydra.runtime.choices.items():
        _choose(f"{group}/{name}")
    return config


@lru_cache(maxsize=512)  # a command asks for its sweeps, and then for its config
def _by_hydra(words: tuple[str, ...], read_from: tuple[Hashable, ...]) -> DictConfig:
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
    for override in map(parsed, words):
        if is_choice(override) and not override.is_delete():
            for name in named(override):
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
            f"a yaml's defaults must be options' names, as in [other]: Hydra's "
            f"{type(error).__name__}"
        ) from error


def _yamls_of(words: Sequence[str]) -> list[str]:
    """List the yamls that Hydra reads for these choices, also those that another yaml's defaults
    name."""
    prepare_hydra()
    with hydra.initialize_config_dir(str(conf_dir()), **HYDRA), _hydras_errors():
        loader = GlobalHydra.instance().config_loader()
        read = loader.compute_defaults_list("train", [*words, *search_path()], RunMode.RUN).defaults
    return [row.config_path for row in read if row.config_path]


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
        place = f"{outside.place(group)}/"
        if name.startswith(place):
            yield group, name.removeprefix(place)


@cache
def _now(form: str) -> str:
    """Return one ${now:…} for all cells of a grid, and all trials of a search."""
    return time.strftime(form)


def named(override: Override) -> list[str]:
    """Return the options that an override chooses.

    Errors:
        ValueError: there is no such option.
    """
    group, value = override.key_or_group, cast(Any, override.value())
    names = value if isinstance(value, list) else [value]
    require(
        all(isinstance(name, str) for name in names),
        group,
        "be given options' names, as in ideas=[NAME]",
        override.input_line,
    )
    known = names if "/" in group else outside.yamls(group)
    for name in (name for name in names if name not in known):
        raise ValueError(f"{group}/{name} is no option{_meant(name, known)}")
    return names


def _meant(name: str, known: Collection[str]) -> str:
    """Return what was probably meant by a name that its group does not have, in parentheses: the
    experiment of that name, what is known of such a guess, else an option of the group."""
    if name in outside.yamls("experiment"):
        return f" (did you mean experiment={name}?)"
    return guessed(name) or suggest(name, known)


def _check_from_outside(path: Path) -> None:
    """Refuse a yaml with a part of Hydra's, which would be dropped in silence, but for a grid's
    sweeps."""
    plain, text = read_yaml(path), read_text(path)
    require(isinstance(plain, dict), str(path), "hold keys and values", type(plain).__name__)
    into = [key for key, _ in flat(plain) if re.match(r"hydra(\.(?!sweeper\.params\.)|$)", key)]
    into += re.findall(r"@(?:package +)?[\w.]*\bhydra\b[\w.]*", text)
    require(not into, str(path), "leave Hydra alone, but for hydra.sweeper.params", ", ".join(into))


def search_path() -> list[str]:
    """Return the folders from outside, for Hydra."""
    quoted = ",".join(
        QuotedString(text=f"file://{folder}", quote=Quote.single).with_quotes()
        for folder in outside.folders()
    )
    return [f"hydra.searchpath=[{quoted}]"] if quoted else []


@cache
def prepare_hydra() -> None:
    """Hydra's plugins are all that `hydra_plugins` on the path holds: not those of the working
    directory, where `python -m` looks first."""
    path, sys.path[:] = (
        sys.path[:],
        [place for place in sys.path if place and Path(place).resolve() != Path.cwd()],
    )
    Plugins.instance()
    sys.path[:] = path


# --- other requests -------------------------------------------------------------------------------


def from_overrides(schema: type[T], overrides: Iterable[str]) -> T:
    """`key=value …` as a checked dataclass that is no part of a `Run`. Text is taken as it stands:
    a prompt may hold what Hydra's grammar, yaml or an interpolation would read as something else.

    Errors:
        ValueError: a wrong or missing key, type or value; one line with key, rule and value.
    """
    words = [override.partition("=") for override in overrides]
    for key, equals, _ in words:
        require(bool(equals), repr(key), "be key=value", "no value")
    types = types_of(cast(type, schema))
    given, texts = dict[str, Any](), dict[str, str]()
    for key, _, text in words:
        given[key] = text
        if text == "null" and NoneType in types.get(key, ()):
            given[key] = None
        elif str in types.get(key, ()):
            texts[key] = text
    asked = dataclasses.replace(made(schema, given | dict.fromkeys(texts, "text")), **texts)
    check_keys("", asked)
    return cast(T, asked)
