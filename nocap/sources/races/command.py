"""Anybody's training command, run once: what it prints, how long it takes, and how much memory its
processes use.

A run lies in a folder that a digest names: of the command's words, the files that it runs and the
environment; and the seed. `output.log` has a line of output a line, each with the seconds since the
start; `result.json` is there once the command has ended well. Metrics are read from these, so that
another pattern runs nothing again.
"""

from __future__ import annotations

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
from dataclasses import dataclass, field, replace
from glob import glob, has_magic
from pathlib import Path
from typing import IO

import psutil

from nocap.config.errors import FailedError
from nocap.config.keys import require
from nocap.config.outgoing_text import redact, visible
from nocap.metrics import METRICS
from nocap.sources.log_reading import COLOUR
from nocap.sources.races.command_output import CUT, LOG, LOG_BYTES, RESULT, copy_path, output_lines
from nocap.store.record_files import write_json
from nocap.store.times import now

PREPARED = "prepare.log"
LOOK_S = 0.05  # between looks at the processes
GRACE_S = 5.0  # from the request to end to the kill
TAIL = 5  # lines of a failed run's output that are shown
COSTS = [name for name, metric in METRICS.items() if metric.made_by == "command"]  # of every run


def duration_s(text: str, key: str) -> float:
    """Return the seconds of 30s, 10m or 2h.

    Errors:
        ValueError: no such time.
    """
    parts = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text)
    require(parts is not None, key, "be a time, as in 30s, 10m or 2h", text)
    assert parts is not None
    return float(parts[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[parts[2]]


@dataclass(frozen=True, kw_only=True)
class Command:
    """An arm: words to start, and where."""

    name: str
    words: tuple[str, ...]
    cwd: Path
    digest: str  # of what it runs: words, files, environment
    files: str = ""  # a digest of those files that are its program, where others may edit them
    top: Path | None = None  # of its worktree

    @property
    def takes_seed(self) -> bool:
        return any("{seed}" in word for word in self.words)

    def with_seed(self, seed: int) -> list[str]:
        return [word.replace("{seed}", str(seed)) for word in self.words]


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSettings:
    """How each run of a race is begun, watched and ended."""

    timeout_s: float
    # files that it writes and that metrics are read from; a person's own of such a name are there
    # again afterwards
    keep: Sequence[str] = ()
    alone: bool = True  # nothing else runs beside it, else its times are not kept
    stop: threading.Event = field(default_factory=threading.Event)  # ends it from another thread
    # words of a command that runs before it, where it runs, and counts in no time and no memory
    prepare: Sequence[str] = ()


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
    settings: RunSettings,
    env: Mapping[str, str] | None = None,
) -> None:
    """Run it to its end, with `env` beside the environment of this process.

    Errors:
        FailedError: it did not end well, or its output cannot be written; the output stays.
    """
    files = dict[Path, Path]()  # that it writes → where its copy is kept
    globs = dict[str, Path]()
    for name in settings.keep:
        path = command.cwd / name.replace("{seed}", str(seed))
        if has_magic(str(path)):
            globs[str(path)] = copy_path(folder, name)
        else:
            files[path] = copy_path(folder, name)
    _put_back(files, folder)  # a run that was cut off left it
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if settings.prepare:
        words = tuple(word.replace("{arm}", command.name) for word in settings.prepare)
        before = replace(command, words=words)
        _prepare(before, seed, folder / PREPARED, settings, env or {})
    stamps = _stamps(globs)
    began = time.monotonic()
    started = now()
    cpu_s = _children_s()
    with _fresh_files(files, folder):
        code, peak = _run_to_end(command, seed, folder / LOG, settings, env or {})
        wall_s = time.monotonic() - began
    if code != 0:
        raise FailedError(_why(code, folder / LOG, wall_s, settings.timeout_s))
    for pattern, copy in globs.items():
        _keep_last(pattern, copy, stamps)
    times = dict[str, float]()
    if settings.alone:
        times = {"wall_s": wall_s, "cpu_s": _children_s() - cpu_s}
    facts = {"arm": command.name, "content": command.digest, "seed": seed, "started": started}
    write_json(folder / RESULT, {**facts, **times, "peak_mib": peak / 2**20})


def _prepare(
    command: Command,
    seed: int,
    log: Path,
    settings: RunSettings,
    env: Mapping[str, str],
) -> None:
    """Run what comes before a run.

    Errors:
        FailedError: it did not end well.
    """
    began = time.monotonic()
    code, _ = _run_to_end(command, seed, log, settings, env)
    spent_s = time.monotonic() - began
    if code != 0:
        raise FailedError(f"--prepare: {_why(code, log, spent_s, settings.timeout_s)}")


def _why(code: int, log: Path, spent_s: float, timeout_s: float) -> str:
    """Say why a command did not end well, with the last lines of its output."""
    ended = f"exit code {code}"
    if spent_s >= timeout_s:
        ended = f"the command did not end within {timeout_s:g} s (--timeout)"
    last = [text for _, text in output_lines(log.parent, log.name)][-TAIL:]
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
    settings: RunSettings,
    env: Mapping[str, str],
) -> tuple[int, int]:
    """Start it and copy what it prints to its end, or until it is stopped: its exit code, and the
    most bytes that its processes had."""
    broken = list[OSError]()
    until = time.monotonic() + settings.timeout_s
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
                process, until=until, halted=lambda: bool(broken) or settings.stop.is_set()
            )
        finally:
            _end(process)
            reader.join(GRACE_S)
            # else a process that left the group holds it open, and is not waited for
            if not reader.is_alive():
                process.stdout.close()
    if broken:
        raise FailedError(
            f"nocap cannot write the command's output to {path} ({broken[0].strerror})"
        )
    return process.returncode, peak


def _tied() -> list[str]:
    """Return what ends a command with the race, also where the race gets SIGKILL: util-linux's, so
    not outside Linux."""
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", "KILL", "--"] if setpriv else []


def _children_s() -> float:
    """Return the CPU seconds of all processes that were waited for."""
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
    peak = 0
    tree = psutil.Process(process.pid)
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
