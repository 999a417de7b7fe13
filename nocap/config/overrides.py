"""Parse overrides by Hydra's grammar, and say what they set and which of them choose options."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache, lru_cache

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, Quote, QuotedString
from hydra.errors import OverrideParseException

from nocap import outside
from nocap.config.keys import check_text, require


def overrides_of(words: Sequence[str], *, grid: bool = False) -> list[Override]:
    """Return the overrides that words are. Hydra's own keys are refused, but for the launcher of a
    grid.

    Errors:
        ValueError: the first wrong one.
    """
    overrides = [parse_override(word) for word in words]
    rule = (
        "not be set (of Hydra's keys, you can set only hydra/launcher and its keys, and only with "
        "--multirun)"
    )
    for override in overrides:
        key = override.key_or_group
        is_hydras = re.search(r"\bhydra\b", f"{key} {override.package}") is not None
        may_choose = grid and is_launcher(override)
        require(may_choose or not is_hydras, key, rule, override.input_line)
    return overrides


@lru_cache(maxsize=4096)  # the words of a study come again with each of its arms, seeds and looks
def parse_override(word: str) -> Override:
    """Return an override by Hydra's grammar.

    Errors:
        ValueError: it cannot be parsed.
    """
    key = word.partition("=")[0]
    check_text(key if key.isprintable() else repr(key)[:80], word)
    try:
        (override,) = OverridesParser.create().parse_overrides([word])
    except (OverrideParseException, RecursionError) as error:
        reason = next(iter(str(error).splitlines()), "")
        if reason.startswith("LexerNoViable") or "expecting <EOF>" in reason:
            value = _in_quotes(word.partition("=")[2])
            reason = f'put the value in quotes, as in "{key}={value}"'[:200]
        raise ValueError(f"{word[:80]!a} cannot be read: {reason}") from None
    return override


def _in_quotes(text: str) -> str:
    """Quote a value, or each element of a list, as Hydra reads it."""
    if text.startswith("[") and text.endswith("]"):
        elements = [_in_quotes(part.strip()) for part in text[1:-1].split(",")]
        return f"[{','.join(elements)}]"
    return QuotedString(text=text.strip("'\""), quote=Quote.single).with_quotes()


def is_choice(override: Override) -> bool:
    """Say whether an override is Hydra's to apply: it chooses options."""
    group = override.key_or_group
    names_group = group in option_folders() or "/" in group or override.package is not None
    sets_keys = isinstance(override.value(), dict)
    return names_group and not sets_keys


@cache
def option_folders() -> frozenset[str]:
    """Return the folders of yamls that an override may choose from."""
    return frozenset({"experiment", *map(outside.place, outside.groups())})


def is_launcher(override: Override) -> bool:
    """Say whether an override chooses a grid's launcher, or is one of its keys."""
    match = re.match(r"hydra[/.]launcher(\.|$)", override.key_or_group)
    return match is not None and override.package is None
