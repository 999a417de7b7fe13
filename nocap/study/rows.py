"""The board's rows: a claim of some results with all that a reader must know beside its verdict, and how the rows are counted."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from nocap.judge.claim import Threshold
from nocap.store.metrics import METRICS
from nocap.study import wording
from nocap.study.spec import Study
from nocap.study.wording import Json

WORDS = ("confirmed", "exceeded", "refuted", "inconclusive")
NAME = 27  # letters of a name beside a plot
FIRST_ROWS, LAST_ROWS = 8, 2  # that a reader sees first
ERROR = 0.05  # how often a verdict that rests on noise errs at the most
ANYWHERE = ("params", "kv_bytes", "part_params")  # counts that no machine changes; so are the bytes held of these parts:
HELD_ANYWHERE = {"parameters", "gradients", "optimizer"}


class Standing(Enum):
    """What a row says about its claim: the sections of the board, each with its count."""

    there = "on the machine they are about, or counted on any"
    stand_in = "on a CPU in place of the GPU or the larger model they are about"
    project = "by this project's own thresholds"


@dataclass(frozen=True, kw_only=True)
class Row:
    """A claim at one scale on one machine. `study`: as its folder has it now, or none."""

    one: Json
    claim: Json
    study: Study | None
    elsewhere: list[str] = field(default_factory=list)  # verdicts of the same claim at other shapes that differ

    @property
    def standing(self) -> Standing:
        if self.claim["threshold"] == Threshold.project.value:
            return Standing.project
        name, parts = self.claim["metric"], self.claim["parts"]
        anywhere = name in ANYWHERE or (name == "held_mib" and HELD_ANYWHERE.issuperset(parts))
        on_cpu = self.one["hardware"].get("device", "cpu") == "cpu"
        return Standing.stand_in if self.one["speaks_for"] and on_cpu and not anywhere else Standing.there

    @property
    def name(self) -> str:
        """`gqa, tokens/s`, as short as a plot needs it."""
        name = f"{self.claim['arm']}, {METRICS[self.claim['metric']].title}"
        return name if len(name) <= NAME else f"{name[: NAME - 1]}…"

    @property
    def at(self) -> str:
        return wording.short(self.one, self.claim)

    @property
    def where(self) -> str:
        return wording.where(self.claim)

    @property
    def word(self) -> str:
        return str(self.claim["word"])

    @property
    def verdict(self) -> str:
        """`refuted at 1 × 512 tokens, CPU: less than stated`."""
        return wording.verdict(self.claim, at=self.at)

    @property
    def measured(self) -> str:
        return wording.measured(self.claim) + ("" if wording.is_exact(self.claim) else f", {wording.pairs(self.claim)}")

    @property
    def caution(self) -> str:
        """What its author says of the row."""
        return self.study.notes.get(self.claim["id"], "") if self.study else ""

    @property
    def notes(self) -> list[str]:
        claim = self.claim
        return [
            *([f"depends on shape: {', '.join(self.elsewhere)}"] if self.elsewhere else []),
            *([wording.BEYOND] if claim["beyond_bound"] else []),
            *([self.caution] if self.caution else []),
            *wording.stamps(claim),
        ]


# --- all of them -------------------------------------------------------------------------------------------------------------------


def rows(every: Iterable[Json], studies: Mapping[str, Study]) -> list[Row]:
    """Every claim of these results, in their order."""
    found = [Row(one=one, claim=claim, study=studies.get(str(one["study"]))) for one in every for claim in one["claims"]]
    return [replace(row, elsewhere=_differing(row, found)) for row in found]


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


def _differing(row: Row, every: Sequence[Row]) -> list[str]:
    same = [other for other in every if other.claim["id"] == row.claim["id"] and other.where != row.where]
    return [f"{other.word} at {other.at}" for other in same if other.word != row.word]


def sections(every: Sequence[Row]) -> dict[Standing, list[Row]]:
    found = {standing: [row for row in every if row.standing is standing] for standing in Standing}
    return {standing: some for standing, some in found.items() if some}


def counted(some: Iterable[Row]) -> str:
    """`12 confirmed, 3 refuted`."""
    words = [row.word for row in some]
    return ", ".join(f"{words.count(word)} {word}" for word in WORDS if word in words)


def errors(every: Sequence[Row]) -> str:
    """How many false verdicts are to be expected."""
    noisy = sum(not wording.is_exact(row.claim) for row in every)
    return (
        f"{noisy} of the {len(every)} rows rest on measurements with noise. Up to {ERROR * noisy:.1f} false verdicts are to be expected "
        "among them: reached if every true value lay at the edge of what is stated and the noise were as skewed as the rule allows for."
    )
