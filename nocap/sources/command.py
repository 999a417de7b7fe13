"""Anybody's training command, run once: what it prints, how long it takes, and how much memory its
processes use.

A run lies in a folder that its content names: the command's words, the files that it runs, the
environment and the seed. `output.log` has a line of output a line, each with the seconds since the
start; `result.json` is there once the command has ended well. Metrics are read from these, so that
another pattern runs nothing again.
"""

from __future__ import annotations

import json
import math
import os
import re
import resource
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from glob import glob, has_magic
from pathlib import Path
from typing import IO, Any

import psutil

from nocap.config.errors import FailedError
from nocap.config.keys import flat, require
from nocap.config.outward import redact, visible
from nocap.sources.formats import COLOUR, Row, jsonl
from nocap.sources.formats import csv as tables
from nocap.sources.log_columns import EMPTY
from nocap.store.metrics import METRICS, Better, Kind, Metric, Wording, now
from nocap.store.record import read_json, write_json

LOG, RESULT, PREPARED = "output.log", "result.json", "prepare.log"
LOOK_S = 0.05  # between looks at the processes
GRACE_S = 5.0  # from the request to end to the kill
LOG_BYTES = 2**26  # of a log: what is longer is cut, and the log says so
CUT = "cut: more output than is kept"
# a sign counts where it does not join two words, as in 1-2
NUMBER = re.compile(r"(?:(?<![\w.])[+-])?(?:\d+(?:\.\d+)?|\.\d+)(?:[eE][+-]?\d+)?")
NOT_FINITE = re.compile(r"[+-]?\b(?:nan|inf|infinity)\b", re.IGNORECASE)
NO_NAME = re.compile(r"[*?{}\[\]]")  # what a glob or {seed} has and a name should not
TAIL = 5  # lines of a failed run's output that are shown
COSTS = [name for name, metric in METRICS.items() if metric.made_by == "command"]  # of every run


# --- a metric -------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Reading:
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
            made_by="command",
            wording=lower if self.better is Better.lower else higher,
        )

    def check(self, key: str = "--metric") -> None:
        """
        Errors:
            ValueError: no pattern of Python, or one without a group.
        """
        try:
            pattern = self.pattern
        except re.error as error:
            raise ValueError(
                f"{key} must be a regular expression with a group, or a name, got {self.what!r} "
                f"({error})"
            ) from error
        rule = (
            "have one group, or the groups value and step, as in 'step (?P<step>\\d+) loss "
            "(?P<value>\\S+)'"
        )
        groups = set(pattern.groupindex)
        require(
            bool(self.what.strip()), key, "be a pattern with a group, or a name", repr(self.what)
        )
        require("value" in groups if groups else pattern.groups == 1, key, rule, self.what)

    def curve(self, folder: Path) -> list[tuple[float | None, float, float]]:
        """(step or None, value, seconds since the start) of each match, in order.

        Errors:
            ValueError: a match that is no number, or a part of one.
        """
        if self.file:
            return [
                (step, value, math.nan) for step, value in _of_file(folder, self.file, self.what)
            ]
        points = list[tuple[float | None, float, float]]()
        like = "1.0"
        for seconds, line in lines(folder):
            require(
                line != CUT,
                f"{self.name} in what it printed",
                f"be in {LOG_BYTES >> 20} MiB of it (or --file)",
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
            matches, lost = list(self.pattern.finditer(line)), {}
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
        where = self.file or f"what it printed, by {self.pattern.pattern!r}"
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
                token.span() == (start, end), name, f"be all of the number {token[0]}", match[group]
            )


