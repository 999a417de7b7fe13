"""What leaves the process: no secret in any file or line, and no terminal control in what a screen
shows.

A secret is the value of an environment variable with a secret's name, or a text with the shape of a
known token. Texts are cleaned where they are written: `nocap.store` for files and trackers,
`nocap.report` for pages, `guarded` for stdout and stderr.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import cache
from typing import Any, TextIO, TypeVar, cast
from urllib.parse import quote

from nocap.config.paths import PACKAGE, conf_dir

T = TypeVar("T")
# characters of a variable's value; a shorter one ("true", "3") would match ordinary text
SHORTEST = 8
LONG_LINE = 16  # a line of a value of several lines, such as a private key

SECRET_NAME = re.compile(
    r"TOKEN|SECRET|PASS(W|PHRASE|CODE)|CREDENTIAL|KEY(?!BOARD|MAP|RING|STROKE)"
    r"|(?<!ASK)(?<!COM)(?<!BY)PASS(_|$)|\wPWD(_|$)|(^|_)(PAT|O?AUTH|CREDS?|DSN|JWT|COOKIE|WEBHOOK)(_|$)",
    re.IGNORECASE,
)
# the last: where it lies, not what it is
HARMLESS_NAME = re.compile(r"(^|_)OLDPWD$|_(FILE|PATH|DIR|SOCK|HOME)$", re.IGNORECASE)

# A few that are plainly secrets, whatever variable they come from; no list has all.
SHAPES = re.compile(
    r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY[A-Z ]*-----[\s\S]*?(?:-----END [A-Z0-9 ]*PRIVATE KEY[A-Z "
    r"]*-----|\Z)"
    r"|(?<=://)(?:[^/\s@:\"'<>]*:[^/\s@\"'<>]+|[^/\s@:\"'<>]{16,})(?=@)"  # who asks, in a URL
    r"|(?i:(?<=\bbearer ))[\w.~+/-]{20,}=*"
    r"|\b(?:gh[pousr]_\w{36,}|github_pat_\w{22,}|hf_[A-Za-z0-9]{30,}|wandb_v\d_\w{32,})"
    r"|\bsk-(?:ant|proj|svcacct)-[\w-]{20,}",  # Anthropic, OpenAI
    re.ASCII,
)


def redact(value: T) -> T:
    """Return a copy in which every secret reads `<redacted:NAME>`: of a text, or of all texts in
    what JSON can hold. Keys lose known shapes only."""
    return cast(T, _walk(value, _of_environment()))


def _walk(value: Any, secrets: list[tuple[str, str]]) -> Any:
    if isinstance(value, str):
        for secret, name in secrets:
            value = value.replace(secret, f"<redacted:{name}>")
        return SHAPES.sub("<redacted:secret>", value)
    if isinstance(value, Mapping):
        return {_walk(key, []): _walk(item, secrets) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        items = [_walk(item, secrets) for item in value]
        return tuple(items) if isinstance(value, tuple) else items
    return value


def _of_environment() -> list[tuple[str, str]]:
    """Return the values of the secret variables, as they may be spelt, with the variables' names.
    The longest first: it goes as a whole."""
    spellings: dict[str, str] = {}
    for name in filter(is_secret_name, os.environ):
        value = os.environ[name]
        parts = {value.strip()}
        for line in value.splitlines():
            if len(line.strip()) >= LONG_LINE:
                parts.add(line.strip())
        for part in parts:
            if len(part) < SHORTEST or _is_own_word(part):
                continue
            spellings[part] = name
            spellings[quote(part, safe="", errors="surrogatepass")] = name
            spellings[json.dumps(part)[1:-1]] = name
    return sorted(spellings.items(), key=lambda item: -len(item[0]))


@cache
def is_secret_name(name: str) -> bool:
    """Say whether a variable of this name has a secret."""
    return bool(SECRET_NAME.search(name)) and not HARMLESS_NAME.search(name)


_WORD = re.compile(r"[a-z][a-z0-9_]{7,31}")


def _is_own_word(text: str) -> bool:
    return _WORD.fullmatch(text) is not None and text in _own_words()


@cache
def _own_words() -> frozenset[str]:
    """Return the words of nocap's own source and yamls, such as `shuffled` and `finished`: public,
    and without them a record cannot be read."""
    words = set[str]()
    for path in (*PACKAGE.rglob("*.py"), *conf_dir().rglob("*.yaml")):
        words.update(_WORD.findall(path.read_text(encoding="utf-8")))
    return frozenset(words)


# --- screens --------------------------------------------------------------------------------------

# Controls but for newline and tab, what reorders or hides text, and halves of characters, which no
# stream can encode.
_CONTROL = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]"
)
# bold, also in red and green, and plain: the head of a table, and its verdicts
_OWN_STYLE = re.compile(r"(\x1b\[(?:0|1|1;31|1;32)m)")


def visible(text: str) -> str:
    r"""Return the text with `\x1b` for the escape character, and so on: whatever a name in a record
    holds, it does nothing to a terminal."""
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


class _Guard:
    """A text stream that shows no secret and obeys no control."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        shown = redact(text)
        parts = [shown]
        if self.stream.isatty():
            parts = _OWN_STYLE.split(shown)
        parts[::2] = map(visible, parts[::2])  # between the styles
        self.stream.write("".join(parts))
        return len(text)

    def writelines(self, lines: Iterator[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


@contextmanager
def guarded() -> Iterator[None]:
    """Clean what the block writes to stdout and stderr by `redact` and `visible`."""
    out = cast(TextIO, _Guard(trusted(sys.stdout)))
    err = cast(TextIO, _Guard(trusted(sys.stderr)))
    with redirect_stdout(out), redirect_stderr(err):
        yield


def trusted(stream: TextIO) -> TextIO:
    """Return the stream itself, for a progress bar, which moves the cursor; and for text that is
    nobody's but the user's."""
    if isinstance(stream, _Guard):
        return stream.stream
    return stream
