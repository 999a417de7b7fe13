"""Rows of somebody else's log as runs: which column is what, where a run begins, and where it ends."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from nocap.config.keys import require
from nocap.sources.formats import CutError, Row
from nocap.store.formats import shorten

# What counts in a row → the names that it usually has. The first is the one that formats use.
KEYS: dict[str, tuple[str, ...]] = {
    # optimizer's steps
    "step": (
        "step",
        "Step",
        "train/global_step",
        "trainer/global_step",
        "global_step",
        "iter",
        "iteration",
        "num_steps",
    ),
    # nats per token
    "val_loss": (
        "val_loss",
        "val/loss",
        "loss/val",
        "valid_loss",
        "validation_loss",
        "validation/loss",
        "validation_metrics/loss",
        "eval_loss",
        "eval/loss",
    ),
    "val_bpb": ("val_bpb", "val/bpb"),  # bits per byte
    # seconds of training until then
    "train_s": (
        "train_s",
        "train_time_s",
        "training_seconds",
        "total_training_time",
        "train_time_ms",
        "training_time_ms",
    ),
    # trained on until then, on all devices
    "tokens": ("total_tokens", "tokens_seen", "num_tokens_seen", "tokens"),
    "seed": ("seed", "config/seed", "args/seed"),
    "arm": ("arm", "group"),
    "run": ("run", "run_id", "run_name"),  # where a file holds several
    "hardware": ("hardware", "gpu", "gpu_name"),
    "ended": ("ended", "state", "status", "State"),  # "finished", or what happened to it instead
    "total": ("total_steps", "max_steps"),  # steps that it was to train
    "budget": ("budget",),  # "time", where a limit of time ended it
    "started": ("started", "Created", "start_time"),  # sorts runs
    "epoch": ("epoch", "train/epoch"),  # how far it is, where it has no steps
    "call": ("_step", "Step (calls of log)"),  # W&B's count, which is no step unless the program gave it
}
SURE = ("step", "val_loss", "val_bpb", "train_s", "tokens")
UNSURE = ("total", "epoch", "call")  # which other programs use for something else
NUMBERS = (*SURE, *UNSURE)
LOSSES = ("val_loss", "val_bpb")
TOLD = ("arm", "run", "seed")  # what tells the runs of one file apart
AXES = ("step", "epoch", "tokens", "call")  # how far a run is: the first that it has
EMPTY = (None, "")  # cells
LEAST_ROWS = 2  # with a loss, of a run that diverged; and twice as many with those that are empty
NAMES = 1000  # of columns that a message may offer
CONFIG, FINAL = "config/", "final/"
SAME = 5e-4  # of two losses of an epoch, one of which was printed with four digits
FINISHED = {"finished", "completed", "complete", "succeeded", "success", "done", "ok"}
OTHER_STATES = {"running", "crashed", "failed", "killed", "preempted", "preempting", "scheduled", "pending"}
# What the end of a column's name says of its unit → how many of it are a second.
UNITS = {"_ms": 1e3, "_us": 1e6, "_ns": 1e9, "_min": 1 / 60, "_minutes": 1 / 60, "_hours": 1 / 3600}
GROUPED = re.compile(r"[+-]?\d{1,3}(,\d{3})+(\.\d*)?")  # 12,345
PERPLEXITY = re.compile(r"ppl|perplexity", re.IGNORECASE)
SPLITS = ("split", "phase", "subset", "stage", "mode")  # columns of tables with a row a split
VALIDATION = {"val", "valid", "validation", "eval", "dev"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Column:
    """Where a key's numbers stand in somebody's log."""

    name: str
    divisor: float = 1.0
    is_exponential: bool = False  # a perplexity, whose logarithm is the loss

    def number(self, x: float) -> float:
        """Return a cell in the key's unit."""
        if not self.is_exponential:
            return x / self.divisor
        if x > 0:
            return math.log(x)
        return math.nan


Columns = Mapping[str, Column]  # by key


