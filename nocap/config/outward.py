"""What leaves the process: no secret in any file or line, and no terminal control in what a screen shows.

A secret is the value of an environment variable with a secret's name, or a text with the shape of a known token. Texts are cleaned
where they are written: `nocap.store` for files and trackers, `nocap.show` for pages, `guarded` for stdout and stderr.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache, lru_cache
from typing import Any, TextIO, TypeVar, cast
from urllib.parse import quote

from nocap.config.paths import PACKAGE, conf_dir

T = TypeVar("T")
SHORTEST = 8  # characters of a variable's value; a shorter one ("true", "3") would match ordinary text
SHORT = 200  # characters of a text that may come again
LONG_LINE = 16  # a line of a value of several lines, such as a private key

SECRET_NAME = re.compile(
    r"TOKEN|SECRET|PASS(W|PHRASE|CODE)|CREDENTIAL|KEY(?!BOARD|MAP|RING|STROKE)"
    r"|(?<!ASK)(?<!COM)(?<!BY)PASS(_|$)|\wPWD(_|$)|(^|_)(PAT|O?AUTH|CREDS?|DSN|JWT|COOKIE|WEBHOOK)(_|$)",
    re.IGNORECASE,
)
HARMLESS_NAME = re.compile(r"(^|_)OLDPWD$|_(FILE|PATH|DIR|SOCK|HOME)$", re.IGNORECASE)  # the last: where it lies, not what it is

_NAMES = r"[\w.]{0,40}(?i:passw(?:or)?d|passphrase|secret|api_?key|access_?token|auth_?token)"
# Shapes that detect-secrets does not have, or of which it finds a part. A group is kept.
SHAPES = [
    ("private key", r"()-----BEGIN [A-Z0-9 ]*PRIVATE KEY[A-Z ]*-----[\s\S]*?(?:-----END [A-Z0-9 ]*PRIVATE KEY[A-Z ]*-----|\Z)"),
    ("credentials in a URL", r"(://)(?:[^/\s@:\"'<>]*:[^/\s@\"'<>]+|[^/\s@:\"'<>]{16,})(?=@)"),
    ("secret in a URL", r"([?&](?i:access_token|token|api_?key|key|password|secret|sig|x-amz-signature)=)(?!<redacted)[^&\s\"'<>]{8,}"),
    ("GitHub token", r"()\b(?:github_pat_\w{22,}|gh[pousr]_\w{36,})"),
    ("Hugging Face token", r"()\b(?:hf|api_org)_[A-Za-z0-9]{30,}"),
    ("Weights & Biases key", r"()\bwandb_v\d_\w{32,}"),
    ("API key", r"()\b(?:sk-(?:ant|proj|svcacct|or)-[\w-]{20,}|gsk_\w{32,}|r8_\w{32,}|AIza[\w-]{35}|npm_\w{36}|dckr_pat_[\w-]{20,})"),
    ("JSON web token", r"()\beyJ[\w=-]{8,}\.eyJ[\w=-]{8,}(?:\.[\w=-]*)?"),
    ("bearer token", r"((?i:\bbearer) )[\w.~+/-]{20,}=*"),
    ("assigned secret", rf"((?<![\w.]){_NAMES}[\"']?\s*[:=]\s*[\"'])(?!<redacted)[^\"'\s{{}}$]{{8,}}(?=[\"'])"),
    ("assigned secret", rf"((?m:^)[+-]?\s*(?:export )?{_NAMES}(?:=|: ))[^\s\"'(){{}}\[\]<>$]{{8,}}(?m:$)"),
]
# Where none of this is, no detector of the library finds anything: it costs 0.3 s to import, which most commands need not pay.
MAYBE = re.compile(
    r"(?<![\w+-])(?=[\w+-]*[A-Z])(?=[\w+-]*\d)[\w+-]{16,}"  # a long word with a capital and a digit
    r"|AKC|AP[\dA-F]|(?i:xox[abopsr]-|hooks\.slack|:_authToken|-us\d|\d{8}:|aws|ibm|iam|cos_|hmac|softlayer|cloudant)"
)


def redact(value: T) -> T:
    """A copy in which every secret reads `<redacted:NAME>`: of a text, or of all texts in what JSON can hold. Keys lose tokens only."""
    return cast(T, _walk(value, _of_environment()))


def _walk(value: Any, secrets: list[tuple[str, str]]) -> Any:
    if isinstance(value, str):
        for secret, name in secrets:
            value = value.replace(secret, f"<redacted:{name}>")
        return _without_tokens(value)
    if isinstance(value, Mapping):
        return {_walk(key, []): _walk(item, secrets) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        walked = [_walk(item, secrets) for item in value]
        return tuple(walked) if isinstance(value, tuple) else walked
    return value


def _of_environment() -> list[tuple[str, str]]:
    """The values of the secret variables, as they may be spelt, with the variables' names. The longest first: it goes as a whole."""
    found: dict[str, str] = {}
    for name in filter(is_secret_name, os.environ):
        value = os.environ[name]
        for part in {value.strip(), *(line.strip() for line in value.splitlines() if len(line.strip()) >= LONG_LINE)}:
            if len(part) >= SHORTEST and not (_WORD.fullmatch(part) and part in _own_words()):
                found |= {part: name, quote(part, safe="", errors="surrogatepass"): name, json.dumps(part)[1:-1]: name}
    return sorted(found.items(), key=lambda item: -len(item[0]))


