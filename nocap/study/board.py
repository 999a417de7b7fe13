"""The leaderboard: one row per claim over all studies of a folder, as Markdown and as a page."""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from urllib.parse import quote

from markupsafe import Markup

from nocap.config.bounded import parse_yaml, read_text
from nocap.config.keys import require
from nocap.report import forest, page
from nocap.report.table import Column, Table, tame
from nocap.report.words import amount
from nocap.store.files import write_file
from nocap.store.metrics import METRICS, Scale
from nocap.study import pages
from nocap.study.spec import FILE, load
from nocap.study.words import PROJECT, STAND_IN, THERE, Row, counted, expected, is_exact, rows

NOT_BUILT = "not_built.yaml"  # claims that today's options cannot express: id, statement, expected, bound, why
HEAD = ("statement", "expected", "arithmetic allows", "measured", "verdict", "notes", "where", "machine, date", "command")
DETAILS = ("expected", "arithmetic allows", "guards", "verdict", "notes", "where", "machine, date", "command")
FIRST_ROWS, LAST_ROWS = 8, 2  # that a reader sees first
ERROR = 0.05  # how often a verdict that rests on noise errs at the most
INTRO = (
    "What was expected, what arithmetic allows, what was measured; the same rows with forest plots are in `board.html` beside this file. "
    "Written by `python -m nocap.study --board experiments` from each study's `results.*.json`. In brackets is the 95% interval over n "
    "pairs; what was counted is *exact* and has none. A verdict holds at the shape and machine that it names. Each study's README has "
    "its arms."
)


def write(folder: Path) -> list[Path]:
    """`README.md` and `board.html` in the folder, `README.md` in each study's.

    Errors:
        ValueError: a folder without any study's results, or results that were changed.
    """
    written = board(folder)
    for path, content in written.items():
        write_file(path, content.encode())
    return list(written)


def board(folder: Path) -> dict[Path, str]:
    """All that `write` writes, from the results that are there."""
    places = [place for place in sorted(folder.iterdir()) if place.is_dir()] if folder.is_dir() else []
    studies = {place.name: load(place) for place in places if (place / FILE).exists()}
    results = {place.name: pages.all_results(place) for place in places}
    every = [one for some in results.values() for one in some]
    require(bool(every), "--board", "be a folder of studies that were carried out, as experiments", folder)
    path = folder / NOT_BUILT
    shown, missing = in_order(rows(every, studies)), parse_yaml(read_text(path)) if path.exists() else []
    title = f"{len(shown)} claims: {counted(shown)}; {len(missing)} not built"
    written = {folder / "README.md": tame(markdown(title, shown, missing)), folder / "board.html": html(title, shown)}
    written |= {
        folder / name / "README.md": pages.readme(study, folder / name, results[name]) for name, study in studies.items() if results[name]
    }
    return written


def in_order(some: Iterable[Row]) -> list[Row]:
    """A2 before A10, and what begins alike as it was."""
    return sorted(
        some, key=lambda row: [int(word) if word.isdigit() else word for word in re.split(r"(\d+)", row.claim["id"].partition(".")[0])]
    )


def first(every: Sequence[Row]) -> list[Row]:
    """For somebody who has five minutes: the first claim of each study, the first of these and the last."""
    firsts = {row.one["study"]: row for row in reversed(every)}
    shown = [row for row in every if firsts.get(row.one["study"]) is row]
    return [*shown[:-LAST_ROWS][:FIRST_ROWS], *shown[-LAST_ROWS:]]


def errors(every: Sequence[Row]) -> str:
    """How many false verdicts are to be expected."""
    noisy = sum(not is_exact(row.claim) for row in every)
    return (
        f"{noisy} of the {len(every)} rows rest on measurements with noise. Up to {ERROR * noisy:.1f} false verdicts are to be expected "
        "among them: reached if every true value lay at the edge of what is stated and the noise were as skewed as the rule allows for."
    )


def markdown(title: str, every: Sequence[Row], missing: Sequence[Mapping[str, str]]) -> str:
    lines = [f"# {title}", "", *textwrap.wrap(INTRO, width=138), "", *textwrap.wrap(errors(every), width=138), ""]
    for about in (THERE, STAND_IN, PROJECT):
        if some := [row for row in every if row.about == about]:
            lines += [f"## {len(some)} {about}", "", *pages.claims(some, HEAD, link=_link).markdown(), ""]
    columns = {"id": "claim", "statement": "statement", "expected": "expected", "bound": "arithmetic allows", "why": "why"}
    cells = [[one.get(key) for key in columns] for one in missing]
    table = Table(title="Not built, or nothing to measure", columns=[Column(title=name) for name in columns.values()], rows=cells)
    return "\n".join([*lines, f"## {table.title}", "", *table.markdown(), ""])


def _link(row: Row) -> str:
    return f"[{row.claim['statement']}]({quote(str(row.one['study']), errors='replace')}/README.md)"


# --- the page --------------------------------------------------------------------------------------------------------------------------


def html(title: str, every: Sequence[Row]) -> str:
    """It has no script: CSS hides what the filter leaves out."""
    words = Counter(row.word for row in every)
    hidden = [f'.claims:has([value="{word}"]:checked) .claim:not([data-verdict="{word}"]) {{ display: none; }}' for word in words]
    return page.render(
        "board",
        kind="nocap leaderboard",
        title=title,
        note=errors(every),
        hidden=Markup("\n".join(hidden)),
        first=first(every),
        words=words,
        rows=every,
        details=DETAILS,
        plots=plots(every),
        bare=[row.claim["statement"] for row in every if row.claim["measured"] is None],
    )


def plots(every: Sequence[Row]) -> list[tuple[str, Markup]]:
    """Title and picture of each unit's rows, in the rows' order."""
    units: dict[str, list[Row]] = {}
    for row in every:
        if row.claim["measured"] is not None:
            units.setdefault(_unit(row), []).append(row)
    return [(title, _plot(title, some)) for title, some in units.items()]


def _unit(row: Row) -> str:
    """What an axis counts, and which way is better. Rows of one unit share a plot."""
    of, scale = METRICS[row.claim["metric"]], Scale(row.claim["scale"])
    if scale is Scale.value:
        return of.title if of.unit in of.title else f"{of.title}, {of.unit}"
    if scale is Scale.difference:
        return f"{of.title}: {of.gain}, {of.unit}; right is better"
    fast = of.gain.startswith("faster") or of.gain == "less time"
    return "times as fast as the baseline; right is faster" if fast else "the baseline's use over the arm's; right is less"


def _plot(title: str, some: Sequence[Row]) -> Markup:
    of, scale = METRICS[some[0].claim["metric"]], Scale(some[0].claim["scale"])
    if scale is Scale.value:
        return forest.svg(list(map(_line, some)), title=title, tick=partial(amount, metric=of))
    return forest.svg(list(map(_line, some)), title=title, ratio=scale is Scale.ratio)


def _line(row: Row) -> forest.Line:
    claim, cells = row.claim, row.cells
    return forest.Line(
        label=f"{claim['arm']}, {METRICS[claim['metric']].title}",
        title=f"{claim['statement']}: {row.verdict}. Measured: {cells['measured']}. Expected: {expected(claim)}.",
        look=row.word,
        **claim["measured"],
        stated=claim["expected"],
        bound=claim["bound"],
    )