@dataclass(kw_only=True, eq=False)
class LoggedRun:
    """What a log says of one run."""

    facts: dict[str, str] = field(default_factory=dict)
    config: dict[str, str] = field(default_factory=dict)  # its settings
    others: dict[str, str] = field(default_factory=dict)  # texts of columns that are the same in each row
    now: dict[str, float] = field(default_factory=dict)  # the last number of each key
    points: list[dict[str, float]] = field(default_factory=list)  # rows with a loss
    finals: dict[str, float] = field(default_factory=dict)  # what was measured after training
    levels: dict[str, str] = field(default_factory=dict)  # of its arm, where several columns name it
    reached: dict[str, float] = field(default_factory=dict)  # the furthest on each axis
    begins: dict[str, float] = field(default_factory=dict)  # the first on each axis
    rows: int = 0
    clock: bool = True  # its seconds never went back
    twice: bool = False  # a step had several losses
    empty: list[float] = field(
        default_factory=list
    )  # where cells for a loss are, since the last that has one
    sparse: bool = False  # a cell was empty before one that is not: losses are in some rows only
    apart: bool = False  # a row without a loss stands at a step that has one: losses are rows of their own
    calls_follow: bool = False  # W&B's count goes on by one: it is no step

    @property
    def axis(self) -> str | None:
        return next((axis for axis in AXES if axis in self.reached), None)

    @property
    def at(self) -> float | None:
        """How far it is now."""
        return self.now.get(self.axis) if self.axis else None

    def is_another(self, numbers: Mapping[str, float]) -> bool:
        """Say whether a row begins another run: where steps go back to the first, or where there are none,
        and this one has its loss."""
        if self.axis is None:
            told = bool(self.facts.keys() & {"run", "seed"}) and bool(self.points)
            return told and any(key in self.points[-1] for key in numbers if key in LOSSES)
        there, now = numbers.get(self.axis), self.now.get(self.axis)
        if there is None or now is None:
            return False
        return there < now and there <= self.begins[self.axis]

    def add(self, numbers: dict[str, float]) -> str | None:
        """Go on; a line where the steps went back."""
        self.clock &= not numbers.get("train_s", math.inf) < self.now.get("train_s", -math.inf)
        self.now = {key: x for key, x in self.now.items() if key not in LOSSES} | numbers
        for axis in AXES:
            if axis in numbers:
                self.begins.setdefault(axis, numbers[axis])
                self.reached[axis] = max(numbers[axis], self.reached.get(axis, -math.inf))
        if not numbers.keys() & {*LOSSES}:
            return None
        axis = self.axis or ""
        before, at = len(self.points), self.now.get(axis, math.inf)
        while self.points and self.points[-1].get(axis, -math.inf) > at:
            self.points.pop()
        dropped = before - len(self.points)
        if self.points and self.points[-1].get(axis) == at:  # said in two rows, or again
            known = {key: x for key, x in self.points[-1].items() if key in LOSSES and key in numbers}
            most = SAME if axis == "epoch" else 0.0
            self.twice |= not dropped and any(_other(numbers[key], x, most) for key, x in known.items())
            self.now = self.points.pop() | self.now
        self.points.append(self.now)
        name = {"step": "steps", "epoch": "epochs"}.get(axis, axis)
        return (
            f"its {name} go back to {at:g}: {dropped} later rows before that are not used"
            if dropped
            else None
        )

    def see(self, *, is_empty: bool) -> None:
        """Take note of a row's cell for a loss."""
        self.sparse |= is_empty and not self.points
        self.sparse |= not is_empty and bool(self.empty)
        if not is_empty:
            self.apart |= bool(self.empty) and self.empty[-1] == self.at
            self.empty.clear()
        elif self.at is not None:
            self.apart |= bool(self.points) and self.points[-1].get(self.axis or "") == self.at
            self.empty.append(self.at)

    def end(self) -> None:
        """Add that the run diverged, where a cell is empty at which a loss was due: a program that writes
        strict JSON, or a table, leaves the cell of what is no number empty."""
        if self.axis is None or len(self.points) < LEAST_ROWS:
            return
        if len(self.points) + len(self.empty) < 2 * LEAST_ROWS:
            return
        places = [point.get(self.axis, math.nan) for point in self.points]
        lost = [at for at in self.empty if at > places[-1]]
        if self.sparse or self.apart:
            # rows between validations are empty too: only that which was due says something
            gaps = {round(after - before, 9) for before, after in itertools.pairwise(places)}
            regular = gaps if len(gaps) == 1 and not self.apart else set[float]()
            lost = [at for at in lost if round(at - places[-1], 9) in regular]
        if lost:
            losses = [key for key in LOSSES if key in self.points[-1]]
            self.points.append({**self.now, self.axis: lost[0], **dict.fromkeys(losses, math.nan)})

    def last(self, key: str) -> float | None:
        return next((point[key] for point in reversed(self.points) if key in point), None)


