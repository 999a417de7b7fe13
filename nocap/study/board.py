"""The leaderboard of a folder of studies, a row a claim, as Markdown and as a page. It counts the
claims of each group by themselves: whose claims these are, its `board.yaml` says."""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from markupsafe import Markup

from nocap.config.bounded import parse_yaml, read_text
from nocap.config.keys import check_keys, require
from nocap.config.plain import made
from nocap.display import plural
from nocap.judge.claim import Claim
from nocap.judge.verdict import ClaimWord
from nocap.report import html_page
from nocap.report.table import Column, Table, tame
from nocap.study.claim_row import (
    PROJECT,
    STAND_IN,
    THERE,
    ClaimRow,
    counted,
    expected,
    is_exact,
    is_known,
    measures,
    rows,
)
from nocap.study.spec import Study, select_claims
from nocap.study.study_folder import FILE, load_study
from nocap.study.study_pages import all_results, files, plots, write_all
from nocap.study.study_result import StudyResult

T = TypeVar("T")
BOARD = "board.yaml"  # whose claims a board counts apart
NOT_BUILT = "not_built.yaml"  # claims that no study measures
# of the README, beside the statement: title → what a row has there
COLUMNS = {
    "expected": "expected",
    "measured": "figure",
    "verdict": "short verdict",
    "n": "n",
    "where": "place",
}
DETAILS = (
    "expected",
    "arithmetic allows",
    "guards",
    "verdict",
    "notes",
    "where",
    "machine, date",
    "command",
)
NOT_YET = "not measured yet"
SUBJECT = "Claims about GPT training"  # what a board is about
# of `not_built.yaml`: key of an entry → heading of those that have it
UNSTUDIED = {"answer": "Answered without a study", "why": "Not built, or nothing to measure"}
FIRST_ROWS, LAST_ROWS = 8, 2  # that a reader sees first
ERROR = 0.05  # how often a verdict that rests on noise errs at the most
INTRO = (
    "What was expected and what was measured, with its 95% interval in brackets. The page of each "
    "study has what arithmetic allows, the guards, the shapes, the notes and the command; "
    "`board.html` beside this file has all of it with forest plots. "
    "Written by `python -m nocap.study --board experiments` from each study's "
    "`results.*.json`. n counts pairs of runs, or sessions of timing; what was counted is *exact* "
    "and has no interval. A verdict holds at the shape and on the machine of its row: a claim that "
    "was measured at two shapes, or on two machines, has two rows. A verdict is *exploratory* "
    "where something was known when its claim was registered. *Equal quality not shown*: the "
    "interval of a loss holds the margin that it may be worse by."
)


@dataclass(kw_only=True, slots=True)
class Group:
    """Claims that a board counts by themselves."""

    whose: str = ""  # in its title and before their number: "the notes'"
    # how their sources begin; where those of two groups fit, the longer one decides
    sources: list[str] = field(default_factory=list)
    counted: bool = True  # false: the rows are shown, and are in no count


@dataclass(kw_only=True, slots=True)
class Board:
    """The keys of `board.yaml`."""

    about: str = ""  # what a reader should know of all rows
    groups: list[Group] = field(default_factory=lambda: [Group(sources=[""])])


@dataclass(kw_only=True, slots=True)
class Unstudied:
    """A claim that no study measures: an entry of `not_built.yaml`."""

    id: str
    statement: str
    expected: str
    source: str = ""
    bound: str = ""  # what arithmetic allows
    answer: str = ""  # what is known without a study; "": nothing
    why: str = ""  # there is no answer


@dataclass(frozen=True, kw_only=True, slots=True)
class Planned:
    """A claim that a study has, and that none of its results has."""

    study: Study
    claim: Claim

    @property
    def cells(self) -> list[object]:
        """Return its row of the README: where it would be measured is a command."""
        claim = self.claim
        study = self.study
        statement = _link(claim.statement, study.name)
        word = NOT_YET
        note = study.notes.get(claim.id)
        if note:
            word += f": {note}"
        folder = f"{Path(study.folder).parent.name}/{study.name}"
        command = f"`python -m nocap.study {folder} scale={self._scale()}`"
        return [statement, f"{measures(claim)}: {expected(claim)}", None, word, None, command]

    def _scale(self) -> str:
        """Return the first scale of the study that the claim is asked at."""
        scales = self.study.scales
        return next(name for name in scales if self.claim in select_claims(self.study, name).claims)


