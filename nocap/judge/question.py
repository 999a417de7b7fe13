"""What is asked of runs. A command line says a part of it, a result all of it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, fields, replace

# what an arm is compared with
BASELINE = "baseline"
PREVIOUS = "previous"


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """Each part as the option of that name has it; `None`: it is not said."""

    # an arm, by whatever names it; in a result the identity of one of its runs
    baseline: str | None = None
    target: float | None = None  # nats per token
    allow: Collection[str] | None = None
    against: str | None = None
    cautious: bool | None = None

    @property
    def parts(self) -> list[str]:
        """List the parts that it says."""
        return [field.name for field in fields(self) if getattr(self, field.name) is not None]

    def over(self, other: Question) -> Question:
        """Return this question, with what the other one says where this one says nothing. A chain
        has no one baseline: there, that of the other is left out."""
        question = replace(other, **{name: getattr(self, name) for name in self.parts})
        if question.against == PREVIOUS and self.baseline is None:
            return replace(question, baseline=None)
        return question