def _other(x: float, y: float, most: float) -> bool:
    return abs(x - y) > most * abs(y) or math.isnan(x) != math.isnan(y)


def columns_of(text: str) -> Columns:
    """`step=iter,val_loss=log(val_ppl),train_s=time_ms/1000` as columns.

    Errors:
        ValueError: it is no such list.
    """
    chosen: dict[str, Column] = {}
    for part in filter(None, text.split(",")):
        key, _, name = part.strip().partition("=")
        require(
            key in KEYS and bool(name), "--columns", f"be KEY=NAME,… with keys of {', '.join(KEYS)}", part
        )
        chosen[key] = _column(key, name)
        divisor = chosen[key].divisor
        # a program may log the mean log-likelihood, whose sign is the other one
        turned = divisor == -1 and key in LOSSES
        require(turned or divisor > 0, "--columns", "divide by a number above 0, or a loss by -1", text)
    return chosen


def _column(key: str, name: str) -> Column:
    if key in LOSSES and (turned := re.fullmatch(r"(?:log|ln)\((.+)\)", name)):
        return Column(name=turned[1], is_exponential=True)
    scaled = re.fullmatch(r"(.+)/(-?\d+(?:\.\d+)?)", name) if key in NUMBERS else None
    if scaled:
        return Column(name=scaled[1], divisor=float(scaled[2]))
    if key in LOSSES:
        rule = f"turn a perplexity into its logarithm, as in {key}=log({name})"
        require(not PERPLEXITY.search(name), "--columns", rule, f"{key}={name}")
    return Column(name=name, divisor=_unit(name) if key == "train_s" else 1.0)


def _unit(name: str) -> float:
    """Return how many of a time's unit are a second, by the end of its name."""
    return next((count for end, count in UNITS.items() if name.endswith(end)), 1.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class LogRead:
    """The runs of one log, and lines about it."""

    runs: Sequence[LoggedRun]
    lines: Sequence[str]


@dataclass(kw_only=True)
class _Reading:
    """Rows of a log, read until now."""

    columns: Columns
    current: LoggedRun = field(default_factory=LoggedRun)  # that of the last row
    runs: list[LoggedRun] = field(default_factory=list)
    by_name: dict[object, LoggedRun] = field(default_factory=dict)
    names: dict[str, None] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)

    def take(self, row: Row, where: str) -> None:
        """Take a row to the run that it is of."""
        self.names |= dict.fromkeys(map(str, row)) if len(self.names) < NAMES else {}
        values = {key: value for key in KEYS if (value := _cell(row, key, self.columns)) not in EMPTY}
        facts = {key: str(value).strip() for key, value in values.items() if key not in NUMBERS}
        if "ended" in facts and not _settle_state(facts, row):
            del facts["ended"]
        numbers = _numbers(values, self.columns, where)
        run = self._run_of(facts, numbers)
        if run.rows == 0:
            self.runs.append(run)
        _keep_common(run, row, self.columns)
        run.facts |= facts
        run.levels |= _levels(row, self.columns)
        run.config |= {key[len(CONFIG) :]: str(x) for key, x in row.items() if str(key).startswith(CONFIG)}
        for key in row:
            if str(key).startswith(FINAL):
                run.finals[key[len(FINAL) :]] = _number("val_bpb", row[key], {}, where)
        self.by_name[_name_of(run.facts)] = run
        self.current = run
        if "call" in numbers:
            run.calls_follow |= numbers["call"] - run.now.get("call", -math.inf) <= 1 or "_step" not in row
        if line := run.add(numbers):
            self.lines.append(f"{where}: {line}")
        if cells := _loss_cells(row, self.columns):
            run.see(is_empty=all(cell in EMPTY for cell in cells))

    def _run_of(self, facts: Mapping[str, str], numbers: Mapping[str, float]) -> LoggedRun:
        told = {key: facts[key] for key in TOLD if key in facts}
        run = self.current
        # another run than that of the row before
        if any(run.facts.get(key, fact) != fact for key, fact in told.items()):
            run = self.by_name.get(_name_of(told)) or LoggedRun()
        if run.is_another(numbers):
            kept = {key: fact for key, fact in run.facts.items() if key in (*TOLD, "hardware")}
            run = LoggedRun(facts=kept, config=dict(run.config))
        return run


