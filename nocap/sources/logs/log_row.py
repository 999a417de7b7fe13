"""A row of a log: what its cells say, key by key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nocap.sources.log_reading import Row
from nocap.sources.logs.columns import (
    CONFIG,
    EMPTY,
    FINAL,
    KEYS,
    MARKS,
    NUMBERS,
    Columns,
    arm_levels,
    cell_of,
    column_names,
    loss_cells,
    number_of,
    numbers_of,
)

FINISHED = {"finished", "completed", "complete", "succeeded", "success", "done", "ok"}
OTHER_STATES = {
    "running",
    "crashed",
    "failed",
    "killed",
    "preempted",
    "preempting",
    "scheduled",
    "pending",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class LogRow:
    """A row, and what the columns say of it."""

    cells: Row
    columns: Columns
    facts: Mapping[str, str]  # the texts of keys
    numbers: Mapping[str, float]
    levels: Mapping[str, str]  # of its arm, where several columns name it
    config: Mapping[str, str]  # its settings
    finals: Mapping[str, float]  # what was measured after training

    @property
    def marks(self) -> dict[str, str]:
        """Return what tells its run from the others of its file."""
        return {key: self.facts[key] for key in MARKS if key in self.facts}

    @property
    def has_empty_loss(self) -> bool | None:
        """Say whether all its cells for a loss are empty; `None`: it has no such cell."""
        losses = loss_cells(self.cells, self.columns)
        if not losses:
            return None
        return all(loss in EMPTY for loss in losses)

    @property
    def counts_calls(self) -> bool:
        """Say whether it has a number that W&B always counts by one: another than `_step`."""
        return "_step" not in self.cells and "call" in self.numbers

    def has(self, name: str, text: str) -> bool:
        """Say whether a column has this text, or is not there."""
        return str(self.cells.get(name, text)).strip() == text

    def others(self) -> dict[str, str]:
        """Return the texts of the columns that no key has."""
        of_keys = {name for key in KEYS for name in column_names(key, self.columns)} | {"line"}
        texts: dict[str, str] = {}
        for name, value in self.cells.items():
            if name not in of_keys and not str(name).startswith(FINAL) and value not in EMPTY:
                texts[str(name)] = str(value).strip()
        return texts


def read_row(cells: Row, columns: Columns, where: str) -> LogRow:
    """Read the cells of a row. `where`: its line, for messages.

    Errors:
        ValueError: a cell that should be a number and is none.
    """
    by_key = {key: cell_of(cells, key, columns) for key in KEYS}
    values = {key: value for key, value in by_key.items() if value not in EMPTY}
    numbers = numbers_of(values, columns, where)
    config: dict[str, str] = {}
    finals: dict[str, float] = {}
    for name, value in cells.items():
        text = str(name)
        if text.startswith(CONFIG):
            config[text.removeprefix(CONFIG)] = str(value)
        elif text.startswith(FINAL):
            finals[text.removeprefix(FINAL)] = number_of("val_bpb", value, {}, where)
    return LogRow(
        cells=cells,
        columns=columns,
        facts=_facts(values, cells),
        numbers=numbers,
        levels=arm_levels(cells, columns),
        config=config,
        finals=finals,
    )


def _facts(values: Mapping[str, object], cells: Row) -> dict[str, str]:
    """Return the texts of keys, with a state as nocap writes it, and without what is none."""
    facts = {key: str(value).strip() for key, value in values.items() if key not in NUMBERS}
    state = facts.get("ended", "").casefold()
    if state in FINISHED:
        facts["ended"] = "finished"
    elif state in OTHER_STATES:
        facts["ended"] = state
    elif "ended" not in cells:
        facts.pop("ended", None)
    return facts
