"""Bad input as one line on stderr, and how a command ends after it."""

from __future__ import annotations

import dataclasses
import difflib
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import yaml
from hydra.errors import HydraException, OverrideParseException
from omegaconf.errors import OmegaConfBaseException

from nocap import outside
from nocap.config import registry
from nocap.config.exits import EXIT_CODES as EXIT_CODES
from nocap.config.keys import is_fault
from nocap.config.outward import guarded
from nocap.config.paths import conf_dir
from nocap.config.run import Run, Store
from nocap.config.trainer import Trainer

CONFIG_ERRORS = (HydraException, OmegaConfBaseException, yaml.YAMLError, RecursionError)  # of composing: a wrong yaml or override
LONGEST = 1000  # characters of a line: a value in it may be a book


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
    with guarded(), _exits():
        yield


@contextmanager
def _exits() -> Iterator[None]:
    try:
        yield
    except CONFIG_ERRORS as error:
        refuse(explain(error))
    except ValueError as error:
        if is_fault(error):
            _fail(error)
        refuse(error)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the interpreter flushes it once more at its end
        raise SystemExit(EXIT_CODES["failed"]) from None
    except OSError as error:
        _fail(error)


def _fail(error: Exception) -> NoReturn:
    print(f"nocap: {error}", file=sys.stderr)
    raise SystemExit(EXIT_CODES["failed"]) from error


def suggest(key: str, known: list[str]) -> str:
    """The key that was probably meant, or all there are: in parentheses, to end a line."""
    keys = [name for name in known if name != "kind"]  # a property of the option, not a choice
    if close := difflib.get_close_matches(key, keys, n=1):
        return f" (did you mean {close[0]}?)"
    return f" (it has {', '.join(keys)})" if keys else ""


# --- Hydra's and OmegaConf's errors, in one line ------------------------------------------------------------------------------------


def explain(error: BaseException) -> str:
    """What is wrong, in one line, for a person: Hydra and OmegaConf take several."""
    if isinstance(error, RecursionError):
        return "a yaml's defaults must not choose the yaml itself: an option's begin with [/schema/GROUP/KIND@_here_]"
    if isinstance(error, yaml.YAMLError):
        return f"a yaml cannot be read: {' '.join(str(error).split())}"
    if isinstance(error, OverrideParseException):
        said = next(iter(str(error.message).splitlines()), "")
        quote = """: put the value in quotes, as in "key='~/x'\"""" if said.startswith("LexerNoViable") or "expecting <EOF>" in said else ""
        return f"{error.override[:80]!a} cannot be read{quote or f' ({said})'}"
    causes = [error]
    while causes[-1].__cause__ is not None:
        causes.append(causes[-1].__cause__)
    text = str(causes[-1]) if isinstance(causes[-1], (ValueError, OmegaConfBaseException)) else str(error)
    key = next((found.group(1) for cause in causes if (found := re.search(r"full_key: (\S+)", str(cause)))), "")
    for pattern, describe in _LINES.items():
        if found := re.search(pattern, text, re.MULTILINE):
            return describe(found, key)
    line = " ".join(stripped for line in text.splitlines() if (stripped := line.strip()) and not re.match(_NOISE, stripped))
    line = re.sub(r"^(In '[^']*': )?(\w+Error )?(raised while resolving interpolation: )?", "", line)
    return f"{key}: {line}" if key and key not in line else line or type(error).__name__


_NOISE = r"full_key:|object_type=|reference_type=|Config search path:|provider=|See https:|In '[^']*': \w+ raised while composing config:$"


def _unknown_idea(found: re.Match[str], key: str) -> str:
    known = sorted(path.stem for folder in (conf_dir(), *outside.folders()) for path in (folder / "ideas").glob("*.yaml"))
    return f"ideas must be among {', '.join(known)}, got {found[1]}"


def _unknown_schema(found: re.Match[str], key: str) -> str:
    group, kind = found.groups()
    kinds = ", ".join(registry.options(group)) if group in registry.groups() else "none"
    return f"a yaml's defaults must be [/schema/GROUP/KIND@_here_], got schema/{group}/{kind}; the kinds there: {kinds}"


def _unknown_key(found: re.Match[str], key: str) -> str:
    name, schema = found.groups()
    if schema in {registry.interface(group).__name__ for group in registry.groups()}:
        return f"{key or name} is no key of every {schema.lower()}: its yaml must have defaults: [/schema/GROUP/KIND@_here_]"
    # The schema of this name in the group of the key: two options may have one name.
    group = key.partition(".")[0]
    groups = [group] if group in registry.groups() else registry.groups()
    schemas: list[Any] = [Run, Trainer, Store, *(option for one in groups for option in registry.options(one).values())]
    known = [f.name for one in schemas if one.__name__ == schema for f in dataclasses.fields(one)]
    return f"{key or name} is no key of {schema.lower()}{suggest(name, known)}"


# What Hydra's text matches → the line, from the match and the key where Hydra names one.
_LINES: dict[str, Callable[[re.Match[str], str], str]] = {
    r"^Config group override must be": lambda found, key: "a group must be given an option's name, as in attention=gqa",
    r"Could not load 'ideas/(.*)'": _unknown_idea,
    r"Dict\[str, Idea\]": lambda found, key: "an idea's yaml must begin with '# @package ideas.NAME'",
    r"Could not load 'schema/(\w+)/?(\w*)'": _unknown_schema,
    r"Key '(.*)' not in '(.*)'": _unknown_key,
    r"Invalid value assigned: \w+ is not a ListConfig": lambda found, key: f"{key} must be a list, as in [a, b]",
    r"missing mandatory value: (\S+)": lambda found, key: f"{key or found[1]} must be given",
}