def runs_of(rows: Iterable[Row], columns: Columns) -> LogRead:
    """The runs of one log, and lines about it.

    Errors:
        ValueError: a cell that should be a number, no loss, two losses of a step, or no such column.
    """
    reading = _Reading(columns=columns)
    try:
        for index, row in enumerate(rows, start=1):
            reading.take(row, f"line {row['line']}" if "line" in row else f"row {index}")
    except CutError as cut:
        reading.lines.append(str(cut))
    names = reading.names
    require(bool(names), "it", "hold rows", "none")
    shown = [name for name in names if name != "line" and not name.startswith((CONFIG, FINAL))]
    offered = f"{shorten(shown, most=20)} (--columns KEY=NAME)"
    for key, column in columns.items():
        for part in _parts(column.name, names) if key == "arm" else [column.name]:
            require(part in names, f"--columns {key}", f"be one of its columns, {offered}", part)
    with_loss = [run for run in reading.runs if run.points or run.finals]
    for run in with_loss:
        run.end()
        _settle_calls(run)
    rule = f"have a row with {' or '.join(LOSSES)}{_hint(shown)}"
    require(bool(with_loss), "it", rule, offered)
    return LogRead(runs=with_loss, lines=[*reading.lines, *_lines_about(reading.runs, with_loss)])


def _hint(names: Sequence[str]) -> str:
    """Say how a loss of another unit is read."""
    for name in names:
        if PERPLEXITY.search(name):
            return f"; a perplexity is turned by --columns 'val_loss=log({name})'"
        if re.search(r"loss.*bits|bits.*loss", name):
            return f"; bits are turned into nats by --columns val_loss={name}/{1 / math.log(2):.6f}"
    return ""


def _lines_about(every: Sequence[LoggedRun], with_loss: Sequence[LoggedRun]) -> list[str]:
    lines = [
        f"{title(run.facts)}: left out, no row of it has a loss"
        for run in every
        if run not in with_loss and run.facts.keys() & {*TOLD}
    ]
    for run in with_loss:
        if run.twice:
            columns = shorten(run.others) if run.others else "none of its columns"
            raise ValueError(
                f"{title(run.facts) or 'it'} must have one loss a step, got several that differ (what is the "
                f"same in all its rows: {columns}); --columns arm=NAME or run=NAME tells runs apart"
            )
    if any(not run.clock for run in with_loss):
        lines.append("its seconds go back, as where a run was resumed: they are not compared")
    if any(len(run.points) > 1 and run.axis is None for run in with_loss):
        lines.append(
            "of several rows without a step the last is a run's end; a table of runs needs a "
            "column seed or run (--columns)"
        )
    if any(run.axis == "call" for run in with_loss):
        lines.append("W&B's count is of calls of log, and no step (--columns step=NAME, if it is)")
    return lines


