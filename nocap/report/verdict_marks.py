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


# in the page's order
OUTCOMES = {
    DifferenceWord.better: Meaning(
        mark="✓",
        name="Better",
        text="the loss is lower than the other arm's, by more than seeds explain",
    ),
    DifferenceWord.worse: Meaning(
        mark="✕",
        name="Worse",
        text="the loss is higher than the other arm's, by more than seeds explain",
    ),
    DifferenceWord.unclear: Meaning(
        mark="○",
        name="No difference shown",
        text="the seeds cannot tell them apart; that does not make them equal",
    ),
    DifferenceWord.depends: Meaning(
        mark="±",
        name="Depends",
        text="the sign of the difference changes with another key",
    ),
    DifferenceWord.undecided: Meaning(
        mark="?",
        name="No verdict",
        text="too few seeds finished to tell a change from luck",
    ),
    DifferenceWord.diverged: Meaning(
        mark="∞",
        name="Diverged",
        text="the loss of a seed ran away; a mean over the others flatters",
    ),
    DifferenceWord.unfinished: Meaning(
        mark="…",
        name="Unfinished",
        text="a command asked for more seeds than are there",
    ),
    DifferenceWord.confounded: Meaning(
        mark="!",
        name="Confounded",
        text="something else differs too, so the difference cannot be put down to the change",
    ),
}
CLAIMS = {
    ClaimWord.confirmed: "✓",
    ClaimWord.exceeded: "↑",
    ClaimWord.refuted: "✕",
    ClaimWord.inconclusive: "○",
}


def by_name() -> dict[str, str]:
    """Return the mark of each word, by the name that cells and style classes have."""
    marks = {outcome.name: meaning.mark for outcome, meaning in OUTCOMES.items()}
    return marks | {word.name: mark for word, mark in CLAIMS.items()}