@cache
def is_secret_name(name: str) -> bool:
    return bool(SECRET_NAME.search(name)) and not HARMLESS_NAME.search(name)


_WORD = re.compile(r"[a-z][a-z0-9_]{7,31}")


@cache
def _own_words() -> frozenset[str]:
    """The words of nocap's own source and yamls, such as `shuffled` and `finished`: public, and without them a record cannot be read."""
    files = [*PACKAGE.rglob("*.py"), *conf_dir().rglob("*.yaml")]
    return frozenset(word for path in files for word in _WORD.findall(path.read_text(encoding="utf-8")))


def _without_tokens(text: str) -> str:
    return text if len(text) < SHORTEST else _cleaned(text) if len(text) > SHORT else _remembered(text)


@lru_cache(4096)
def _remembered(text: str) -> str:
    """Keys, names and digests come again with each row."""
    return _cleaned(text)


def _cleaned(text: str) -> str:
    for shape, mark in _shapes():
        text = shape.sub(mark, text)
    return _PIECE.sub(lambda found: _detected(found[0]), text) if MAYBE.search(text) else text


# Some detectors take the square of a text's length: they see pieces, cut at a space where there is one.
_PIECE = re.compile(r".{1,4096}(?=\s|\Z)|.{1,4096}", re.DOTALL)


def _detected(text: str) -> str:
    for shape, mark in _detectors():
        text = shape.sub(mark, text)
    return text


Marks = list[tuple[re.Pattern[str], str]]  # a shape, and what stands in its place


@cache
def _shapes() -> Marks:
    return [(re.compile(shape, re.ASCII), rf"\1<redacted:{name}>") for name, shape in SHAPES]


@cache
def _detectors() -> Marks:
    """The patterns of detect-secrets that know a token by its shape. Those that go by entropy would take a digest for one."""
    from detect_secrets.core.plugins.util import get_mapping_from_secret_type_to_class
    from detect_secrets.plugins.base import RegexBasedDetector

    others = ("Public IP (ipv4)", "Basic Auth Credentials", "Private Key")  # no secret; done above
    kinds: Any = get_mapping_from_secret_type_to_class().items()
    shaped = [(name, kind) for name, kind in kinds if issubclass(kind, RegexBasedDetector) and name not in others]
    found = [(name, pattern) for name, kind in shaped for pattern in kind.denylist]
    # To the end of the word: some know a token of one length only.
    return [(re.compile(rf"(?:{pattern.pattern})[\w-]*", pattern.flags), f"<redacted:{name}>") for name, pattern in found]


# --- screens -----------------------------------------------------------------------------------------------------------------------

# Controls but for newline and tab, what reorders or hides text, and halves of characters, which no stream can encode.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]")
_OWN_STYLE = re.compile(r"(\x1b\[[01]m)")  # bold and plain: the head of a table


def visible(text: str) -> str:
    r"""The text with `\x1b` for the escape character, and so on: whatever a name in a record holds, it does nothing to a terminal."""
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


class _Guard:
    """A text stream that shows no secret and obeys no control. `trusted` obeys: for progress bars, whose texts go through `visible`."""

    def __init__(self, stream: TextIO, *, obeys: bool = False) -> None:
        self._stream, self._obeys = stream, obeys
        self.trusted: Any = self if obeys else _Guard(stream, obeys=True)

    def write(self, text: str) -> int:
        text_out = redact(text)
        if not self._obeys:
            parts = _OWN_STYLE.split(text_out) if self._stream.isatty() else [text_out]
            text_out = "".join(part if i % 2 else visible(part) for i, part in enumerate(parts))
        self._stream.write(text_out)
        return len(text)

    def writelines(self, lines: Iterator[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def guarded() -> Iterator[None]:
    """stdout and stderr go through `redact` and `visible` inside the block."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (stream if isinstance(stream, _Guard) else cast(TextIO, _Guard(stream)) for stream in before)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def trusted(stream: TextIO) -> TextIO:
    """The stream for a progress bar, which moves the cursor."""
    return cast(TextIO, getattr(stream, "trusted", stream))
