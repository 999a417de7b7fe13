"""Say what is wrong with a config in one line, and what was probably meant."""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

import yaml
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException

from nocap import outside
from nocap.config.option import Option
from nocap.config.other_trainers import hint_for
from nocap.config.run import Run
from nocap.config.trainer import Trainer


@contextmanager
def one_line_errors(place: str = "") -> Iterator[None]:
    """Turn what OmegaConf and yaml say of bad input into a ValueError of one line, which begins
    with `place`. An option that exits would end the command as if nothing were wrong with its
    input."""
    of_place = f"{place.rstrip('.')}: " if place else ""
    try:
        yield
    # the last: an integer that no float holds
    except (OmegaConfBaseException, yaml.YAMLError, RecursionError, OverflowError) as error:
        # one that knows no key speaks of the whole place
        where = place if getattr(error, "full_key", None) else of_place
        raise ValueError(f"{where}{explain(error)}") from error
    except SystemExit as error:
        raise ValueError(
            f"{of_place}an option's checks must raise ValueError, got SystemExit: {error}"
        ) from error


def explain(error: BaseException) -> str:
    """Say what is wrong, in one line, for a person: OmegaConf and Hydra take several."""
    if isinstance(error, RecursionError):
        return (
            "brackets must not be nested so deeply, and a yaml's defaults must not choose the "
            "same yaml"
        )
    key = getattr(error, "full_key", None) or ""
    if isinstance(error, (ConfigKeyError, ConfigAttributeError)):
        return _no_key(key or str(error.key), error.object_type)
    for pattern, rule in RULES.items():
        if re.search(pattern, str(error)):
            return rule.format(key)
    text = re.sub(r"^(Value|Key)Error raised while resolving interpolation: ", "", str(error))
    text = re.sub(
        r"While dereferencing interpolation '\$\{nocap\.wandb:(\w+),.*?\}'", r"WANDB_\1", text
    )
    lines = [line.strip() for line in text.splitlines()]
    line = " ".join(line for line in lines if line and not re.match(_NOISE, line))
    if key and key not in line:
        return f"{key}: {line}"
    return line or type(error).__name__


_NOISE = (
    r"full_key:|object_type=|reference_type=|Config search path:|provider=|See https:|In "
    r"'[^']*': \w+ raised while composing config:$"
)

# What OmegaConf's text matches → the line about a key.
RULES = {
    r"is not a subclass of \w*Idea": "{0} must be an idea that is chosen by name, as in "
    "ideas=[{0}]",
    r"Invalid value assigned: \w+ is not a ListConfig|hint 'typing\.List": "{0} must be a list, "
    "as in [a, b]",
    r"missing mandatory value": "{0} must have a value",
}


def _no_key(name: str, owner: Any) -> str:
    """Say where a key belongs, or which key was probably meant."""
    # such as the dict that Hydra's own part is
    if not (isinstance(owner, type) and dataclasses.is_dataclass(owner)):
        return f"{name} is no key"
    own_keys = {f.name: f.default for f in dataclasses.fields(owner)}
    title = own_keys.pop("kind", owner.__name__.lower())
    last_word = name.rpartition(".")[2]
    owners: dict[str, list[str]] = {}  # of every key of a run, where it is about one
    if owner in (Run, Trainer) or issubclass(owner, Option):
        owners = _owners_of_keys()
    if name in owners:
        return f"{name} is a key of {' or '.join(owners[name])}, not of {title}"
    same_word = [key for key in owners if key.endswith(f".{last_word}")]
    hint = suggest(last_word, own_keys)
    if same_word:
        hint = f" (did you mean {' or '.join(same_word)}?)"
    elif owners and hint_for(last_word):
        hint = hint_for(last_word)
    return f"{name} is no key of {title}{hint}"


def _owners_of_keys() -> dict[str, list[str]]:
    """Return every key of trainer and options → whose it is."""
    owners = {f"trainer.{f.name}": ["trainer"] for f in dataclasses.fields(Trainer)}
    for group in {*outside.groups()} - {"ideas", "launcher"}:
        for kind, schema in outside.options(group).items():
            for f in dataclasses.fields(schema):
                of_key = owners.setdefault(f"{group}.{f.name}", [])
                of_key.append(f"{group}={kind}")
    return owners


def suggest(name: str, known: Collection[str]) -> str:
    """Return what was probably meant, or all there is: in parentheses, to end a line."""
    close = difflib.get_close_matches(name, known, n=1)
    if close:
        return f" (did you mean {close[0]}?)"
    if known:
        return f" (it has {', '.join(known)})"
    return ""
