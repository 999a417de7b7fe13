"""What a run of a command left: the lines that it printed, its result, and the metrics in them. A
metric is read anew each time, so that another pattern runs nothing again."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nocap.config.errors import FailedError
from nocap.config.keys import flat, require
from nocap.metrics import Better, Kind, MadeBy, Metric, Wording
from nocap.sources.formats import csv as tables
from nocap.sources.formats import jsonl
from nocap.sources.log_reading import Row
from nocap.sources.logs.columns import EMPTY
from nocap.store.record_files import read_json

LOG, RESULT = "output.log", "result.json"
LOG_BYTES = 2**26  # of a log: what is longer is cut, and the log says so
CUT = "cut: more output than is kept"
# a sign counts where it does not join two words, as in 1-2
NUMBER = re.compile(r"(?:(?<![\w.])[+-])?(?:\d+(?:\.\d+)?|\.\d+)(?:[eE][+-]?\d+)?")
NOT_FINITE = re.compile(r"[+-]?\b(?:nan|inf|infinity)\b", re.IGNORECASE)
NO_NAME = re.compile(r"[*?{}\[\]]")  # what a glob or {seed} has and a name should not


@dataclass(frozen=True, kw_only=True)
class MetricReader:
    """Where a metric stands in what a command leaves: a pattern over its lines, or a name in
    `METRIC name=number` lines or in a file."""

    what: str  # as it was typed
    better: Better = Better.lower
    file: str = ""  # JSON or CSV that the command writes, from the folder in which it runs

    @property
    def pattern(self) -> re.Pattern[str]:
        return re.compile(
            self.what if "(" in self.what else rf"METRIC {re.escape(self.what)}=(?P<value>\S+)"
        )

    @property
    def name(self) -> str:
        r"""Return the words before the value: `val loss` of `val loss (\S+)`."""
        before = re.split(r"\((?:\?P<value>|(?!\?))", self.what)[0]
        words = re.findall(r"[A-Za-z_][\w /-]*", re.sub(r"\\[A-Za-z]|\(\?P<\w+>", " ", before))
        return words[-1].strip() if words else self.what

    @property
    def metric(self) -> Metric:
        lower = Wording(better="lower", worse="higher", times="as high", no_worse="no higher")
        higher = Wording(
            better="higher", worse="lower", times="as high", no_worse="no lower", as_speed=True
        )
        return Metric(
            name=self.name,
            title=self.name,
            unit="",
            better=self.better,
            kind=Kind.seed,
            made_by=MadeBy.command,
            wording=lower if self.better is Better.lower else higher,
        )

    def check(self, key: str = "--metric") -> None:
        """Check that the metric is a pattern with a group, or a name.

        Errors:
            ValueError: no pattern of Python, or one without a group.
        """
        try:
            pattern = self.pattern
        except re.error as error:
            raise ValueError(
                f"{key} must be a regular expression with a group, or a metric's name, "
                f"got {self.what!r} ({error})"
            ) from error
        rule = (
            "have one group, or the groups value and step, as in 'step (?P<step>\\d+) loss "
            "(?P<value>\\S+)'"
        )
        groups = set(pattern.groupindex)
        require(
            bool(self.what.strip()),
            key,
            "be a regular expression with one group, or a metric's name",
            repr(self.what),
        )
        require("value" in groups if groups else pattern.groups == 1, key, rule, self.what)

    def curve(self, folder: Path) -> list[tuple[float | None, float, float]]:
        """Return (step or None, value, seconds since the start) of each match, in order.

        Errors:
            ValueError: a match that is no number, or a part of one.
        """
        if self.file:
            return [
                (step, value, math.nan) for step, value in _of_file(folder, self.file, self.what)
            ]
        points = list[tuple[float | None, float, float]]()
        like = "1.0"
        for seconds, line in output_lines(folder):
            require(
                line != CUT,
                "the output of the command",
                f"have at most {LOG_BYTES >> 20} MiB (for more, let the command write a "
                "file, and add --file FILE)",
                "more",
            )
            for step, text in self._matches(line, like):
                value = number(text, self.name)
                points.append((step, value, seconds))
                if math.isfinite(value):
                    like = text
        return points

    def _matches(self, line: str, like: str) -> list[tuple[float | None, str]]:
        """Find step and text of each match. A pattern of digits passes over `nan`, and the number
        before it would stand for a run that diverged: `nan` counts where the pattern takes a number
        `like` that one in its place.

        Errors:
            ValueError: a match that is a part of a number.
        """
        group = "value" if "value" in self.pattern.groupindex else 1
        finite, lost = _with_numbers(line, like)
        matches = list(self.pattern.finditer(finite))
        if not any(match.start(group) in lost for match in matches):
            matches = list(self.pattern.finditer(line))
            lost = {}
        texts = list[tuple[float | None, str]]()
        for match in matches:
            _check_match(match, group, self.name)
            step = None
            if "step" in self.pattern.groupindex:
                _check_match(match, "step", f"the step of {self.name}")
                step = number(match["step"], self.what)
            texts.append((step, lost.get(match.start(group), match[group])))
        return texts

    def value(self, folder: Path, *, finite: bool = True) -> float:
        """Return the last match.

        Errors:
            FailedError: none, one that is no number, or with `finite` one that is not finite.
        """
        where = self.file or f"the command's output (as text that matches {self.pattern.pattern!r})"
        try:
            points = self.curve(folder)
            require(bool(points), self.name, f"be in {where}", "nothing")
            require(
                math.isfinite(points[-1][1]) or not finite,
                self.name,
                "be a finite number",
                points[-1][1],
            )
        except ValueError as error:
            run = result(folder) or {}
            raise FailedError(
                f"{run.get('arm')}, seed {run.get('seed')}: {error}; see {folder / LOG}"
            ) from error
        return points[-1][1]

    def is_in(self, folder: Path) -> bool:
        """Say whether a run ended well and left this value."""
        with suppress(ValueError):
            return result(folder) is not None and bool(self.curve(folder))
        return False


def number(text: str, name: str) -> float:
    try:
        return float(text.strip(" ,;:|"))
    except ValueError as error:
        raise ValueError(f"{name} must be a number, got {text!r}") from error


def _with_numbers(line: str, like: str) -> tuple[str, dict[int, str]]:
    """Put a number `like` this one in place of each that is not finite, and say where which one
    stood."""
    lost = dict[int, str]()
    longer = 0
    for match in NOT_FINITE.finditer(line):
        lost[match.start() + longer] = match[0]
        longer += len(like) - len(match[0])
    return NOT_FINITE.sub(lambda match: like, line), lost


def _check_match(match: re.Match[str], group: str | int, name: str) -> None:
    """Refuse 3.2 of 3.2e+12, and 2.9 of 12.9.

    Errors:
        ValueError: that.
    """
    start, end = match.span(group)
    word = match.string.rfind(" ", 0, max(start, 0)) + 1  # no number goes over a blank
    for token in NUMBER.finditer(match.string, word):
        if token.start() > start:
            return
        if token.start() <= start and end <= token.end():
            require(
                token.span() == (start, end),
                name,
                f"have a pattern that matches all of the number {token[0]}",
                match[group],
            )


def output_lines(folder: Path, log: str = LOG) -> Iterator[tuple[float, str]]:
    with (folder / log).open(encoding="utf-8", errors="replace") as file:
        for line in file:
            seconds, _, text = line.rstrip("\n").partition("\t")
            yield float(seconds), text


def copy_path(folder: Path, name: str) -> Path:
    """Return the copy of a file that the command wrote, beside nocap's own. `name`: as it was
    typed, with {seed}."""
    return folder / f"kept-{NO_NAME.sub('_', Path(name).name)}"


def _of_file(folder: Path, file: str, name: str) -> list[tuple[float | None, float]]:
    """Return the value of a key of a JSON file, or of a column of a CSV or JSON-lines file, with
    its step where there is one.

    A cell may be empty where nothing was measured, or where what was measured is no number. Cells
    that are empty from some row on to the end, and none before, are of a run that diverged there.
    """
    try:
        rows = [row for row in _rows(copy_path(folder, file)) if name in row]
    except OSError as error:
        raise ValueError(f"{file} must be written by the command ({error.strerror})") from error
    points = list[tuple[float | None, float]]()
    is_empty = [row[name] in EMPTY for row in rows]
    for row in rows:
        if row[name] not in EMPTY:
            step = None if row.get("step") in EMPTY else number(str(row["step"]), "step")
            points.append((step, number(str(row[name]), name)))
    if points and len(points) < len(rows) and not any(is_empty[: len(points)]):
        points.append((None, math.nan))
    return points


def _rows(path: Path) -> list[Row]:
    """Return the rows as `nocap.compare` reads them, or the one row of a JSON object."""
    if path.suffix in (".csv", ".tsv"):
        return list(tables.read(path, cut=False))
    with suppress(ValueError):
        tree = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(tree, dict) and isinstance(
            tree.get("log_history"), list
        ):  # of Hugging Face's Trainer
            return [row for row in tree["log_history"] if isinstance(row, dict)]
        return [dict(flat(tree, "/"))] if isinstance(tree, dict) else []
    return list(jsonl.read(path))


def result(folder: Path) -> dict[str, Any] | None:
    """Return the result of a run that ended well."""
    return read_json(folder / RESULT)
