"""The words of a verdict as a page shows them: a mark that nobody needs a colour for, a name, and
what it means to somebody who has never seen one."""

from __future__ import annotations

from dataclasses import dataclass

from nocap.judge.differences import DifferenceWord
from nocap.judge.verdict import ClaimWord


@dataclass(frozen=True, kw_only=True, slots=True)
class Meaning:
    """A word of a comparison."""

    mark: str
    name: str
    text: str


OUTCOMES: dict[DifferenceWord, Meaning] = {}  # in the page's order
CLAIMS = {
    ClaimWord.confirmed: "✓",
    ClaimWord.exceeded: "↑",
    ClaimWord.refuted: "✕",
    ClaimWord.inconclusive: "○",
}


def _define(outcome: DifferenceWord, mark: str, name: str, text: str) -> None:
    OUTCOMES[outcome] = Meaning(mark=mark, name=name, text=text)


_define(
    DifferenceWord.better,
    "✓",
    "Better",
    "the loss is lower than the other arm's, by more than seeds explain",
)
_define(
    DifferenceWord.worse,
    "✕",
    "Worse",
    "the loss is higher than the other arm's, by more than seeds explain",
)
_define(
    DifferenceWord.unclear,
    "○",
    "No difference shown",
    "the seeds cannot tell them apart; that does not make them equal",
)
_define(
    DifferenceWord.depends,
    "±",
    "Depends",
    "the sign of the difference changes with another key",
)
_define(
    DifferenceWord.undecided,
    "?",
    "No verdict",
    "too few seeds finished to tell a change from luck",
)
_define(
    DifferenceWord.diverged,
    "∞",
    "Diverged",
    "the loss of a seed ran away; a mean over the others flatters",
)
_define(
    DifferenceWord.unfinished,
    "…",
    "Unfinished",
    "a command asked for more seeds than are there",
)
_define(
    DifferenceWord.confounded,
    "!",
    "Confounded",
    "something else differs too, so the difference cannot be put down to the change",
)


def by_name() -> dict[str, str]:
    """Return the mark of each word, by the name that cells and style classes have."""
    marks = {outcome.name: meaning.mark for outcome, meaning in OUTCOMES.items()}
    return marks | {word.name: mark for word, mark in CLAIMS.items()}
