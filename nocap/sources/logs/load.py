"""From paths to records: logs that somebody else's trainer wrote become records with less in them,
so that they are compared as nocap's own runs are.

A run's last row with a loss is its end. What such a record lacks (code, data, config) nobody can
check: it says that it is imported, and its comparison is exploratory.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path

import yaml

from nocap.config.errors import line_of
from nocap.config.keys import flat, require
from nocap.config.paths import expanded
from nocap.display import shorten
from nocap.judge.confounders import EQUAL_TIME, one_budget
from nocap.sources.logs.arms_and_seeds import find_arms
from nocap.sources.logs.columns import Columns
from nocap.sources.logs.files import LogFile, of_paths
from nocap.sources.logs.name_patterns import SEEDS, may_repeat
from nocap.sources.logs.records import TIME, ImportedRun, make_records
from nocap.sources.logs.rows import runs_of, title
from nocap.sources.logs.run import PLURALS, LogRun
from nocap.sources.logs.run_names import RunNames
from nocap.store import runs
from nocap.store.grid_file import is_grid
from nocap.store.record_files import RunStatus
from nocap.store.runs import Found

CONFIGS = ("hparams.yaml", ".hydra/overrides.yaml")  # beside a log, or above it


@dataclass(frozen=True, kw_only=True, slots=True)
class _Settings:
    """The settings of a run."""

    values: Mapping[str, str] = field(default_factory=dict)
    source: str = ""  # where they stand


@dataclass(kw_only=True)
class _LoadedLogs:
    """What was read of all logs."""

    found: Found = field(default_factory=Found)
    runs: list[ImportedRun] = field(default_factory=list)
    configs: Counter[Path | None] = field(default_factory=Counter)  # how many logs each is beside


def load_logs(
    paths: Sequence[str],
    *,
    format: str | None = None,
    columns: Columns | None = None,
    hardware: str | None = None,
    names: str = "",
    lengths: bool = True,
) -> Found:
    """Return runs of these paths: nocap's own, or where none has such, those of logs. A log that
    cannot be read is named and left out. `lengths`: a run that is shorter than the others of its
    arm is unfinished.

    Errors:
        ValueError: a path that is neither, logs of several formats, a format that cannot be used,
            or runs that may be of one arm or of several.
    """
    # logs beside nocap's own runs are named there, and left out
    if not format and not all(map(_may_be_logs, paths)):
        has_options = bool(columns or hardware or names)
        rule = (
            "hold only logs of other trainers, because --columns, --names and --hardware "
            "work only with these"
        )
        require(not has_options, shorten(paths), rule, "runs of nocap, or paths that do not exist")
        return runs.load_runs(paths)
    logs, lines = of_paths(paths, format)
    loaded = _LoadedLogs()
    loaded.found.problems += lines
    root = _common_parts([log.folders for log in logs])
    loaded.configs.update(_config_beside(log, root) for log in logs)
    for log in logs:
        _read(log, root, loaded, columns or {})
    every = _in_time(loaded.runs)
    _find_arms(every, names)
    loaded.found.problems += _settle_finals(every)
    if lengths:
        _settle_lengths(every)
    make_records(every, loaded.found, hardware)
    return loaded.found


def _common_parts(every: Sequence[Sequence[str]]) -> int:
    """Count the parts that all paths begin with."""
    pairs = zip(*every, strict=False)
    return len(list(takewhile(lambda parts: len({*parts}) == 1, pairs)))


def _may_be_logs(path: str) -> bool:
    """Say whether a path is there and is nothing of nocap's own."""
    file = expanded(path)
    if is_grid(file):
        return False
    if file.is_dir():
        return not runs.holds_runs(file)
    return file.exists()


def _read(log: LogFile, root: int, loaded: _LoadedLogs, columns: Columns) -> None:
    """Add the runs of a log, or why there are none."""
    try:
        log_read = runs_of(log.rows(), columns)
    except ValueError as error:
        loaded.found.unreadable[log.title] = str(error)
        return
    except Exception as error:  # the format may be anybody's
        loaded.found.unreadable[log.title] = (
            f"{type(error).__name__}: {' '.join(str(error).split())}"
        )
        return
    loaded.found.problems += [f"{log.title}: {line}" for line in log_read.lines]
    settings = _settings_beside(log, root, loaded)
    content = _content(log)
    is_alone = len(log_read.runs) == 1
    often = Counter[str]()
    for run in log_read.runs:
        names = _names_of(run, log, root, settings, is_alone=is_alone)
        nth = often[title(run.facts)]
        often[title(run.facts)] += 1
        status, reason = _end_of(run)
        loaded.runs.append(
            ImportedRun(
                log=log,
                run=run,
                content=content,
                names=names,
                name=names.title,
                nth=nth,
                status=status,
                reason=reason,
            )
        )


def _names_of(
    run: LogRun, log: LogFile, root: int, settings: _Settings, *, is_alone: bool
) -> RunNames:
    """Return what names a run. `is_alone`: its log has no other."""
    own = run.facts.get("run", "")
    is_number = own.isdecimal()  # it counts runs, and names none
    if run.config:
        settings = _Settings(values=run.config, source="settings in the logs")
    short = "/".join([*log.folders[root:], log.path.name])
    path = [*log.folders, log.stem]
    home = _home(log)
    if not is_alone:
        short = f"{short}:{title(run.facts)}".removesuffix(":")
        path.append(own)
        if log.is_argument:
            home = log.stem
    return RunNames(
        title=short,
        folders=log.folders[root:],
        file=log.stem,
        own="" if is_number else own,
        home=home,
        config=settings.values,
        config_name=settings.source,
        path="/".join(filter(None, path)),
        has_numbered_name=is_number and not is_alone,
    )