def _settle_calls(run: LoggedRun) -> None:
    """Take W&B's count as steps where the program gave it: it then goes on by more than one."""
    if run.axis != "call" or run.calls_follow:
        return
    for point in run.points:
        point["step"] = point["call"]
    run.reached["step"] = run.reached["call"]


def _settle_state(facts: dict[str, str], row: Row) -> bool:
    """Write a state as nocap does; false, where the column is no state."""
    state = facts["ended"].casefold()
    if state in FINISHED:
        facts["ended"] = "finished"
    elif state in OTHER_STATES:
        facts["ended"] = state
    return "ended" in row or state in FINISHED | OTHER_STATES


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
    parts = _parts(columns["arm"].name, row)
    return {part: str(row.get(part, "")).strip() for part in parts} if len(parts) > 1 else {}


def _names(key: str, columns: Columns) -> Sequence[str]:
    """List the columns in which a key is looked for."""
    return [columns[key].name] if key in columns else KEYS[key]


def _cell(row: Row, key: str, columns: Columns) -> object:
    if key == "arm" and (levels := _levels(row, columns)):
        return " ".join(levels.values())
    for name in _names(key, columns):
        if row.get(name) in EMPTY:
            continue
        unit = 1.0 if key in columns or key != "train_s" else _unit(name)
        number = _float(row[name]) if unit != 1.0 else None
        return row[name] if number is None else number / unit
    is_of_validation = key == "val_loss" and key not in columns and _is_of_validation(row)
    return row.get("loss") if is_of_validation else None


def _is_of_validation(row: Row) -> bool:
    """Say whether a table with a row a split has here that of validation."""
    return any(str(row.get(name, "")).casefold() in VALIDATION for name in SPLITS)


def _loss_cells(row: Row, columns: Columns) -> list[object]:
    """List the cells of a row that are for a loss, whether anything is in them or not."""
    return [row[name] for key in LOSSES for name in _names(key, columns) if name in row]


def _keep_common(run: LoggedRun, row: Row, columns: Columns) -> None:
    """Keep what is the same in all rows of a run, and which no key has: it may tell its arm."""
    run.rows += 1
    if run.rows > 1:
        for name in [name for name, text in run.others.items() if str(row.get(name, text)).strip() != text]:
            del run.others[name]
        return
    taken = {name for key in KEYS for name in _names(key, columns)} | {"line"}
    for name, value in row.items():
        if name not in taken and not str(name).startswith(FINAL) and value not in EMPTY:
            run.others[str(name)] = str(value).strip()


def _numbers(values: Mapping[str, object], columns: Columns, where: str) -> dict[str, float]:
    numbers = {key: _number(key, values[key], columns, where) for key in SURE if key in values}
    for key in UNSURE:
        if key in values and (x := _float(values[key])) is not None and math.isfinite(x):
            numbers[key] = x
    return numbers


def _float(value: object) -> float | None:
    with suppress(ValueError, OverflowError, TypeError):
        require(not isinstance(value, bool), "it", "be a number", value)
        if isinstance(value, str) and GROUPED.fullmatch(value.strip()):
            value = value.replace(",", "")
        return float(value)  # type: ignore[arg-type]
    return None


def _number(key: str, value: object, columns: Columns, where: str) -> float:
    x = _float(value)
    if x is not None:
        x = columns[key].number(x) if key in columns else x
    if x is None or not (math.isfinite(x) or key in LOSSES):
        raise ValueError(f"{where}: {key} must be a number, got {str(value)[:60]!r}")
    if key in LOSSES and -math.inf < x < 0:
        turned = f"--columns {key}=NAME/-1 turns the sign of a log-likelihood"
        raise ValueError(f"{where}: {key} must be 0 or above, got {x:g} ({turned})")
    return x
