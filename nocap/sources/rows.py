"""Rows of somebody else's log as runs: which column is what, where a run begins, and where it ends."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from nocap.config.keys import require
from nocap.sources.formats import Row
from nocap.store.formats import shorten

# What counts in a row → the names that it usually has. The first is the one that formats use.
KEYS: dict[str, tuple[str, ...]] = {
    "step": ("step", "Step", "iter", "iteration", "global_step", "trainer/global_step", "_step", "num_steps"),
    # nats per token
    "val_loss": (
        "val_loss",
        "val/loss",
        "loss/val",
        "valid_loss",
        "validation_loss",
        "eval_loss",
        "eval/loss",
    ),
    "val_bpb": ("val_bpb", "val/bpb"),  # bits per byte
    # seconds of training until then
    "train_s": ("train_s", "train_time_s", "training_seconds", "total_training_time"),
    "tokens": ("tokens", "tokens_seen", "total_tokens", "num_tokens_seen"),  # trained on until then
    "seed": ("seed", "config/seed", "args/seed"),
    "arm": ("arm", "group"),
    "run": ("run", "run_id", "run_name"),  # where a file holds several
    "hardware": ("hardware", "gpu", "gpu_name"),
    "ended": ("ended",),  # "finished", or what happened to it instead
}
NUMBERS = ("step", "val_loss", "val_bpb", "train_s", "tokens")
LOSSES = ("val_loss", "val_bpb")
TOLD = ("arm", "run", "seed")  # what tells the runs of one file apart
EMPTY = (None, "")  # cells
LEAST_ROWS = 2  # with a loss, and without one after that, of a run that diverged
NAMES = 1000  # of columns that a message may offer


Columns = Mapping[str, tuple[str, float]]  # key → its name in the log, and what its numbers are divided by


@dataclass(kw_only=True)
class LoggedRun:
    """What a log says of one run."""

    facts: dict[str, str] = field(default_factory=dict)
    now: dict[str, float] = field(default_factory=dict)  # the last number of each key
    points: list[dict[str, float]] = field(default_factory=list)  # rows with a loss
    levels: dict[str, str] = field(default_factory=dict)  # of its arm, where several columns name it
    clock: bool = True  # its seconds never went back
    twice: bool = False  # a step had several losses
    empty: int = 0  # cells for a loss that are, since the last that has one
    sparse: bool = False  # a cell was empty before one that is not: losses are in some rows only

    def add(self, numbers: dict[str, float]) -> str | None:
        """Go on; a line where the steps went back."""
        self.clock &= not numbers.get("train_s", math.inf) < self.now.get("train_s", -math.inf)
        self.now = {key: x for key, x in self.now.items() if key not in LOSSES} | numbers
        if not numbers.keys() & {*LOSSES}:
            return None
        before, step = len(self.points), self.now.get("step", math.inf)
        while self.points and self.points[-1].get("step", -math.inf) > step:
            self.points.pop()
        dropped = before - len(self.points)
        if self.points and self.points[-1].get("step") == step:  # said in two rows, or again
            self.twice |= not dropped and any(
                numbers.get(key, x) != x for key, x in self.points[-1].items() if key in LOSSES
            )
            self.now = self.points.pop() | self.now
        self.points.append(self.now)
        return (
            f"its steps go back to {step:g}: {dropped} later rows before that are not used"
            if dropped
            else None
        )

    def see(self, *, is_empty: bool) -> None:
        """Take note of a row's cell for a loss."""
        self.sparse |= is_empty and not self.points
        self.sparse |= not is_empty and self.empty > 0
        self.empty = self.empty + 1 if is_empty else 0

    def end(self) -> None:
        """Add that the run diverged, where each row had a loss until from one on none has: a program that
        writes strict JSON, or a table, leaves the cell of what is no number empty. One row alone may be a
        summary."""
        many = len(self.points) >= LEAST_ROWS and self.empty >= LEAST_ROWS
        if many and not self.sparse and self.now.get("step", 0) > self.points[-1].get("step", math.inf):
            losses = [key for key in LOSSES if key in self.points[-1]]
            self.points.append({**self.now, **dict.fromkeys(losses, math.nan)})

    def last(self, key: str) -> float | None:
        return next((point[key] for point in reversed(self.points) if key in point), None)


def columns_of(text: str) -> Columns:
    """`step=iter,val_loss=loss/val,train_s=time_ms/1000` as columns.

    Errors:
        ValueError: it is no such list.
    """
    chosen: dict[str, tuple[str, float]] = {}
    for part in filter(None, text.split(",")):
        key, _, name = part.strip().partition("=")
        require(
            key in KEYS and bool(name), "--columns", f"be KEY=NAME,… with keys of {', '.join(KEYS)}", part
        )
        scaled = re.fullmatch(r"(.+)/(-?\d+(?:\.\d+)?)", name) if key in NUMBERS else None
        chosen[key] = (scaled[1], float(scaled[2])) if scaled else (name, 1.0)
    for key, (_, divisor) in chosen.items():
        # a program may log the mean log-likelihood, whose sign is the other one
        turned = divisor == -1 and key in LOSSES
        require(turned or divisor > 0, "--columns", "divide by a number above 0, or a loss by -1", text)
    return chosen


