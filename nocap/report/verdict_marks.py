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
        text=(
            "the loss is lower than the other arm's, and seeds alone do not explain this difference"
        ),
    ),
    DifferenceWord.worse: Meaning(
        mark="✕",
        name="Worse",
        text=(
            "the loss is higher than the other arm's, and seeds alone do not explain this "
            "difference"
        ),
    ),
    DifferenceWord.unclear: Meaning(
        mark="○",
        name="No difference shown",
        text="the seeds do not separate the two arms; this does not mean that they are equal",
    ),
    DifferenceWord.depends: Meaning(
        mark="±",
        name="Depends",
        text="the sign of the difference changes with another key",
    ),
    DifferenceWord.undecided: Meaning(
        mark="?",
        name="No verdict",
        text="too few seeds finished, so a difference may be chance",
    ),
    DifferenceWord.diverged: Meaning(
        mark="∞",
        name="Diverged",
        text="the training of a seed broke down; the mean over the other seeds looks too good",
    ),
    DifferenceWord.unfinished: Meaning(
        mark="…",
        name="Unfinished",
        text="the command planned more seeds than have finished",
    ),
    DifferenceWord.confounded: Meaning(
        mark="!",
        name="Confounded",
        text="something else differs too, so the change may not be the cause of the difference",
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