@dataclass(frozen=True, kw_only=True, slots=True)
class BoardSection:
    """What a board has of a group."""

    group: Group
    rows: list[ClaimRow]
    planned: list[Planned]
    unstudied: list[Unstudied]

    @property
    def name(self) -> str:
        """Return `The notes'`, of a board without groups `All claims`."""
        return _capital(self.group.whose or "all claims")

    @property
    def headline(self) -> str:
        """Return `of the notes' 16 confirmed, 31 refuted`; of a board without groups `16 confirmed`
        alone."""
        whose = f"of {self.group.whose} " if self.group.whose else ""
        return f"{whose}{counted(self.rows)}"

    @property
    def found(self) -> str:
        """Return `of the notes' decided claims most were refuted`."""
        whose = self.group.whose or "the"
        times = Counter(row.word for row in self.rows)
        held = times[ClaimWord.confirmed.value] + times[ClaimWord.exceeded.value]
        refuted = times[ClaimWord.refuted.value]
        if not held and not refuted:
            return f"of {whose} claims none is decided"
        return f"of {whose} decided claims {_most(held, refuted)}"

    @property
    def title(self) -> str:
        """Return `The notes' 79 claims, 82 verdicts: 16 confirmed, 31 refuted, 1 not measured yet`.

        Of a group that is not counted it is the name alone, of a board without groups `all claims`.
        """
        whose = self.group.whose
        if not whose or not self.group.counted:
            return self.name
        measured = {(row.result.study.name, row.claim.id) for row in self.rows}
        n = len(measured) + len(self.planned)
        title = f"{self.name} {plural(n, 'claim')}"
        if n != len(self.rows):
            title += f", {plural(len(self.rows), 'verdict')}"
        counts = list[str]()
        if self.rows:
            counts.append(counted(self.rows))
        if self.planned:
            counts.append(f"{len(self.planned)} {NOT_YET}")
        return f"{title}: {', '.join(counts)}"


def _most(held: int, refuted: int) -> str:
    """Say in words which of the two is more."""
    if not refuted:
        return "all held"
    if not held:
        return "all were refuted"
    if held == refuted:
        return "as many held as were refuted"
    if held > refuted:
        return "most held"
    return "most were refuted"


# --- what there is --------------------------------------------------------------------------------


def write(folder: Path) -> list[Path]:
    """Write `README.md` and `board.html` in the folder, and `README.md` in each study's; return
    their paths.

    Errors:
        ValueError: a folder without any study's results, results that were changed, a wrong
            `board.yaml` or `not_built.yaml`, or a claim whose source no group of `board.yaml` has.
    """
    return write_all(board(folder))


def board(folder: Path) -> dict[Path, str]:
    """Return all that `write` writes, from the results that are there."""
    studies, results = read_studies(folder)
    return files_of(folder, studies, results)


def read_studies(folder: Path) -> tuple[dict[str, Study], dict[str, list[StudyResult]]]:
    """Return the studies of a folder, and the results of each.

    Errors:
        ValueError: no results, or some whose study is not beside them, or that were changed.
    """
    folders = list[Path]()
    if folder.is_dir():
        folders = [home for home in sorted(folder.iterdir()) if home.is_dir()]
    studies = {home.name: load_study(home) for home in folders if (home / FILE).exists()}
    for home in folders:
        for path in home.glob("results.*.*.json"):
            require(
                home.name in studies,
                str(path),
                f"lie in the folder of its study, with {FILE}",
                "none",
            )
    results = {name: all_results(study, folder / name) for name, study in studies.items()}
    rule = "be a folder of studies that were carried out, as experiments"
    require(any(results.values()), "--board", rule, folder)
    return studies, results


def hash_problems(every: Iterable[StudyResult]) -> Iterator[str]:
    """Name the results whose claims are known by their stored hashes alone."""
    for result in every:
        if result.hash_problem:
            name = f"{result.study.name}, scale {result.scale}"
            yield (
                f"{name}: claims keep their stored hashes, no arm is composed here: "
                f"{result.hash_problem}"
            )


