"""A comparison as a page in Markdown, for a pull request or a README: the tables of the terminal,
and what should be doubted."""

from __future__ import annotations

from collections.abc import Iterator

from nocap.judge.comparison import Comparison
from nocap.report import comparison_tables, headline
from nocap.report.table import Table, one_line, tame


def page(comparison: Comparison, *, judge: str, command: str) -> str:
    """Return the page. `judge` says which nocap judged, `command` what was typed. Nothing that
    people named runs where the page is shown."""
    lines = [f"# {one_line(headline.headline(comparison))}", ""]
    lines += [f"* {one_line(line)}" for line in headline.compared(comparison)]
    lines += [f"* {headline.next_step(comparison)}", ""]
    for table in comparison_tables.all_tables(comparison):
        lines += _section(table)
    lines += ["## Reasons for doubt", ""]
    lines += [f"* {one_line(doubt)}" for doubt in _doubts(comparison)]
    lines += ["", f"## How it was judged: {judge}", ""]
    lines += ["Exploratory: nothing was registered before the runs.", ""]
    lines += ["```sh", one_line(command), "```", ""]
    return tame("\n".join(lines))


def _section(table: Table) -> list[str]:
    lines = [f"## {table.title}", "", *table.known.markdown(), ""]
    for note in table.notes:
        lines += [note, ""]
    return lines


def _doubts(comparison: Comparison) -> Iterator[str]:
    yield from comparison.problems
    yield from (f"not compared: {name} ({status})" for name, status in comparison.not_compared)
    if not comparison.problems and not comparison.not_compared:
        yield "nocap found no reason for doubt"