def runs_of(rows: Iterable[Row], columns: Columns) -> tuple[list[LoggedRun], list[str]]:
    """The runs of one log, and lines about it.

    Errors:
        ValueError: a cell that should be a number, no loss, or no such column.
    """
    several, run, lines, names = dict[object, LoggedRun](), LoggedRun(), list[str](), dict[str, None]()
    for index, row in enumerate(rows, start=1):
        where = f"line {row['line']}" if "line" in row else f"row {index}"
        names |= dict.fromkeys(map(str, row)) if len(names) < NAMES else {}
        values = {key: value for key in KEYS if (value := _cell(row, key, columns)) not in EMPTY}
        facts = {key: str(value).strip() for key, value in values.items() if key not in NUMBERS}
        told = {key: facts[key] for key in TOLD if key in facts}
        # another run than that of the row before
        if any(run.facts.get(key, fact) != fact for key, fact in told.items()):
            run = several.get(_name_of(told)) or LoggedRun()
        run.facts |= facts
        run.levels |= _levels(row, columns)
        several[_name_of(run.facts)] = run
        if line := run.add(
            {key: _number(key, values[key], columns, where) for key in NUMBERS if key in values}
        ):
            lines.append(f"{where}: {line}")
        if cells := _loss_cells(row, columns):
            run.see(is_empty=all(cell in EMPTY for cell in cells))
    require(bool(names), "it", "hold rows", "none")
    offered = f"{shorten((name for name in names if name != 'line'), most=20)} (--columns KEY=NAME)"
    for key, (name, _) in columns.items():
        for part in _parts(name, names) if key == "arm" else [name]:
            require(part in names, f"--columns {key}", f"be one of its columns, {offered}", part)
    every = list({id(logged): logged for logged in several.values()}.values())
    with_loss = [logged for logged in every if logged.points]
    for logged in with_loss:
        logged.end()
    require(bool(with_loss), "it", f"have a row with {' or '.join(LOSSES)}", offered)
    lines += [
        f"{title(logged.facts)}: left out, no row of it has a loss"
        for logged in every
        if not logged.points and logged.facts.keys() & {*TOLD}
    ]
    if any(logged.twice for logged in with_loss):
        lines.append("a step has several losses: the last of each counts")
    if any(not logged.clock for logged in with_loss):
        lines.append("its seconds go back, as where a run was resumed: they are not compared")
    if any(len(logged.points) > 1 and logged.last("step") is None for logged in with_loss):
        lines.append(
            "of several rows without a step the last is a run's end; a table of runs needs a "
            "column seed or run (--columns)"
        )
    return with_loss, lines


def title(facts: Mapping[str, str]) -> str:
    """A run, in a file of several."""
    return " ".join(facts[key] for key in TOLD if key in facts)


def _name_of(told: Mapping[str, str]) -> object:
    """What tells a run from the others of its file: its name, else its seed."""
    return told.get("arm"), told.get("run"), None if "run" in told else told.get("seed")


def _parts(name: str, known: Collection[str]) -> list[str]:
    """List the columns that a name stands for: `attention+mlp` are two, where no column is called so."""
    return [name] if name in known else name.split("+")


def _levels(row: Row, columns: Columns) -> dict[str, str]:
    """Return the arm's level of each column, where several columns name it."""
    if "arm" not in columns:
        return {}
    parts = _parts(columns["arm"][0], row)
    return {part: str(row.get(part, "")).strip() for part in parts} if len(parts) > 1 else {}


def _cell(row: Row, key: str, columns: Columns) -> object:
    if key == "arm" and (levels := _levels(row, columns)):
        return " ".join(levels.values())
    names = columns[key][:1] if key in columns else KEYS[key]
    return next((row[name] for name in names if row.get(name) not in EMPTY), None)


def _loss_cells(row: Row, columns: Columns) -> list[object]:
    """List the cells of a row that are for a loss, whether anything is in them or not."""
    names = [name for key in LOSSES for name in (columns[key][:1] if key in columns else KEYS[key])]
    return [row[name] for name in names if name in row]


def _number(key: str, value: object, columns: Columns, where: str) -> float:
    x = None
    with suppress(ValueError, OverflowError, TypeError):
        require(not isinstance(value, bool), key, "be a number", value)
        x = float(value) / (columns[key][1] if key in columns else 1.0)  # type: ignore[arg-type]
    if x is None or not (math.isfinite(x) or key in LOSSES):
        raise ValueError(f"{where}: {key} must be a number, got {str(value)[:60]!r}")
    if key in LOSSES and -math.inf < x < 0:
        turned = f"--columns {key}=NAME/-1 turns the sign of a log-likelihood"
        raise ValueError(f"{where}: {key} must be 0 or above, got {x:g} ({turned})")
    return x
