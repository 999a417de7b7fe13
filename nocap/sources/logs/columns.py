"""What the columns of a log mean: which key of nocap's each has, by its usual names or by
`--columns`, and the number in a cell."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from nocap.config.keys import require
from nocap.sources.log_reading import Row

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
    "call": (
        "_step",
        "Step (calls of log)",
    ),  # W&B's count, which is no step unless the program gave it
}
SURE_KEYS = ("step", "val_loss", "val_bpb", "train_s", "tokens")
UNSURE_KEYS = ("total", "epoch", "call")  # which other programs use for something else
NUMBERS = (*SURE_KEYS, *UNSURE_KEYS)
LOSSES = ("val_loss", "val_bpb")
MARKS = ("arm", "run", "seed")  # what tells the runs of one file apart
EMPTY = (None, "")  # cells
CONFIG, FINAL = "config/", "final/"
# What the end of a column's name says of its unit → how many of it are a second.
UNITS = {"_ms": 1e3, "_us": 1e6, "_ns": 1e9, "_min": 1 / 60, "_minutes": 1 / 60, "_hours": 1 / 3600}
GROUPED = re.compile(r"[+-]?\d{1,3}(,\d{3})+(\.\d*)?")  # 12,345
PERPLEXITY = re.compile(r"ppl|perplexity", re.IGNORECASE)
SPLITS = ("split", "phase", "subset", "stage", "mode")  # columns of tables with a row a split
VALIDATION = {"val", "valid", "validation", "eval", "dev"}


@dataclass(frozen=True, kw_only=True, slots=True)
class LogColumn:
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


Columns = Mapping[str, LogColumn]  # by key


def columns_of(text: str) -> Columns:
    """Return the columns of a text as `step=iter,val_loss=log(val_ppl),train_s=time_ms/1000`.

    Errors:
        ValueError: it is no such list.
    """
    columns: dict[str, LogColumn] = {}
    for part in filter(None, text.split(",")):
        key, _, name = part.strip().partition("=")
        require(
            key in KEYS and bool(name),
            "--columns",
            f"be KEY=NAME,… where KEY is one of {', '.join(KEYS)}",
            part,
        )
        columns[key] = _column(key, name)
        divisor = columns[key].divisor
        # a program may log the mean log-likelihood, whose sign is the other one
        turns_sign = divisor == -1 and key in LOSSES
        require(
            turns_sign or divisor > 0,
            "--columns",
            "divide by a number above 0 (only a loss may also be divided by -1)",
            text,
        )
    return columns


def _column(key: str, name: str) -> LogColumn:
    if key in LOSSES and (match := re.fullmatch(r"(?:log|ln)\((.+)\)", name)):
        return LogColumn(name=match[1], is_exponential=True)
    ratio = re.fullmatch(r"(.+)/(-?\d+(?:\.\d+)?)", name) if key in NUMBERS else None
    if ratio:
        return LogColumn(name=ratio[1], divisor=float(ratio[2]))
    if key in LOSSES:
        rule = f"take the logarithm of a perplexity, as in {key}=log({name})"
        require(not PERPLEXITY.search(name), "--columns", rule, f"{key}={name}")
    return LogColumn(name=name, divisor=_unit(name) if key == "train_s" else 1.0)


def _unit(name: str) -> float:
    """Return how many of a time's unit are a second, by the end of its name."""
    return next((count for end, count in UNITS.items() if name.endswith(end)), 1.0)


def arm_columns(name: str, every: Collection[str]) -> list[str]:
    """List the columns that a name stands for: `attention+mlp` are two, where no column is called
    so."""
    if name in every:
        return [name]
    return name.split("+")


def arm_levels(row: Row, columns: Columns) -> dict[str, str]:
    """Return the arm's level of each column, where several columns name it."""
    if "arm" not in columns:
        return {}
    several = arm_columns(columns["arm"].name, row)
    if len(several) == 1:
        return {}
    return {part: str(row.get(part, "")).strip() for part in several}


def column_names(key: str, columns: Columns) -> Sequence[str]:
    """List the columns in which a key is looked for."""
    if key in columns:
        return [columns[key].name]
    return KEYS[key]


def cell_of(row: Row, key: str, columns: Columns) -> object:
    """Return what a row has of a key: a time in seconds, as the name of its column says."""
    if key == "arm":
        several = arm_levels(row, columns)
        if several:
            return " ".join(several.values())
    for name in column_names(key, columns):
        if row.get(name) not in EMPTY:
            return (
                _in_seconds(row[name], name)
                if key == "train_s" and key not in columns
                else row[name]
            )
    if key == "val_loss" and key not in columns and _is_of_validation(row):
        return row.get("loss")
    return None


def _in_seconds(value: object, name: str) -> object:
    x = float_of(value)
    return value if x is None else x / _unit(name)


def _is_of_validation(row: Row) -> bool:
    """Say whether a table with a row a split has here that of validation."""
    return any(str(row.get(name, "")).casefold() in VALIDATION for name in SPLITS)


def loss_cells(row: Row, columns: Columns) -> list[object]:
    """List the cells of a row that are for a loss, whether anything is in them or not."""
    return [row[name] for key in LOSSES for name in column_names(key, columns) if name in row]


def numbers_of(values: Mapping[str, object], columns: Columns, where: str) -> dict[str, float]:
    """Return the numbers of a row.

    Errors:
        ValueError: a cell that should be one and is none.
    """
    numbers = dict[str, float]()
    for key in SURE_KEYS:
        if key in values:
            numbers[key] = number_of(key, values[key], columns, where)
    for key in UNSURE_KEYS:
        x = float_of(values.get(key))
        if x is not None and math.isfinite(x):
            numbers[key] = x
    return numbers


def float_of(value: object) -> float | None:
    """Return a number, which may have commas between its thousands; `None`: it is none."""
    with suppress(ValueError, OverflowError, TypeError):
        require(not isinstance(value, bool), "it", "be a number", value)
        if isinstance(value, str) and GROUPED.fullmatch(value.strip()):
            value = value.replace(",", "")
        return float(value)  # type: ignore[arg-type]
    return None


def number_of(key: str, value: object, columns: Columns, where: str) -> float:
    """Return the number of a cell in the unit of its key.

    Errors:
        ValueError: a cell that is no number, or a loss below 0.
    """
    x = float_of(value)
    if x is not None and key in columns:
        x = columns[key].number(x)
    if x is None or not (math.isfinite(x) or key in LOSSES):
        raise ValueError(f"{where}: {key} must be a number, got {str(value)[:60]!r}")
    if key in LOSSES and -math.inf < x < 0:
        hint = f"for a log-likelihood, change the sign with --columns {key}=NAME/-1"
        raise ValueError(f"{where}: {key} must be 0 or above, got {x:g} ({hint})")
    return x