def files_of(
    folder: Path, studies: Mapping[str, Study], results: Mapping[str, list[StudyResult]]
) -> dict[Path, str]:
    """Return the board's files and those of each study, by their paths."""
    every = list(chain(*results.values()))
    about, parts = sections(folder, every, studies)
    contents = {folder / "README.md": tame(markdown(about, parts))}
    contents[folder / "board.html"] = html(about, parts)
    for name, study in studies.items():
        if results[name]:
            contents |= files(study, folder / name, results[name])
    return contents


def sections(
    folder: Path, every: Sequence[StudyResult], studies: Mapping[str, Study]
) -> tuple[str, list[BoardSection]]:
    """Return what a reader should know of a folder's claims, and what there is of each group, the
    groups that are counted first.

    Errors:
        ValueError: as for `write`.
    """
    config = _config(folder / BOARD)
    entries = unstudied(folder / NOT_BUILT)
    shown = in_order(rows(every))
    parts = [
        BoardSection(group=group, rows=[], planned=[], unstudied=[]) for group in config.groups
    ]

    def of(claim: str, source: str) -> BoardSection:
        return parts[_group(claim, source, config, folder)]

    for row in shown:
        of(row.claim.id, row.claim.source).rows.append(row)
    for plan in planned(every, studies):
        of(plan.claim.id, plan.claim.source).planned.append(plan)
    for entry in entries:
        of(entry.id, entry.source).unstudied.append(entry)
    parts.sort(key=lambda section: not section.group.counted)
    return config.about.strip(), parts


def _config(path: Path) -> Board:
    """Return what `board.yaml` holds, or its defaults where there is none.

    Errors:
        ValueError: a wrong key or value.
    """
    plain = _read(path)
    rule = f"hold keys and values: {', '.join(Board.__dataclass_fields__)}"
    require(plain is None or isinstance(plain, dict), str(path), rule, plain)
    config: Board = _make(Board, plain or {}, path)
    for group in config.groups:
        check_keys("groups", group)
    return config


def unstudied(path: Path) -> list[Unstudied]:
    """Return the claims that no study measures, as the file lists them; where there is no file,
    none.

    Errors:
        ValueError: a wrong key or type, or an entry with an answer and a reason for none, or with
            neither.
    """
    listed = _read(path) or []
    require(isinstance(listed, list), str(path), "be a list of claims", type(listed).__name__)
    entries = list[Unstudied]()
    for i, plain in enumerate(listed):
        require(isinstance(plain, dict), f"{path}: [{i}]", "hold keys and values", plain)
        entry: Unstudied = _make(Unstudied, plain, path, f"[{i}].")
        keys = [key for key in UNSTUDIED if getattr(entry, key)]
        rule = "have either answer or why"
        require(len(keys) == 1, f"{path}: claim {entry.id}", rule, " and ".join(keys) or "neither")
        entries.append(entry)
    return entries


def _read(path: Path) -> Any:
    return parse_yaml(read_text(path)) if path.exists() else None


def _make(schema: type[T], plain: Mapping[str, object], path: Path, prefix: str = "") -> T:
    """Return a part of a file, checked, with the file's name before what is wrong in it."""
    try:
        part: T = made(schema, plain, prefix)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return part


def planned(every: Iterable[StudyResult], studies: Mapping[str, Study]) -> list[Planned]:
    """Return the claims that a study asks, and that no results of it answer, study by study."""
    answered = {
        (result.study.name, claim_result.claim.id)
        for result in every
        for claim_result in result.claims
    }
    plans = list[Planned]()
    for name, study in studies.items():
        for claim in study.claims:
            if (name, claim.id) not in answered:
                plans.append(Planned(study=study, claim=claim))
    return plans


def _group(claim: str, source: str, config: Board, folder: Path) -> int:
    """Return the number of a claim's group in the list of groups, by how its source begins."""
    numbers = dict[str, int]()
    for number, group in enumerate(config.groups):
        numbers |= dict.fromkeys(group.sources, number)
    fitting = [begin for begin in numbers if source.startswith(begin)]
    rule = f"begin with one of {folder / BOARD}: {', '.join(numbers)}"
    require(bool(fitting), f"claim {claim}: source", rule, source)
    return numbers[max(fitting, key=len)]


