"""What tables say of a claim: a text and a title for each column. `claim_row` fills it; the pages
choose columns by the names of its fields."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields

TITLE = "title"  # the key of a field's metadata


def _column(title: str) -> str:
    """Return a field that tables have under this title."""
    cell: str = field(metadata={TITLE: title})
    return cell


@dataclass(frozen=True, kw_only=True, slots=True)
class ClaimCells:
    """All that a table can say of a claim; "" where there is nothing to say."""

    id: str = _column("claim")
    statement: str = _column("statement")
    expected: str = _column("expected")
    bound: str = _column("arithmetic allows")
    measured: str = _column("measured")  # with the number of pairs
    figure: str = _column("measured")  # alone, beside a column of `n`
    n: str = _column("n")
    guards: str = _column("guards")
    verdict: str = _column("verdict")  # with the shape
    short_verdict: str = _column("verdict")  # alone, beside a column of shapes
    notes: str = _column("notes")
    shapes: str = _column("where")  # of each arm, with all that they have
    shape_and_machine: str = _column("where")  # in few words
    machine_and_date: str = _column("machine, date")
    command: str = _column("command")

    def titled(self, names: Iterable[str]) -> list[tuple[str, str]]:
        """Return the title and the text of each of these fields."""
        names = list(names)
        return list(zip(titles(names), self.texts(names), strict=True))

    def texts(self, names: Iterable[str]) -> list[str]:
        """Return the text of each of these fields."""
        return [getattr(self, name) for name in names]


def titles(names: Iterable[str]) -> list[str]:
    """Return the title of each of these fields."""
    of_field = {each.name: each.metadata[TITLE] for each in fields(ClaimCells)}
    return [of_field[name] for name in names]