def _settings_beside(log: LogFile, root: int, loaded: _LoadedLogs) -> _Settings:
    """Return the settings of a log. Their seed is of no run where several logs share the file."""
    path = _config_beside(log, root)
    if path is None:
        return _Settings()
    try:
        settings = _read_settings(path)
    except ValueError as error:
        loaded.found.problems.append(f"{log.title}: nocap cannot read its settings: {error}")
        return _Settings()
    if loaded.configs[path] > 1:
        settings = {key: value for key, value in settings.items() if not SEEDS.search(key)}
    source = next(name for name in CONFIGS if path.as_posix().endswith(name))
    return _Settings(values=settings, source=source)


def _config_beside(log: LogFile, root: int) -> Path | None:
    """Return the file of settings beside a log, or in a folder above it."""
    if not log.path.exists():
        return None
    depth = max(len(log.folders) - root, 0)
    for folder in [log.folder, *log.folder.parents[: depth + 1]]:
        for name in CONFIGS:
            if (folder / name).is_file():
                return folder / name
    return None


def _read_settings(path: Path) -> dict[str, str]:
    """Read a file of settings.

    Errors:
        ValueError: it is no yaml of settings.
    """
    try:
        tree = yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.BaseLoader)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path.name} must be yaml ({line_of(error, longest=80)})") from None
    if isinstance(tree, list):  # of overrides
        pairs = [str(each).lstrip("+~").partition("=") for each in tree]
        return {key: value for key, _, value in pairs}
    if isinstance(tree, dict):
        return {key: str(value) for key, value in flat(tree)}
    return {}


def _content(log: LogFile) -> str:
    """Return what copies share."""
    hashes = list[str]()
    for path in log.pieces:
        if not path.is_file():
            return str(path)
        with path.open("rb") as file:
            hashes.append(hashlib.file_digest(file, "sha256").hexdigest())
    return "+".join(hashes)


def _home(log: LogFile) -> str:
    """Return the folder that is the arm of a log where names say nothing."""
    for part in reversed(log.folders):
        if not may_repeat(part):
            return part
    return log.folders[-1] if log.folders else log.title


def _in_time(every: Sequence[ImportedRun]) -> list[ImportedRun]:
    """Sort runs by their start, where all logs say it."""
    starts = [each.run.facts.get("started") for each in every]
    if not all(starts) or len({len(str(start)) for start in starts}) > 1:
        return list(every)
    return sorted(every, key=lambda each: each.run.facts["started"])


def _find_arms(every: Sequence[ImportedRun], template: str) -> None:
    """Find the arm and the seed of each run.

    Errors:
        ValueError: a seed that is none, or names that do not say which runs are of one arm.
    """
    for each in every:
        facts = each.run.facts
        if facts.get("arm"):
            each.names.arm = facts["arm"]
            each.names.arm_from = "the logs"
        if facts.get("seed"):
            each.names.seed = facts["seed"]
            each.names.seed_from = "the logs"
    find_arms([each.names for each in every], template)


def _end_of(run: LogRun) -> tuple[RunStatus, str]:
    """Return how a run ended, by its log alone, and why it is unfinished."""
    losses = [run.last(key) for key in ("val_loss", "val_bpb")]
    if not all(math.isfinite(x) for x in losses if x is not None):
        return RunStatus.diverged, ""
    ended = run.facts.get("ended", RunStatus.finished.value)
    if ended == RunStatus.diverged:
        return RunStatus.diverged, ""
    if ended != RunStatus.finished:
        return RunStatus.unfinished, ended
    total = run.now.get("total")
    reached = run.reached.get("step")
    is_short = total is not None and reached is not None and reached < total - 1
    if is_short and run.facts.get("budget") != TIME:
        return RunStatus.unfinished, f"unfinished: {reached:,.0f} of {total:,.0f} steps"
    return RunStatus.finished, ""


def _settle_lengths(every: Sequence[ImportedRun]) -> None:
    """Call runs unfinished whose last loss stands before that of the longest run of their arm."""
    by_arm: dict[tuple[str, str | None], list[ImportedRun]] = {}
    for each in every:
        if (
            each.status == RunStatus.finished
            and each.run.facts.get("budget") != TIME
            and each.end is not None
        ):
            by_arm.setdefault((each.names.arm, each.run.axis), []).append(each)
    for (_, axis), members in by_arm.items():
        ends = [each.end or 0.0 for each in members]
        longest = max(ends)
        times = [each.run.last("train_s") for each in members]
        seconds = [x for x in times if x is not None]
        if len(seconds) == len(times) and one_budget(seconds):
            continue
        least = longest - 1 if axis == "step" else longest * (1 - EQUAL_TIME)
        for each, end in zip(members, ends, strict=True):
            if end < least:
                units = PLURALS.get(str(axis), axis)
                each.stop_short(
                    f"unfinished: {end:,.4g} of the {longest:,.4g} {units} that other runs of "
                    "its arm have"
                )


def _settle_finals(every: Sequence[ImportedRun]) -> list[str]:
    """Take of the losses that were measured after training the last one that all runs have. Return
    a line about it."""
    ended = [each for each in every if each.status == RunStatus.finished]
    names = dict.fromkeys(name for each in ended for name in each.run.finals)
    if not names:
        return []
    common = [name for name in names if all(name in each.run.finals for each in ended)]
    some = [name for name in names if name not in common]
    beside = f"; some runs lack {shorten(some)}" if some else ""
    if not common:
        return [
            f"the runs have no common final score, so nocap compares their last validations{beside}"
        ]
    for each in ended:
        each.take_final(common[-1])
    return [f"nocap compares {common[-1]}, the last score that all runs have{beside}"]
