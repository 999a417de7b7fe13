"""The board's rows: a claim of some results with all that a reader must know beside its verdict, and how the rows are counted."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from nocap.judge.claim import Threshold
from nocap.study import place, text, wording
from nocap.study.spec import Study
from nocap.study.wording import Json

WORDS = ("confirmed", "equivalent", "refuted", "inconclusive")
ALPHA = 0.05  # of a claim in results that do not say
ANYWHERE = ("params", "kv_bytes", "part_params")  # counts that no machine changes; so are the bytes held of these parts:
HELD_ANYWHERE = {"parameters", "gradients", "optimizer"}


class Standing(Enum):
    """What a row says about its claim: the sections of the board, each with its count."""

    there = "on the machine they are about, or counted on any"
    stand_in = "on a CPU in place of the GPU or the larger model they are about"
    project = "by this project's own thresholds"
    withdrawn = "in comparisons that were not fair, withdrawn"


@dataclass(frozen=True, kw_only=True)
class Row:
    """A claim at one scale on one machine. `study`: as its folder has it now, or none."""

    one: Json
    claim: Json
    study: Study | None
    elsewhere: list[str] = field(default_factory=list)  # verdicts of the same claim at other shapes that differ

    def _declared(self, name: str, default: Any) -> Any:
        """As the results have it; in older ones as the study has it now."""
        now = next((claim for claim in self.study.claims if claim.id == self.claim["id"]), None) if self.study else None
        return self.claim.get(name, getattr(now, name, default))

    @property
    def standing(self) -> Standing:
        if self.study and self.claim["id"] in self.study.withdrawn:
            return Standing.withdrawn
        if Threshold(self._declared("threshold", Threshold.source)) is Threshold.project:
            return Standing.project
        name, parts = self.claim["metric"], self.claim["parts"]
        anywhere = name in ANYWHERE or (name == "held_mib" and HELD_ANYWHERE.issuperset(parts))
        on_cpu = self.one["hardware"].get("device", "cpu") == "cpu"
        return Standing.stand_in if self.one["speaks_for"] and on_cpu and not anywhere else Standing.there

    @property
    def alpha(self) -> float:
        """Chance of a false verdict at the most; none where there is no noise."""
        return 0.0 if wording.is_exact(self.claim) else float(self._declared("alpha", ALPHA))

    @property
    def at(self) -> str:
        return place.short(self.one, self.claim)

    @property
    def where(self) -> str:
        return place.where(self.one, self.claim)

    @property
    def word(self) -> str:
        return str(self.claim["word"])

    @property
    def verdict(self) -> str:
        """`refuted at 1 × 512 tokens, CPU: less than stated`."""
        return text.verdict(self.claim, at=self.at)

    @property
    def measured(self) -> str:
        return wording.measured(self.claim) + ("" if wording.is_exact(self.claim) else f", {wording.pairs(self.claim)}")

    @property
    def caution(self) -> str:
        """What is wrong with the row, or what its author says of it."""
        known: list[Mapping[str, str]] = [self.study.withdrawn, self.study.notes] if self.study else []
        return "; ".join(about[self.claim["id"]] for about in known if self.claim["id"] in about)

    @property
    def notes(self) -> list[str]:
        claim = self.claim
        return [
            *([f"depends on shape: {', '.join(self.elsewhere)}"] if self.elsewhere else []),
            *([text.BEYOND] if claim["beyond_bound"] else []),
            *([self.caution] if self.caution else []),
            *text.stamps(claim),
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


def _differing(row: Row, every: Sequence[Row]) -> list[str]:
    same = [other for other in every if other.claim["id"] == row.claim["id"] and other.where != row.where]
    return [f"{other.word} at {other.at}" for other in same if other.word != row.word]


def sections(every: Sequence[Row]) -> dict[Standing, list[Row]]:
    found = {standing: [row for row in every if row.standing is standing] for standing in Standing}
    return {standing: some for standing, some in found.items() if some}


def headline(every: Sequence[Row]) -> str:
    """`12 confirmed, 3 refuted on the machine they are about; 7 confirmed on a CPU in place of …`."""
    return "; ".join(f"{counted(some)} {standing.value}" for standing, some in sections(every).items())


def counted(some: Iterable[Row]) -> str:
    """`12 confirmed, 3 refuted`."""
    words = [row.word for row in some]
    return ", ".join(f"{words.count(word)} {word}" for word in WORDS if word in words)


def errors(every: Sequence[Row]) -> str:
    """How many false verdicts are to be expected."""
    noisy = [row for row in every if row.alpha]
    return (
        f"{len(noisy)} of the {len(every)} rows rest on measurements with noise. Up to {sum(row.alpha for row in noisy):.1f} false "
        "verdicts are to be expected among them: the sum of their error levels, reached if every true value lay at the edge of what is "
        "stated. Where the noise of three pairs is skewed, or their sessions are alike, it can be more."
    )
