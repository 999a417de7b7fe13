"""Sort the rows of a log into runs: of which run a row is, and what is wrong with them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from nocap.config.keys import require
from nocap.display import shorten
from nocap.sources.log_reading import CutError, Row
from nocap.sources.logs.columns import (
    CONFIG,
    FINAL,
    LOSSES,
    MARKS,
    PERPLEXITY,
    Columns,
    arm_columns,
)
from nocap.sources.logs.log_row import LogRow, read_row
from nocap.sources.logs.run import LogRun

MOST_NAMES = 1000  # of columns that a message may offer


@dataclass(frozen=True, kw_only=True, slots=True)
class LogContent:
    """The runs of one log, and lines about it."""

    runs: Sequence[LogRun]
    lines: Sequence[str]


@dataclass(kw_only=True)
class _RunSorter:
    """Rows of a log, read until now."""

    columns: Columns
    current: LogRun = field(default_factory=LogRun)  # that of the last row
    runs: list[LogRun] = field(default_factory=list)
    by_name: dict[object, LogRun] = field(default_factory=dict)
    names: dict[str, None] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)

    def take(self, cells: Row, where: str) -> None:
        """Take a row to the run that it is of."""
        if len(self.names) < MOST_NAMES:
            self.names |= dict.fromkeys(map(str, cells))
        row = read_row(cells, self.columns, where)
        run = self._run_of(row)
        if run.rows == 0:
            self.runs.append(run)
        self.current = run
        line = run.take(row)
        if line is not None:
            self.lines.append(f"{where}: {line}")
        self.by_name[_name_of(run.facts)] = run
        if "run" in run.facts:
            self.by_name[_name_of({**run.facts, "seed": ""})] = run  # rows may say the seed once

    def _run_of(self, row: LogRow) -> LogRun:
        """Return the run that a row goes on, or another one that it begins."""
        marks = row.marks
        run = self.current
        # another run than that of the row before
        if run.contradicts(marks):
            seedless = _name_of({**marks, "seed": ""})
            namesake = self.by_name.get(_name_of(marks)) or self.by_name.get(seedless)
            run = LogRun() if namesake is None or namesake.contradicts(marks) else namesake
        return run.successor() if run.begins_another(row.numbers) else run


def runs_of(rows: Iterable[Row], columns: Columns) -> LogContent:
    """Return the runs of one log, and lines about it.

    Errors:
        ValueError: a cell that should be a number, no loss, two losses of a step, or no such
            column.
    """
    sorter = _RunSorter(columns=columns)
    try:
        for index, row in enumerate(rows, start=1):
            sorter.take(row, f"line {row['line']}" if "line" in row else f"row {index}")
    except CutError as cut:
        sorter.lines.append(str(cut))
    names = sorter.names
    require(bool(names), "it", "hold at least one row", "none")
    own_names = [name for name in names if name != "line" and not name.startswith((CONFIG, FINAL))]
    offered = f"the columns {shorten(own_names, most=20)} (choose one with --columns KEY=NAME)"
    for key, column in columns.items():
        parts = [column.name]
        if key == "arm":
            parts = arm_columns(column.name, names)
        for part in parts:
            require(part in names, f"--columns {key}", f"be one of {offered}", part)
    _add_lost(sorter.runs)
    with_loss = [run for run in sorter.runs if run.has_loss]
    for run in with_loss:
        run.end()
    rule = f"have a row with {' or '.join(LOSSES)}{_hint(own_names)}"
    require(bool(with_loss), "it", rule, offered)
    return LogContent(runs=with_loss, lines=[*sorter.lines, *_lines_about(sorter.runs, with_loss)])


def _add_lost(runs: Sequence[LogRun]) -> None:
    """Add that a run of a table of final losses diverged, where its cell is empty and others have a
    loss."""
    ended = [run for run in runs if run.points]
    if any(run.rows > 1 for run in ended):
        return
    losses = dict.fromkeys(key for run in ended for key in LOSSES if key in run.points[-1])
    for run in runs:
        if run.lacks_its_loss:
            run.lose([*losses])


def _hint(names: Sequence[str]) -> str:
    """Say how a loss of another unit is read."""
    for name in names:
        if PERPLEXITY.search(name):
            return f" (read a perplexity with --columns 'val_loss=log({name})')"
        if re.search(r"loss.*bits|bits.*loss", name):
            return f" (read a loss in bits with --columns val_loss={name}/{1 / math.log(2):.6f})"
    return ""


def _lines_about(every: Sequence[LogRun], with_loss: Sequence[LogRun]) -> list[str]:
    lines = [
        f"{title(run.facts)}: left out, because none of its rows has a loss"
        for run in every
        if run.has_mark and not run.has_loss
    ]
    for run in with_loss:
        if run.has_two_losses:
            columns = shorten(run.common) if run.common else "none of its columns"
            raise ValueError(
                f"{title(run.facts) or 'the log'} must have one loss for each step, got several "
                "that differ; name the column that separates the runs with --columns arm=NAME or "
                "--columns run=NAME (columns with only one value, which separate nothing: "
                f"{columns})"
            )
    if any(not run.has_clock for run in with_loss):
        lines.append("its seconds go back, as after a resume, so nocap does not compare its times")
    if any(len(run.points) > 1 and run.axis is None for run in with_loss):
        lines.append(
            "its rows have no step, so nocap uses the last row as the end of the run. If each row "
            "is a run, name a column of seeds or runs (--columns seed=NAME or run=NAME)"
        )
    if any(run.axis == "call" for run in with_loss):
        lines.append(
            "W&B counts calls of log, not steps; if the count is the step, add --columns step=NAME"
        )
    return lines


def title(facts: Mapping[str, str]) -> str:
    """Name a run of a file that holds several."""
    return " ".join(facts[key] for key in MARKS if key in facts)


def _name_of(marks: Mapping[str, str]) -> object:
    """Return what tells a run from the others of its file."""
    return marks.get("arm"), marks.get("run"), marks.get("seed") or None