def duration_s(text: str, key: str) -> float:
    """Seconds of 30s, 10m, 2h.

    Errors:
        ValueError: no such time.
    """
    parts = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text)
    require(parts is not None, key, "be a time, as in 30s, 10m or 2h", text)
    assert parts is not None
    return float(parts[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[parts[2]]


def lines(folder: Path, log: str = LOG) -> Iterator[tuple[float, str]]:
    with (folder / log).open(encoding="utf-8", errors="replace") as file:
        for line in file:
            seconds, _, text = line.rstrip("\n").partition("\t")
            yield float(seconds), text


def _copy_path(folder: Path, name: str) -> Path:
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
        rows = [row for row in _rows(_copy_path(folder, file)) if name in row]
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


# --- a run ----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Command:
    """An arm: words to start, and where."""

    name: str
    words: tuple[str, ...]
    cwd: Path
    content: str  # a digest of what it runs: words, files, environment
    files: str = ""  # a digest of those files that are its program, where others may edit them
    top: Path | None = None  # of its worktree

    @property
    def takes_seed(self) -> bool:
        return any("{seed}" in word for word in self.words)

    def with_seed(self, seed: int) -> list[str]:
        return [word.replace("{seed}", str(seed)) for word in self.words]


def result(folder: Path) -> dict[str, Any] | None:
    """Return the result of a run that ended well."""
    return read_json(folder / RESULT)


@contextmanager
def failures_of(command: Command, seed: int) -> Iterator[None]:
    """Name the run in a failure inside the block.

    Errors:
        FailedError: that.
    """
    try:
        yield
    except FailedError as error:
        raise FailedError(f"{command.name}, seed {seed}: {error}") from error


def run(
    command: Command,
    seed: int,
    folder: Path,
    *,
    timeout_s: float,
    keep: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    alone: bool = True,
    stop: threading.Event | None = None,
    prepare: Sequence[str] = (),
) -> None:
    """Run it to its end. `prepare`: the words of a command that runs before it, where it runs, and
    counts in no time and no memory. `keep`: files that it writes and that metrics are read from;
    somebody's own of such a name are there again afterwards. `alone`: nothing else runs beside it,
    else its times are not kept. `stop`: ends it from another thread.

    Errors:
        FailedError: it did not end well, or its output cannot be written; the output stays.
    """
    files = dict[Path, Path]()  # that it writes → where its copy is kept
    globs = dict[str, Path]()
    for name in keep:
        path = command.cwd / name.replace("{seed}", str(seed))
        if has_magic(str(path)):
            globs[str(path)] = _copy_path(folder, name)
        else:
            files[path] = _copy_path(folder, name)
    _put_back(files, folder)  # a run that was cut off left it
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if prepare:
        words = tuple(word.replace("{arm}", command.name) for word in prepare)
        before = replace(command, words=words)
        _prepare(before, seed, folder / PREPARED, timeout_s=timeout_s, env=env or {}, stop=stop)
    stamps = _stamps(globs)
    began, started, cpu_s = time.monotonic(), now(), _children_s()
    with _fresh_files(files, folder):
        code, peak = _run_to_end(
            command, seed, folder / LOG, timeout_s=timeout_s, env=env or {}, stop=stop
        )
        wall_s = time.monotonic() - began
    if code != 0:
        raise FailedError(
            _why(code, folder / LOG, is_late=wall_s >= timeout_s, timeout_s=timeout_s)
        )
    for pattern, copy in globs.items():
        _keep_last(pattern, copy, stamps)
    times = {"wall_s": wall_s, "cpu_s": _children_s() - cpu_s} if alone else {}
    content = {"arm": command.name, "content": command.content, "seed": seed, "started": started}
    write_json(folder / RESULT, {**content, **times, "peak_mib": peak / 2**20})


def _prepare(
    command: Command,
    seed: int,
    log: Path,
    *,
    timeout_s: float,
    env: Mapping[str, str],
    stop: threading.Event | None,
) -> None:
    """Run what comes before a run.

    Errors:
        FailedError: it did not end well.
    """
    began = time.monotonic()
    code, _ = _run_to_end(command, seed, log, timeout_s=timeout_s, env=env, stop=stop)
    is_late = time.monotonic() - began >= timeout_s
    if code != 0:
        raise FailedError(f"--prepare: {_why(code, log, is_late=is_late, timeout_s=timeout_s)}")


def _why(code: int, log: Path, *, is_late: bool, timeout_s: float) -> str:
    """Say why a command did not end well, with the last lines of its output."""
    ended = f"no end after {timeout_s:g} s (--timeout)" if is_late else f"exit code {code}"
    last = [text for _, text in lines(log.parent, log.name)][-TAIL:]
    return "\n".join([f"{ended}; see {log}", *(f"  {line}" for line in last)])


@contextmanager
def _fresh_files(files: Mapping[Path, Path], folder: Path) -> Iterator[None]:
    """Set somebody's own files aside for the block: an old one would be read as this run's. Those
    that are written inside the block are kept."""
    for file in files:
        if os.path.lexists(file):
            shutil.move(file, _theirs(folder, file))
    try:
        yield
    finally:
        for file, copy in files.items():
            if file.is_file():
                shutil.move(file, copy)
        _put_back(files, folder)


def _put_back(files: Iterable[Path], folder: Path) -> None:
    """Put somebody's own files where they were."""
    for file in files:
        if os.path.lexists(theirs := _theirs(folder, file)):
            file.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(theirs, file)


def _stamps(patterns: Iterable[str]) -> dict[Path, tuple[int, int]]:
    """Stamp the files that match, so that an old one is not read as a run's."""
    paths = [Path(path) for pattern in patterns for path in glob(pattern, recursive=True)]
    stats = {path: path.stat() for path in paths if path.is_file()}
    return {path: (stat.st_mtime_ns, stat.st_size) for path, stat in stats.items()}


def _keep_last(pattern: str, copy: Path, before: Mapping[Path, tuple[int, int]]) -> None:
    """Copy the file that was written last of those that match, and that a run wrote."""
    changed = {
        path: stamp for path, stamp in _stamps([pattern]).items() if before.get(path) != stamp
    }
    if changed:
        shutil.copyfile(max(changed, key=lambda path: (changed[path][0], path)), copy)


def _theirs(folder: Path, file: Path) -> Path:
    return folder / f"theirs-{file.name}"


def _run_to_end(
    command: Command,
    seed: int,
    path: Path,
    *,
    timeout_s: float,
    env: Mapping[str, str],
    stop: threading.Event | None,
) -> tuple[int, int]:
    """Start it and copy what it prints to its end, or until it is stopped: its exit code, and the
    most bytes that its processes had."""
    broken = list[OSError]()
    until = time.monotonic() + timeout_s
    with path.open("wb", buffering=0) as log:
        process = subprocess.Popen(
            [*_tied(), *command.with_seed(seed)],
            cwd=command.cwd,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **env, "NOCAP_SEED": str(seed)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            # a text stream takes \r as a line's end, too: a progress bar is a line a time
            errors="replace",
            start_new_session=True,
        )
        assert process.stdout is not None
        reader = threading.Thread(
            target=_copy, args=(process.stdout, log, time.monotonic(), broken), daemon=True
        )
        try:
            reader.start()
            peak = _watch(
                process, until=until, halted=lambda: bool(broken or (stop and stop.is_set()))
            )
        finally:
            _end(process)
            reader.join(GRACE_S)
            # else a process that left the group holds it open, and is not waited for
            if not reader.is_alive():
                process.stdout.close()
    if broken:
        raise FailedError(f"its output cannot be written: {path} ({broken[0].strerror})")
    return process.returncode, peak


def _tied() -> list[str]:
    """Return what ends a command with the race, also where the race gets SIGKILL: util-linux's, so
    not outside Linux."""
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", "KILL", "--"] if setpriv else []


def _children_s() -> float:
    """CPU seconds of all processes that were waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _copy(source: IO[str], log: IO[bytes], began: float, broken: list[OSError]) -> None:
    """Copy each line with its time, without secrets and terminal control; or say why it cannot be
    written."""
    room = LOG_BYTES
    while line := source.readline(LOG_BYTES):
        if room < 0:
            continue  # what is not kept is read, or the command would wait
        text = visible(redact(COLOUR.sub("", line.rstrip("\n"))))
        room -= len(text)
        if room < 0:
            text = CUT
        try:
            log.write(f"{time.monotonic() - began:.3f}\t{text}\n".encode())
        except OSError as error:
            broken.append(error)
            return


def _watch(process: subprocess.Popen[str], *, until: float, halted: Callable[[], bool]) -> int:
    """Return the most bytes that its processes had together, until it ends, its time is over, or it
    is halted."""
    peak, tree = 0, psutil.Process(process.pid)
    while process.poll() is None and time.monotonic() < until and not halted():
        used = 0
        for each in _tree(tree):
            with suppress(psutil.Error):
                used += each.memory_info().rss
        peak = max(peak, used)
        try:
            process.wait(LOOK_S)
        except subprocess.TimeoutExpired:
            continue
    return peak


def _tree(root: psutil.Process) -> list[psutil.Process]:
    try:
        return [root, *root.children(recursive=True)]
    except psutil.Error:
        return []


def _end(process: subprocess.Popen[str]) -> None:
    """End all processes of its group, and those that it started in other groups: they are asked,
    and killed after a grace."""
    away = _tree(psutil.Process(process.pid))[1:] if process.poll() is None else []
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_S)
    for child in away:
        with suppress(psutil.Error):
            child.kill()
