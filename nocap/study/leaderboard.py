"""The leaderboard: one row per claim over all studies of a folder, recipes by time to the baseline's loss, and a head for the README."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from nocap.config.bounded import parse_yaml, read_text
from nocap.config.keys import require
from nocap.report.table import Column, Table, tame
from nocap.store.files import write_file
from nocap.study import board, ledger, report, text, wording
from nocap.study.results import check
from nocap.study.rows import Row, counted, errors, first, in_order, rows, sections
from nocap.study.spec import Study, load
from nocap.study.wording import Json

NOT_BUILT = "not_built.yaml"  # claims that today's options cannot express: id, statement, expected, bound, why
START, END = "<!-- board: written by python -m nocap.study --board -->", "<!-- end of board -->"
HEAD = ("statement", "expected", "arithmetic allows", "measured", "verdict", "notes", "where", "machine, date", "command")
INTRO = (
    "What was expected, what arithmetic allows, what was measured; the same rows with forest plots are in `board.html` beside this file. "
    "Written by `python -m nocap.study --board experiments` from each study's `results.*.json`. In brackets is the 95% interval over n "
    "pairs; what was counted is *exact* and has none. A verdict holds at the shape and machine that it names. Each study's README has "
    "its arms."
)


def write(folder: Path, readme: Path | None) -> list[Path]:
    """`README.md` and `board.html` in the folder, `README.md` in each study's, and the leaderboard's head between the marks of `readme`
    where it has them.

    Errors:
        ValueError: a folder without any study's results.
    """
    found = pages(folder, readme)
    for path, content in found.items():
        write_file(path, content.encode())
    return list(found)


def pages(folder: Path, readme: Path | None) -> dict[Path, str]:
    """All that `write` writes, from the results that are there."""
    places = sorted(folder.iterdir()) if folder.is_dir() else []
    studies = {place.name: load(place) for place in places if (place / "study.yaml").exists()}
    every = [one for place in places if place.is_dir() for one in report.all_results(place, draw=lambda one: _draw(one, studies))]
    for one in every:
        try:
            check(one, ledger.read(folder / str(one["study"]) / ledger.FILE))
        except ValueError as error:
            raise ValueError(f"{folder / str(one['study'])}, results at scale {one['scale']}: {error}") from error
    require(bool(every), "--board", "be a folder of studies that were carried out, as experiments", folder)
    shown, missing = in_order(rows(every, studies)), not_built(folder)
    title = f"{len(shown)} claims: {counted(shown)}; {len(missing)} not built"
    found = {folder / "README.md": tame(render(title, shown, missing)), folder / "board.html": board.render(title, shown)}
    done = {str(one["study"]) for one in every}
    found |= {folder / name / "README.md": report.readme(study, folder / name) for name, study in studies.items() if name in done}
    if readme is not None and readme.exists() and START in (known := read_text(readme)):
        before, _, rest = known.partition(START)
        _, _, after = rest.partition(END)
        found[readme] = f"{before}{START}\n{tame(head(shown))}\n{END}{after}"
    return found


def _draw(one: Json, studies: Mapping[str, Study]) -> Any:
    shown = in_order(rows([one], studies))
    return render("", shown, []), board.render("", shown), head(shown)


def not_built(folder: Path) -> list[dict[str, str]]:
    path = folder / NOT_BUILT
    return list(parse_yaml(read_text(path))) if path.exists() else []


def render(title: str, every: Sequence[Row], missing: Sequence[Mapping[str, str]]) -> str:
    lines = [f"# {title}", "", *textwrap.wrap(INTRO, width=138), "", *textwrap.wrap(errors(every), width=138), ""]
    for standing, some in sections(every).items():
        lines += [f"## {len(some)} {standing.value}", "", *text.claims(some, HEAD, link=_link).markdown(), ""]
    columns = {"id": "claim", "statement": "statement", "expected": "expected", "bound": "arithmetic allows", "why": "why"}
    rows = [[one.get(key) for key in columns] for one in missing]
    table = Table(title="Not built, or nothing to measure", columns=[Column(title=name) for name in columns.values()], rows=rows)
    return "\n".join([*lines, f"## {table.title}", "", *table.markdown(), ""])


def _link(row: Row, *, root: str = "") -> str:
    return f"[{row.claim['statement']}]({root}{quote(str(row.one['study']), errors='replace')}/README.md)"


def head(every: Sequence[Row]) -> str:
    """For somebody who has five minutes."""
    return "\n".join(line for row in first(every) for line in _item(row))


def _item(row: Row) -> list[str]:
    caution = f" ({row.caution})" if row.caution else ""
    item = f"* {_link(row, root='experiments/')}. **{row.verdict[:1].upper()}{row.verdict[1:]}**. "
    item += f"Measured: {wording.measured(row.claim)}{caution}."
    if row.elsewhere:
        item += f" Depends on shape: {'; '.join(one.removesuffix(', CPU') for one in row.elsewhere)}."
    return textwrap.wrap(item, width=140, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
