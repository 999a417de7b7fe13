"""The counts of simulated studies as Markdown, and into a README."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from counting import bar_lines

from nocap.config.bounded import read_text
from nocap.config.keys import require
from nocap.show.table import NONE, markdown
from nocap.store.files import write_file

START, END = "<!-- table: written by simulated.py -->", "<!-- end of table -->"
HEAD = (
    *("measured", "noise", "confirmed falsely", "refuted falsely", "3σ confirmed", "interval holds the truth"),
    *("confirmed falsely by a t-test", "pairs with looks"),
)


def _percent(found: Mapping[str, float] | None) -> str:
    return NONE if found is None else f"{found['share']:.1%}"


def table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """A row for each design and noise; in a cell the share with 3, 4 and 6 pairs, and with looks at 3, 6 and 9."""
    cells = []
    for design, noise in dict.fromkeys((one["design"], one["noise"]) for one in rows):
        of = [one for one in rows if (one["design"], one["noise"]) == (design, noise)]
        figures = [" / ".join(_percent(one[key]) for one in of) for key in ("confirmed", "refuted", "found", "covered")]
        figures.append(" / ".join(f"{one['t_test']['confirmed']:.1%}" for one in of))
        pairs = "{no effect:.1f}, at 3σ {planted:.1f}".format(**of[-1]["pairs"]) if len(of[-1]["looks"]) > 1 else NONE
        cells.append([design, noise + (" (beyond)" if of[0]["beyond"] else ""), *figures, pairs])
    return markdown(HEAD, cells)


def growing_table(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    head = ("claimed gain", "true gain", "looks: mean pairs", "confirmed", "refuted", "fixed: pairs", "confirmed", "refuted")
    cells = []
    for one in rows:
        grown, fixed = ([_percent(one["words"][word][how]) for word in ("confirmed", "refuted")] for how in ("grown", "fixed"))
        true = ("none", f"{one['effect']:.2f}σ, planned", f"{one['effect']:.2f}σ")[one["times"]]
        claimed = f"at least {one['low']:.2f}σ" if one["low"] else "any"
        cells.append([claimed, true, f"{one['pairs']:.1f}", *grown, str(one["fixed"]), *fixed])
    return markdown(head, cells)


def worst(result: Mapping[str, Any]) -> list[str]:
    """Of each bar its worst row: a hundred of them say little."""
    lines = []
    for one in result["bars"]:
        key = max if "at most" in one["wanted"] else min
        lines.append({**one, "found": [key(one["found"], key=lambda found: found["share"])]})
    return [f"{line.rpartition(': ')[0]} at the worst: {line.rpartition(': ')[2]}" for line in bar_lines(lines)]


def render(result: Mapping[str, Any]) -> str:
    """The bars and the tables, as Markdown."""
    lines = [*(f"* {line}" for line in worst(result)), "", *table(result["rows"]), "", *growing_table(result["growing"])]
    return "\n".join([*lines, "", f"{result['studies']} simulated studies a row; random seed {result['seed']}."])


def around(readme: Path) -> tuple[str, str]:
    """What is before the first mark and after the second.

    Errors:
        ValueError: the file has none.
    """
    before, start, rest = read_text(readme).partition(START)
    _, end, after = rest.partition(END)
    require(bool(start and end), "--readme", f"be a file with {START} and {END}", readme)
    return before, after


def write_table(readme: Path, text: str) -> None:
    """Between the marks."""
    before, after = around(readme)
    write_file(readme, f"{before}{START}\n\n{text}\n\n{END}{after}".encode())