def in_order(some: Iterable[ClaimRow]) -> list[ClaimRow]:
    """Sort the rows: A2 before A10, and what begins alike as it was."""
    return sorted(some, key=_by_number)


def _by_number(row: ClaimRow) -> list[int | str]:
    """Return what sorts a claim, its numbers as numbers."""
    begin, _, _ = row.claim.id.partition(".")
    words = list[int | str]()
    for word in re.split(r"(\d+)", begin):
        words.append(int(word) if word.isdigit() else word)
    return words


def first(every: Sequence[ClaimRow]) -> list[ClaimRow]:
    """Return the rows for a quick reader: the first claim of each study, the first of these and the
    last."""
    firsts = {row.result.study.name: row for row in reversed(every)}
    shown = [row for row in every if firsts.get(row.result.study.name) is row]
    return [*shown[:-LAST_ROWS][:FIRST_ROWS], *shown[-LAST_ROWS:]]


# --- what it says ---------------------------------------------------------------------------------


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
    return _capital("; ".join(measured) or "no claim that is counted is measured yet")


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def counted_rows(parts: Iterable[BoardSection]) -> list[ClaimRow]:
    """Return the rows of the groups that are counted."""
    return list(chain(*(part.rows for part in parts if part.group.counted)))


def _counted_entries(parts: Iterable[BoardSection]) -> list[Unstudied]:
    """Return the claims of these groups that no study measures."""
    return list(chain(*(part.unstudied for part in parts if part.group.counted)))


def errors(every: Sequence[ClaimRow]) -> str:
    """Say how many false verdicts are to be expected."""
    noisy = sum(not is_exact(row.claim_result.verdict.primary) for row in every)
    return (
        f"{noisy} of the {len(every)} rows rest on measurements with noise. Up to "
        f"{ERROR * noisy:.1f} false verdicts are to be expected "
        "among them: reached if every true value lay at the edge of what is stated and the "
        "noise of each were as skewed as the rule for clocks allows for."
    )


def markdown(about: str, parts: Sequence[BoardSection]) -> str:
    """Return the board's `README.md`."""
    lines = [f"# {title(parts)}", ""]
    for text in filter(None, (INTRO, about, errors(counted_rows(parts)))):
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
        lines.append([statement, *(row.cells[key] or None for key in COLUMNS.values())])
    return _board(lines)


def _planned(plans: Sequence[Planned]) -> Table:
    """Draw a row for each claim that a study has and no result."""
    return _board([plan.cells for plan in plans])


def _board(lines: Sequence[Sequence[object]]) -> Table:
    titles = ["statement", *COLUMNS]
    return Table(title="", columns=[Column(title=title) for title in titles], rows=lines)


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


def _link(statement: str, study: str) -> str:
    return f"[{statement}]({page_of(study)})"


def page_of(study: str) -> str:
    """Return where a study's page lies, from the board's."""
    return f"{quote(study, errors='replace')}/README.md"


def html(about: str, parts: Sequence[BoardSection]) -> str:
    """Return the page. CSS hides the verdicts that the filter leaves out; a script finds words."""
    every = counted_rows(parts)
    of_all = list(chain(*(part.rows for part in parts)))
    words = Counter(row.word for row in every)
    hidden = list[str]()
    for word in words:
        rule = f'.claims:has([value="{word}"]:checked) .claim:not([data-verdict="{word}"])'
        hidden.append(f"{rule} {{ display: none; }}")
    bare = [row.claim.statement for row in of_all if not is_known(row.claim_result.verdict.primary)]
    return html_page.render(
        "board",
        kind="nocap leaderboard",
        title=title(parts),
        found=found(parts),
        about=about,
        note=errors(every),
        hidden=Markup("\n".join(hidden)),
        first=first(every),
        words=words,
        sections=[part for part in parts if part.rows],
        details=DETAILS,
        page_of=page_of,
        plots=plots(of_all),
        bare=bare,
    )
