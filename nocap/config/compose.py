"""From overrides to a checked `Run`. Hydra chooses the options; keys are set afterwards, on a copy
of what the same options gave."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterable, Sequence
from types import NoneType
from typing import Any, TypeVar, cast

from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf

from nocap.config import hardware
from nocap.config.choices import option_config
from nocap.config.explain import one_line_errors
from nocap.config.keys import check_keys, flat, require
from nocap.config.outgoing_text import redact
from nocap.config.override_text import as_text
from nocap.config.overrides import is_choice, overrides_of
from nocap.config.plain import check_type, dataclass_from, run_tree, to_plain, types_of
from nocap.config.run import Run

T = TypeVar("T")
# what the baseline's shape decides for all
OF_ARMS = ("precision", "compile", "micro_batch", "cuda_graphs")
# of `trainer`: what follows from the machine and the shape
DEFAULTS = (*OF_ARMS, "device", "threads")
# of `trainer`: what other defaults name. OmegaConf would parse and resolve it for each of them: a
# seventh of the time that a cell of a grid takes to compose.
NAMED = ("device", "batch_tokens")


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
    config, choices = raw_config(words)
    defaults = _defaults_in(config)
    return Composed(overrides=words, run=_run(config), choices=choices, defaults=defaults)


def defaults_in(overrides: Iterable[str]) -> tuple[str, ...]:
    """Return what of `trainer` follows from the machine and the shape with these overrides, which
    may fit another machine alone.

    Errors:
        ValueError: as for `raw_config`.
    """
    config, _ = raw_config(tuple(overrides))
    return _defaults_in(config)


def _defaults_in(config: DictConfig) -> tuple[str, ...]:
    """Return the keys of `trainer` that nobody chose."""
    trainer = cast(dict[str, Any], OmegaConf.to_container(config.trainer))
    # an experiment may have another rule for the same key, as for a micro-batch
    return tuple(key for key in DEFAULTS if str(trainer[key]).startswith(f"${{nocap.{key}:"))


def compose_with_config(words: Sequence[str]) -> tuple[DictConfig, Run]:
    """Compose the config of these overrides as it is printed, and the run that it makes.

    Errors:
        ValueError: as for `compose`.
    """
    config, _ = raw_config(words)
    return config, _run(copy.deepcopy(config))


@one_line_errors()
def _run(config: DictConfig) -> Run:
    """Return the run of a config, in which `NAMED` are resolved."""
    for name in NAMED:
        config.trainer[name] = config.trainer[name]
    run = cast(Run, OmegaConf.to_object(config))
    _check_secrets(run)
    hardware.check_device(run.trainer.device, run.trainer.devices)
    hardware.check_malloc(run.trainer.malloc)
    return run


def _check_secrets(run: Run) -> None:
    """Refuse a value that holds a secret. A tracker's texts are redacted where they are written;
    the run needs the others as they are, as a path."""
    plain = to_plain(run)
    rule = "not hold a secret such as a password, because the run's record would show it"
    pairs = zip(flat(plain), flat(redact(plain)), strict=True)
    for (key, value), (_, redacted) in pairs:
        if not key.startswith("tracker."):
            require(redacted == value, key, rule, redacted)


@one_line_errors()
def of_config(config: DictConfig) -> Run:
    """Return the `Run` in a whole config that somebody else composed.

    Errors:
        ValueError: as for `compose`.
    """
    return _run(run_tree(OmegaConf.to_container(config)))


@one_line_errors()
def raw_config(words: Sequence[str]) -> tuple[DictConfig, dict[str, str | None]]:
    """Return the config of these overrides, typed, whose values nobody has looked at, and the
    options that were chosen.

    Errors:
        ValueError: an unknown option or key, a value of a wrong type, or a malformed override.
    """
    overrides = overrides_of(words)
    rule = (
        "be one value (for several values, add --multirun; write a list as [a,b], and put "
        "quotes around a text with commas)"
    )
    for override in overrides:
        is_one = not override.is_sweep_override()
        require(is_one, override.key_or_group, rule, override.input_line)
    choosing = [str(override.input_line) for override in overrides if is_choice(override)]
    options, choices = option_config(choosing)
    config = copy.deepcopy(options)
    for override in overrides:
        if not is_choice(override):
            _set_key(config, override)
    return config, choices


def _set_key(config: DictConfig, override: Override) -> None:
    """Set the key of an override in the config.

    Errors:
        ValueError: a value that it cannot have, or the override takes it out.
    """
    key = override.key_or_group
    text = as_text(str(override.input_line))
    value = _value_of(config, key, override.value(), text)
    rule = "not be deleted"
    require(not override.is_delete(), key, rule, override.input_line)
    is_too_large = isinstance(value, int) and abs(value) >= 2**1023
    require(not is_too_large, key, "be a number that fits into a float", value)
    OmegaConf.update(config, key, value, merge=True)


def _value_of(config: DictConfig, key: str, value: Any, text: Any) -> Any:
    """Return an override's value in the type of its key: the `text` that was typed where the key is
    a text's, and Hydra's `value` elsewhere.

    Errors:
        ValueError: Hydra's value is of a type that OmegaConf would change in silence.
    """
    if isinstance(value, dict):
        require(
            bool(value),
            key,
            "be the name of an option, or hold keys in braces, because {} changes nothing",
            "{}",
        )
        values = dict[str, Any]()
        for name, item in value.items():
            values[name] = _value_of(config, f"{key}.{name}", item, text[name])
        return values
    parent_key, _, name = key.rpartition(".")
    parent: Any = config
    if parent_key:
        parent = OmegaConf.select(config, parent_key)
    schema = OmegaConf.get_type(parent)
    types: tuple[Any, ...] = ()
    if dataclasses.is_dataclass(schema):
        types = types_of(schema).get(name, ())
    if value is None and NoneType in types:
        return None
    if str in types or list[str] in types:
        value = text
    check_type(types, value, key)
    return value


# --- other requests -------------------------------------------------------------------------------


def from_overrides(schema: type[T], overrides: Iterable[str]) -> T:
    """Return a checked dataclass, which is no part of a `Run`, of `key=value …`. Text is taken as
    it stands: a prompt may hold what Hydra's grammar, yaml or an interpolation would read as
    something else.

    Errors:
        ValueError: a wrong or missing key, type or value; one line with key, rule and value.
    """
    words = [override.partition("=") for override in overrides]
    for key, equals, _ in words:
        require(bool(equals), repr(key), "have the form key=value", "no value")
    types = types_of(cast(type, schema))
    values = dict[str, Any]()
    texts = dict[str, str]()
    for key, _, text in words:
        values[key] = text
        if text == "null" and NoneType in types.get(key, ()):
            values[key] = None
        elif str in types.get(key, ()):
            texts[key] = text
    # what stands for a text is checked for its type alone
    request = dataclass_from(schema, values | dict.fromkeys(texts, "text"))
    request = dataclasses.replace(request, **texts)
    check_keys("", request)
    return cast(T, request)
