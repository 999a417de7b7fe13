"""What a board knows: the claims of a folder of studies, in the groups of its `board.yaml`, which
says whose claims these are. A group has the claims that were measured, those that a study plans,
and those that no study measures, which `not_built.yaml` lists."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from nocap.config.keys import check_keys, require
from nocap.config.plain import dataclass_from
from nocap.config.untrusted_files import parse_yaml, read_text
from nocap.display import plural
from nocap.judge.claim import Claim
from nocap.judge.verdict import ClaimWord
from nocap.study.claim_row import ClaimRow, counted, rows
from nocap.study.spec import Study, select_claims
from nocap.study.study_result import StudyResult

T = TypeVar("T")
BOARD = "board.yaml"  # whose claims a board counts apart
NOT_BUILT = "not_built.yaml"  # claims that no study measures
NOT_YET = "not measured yet"
# of `not_built.yaml`: key of an entry → heading of those that have it
UNSTUDIED = {"answer": "Answered without a study", "why": "Not built, or nothing to measure"}


@dataclass(kw_only=True, slots=True)
class BoardConfig:
    """The keys of `board.yaml`."""

    about: str = ""  # what a reader should know of all rows
    groups: list[Group] = field(default_factory=lambda: [Group(sources=[""])])


@dataclass(kw_only=True, slots=True)
class Group:
    """Claims that a board counts by themselves."""

    whose: str = ""  # in its title and before their number: "the notes'"
    # how their sources begin; where those of two groups fit, the longer one decides
    sources: list[str] = field(default_factory=list)
    counted: bool = True  # false: the rows are shown, and are in no count


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
    def scale(self) -> str:
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
        return capital(self.group.whose or "all claims")

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
            return f"of {whose} claims, none is decided"
        return f"of {whose} decided claims, {_most(held, refuted)}"

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


def capital(text: str) -> str:
    return text[:1].upper() + text[1:]


# --- the claims of a folder -----------------------------------------------------------------------


def sections(
    folder: Path, every: Sequence[StudyResult], studies: Mapping[str, Study]
) -> tuple[str, list[BoardSection]]:
    """Return what a reader should know of a folder's claims, and what there is of each group, the
    groups that are counted first.

    Errors:
        ValueError: a wrong `board.yaml` or `not_built.yaml`, or a claim whose source no group of
            `board.yaml` has.
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


def _group(claim: str, source: str, config: BoardConfig, folder: Path) -> int:
    """Return the number of a claim's group in the list of groups, by how its source begins."""
    numbers = dict[str, int]()
    for number, group in enumerate(config.groups):
        numbers |= dict.fromkeys(group.sources, number)
    fitting = [begin for begin in numbers if source.startswith(begin)]
    rule = f"begin with one of the sources in {folder / BOARD} ({', '.join(numbers)})"
    require(bool(fitting), f"claim {claim}: source", rule, source)
    return numbers[max(fitting, key=len)]


# --- board.yaml and not_built.yaml ----------------------------------------------------------------


def _config(path: Path) -> BoardConfig:
    """Return what `board.yaml` holds, or its defaults where there is none.

    Errors:
        ValueError: a wrong key or value.
    """
    plain = _read(path)
    rule = f"hold keys and values (possible keys: {', '.join(BoardConfig.__dataclass_fields__)})"
    require(plain is None or isinstance(plain, dict), str(path), rule, plain)
    config: BoardConfig = _make(BoardConfig, plain or {}, path)
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
        require(isinstance(plain, dict), f"{path}: entry [{i}]", "hold keys and values", plain)
        entry: Unstudied = _make(Unstudied, plain, path, f"[{i}].")
        keys = [key for key in UNSTUDIED if getattr(entry, key)]
        rule = "have either the key answer or the key why"
        require(len(keys) == 1, f"{path}: claim {entry.id}", rule, " and ".join(keys) or "neither")
        entries.append(entry)
    return entries


def _read(path: Path) -> Any:
    return parse_yaml(read_text(path)) if path.exists() else None


def _make(schema: type[T], plain: Mapping[str, object], path: Path, prefix: str = "") -> T:
    """Return a part of a file, checked, with the file's name before what is wrong in it."""
    try:
        part: T = dataclass_from(schema, plain, prefix)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return part
