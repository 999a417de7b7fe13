"""Write the tables of docs/settings.md from the code: each key of a place, its default, its
meaning.

    python -m tests.tools.settings

A table stands between `<!-- generated: PLACE … -->` and `<!-- end -->`, where a PLACE is a group of
options, `trainer`, `store`, `run` or `search`. Its rows are those of `nocap.train --help all`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any, get_type_hints

from nocap import outside
from nocap.config import flags
from nocap.config.trainer import Search
from tests.tools.run_docs import ROOT

PAGE = ROOT / "docs" / "settings.md"
GENERATED = re.compile(r"(<!-- generated: (.*?) -->\n).*?(<!-- end -->)", re.DOTALL)
# A default that follows from another key, as the yaml has it and as the page says it.
FOLLOWS = {
    r"\$\{nocap\.(?:fraction|times):([\d.]+),\$\{([\w.]+)\}\}": r"\1 × `\2`",
    r"\$\{nocap\.beta2:([\d.]+),.*": r"`\1`",
    r"\$\{(\w+\.\w+)\}": r"`\1`",
}
HEAD = "| key | default | meaning |\n|---|---|---|\n"


def table(places: list[str]) -> str:
    """Return the table of these places' keys."""
    return HEAD + "".join(f"{row}\n" for place in places for row in rows(place))


def rows(place: str) -> Iterator[str]:
    """Yield a row for each key of a place, with the options that are the default."""
    for where, schema, plain in _sections():
        if where != place.removeprefix("run"):
            continue
        kinds = get_type_hints(schema)
        comments = flags.comments_of(schema)
        for f in fields(schema):
            if _is_key(f, plain):
                key = f"{where}.{f.name}".lstrip(".")
                meaning = flags._meaning(kinds[f.name], comments.get(f.name, ""), False)
                yield f"| `{key}` | {_default(f, plain)} | {meaning} |"


def _sections() -> Iterator[tuple[str, type, dict[str, Any]]]:
    """Yield place, class and yaml of each part of the config."""
    yield "search", Search, {}
    for _, place, schema, plain in flags._sections([]):
        yield place, schema, plain


def _is_key(f: Field[Any], plain: dict[str, Any]) -> bool:
    """Say whether a field is a key of its own, and no group or option."""
    groups = (*outside.groups(), "kind", "trainer", "store")
    return f.name not in groups and not isinstance(plain.get(f.name), dict)


def _default(f: Field[Any], plain: dict[str, Any]) -> str:
    """Return the default as one types it; nothing where it follows from the machine."""
    if f.name not in plain and f.default is MISSING and f.default_factory is MISSING:
        return ""
    written = str(plain.get(f.name, ""))
    for pattern, said in FOLLOWS.items():
        if match := re.fullmatch(pattern, written):
            return match.expand(said)
    shown = flags._shown(f, plain)
    return "" if shown.startswith("…") else f"`{shown}`"


def generated(page: str) -> str:
    """Return the page with its tables as the code has them."""

    def replaced(match: re.Match[str]) -> str:
        return match[1] + table(match[2].split()) + match[3]

    return GENERATED.sub(replaced, page)


def main(page: Path = PAGE) -> None:
    page.write_text(generated(page.read_text()))


if __name__ == "__main__":
    main()
