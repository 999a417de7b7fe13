"""The pages of a board: `README.md` and `board.html`. They count the claims of each group by
themselves."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path
from urllib.parse import quote

from markupsafe import Markup

from nocap.report import html_page
from nocap.report.table import Column, Table
from nocap.study.board_sections import NOT_YET, UNSTUDIED, BoardSection, Planned, Unstudied, capital
from nocap.study.claim_cells import titles
from nocap.study.claim_plots import plots
from nocap.study.claim_row import PROJECT, STAND_IN, THERE, ClaimRow
from nocap.study.claim_words import expected, is_exact, is_known, measures

# fields of `ClaimCells`, for the README beside the statement
COLUMNS = ("expected", "figure", "short_verdict", "n", "shape_and_machine")
# fields of `ClaimCells`, for the page below the statement
DETAILS = (
    "expected",
    "bound",
    "guards",
    "verdict",
    "notes",
    "shapes",
    "machine_and_date",
    "command",
)
SUBJECT = "Claims about GPT training"  # what a board is about
FIRST_ROWS, LAST_ROWS = 8, 2  # that a reader sees first
ERROR = 0.05  # how often a verdict that rests on noise errs at the most
INTRO = (
    "Each row has what was expected and what was measured, with the 95% interval in brackets. The "
    "page of each study also has what arithmetic allows, the guards, the shapes, the notes and "
    "the command. `board.html` in this folder has all of this with forest plots. The command "
    "`python -m nocap.study --board {folder}` writes this file from each study's "
    "`results.*.json`. n counts pairs of runs, or sessions of timing. What was counted is *exact* "
    "and has no interval. A verdict holds only at the shape and on the machine of its row: a "
    "claim that was measured at two shapes, or on two machines, has two rows. A verdict is "
    "*exploratory* if something about its result was known when its claim was registered. *Equal "
    "quality not shown* means that the interval of a loss contains the margin by which the loss "
    "may be worse."
)


# --- README.md ------------------------------------------------------------------------------------


def markdown(about: str, parts: Sequence[BoardSection], *, folder: str) -> str:
    """Return the `README.md` of a board in a folder of this name."""
    lines = [f"# {title(parts)}", ""]
    intro = INTRO.format(folder=folder)
    for text in filter(None, (intro, about, errors(counted_rows(parts)))):
        lines += [*textwrap.wrap(text, width=138), ""]
    for part in parts:
        lines += _section(part)
    lines += _unstudied(_counted_entries(parts), "##")
    return "\n".join(lines)


def _section(part: BoardSection) -> list[str]:
    """Return a group's rows by what they are about, and the claims that are planned; of a group
    that is in no count also what no study measures."""
    if not (part.rows or part.planned or part.unstudied):
        return []
    lines = list[str]()
    level = "##"
    if part.group.whose and (part.rows or part.planned or not part.group.counted):
        lines += [f"## {part.title}", ""]
        level = "###"
    for about in (THERE, STAND_IN, PROJECT):
        some = [row for row in part.rows if row.about == about]
        if not some:
            continue
        if part.group.counted:
            lines += [f"{level} {len(some)} {about}", ""]
        lines += [*_measured(some).markdown(), ""]
    if part.planned:
        lines += [f"{level} {len(part.planned)} {NOT_YET}", ""]
        lines += [*_planned(part.planned).markdown(), ""]
    if not part.group.counted:
        lines += _unstudied(part.unstudied, level)
    return lines


def _measured(some: Sequence[ClaimRow]) -> Table:
    """Draw a row for each claim that was measured."""
    lines = list[list[object]]()
    for row in some:
        statement = _link(row.claim.statement, row.result.study.name)
        lines.append([statement, *(text or None for text in row.cells.texts(COLUMNS))])
    return _board(lines)


def _planned(plans: Sequence[Planned]) -> Table:
    """Draw a row for each claim that a study has and no result."""
    return _board([planned_cells(plan) for plan in plans])


def planned_cells(plan: Planned) -> list[object]:
    """Return the row of a planned claim: where it would be measured is a command."""
    claim = plan.claim
    study = plan.study
    statement = _link(claim.statement, study.name)
    word = NOT_YET
    note = study.notes.get(claim.id)
    if note:
        word += f": {note}"
    folder = f"{Path(study.folder).parent.name}/{study.name}"
    command = f"`python -m nocap.study {folder} scale={plan.scale}`"
    return [statement, f"{measures(claim)}: {expected(claim)}", None, word, None, command]


def _board(lines: Sequence[Sequence[object]]) -> Table:
    columns = [Column(title=title) for title in ("statement", *titles(COLUMNS))]
    return Table(title="", columns=columns, rows=lines)


def _link(statement: str, study: str) -> str:
    return f"[{statement}]({page_of(study)})"


def page_of(study: str) -> str:
    """Return where a study's page lies, from the board's."""
    return f"{quote(study, errors='replace')}/README.md"


def _unstudied(entries: Sequence[Unstudied], level: str) -> list[str]:
    """Return two tables: of the claims with an answer, and of those without one."""
    lines = list[str]()
    for column, heading in UNSTUDIED.items():
        some = [entry for entry in entries if getattr(entry, column)]
        if some:
            cells = [_entry(entry, column) for entry in some]
            columns = [Column(title=name) for name in cells[0]]
            table = Table(
                title=heading, columns=columns, rows=[list(row.values()) for row in cells]
            )
            lines += [f"{level} {heading}", "", *table.markdown(), ""]
    return lines


def _entry(entry: Unstudied, column: str) -> dict[str, object]:
    """Return what a table says of an entry. `column`: its key with a text."""
    return {
        "claim": entry.id,
        "statement": entry.statement,
        "source": entry.source or None,
        "expected": entry.expected,
        "arithmetic allows": entry.bound or None,
        column: getattr(entry, column),
    }


# --- board.html -----------------------------------------------------------------------------------


def html(about: str, parts: Sequence[BoardSection]) -> str:
    """Return the page. CSS hides the verdicts that the filter leaves out; a script finds words."""
    every = counted_rows(parts)
    of_all = list(chain(*(part.rows for part in parts)))
    words = Counter(row.word for row in every)
    hidden = list[str]()
    for word in words:
        chosen = f'.claims:has([value="{word}"]:checked)'
        own = f'[data-verdict="{word}"]'
        hidden.append(f"{chosen} .claim:not({own}) {{ display: none; }}")
        hidden.append(
            f"{chosen} .part:not(:has({own} > summary:not(.unfound))) {{ display: none; }}"
        )
    bare = [row.claim.statement for row in of_all if not is_known(row.claim_result.verdict.primary)]
    return html_page.render(
        "board",
        kind="nocap leaderboard",
        title=title(parts),
        found=found(parts),
        about=about,
        note=errors(every),
        stand_in=stand_in(every),
        hidden=Markup("\n".join(hidden)),
        first=first(every),
        words=words,
        sections=[part for part in parts if part.rows],
        details=DETAILS,
        page_of=page_of,
        plots=plots(of_all),
        bare=bare,
    )


def first(every: Sequence[ClaimRow]) -> list[ClaimRow]:
    """Return the rows for a quick reader: the first claim of each study, the first of these and the
    last."""
    firsts = {row.result.study.name: row for row in reversed(every)}
    shown = [row for row in every if firsts.get(row.result.study.name) is row]
    return [*shown[:-LAST_ROWS][:FIRST_ROWS], *shown[-LAST_ROWS:]]


# --- what both say --------------------------------------------------------------------------------


def title(parts: Sequence[BoardSection]) -> str:
    """Say what the claims are about; count each group by itself, and what no study measures."""
    counts = [part.headline for part in parts if part.group.counted and part.rows]
    entries = _counted_entries(parts)
    answered = sum(bool(entry.answer) for entry in entries)
    if answered:
        counts.append(f"{answered} more answered without a study")
    if len(entries) > answered:
        counts.append(f"{len(entries) - answered} not built")
    return f"{SUBJECT}: {'; '.join(counts)}"


def found(parts: Sequence[BoardSection]) -> str:
    """Say what was found of the claims of each group that is counted."""
    measured = [part.found for part in parts if part.group.counted and part.rows]
    return capital("; ".join(measured) or "no claim that is counted is measured yet")


def errors(every: Sequence[ClaimRow]) -> str:
    """Say how many false verdicts are to be expected."""
    noisy = sum(not is_exact(row.claim_result.verdict.primary) for row in every)
    return (
        f"{noisy} of the {len(every)} rows rest on measurements with noise. Expect at most "
        f"{ERROR * noisy:.1f} false verdicts among them. So many occur only if every true value "
        "lies at the edge of the stated range, and if the noise of each is as skewed as the rule "
        "for times allows."
    )


def stand_in(every: Sequence[ClaimRow]) -> str:
    """Say how many verdicts a CPU gave in place of another machine; nothing where none did."""
    n = sum(row.about == STAND_IN for row in every)
    if not n:
        return ""
    return f"{n} of these {len(every)} verdicts were measured {STAND_IN}"


def counted_rows(parts: Iterable[BoardSection]) -> list[ClaimRow]:
    """Return the rows of the groups that are counted."""
    return list(chain(*(part.rows for part in parts if part.group.counted)))


def _counted_entries(parts: Iterable[BoardSection]) -> list[Unstudied]:
    """Return the claims of these groups that no study measures."""
    return list(chain(*(part.unstudied for part in parts if part.group.counted)))
