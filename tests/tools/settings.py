"""Write the tables of docs/settings.md from the code: each key of a place, its default, its
meaning.

    python -m tests.tools.settings

A table stands between `<!-- generated: PLACE … -->` and `<!-- end -->`, where a PLACE is a group of
options, `trainer`, `run` or `search`. Its rows are those of `nocap.train --help all`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import MISSING, Field
from pathlib import Path

from nocap.config import help_page
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
    lines = [HEAD]
    for place in places:
        lines += [f"{row}\n" for row in rows(place)]
    return "".join(lines)


def rows(place: str) -> Iterator[str]:
    """Yield a row for each key of a place, with the options that are the default."""
    for section in help_page._sections([]):
        if section.prefix != place.removeprefix("run"):
            continue
        comments = help_page.comments_of(section.schema)
        for key, field in section.own_keys():
            kind = help_page._types_of(section.schema)[field.name]
            meaning = help_page._meaning(kind, comments.get(field.name, ""), in_full=False)
            yield f"| `{key}` | {_default(field, section)} | {meaning} |"


def _default(field: Field[object], section: help_page.Section) -> str:
    """Return the default as one types it, `required` where there is none, and nothing where it
    follows from the machine."""
    written = str(section.values.get(field.name, ""))
    for pattern, said in FOLLOWS.items():
        if match := re.fullmatch(pattern, written):
            return match.expand(said)
    if not written and field.default is MISSING and field.default_factory is MISSING:
        return "required"
    value = help_page._value(field, section.values)
    if value.startswith("…"):
        return ""
    return f"`{value}`"


def generated(page: str) -> str:
    """Return the page with its tables as the code has them."""

    def replaced(match: re.Match[str]) -> str:
        return match[1] + table(match[2].split()) + match[3]

    return GENERATED.sub(replaced, page)


def main(page: Path = PAGE) -> None:
    page.write_text(generated(page.read_text()))


if __name__ == "__main__":
    main()
