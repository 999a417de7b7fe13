"""Bad input as one line on stderr, and how a command ends after it."""

from __future__ import annotations

import difflib
import os
import re
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from typing import Any, NoReturn

import yaml
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException

from nocap import outside
from nocap.config.keys import EXIT_CODES as EXIT_CODES
from nocap.config.keys import is_fault
from nocap.config.option import Option
from nocap.config.outward import guarded
from nocap.config.run import Run
from nocap.config.trainer import Trainer

CONFIG_ERRORS = (OmegaConfBaseException, yaml.YAMLError, RecursionError, OverflowError)  # the last: an integer that no float holds
LONGEST = 1000  # characters of a line: a value in it may be a book


class EndedError(Exception):
    """A command ends with a line and this exit code."""

    code = EXIT_CODES["failed"]


class FailedError(EndedError):
    """A run, session or command failed that all else depends on."""


class StoppedError(EndedError):
    """A request to stop, as by Ctrl-C: what ended is kept, and the same command goes on."""

    code = EXIT_CODES["preempted"]


def refuse(message: object) -> NoReturn:
    """Print it on stderr and leave with exit code 2."""
    for line in str(message).splitlines():
        shown = line.encode(errors="backslashreplace").decode()
        print(f"nocap: {shown if len(shown) <= LONGEST else f'{shown[:LONGEST]}…'}", file=sys.stderr)
    raise SystemExit(EXIT_CODES["refused"])


@contextmanager
def refusals() -> Iterator[None]:
    """Bad input inside the block becomes one line on stderr and exit code 2. What is printed there is `guarded`.

    A full or broken disk, or a reader of stdout that has gone (`… | head`), is no bad input: exit code 1, the first with a line.
    """
    with guarded():
        try:
            yield
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the interpreter flushes it once more at its end
            raise SystemExit(EXIT_CODES["failed"]) from None
        except (ValueError, OSError, EndedError, *CONFIG_ERRORS) as error:
            if is_fault(error) or isinstance(error, EndedError) or (isinstance(error, OSError) and error.filename is None):
                print(f"nocap: {error}", file=sys.stderr)
                raise SystemExit(getattr(error, "code", EXIT_CODES["failed"])) from error
            if isinstance(error, OSError):
                refuse(f"{error.filename} must be a place that can be read or written, got {error.strerror}")
            refuse(explain(error) if isinstance(error, CONFIG_ERRORS) else error)


def suggest(name: str, known: Collection[str]) -> str:
    """What was probably meant, or all there is: in parentheses, to end a line."""
    close = difflib.get_close_matches(name, known, n=1)
    return f" (did you mean {close[0]}?)" if close else f" (it has {', '.join(known)})" if known else ""


@contextmanager
def explained() -> Iterator[None]:
    """What OmegaConf and yaml say of bad input becomes a ValueError of one line."""
    try:
        yield
    except CONFIG_ERRORS as error:
        raise ValueError(explain(error)) from error


def explain(error: BaseException) -> str:
    """What is wrong, in one line, for a person: OmegaConf and Hydra take several."""
    if isinstance(error, RecursionError):
        return "brackets must not be so deep, nor a yaml's defaults choose the yaml itself"
    causes = [error]
    while causes[-1].__cause__ is not None:
        causes.append(causes[-1].__cause__)
    key = next((name for cause in causes if (name := getattr(cause, "full_key", None))), "")
    cause = causes[-1] if isinstance(causes[-1], (ValueError, OmegaConfBaseException)) else error
    if isinstance(cause, (ConfigKeyError, ConfigAttributeError)):
        return _no_key(key or str(cause.key), cause.object_type)
    for pattern, rule in RULES.items():
        if re.search(pattern, str(cause)):
            return rule.format(key)
    text = re.sub(r"^(Value|Key)Error raised while resolving interpolation: ", "", str(cause))
    line = " ".join(stripped for line in text.splitlines() if (stripped := line.strip()) and not re.match(_NOISE, stripped))
    return f"{key}: {line}" if key and key not in line else line or type(error).__name__


def _no_key(name: str, owner: Any) -> str:
    """What would make it a key of this class, or which was probably meant."""
    if not (isinstance(owner, type) and is_dataclass(owner)):  # such as the dict that Hydra's own part is
        return f"{name} is no key"
    known = _keys_of_all() if owner in (Run, Trainer) or issubclass(owner, Option) else {}
    if ways := known.get(name):
        return f"{name} must be beside {' or '.join(ways)}, which it is a key of"
    own, last = {f.name: f.default for f in fields(owner)}, name.rpartition(".")[2]
    kind = own.pop("kind", owner.__name__.lower())
    meant = [other for other in known if other.endswith(f".{last}") and not other.startswith("ideas.")]
    return f"{name} is no key of {kind}" + (f" (did you mean {' or '.join(meant)}?)" if meant else suggest(last, own))


def _keys_of_all() -> dict[str, list[str]]:
    """Every key of trainer and options → the words beside which it is one."""
    known: dict[str, list[str]] = {f"trainer.{f.name}": [] for f in fields(Trainer)}
    for group in {f.name for f in fields(Run)} & {*outside.groups()}:
        for name in outside.yamls(group):
            place = f"{group}.{name}" if group == "ideas" else group
            for f in fields(outside.read(group, name)[1]):
                known.setdefault(f"{place}.{f.name}", []).append(outside.choice(group, name))
    return known


_NOISE = r"full_key:|object_type=|reference_type=|Config search path:|provider=|See https:|In '[^']*': \w+ raised while composing config:$"

# What OmegaConf's text matches → the line about a key.
RULES = {
    r"is not a subclass of \w*Idea": "{0} must be an idea that is chosen by name, as in ideas=[{0}]",
    r"Invalid value assigned: \w+ is not a ListConfig": "{0} must be a list, as in [a, b]",
    r"missing mandatory value": "{0} must be given",
}
