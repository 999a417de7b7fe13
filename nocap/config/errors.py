"""Bad input as one line on stderr, and how a command ends after it."""

from __future__ import annotations

import difflib
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from typing import NoReturn

import yaml
from hydra.errors import HydraException, OverrideParseException
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException

from nocap.config.exits import EXIT_CODES as EXIT_CODES
from nocap.config.keys import is_fault
from nocap.config.outward import guarded

CONFIG_ERRORS = (HydraException, OmegaConfBaseException, yaml.YAMLError, RecursionError)  # of composing: a wrong yaml or override
LONGEST = 1000  # characters of a line: a value in it may be a book


class EndedError(Exception):
    """A command ends with a line and this exit code."""

    code = EXIT_CODES["failed"]


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
    except EndedError as error:
        print(f"nocap: {error}", file=sys.stderr)
        raise SystemExit(error.code) from error
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the interpreter flushes it once more at its end
        raise SystemExit(EXIT_CODES["failed"]) from None
    except OSError as error:
        if is_fault(error) or error.filename is None:
            _fail(error)
        refuse(f"{error.filename} must be a place that can be read or written, got {error.strerror}")


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
        return "brackets must not be so deep, nor a yaml's defaults choose the yaml itself"
    if isinstance(error, yaml.YAMLError):
        return f"a yaml cannot be read: {' '.join(str(error).split())}"
    if isinstance(error, OverrideParseException):
        said = next(iter(str(error.message).splitlines()), "")
        quote = """: put the value in quotes, as in "key='~/x'\"""" if said.startswith("LexerNoViable") or "expecting <EOF>" in said else ""
        return f"{error.override[:80]!a} cannot be read{quote or f' ({said})'}"
    causes = [error]
    while causes[-1].__cause__ is not None:
        causes.append(causes[-1].__cause__)
    key = next((found[1] for cause in causes if (found := re.search(r"full_key: (\S+)", str(cause)))), "")
    cause = causes[-1] if isinstance(causes[-1], (ValueError, OmegaConfBaseException)) else error
    if isinstance(cause, (ConfigKeyError, ConfigAttributeError)) and is_dataclass(schema := cause.object_type):
        kind = getattr(schema.__dataclass_fields__.get("kind"), "default", schema.__name__.lower())
        return f"{key} is no key of {kind}{suggest(str(cause.key), [f.name for f in fields(schema)])}"
    text = str(cause)
    for pattern, rule in RULES.items():
        if re.search(pattern, text):
            return rule.format(key)
    line = " ".join(stripped for line in text.splitlines() if (stripped := line.strip()) and not re.match(_NOISE, stripped))
    line = re.sub(r"^(In '[^']*': )?(\w+Error )?(raised while resolving interpolation: )?", "", line)
    return f"{key}: {line}" if key and key not in line else line or type(error).__name__


_NOISE = r"full_key:|object_type=|reference_type=|Config search path:|provider=|See https:|In '[^']*': \w+ raised while composing config:$"

# What OmegaConf's text matches → the line about a key.
RULES = {
    r"is not a subclass of \w*Idea": "ideas must be chosen by name, as in ideas=[NAME], and {0} is none that is",
    r"Invalid value assigned: \w+ is not a ListConfig": "{0} must be a list, as in [a, b]",
    r"missing mandatory value": "{0} must be given",
}
