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
    EMPTY,
    FINAL,
    KEYS,
    LOSSES,
    MARKS,
    NUMBERS,
    PERPLEXITY,
    Columns,
    arm_columns,
    arm_levels,
    cell_of,
    column_names,
    loss_cells,
    number_of,
    numbers_of,
)
from nocap.sources.logs.run import LogRun

MOST_NAMES = 1000  # of columns that a message may offer
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

    def take(self, row: Row, where: str) -> None:
        """Take a row to the run that it is of."""
        if len(self.names) < MOST_NAMES:
            self.names |= dict.fromkeys(map(str, row))
        cells = {key: cell_of(row, key, self.columns) for key in KEYS}
        values = {key: value for key, value in cells.items() if value not in EMPTY}
        facts = {key: str(value).strip() for key, value in values.items() if key not in NUMBERS}
        _settle_state(facts, row)
        numbers = numbers_of(values, self.columns, where)
        run = self._run_of(facts, numbers)
        if run.rows == 0:
            self.runs.append(run)
        self.current = run
        _keep_common(run, row, self.columns)
        run.facts |= facts
        run.levels |= arm_levels(row, self.columns)
        _keep_named(run, row, where)
        self.by_name[_name_of(run.facts)] = run
        if "run" in run.facts:
            self.by_name[_name_of({**run.facts, "seed": ""})] = run  # rows may say the seed once
        if "call" in numbers and run.now.get("call", -math.inf) >= numbers["call"] - 1:
            run.calls_follow = True
        run.calls_follow |= "_step" not in row and "call" in numbers
        line = run.add(numbers)
        if line is not None:
            self.lines.append(f"{where}: {line}")
        losses = loss_cells(row, self.columns)
        if losses:
            run.see(is_empty=all(loss in EMPTY for loss in losses))

    def _run_of(self, facts: Mapping[str, str], numbers: Mapping[str, float]) -> LogRun:
        """Return the run that a row goes on, or another one that it begins."""
        marks = {key: facts[key] for key in MARKS if key in facts}
        run = self.current
        # another run than that of the row before
        if _is_other(run, marks):
            seedless = _name_of({**marks, "seed": ""})
            namesake = self.by_name.get(_name_of(marks)) or self.by_name.get(seedless)
            run = LogRun() if namesake is None or _is_other(namesake, marks) else namesake
        if run.is_another(numbers):
            facts = {key: fact for key, fact in run.facts.items() if key in (*MARKS, "hardware")}
            run = LogRun(facts=facts, config=dict(run.config))
        return run


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
    require(bool(names), "it", "hold rows", "none")
    own_names = [name for name in names if name != "line" and not name.startswith((CONFIG, FINAL))]
    offered = f"{shorten(own_names, most=20)} (--columns KEY=NAME)"
    for key, column in columns.items():
        for part in arm_columns(column.name, names) if key == "arm" else [column.name]:
            require(part in names, f"--columns {key}", f"be one of its columns, {offered}", part)
    _add_lost(sorter.runs)
    with_loss = [run for run in sorter.runs if run.points or run.finals]
    for run in with_loss:
        run.end()
        _settle_calls(run)
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
        is_told = bool(run.facts.keys() & {*MARKS}) and not (run.points or run.finals)
        is_over = run.facts.get("ended", "finished") == "finished"
        if is_told and is_over and run.rows == 1 and run.is_empty:
            run.points.append({**run.now, **dict.fromkeys(losses, math.nan)})


def _hint(names: Sequence[str]) -> str:
    """Say how a loss of another unit is read."""
    for name in names:
        if PERPLEXITY.search(name):
            return f"; a perplexity is turned by --columns 'val_loss=log({name})'"
        if re.search(r"loss.*bits|bits.*loss", name):
            return f"; bits are turned into nats by --columns val_loss={name}/{1 / math.log(2):.6f}"
    return ""


def _lines_about(every: Sequence[LogRun], with_loss: Sequence[LogRun]) -> list[str]:
    lines = [
        f"{title(run.facts)}: left out, because none of its rows has a loss"
        for run in every
        if not (run.points or run.finals) and run.facts.keys() & {*MARKS}
    ]
    for run in with_loss:
        if run.twice:
            columns = shorten(run.others) if run.others else "none of its columns"
            raise ValueError(
                f"{title(run.facts) or 'it'} must have one loss a step, got several that differ "
                f"(what is the "
                f"same in all its rows: {columns}); --columns arm=NAME or run=NAME tells runs apart"
            )
    if any(not run.clock for run in with_loss):
        lines.append("its seconds go back, as after a resume, so nocap does not compare them")
    if any(len(run.points) > 1 and run.axis is None for run in with_loss):
        lines.append(
            "its rows have no step, so nocap takes the last row as the end of the run; a table of "
            "runs needs a column seed or run (--columns)"
        )
    if any(run.axis == "call" for run in with_loss):
        lines.append("W&B counts calls of log, not steps (if it is the step: --columns step=NAME)")
    return lines


def _settle_calls(run: LogRun) -> None:
    """Take W&B's count as steps where the program gave it: it then goes on by more than one."""
    if run.axis != "call" or run.calls_follow:
        return
    for point in run.points:
        point["step"] = point["call"]
    run.reached["step"] = run.reached["call"]


def _settle_state(facts: dict[str, str], row: Row) -> None:
    """Write a state as nocap does, and drop what is none."""
    state = facts.get("ended", "").casefold()
    if state in FINISHED:
        facts["ended"] = "finished"
    elif state in OTHER_STATES:
        facts["ended"] = state
    elif "ended" not in row:
        facts.pop("ended", None)


def title(facts: Mapping[str, str]) -> str:
    """Name a run of a file that holds several."""
    return " ".join(facts[key] for key in MARKS if key in facts)


def _name_of(marks: Mapping[str, str]) -> object:
    """Return what tells a run from the others of its file."""
    return marks.get("arm"), marks.get("run"), marks.get("seed") or None


def _is_other(run: LogRun, marks: Mapping[str, str]) -> bool:
    """Say whether a row contradicts what is known of a run."""
    return any(run.facts.get(key, fact) != fact for key, fact in marks.items())


def _keep_named(run: LogRun, row: Row, where: str) -> None:
    """Keep settings, and what was measured after training."""
    for name, value in row.items():
        text = str(name)
        if text.startswith(CONFIG):
            run.config[text.removeprefix(CONFIG)] = str(value)
        elif text.startswith(FINAL):
            run.finals[text.removeprefix(FINAL)] = number_of("val_bpb", value, {}, where)


def _keep_common(run: LogRun, row: Row, columns: Columns) -> None:
    """Keep what is the same in all rows of a run, and which no key has: it may tell its arm."""
    run.rows += 1
    if run.rows > 1:
        for name, text in [*run.others.items()]:
            if str(row.get(name, text)).strip() != text:
                del run.others[name]
        return
    names_of_keys = {name for key in KEYS for name in column_names(key, columns)} | {"line"}
    for name, value in row.items():
        if name not in names_of_keys and not str(name).startswith(FINAL) and value not in EMPTY:
            run.others[str(name)] = str(value).strip()
