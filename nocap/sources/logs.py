"""Logs that somebody else's trainer wrote, as records with less in them, so that they are compared as nocap's
own runs are.

A format (`nocap.sources.formats`) gives rows; here they become runs, arms and seeds. An arm is a folder: a
PATH that holds logs right below, or a folder in it that does; a file's own `arm` goes before that. A run's
last row with a loss is its end. What such a record lacks (code, data, config) nobody can check: it says that
it is imported, and its comparison is exploratory.
"""

from __future__ import annotations

import hashlib
import importlib
import math
import os
import pkgutil
import re
import runpy
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

from nocap.config.keys import require
from nocap.config.outward import redact
from nocap.config.paths import expanded
from nocap.sources import formats
from nocap.sources.formats import Row
from nocap.sources.rows import TOLD, Columns, LoggedRun, runs_of, title
from nocap.store import runs
from nocap.store.formats import shorten
from nocap.store.record import digest
from nocap.store.runs import Curve, Found, Record

BUILT_IN = [module.name for module in pkgutil.iter_modules(formats.__path__)]
SAME_CURVE = 5  # validations that are equal in two runs of an arm by no chance
# s1440 are steps
OF_THE_SEED = re.compile(
    r"(?<![a-z0-9])(?:seed|s(?=[=_-]?\d{1,3}(?!\d)))[=_-]?(\d{1,18})(?![a-z0-9])", re.IGNORECASE
)
# A folder that is no arm, but one of its runs: a seed, a date, a time, W&B's.
REPEAT = re.compile(
    r"(seed|s)[=_-]?\d+|\d{4}-\d\d-\d\d([T_ "
    r"-]\d\d[-:]?\d\d[-:]?\d\d)?|\d\d[-:]\d\d[-:]\d\d|wandb|(offline-)?run-\d.*",
    re.IGNORECASE,
)


# --- from a log to records ----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class TrainerLog:
    """What a format reads: a file, or for a server's runs only a name."""

    path: Path
    folder: Path  # that is its arm, unless the log says another
    format: str
    read: Callable[[Path], Iterable[Row]]
    given: bool  # itself, and not its folder: then it is an arm where it holds several runs
    arm: str

    @property
    def inside(self) -> str:
        """Its place in the folder, which may name the seed."""
        return str(self.path.relative_to(self.folder) if self.path.is_absolute() else self.path)

    def content(self) -> str:
        """Return what copies share."""
        if not self.path.is_file():
            return str(self.path)
        with self.path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()


def records_of(log: TrainerLog, *, columns: Columns, hardware: str | None) -> tuple[list[Record], list[str]]:
    """The runs of a log as records, with seed -1 where none is named, and lines about it.

    Errors:
        ValueError: it cannot be read; the text begins with the line.
    """
    try:
        every, lines = runs_of(log.read(log.path), columns)
        content = log.content()
        return [_record(log, run, content, alone=len(every) == 1, hardware=hardware) for run in every], lines
    except ValueError:
        raise
    except Exception as error:  # the format may be anybody's
        raise ValueError(f"{type(error).__name__}: {' '.join(str(error).split())}") from error


def _record(log: TrainerLog, run: LoggedRun, content: str, *, alone: bool, hardware: str | None) -> Record:
    facts = run.facts
    arm = facts.get("arm") or (log.path.stem if log.given and not alone else log.arm)
    in_name = OF_THE_SEED.search(log.inside) if alone else None
    stated = facts.get("seed") or (in_name[1] if in_name else None)
    require(
        stated is None or bool(re.fullmatch(r"\d{1,18}(\.0)?", stated)),
        "seed",
        "be an integer from 0",
        stated,
    )
    loss, bpb, machine = run.last("val_loss"), run.last("val_bpb"), facts.get("hardware") or hardware
    lost = not all(math.isfinite(x) for x in (loss, bpb) if x is not None)
    status = "diverged" if lost else facts.get("ended", "finished")
    ended, steps, tokens = run.points[-1], run.last("step"), run.last("tokens")
    name = f"{log.arm}/{log.inside}{'' if alone else f':{title(facts)}'}"
    imported = {"format": log.format, "seed": "log" if "seed" in facts else "name" if in_name else None}
    imported["hardware"] = "said" if hardware and machine == hardware else None
    summary = {
        "status": status,
        "val_loss": None if lost else loss,
        "val_bpb": None if lost else bpb,
        "steps": None if steps is None else int(steps),
        "tokens": None if tokens is None else int(tokens),
        "clock_s": {"train": ended["train_s"]} if "train_s" in ended and run.clock else {},
        "hardware": {"name": machine, "fingerprint": machine} if machine else {},
    }
    name, arm, summary = redact((name, arm, summary))
    # short logs are equal by chance, and each file is a run
    source = content if len(run.points) >= SAME_CURVE else str(log.path.absolute())
    return Record(
        folder=log.path,
        identity=digest([source, [facts.get(key) for key in TOLD]]),
        name=name,
        arm=arm,
        seed=-1 if stated is None else int(float(stated)),
        status=status,
        started="",
        config=dict(run.levels) or {"arm": arm},
        parts={},
        manifest={"attempts": [{}], "imported": imported},
        summary=summary,
        curve=_curve(run),
    )


def _curve(run: LoggedRun) -> Curve:
    """Of the rows with a loss in nats and a step."""
    points = [
        point for point in run.points if "step" in point and math.isfinite(point.get("val_loss", math.nan))
    ]
    return Curve(
        step=[int(point["step"]) for point in points],
        tokens=[int(point["tokens"]) if "tokens" in point else None for point in points],
        train_s=[point.get("train_s") if run.clock else None for point in points],
        val_loss=[point["val_loss"] for point in points],
        val_bpb=[point.get("val_bpb") for point in points],
    )


# --- from paths to logs -------------------------------------------------------------------------------------


def load(
    paths: Sequence[str],
    *,
    format: str | None = None,
    columns: Columns | None = None,
    hardware: str | None = None,
) -> Found:
    """Runs of these paths: nocap's own, or where none has such, those of logs. A log that cannot be read is
    named and left out.

    Errors:
        ValueError: a path that is neither, logs of several formats, or a format that cannot be used.
    """
    # logs beside nocap's own runs are named there, and left out
    if not format and not all(map(_may_be_logs, paths)):
        require(
            not columns and not hardware,
            shorten(paths),
            "hold no runs of nocap's own, with --columns or --hardware",
            "some",
        )
        return runs.load(paths)
    there = {path: _logs(path, [format] if format else BUILT_IN) for path in paths}
    kind = (
        f"logs of {format}"
        if format
        else f"runs of nocap's own, or logs ({', '.join(BUILT_IN)}, or a --format of yours)"
    )
    require(any(there.values()), shorten(paths), f"hold {kind}", "none")
    loaded = _found(
        list({log.path: log for logs in there.values() for log in logs}.values()), columns or {}, hardware
    )
    loaded.problems += [f"{path}: left out, it holds no log" for path in paths if not there[path]]
    return loaded


def _format(name: str) -> Mapping[str, Any]:
    """What a format defines: one of nocap's own, or a Python file."""
    if name in BUILT_IN:
        return vars(importlib.import_module(f"{formats.__name__}.{name}"))
    path = expanded(name)
    require(
        path.suffix == ".py" and path.is_file(),
        "--format",
        f"be one of {', '.join(BUILT_IN)}, or a Python file",
        name,
    )
    try:
        defined = runpy.run_path(str(path))
    except (Exception, SystemExit) as error:  # the file may raise anything
        raise ValueError(
            f"--format {path} cannot be run: {type(error).__name__}: {' '.join(str(error).split())}"
        ) from error
    ok = callable(defined.get("read")) and isinstance(defined.get("PATTERN"), str)
    require(ok, f"--format {path}", "define read(path) and PATTERN, such as '*.txt'", "something else")
    return defined


def _may_be_logs(path: str) -> bool:
    """Whether it is there and is nothing of nocap's own."""
    place = expanded(path)
    if (place / runs.GRID).is_file():
        return False
    if place.is_dir():
        with suppress(ValueError):
            return not runs.find(path)
    return place.exists()


def _logs(path: str, wanted: Sequence[str]) -> list[TrainerLog]:
    """The logs of a path in one of these formats.

    Errors:
        ValueError: there is nothing of that name, or logs of several formats.
    """
    place, by_format = Path(os.path.abspath(expanded(path))), dict[str, list[TrainerLog]]()
    for name in wanted:
        form = _format(name)
        if place.exists():
            files = (
                [place] if place.is_file() and len(wanted) == 1 else _files(place, form["PATTERN"].split())
            )
        else:
            require(bool(form.get("REMOTE")), path, "be a file or a folder of logs", "nothing of that name")
            files = [Path(path)]
        if files:
            facts = {"format": Path(name).name, "read": form["read"], "given": not place.is_dir()}
            by_format[name] = [
                TrainerLog(path=file, folder=(folder := _folder(file)), arm=_arm(folder, place), **facts)
                for file in files
            ]
    if len(by_format) > 1:
        by_format.pop("modded", None)  # any text may be called *.txt, as in W&B's folders
    require(
        len(by_format) < 2,
        path,
        "hold logs of one format; --format says which to read",
        " and ".join(by_format),
    )
    return next(iter(by_format.values()), [])


def _files(place: Path, patterns: Sequence[str]) -> list[Path]:
    """A file that matches, or all such files below a folder, but for hidden ones."""
    if place.is_file():
        return [place] if any(place.match(pattern) for pattern in patterns) else []
    below = {file for pattern in patterns for file in place.rglob(pattern) if file.is_file()}
    return sorted(
        file for file in below if not any(part.startswith(".") for part in file.relative_to(place).parts)
    )


def _folder(file: Path) -> Path:
    """The folder that is the file's arm: the one that it lies in, or above those of a single repeat."""
    return next((folder for folder in file.parents if not REPEAT.fullmatch(folder.name)), file.parent)


def _arm(folder: Path, place: Path) -> str:
    """What a folder is called: its place in the PATH that was given."""
    return str(folder.relative_to(place)) if place in folder.parents else folder.name


def _found(logs: Sequence[TrainerLog], columns: Columns, hardware: str | None) -> Found:
    loaded, by_identity, seeds = Found(), dict[str, Record](), count(-1, -1)
    folders = Counter(name for name, _ in {(log.arm, log.folder) for log in logs})
    for log in logs:
        shown = str(log.path.relative_to(Path.cwd()) if log.path.is_relative_to(Path.cwd()) else log.path)
        arm = log.arm if folders[log.arm] == 1 else str(log.folder)
        try:
            records, lines = records_of(replace(log, arm=arm), columns=columns, hardware=hardware)
        except ValueError as error:
            loaded.unreadable[shown] = str(error)
            continue
        loaded.problems += [f"{shown}: {line}" for line in lines]
        for record in records:
            # which it shares with no other
            own = record if record.seed >= 0 else replace(record, seed=next(seeds))
            if (twin := by_identity.setdefault(own.identity, own)) is not own:
                loaded.problems.append(f"{shown}: left out, it is the same as {twin.name}")
    loaded.records = list(by_identity.values())
    for repeat, first in _repeats(loaded.records):
        loaded.records.remove(repeat)
        loaded.problems.append(
            f"{repeat.name}: left out, its losses are those of {first.name}: a copy, or a "
            "trainer that takes no seed"
        )
    for arm in dict.fromkeys(record.arm for record in loaded.records):
        ends = {record.summary["steps"] for record in loaded.records if record.arm == arm} - {None}
        if len(ends) > 1:
            span = f"{min(ends):,} to {max(ends):,}"
            loaded.problems.append(
                f"{arm}: its runs end at steps {span}; one that was cut off counts as it stands"
            )
    return loaded


def _repeats(records: Sequence[Record]) -> list[tuple[Record, Record]]:
    """Runs of an arm that say no more than one before them: the whole curve is equal, or all runs of the arm
    end at the same loss."""
    first, repeats, ends = dict[object, Record](), list[tuple[Record, Record]](), dict[str, set[object]]()
    for record in records:
        ends.setdefault(record.arm, set()).add((record.val_loss, record.value("val_bpb")))
    for record in records:
        curve = tuple(record.curve.val_loss)
        key = curve if len(curve) >= SAME_CURVE else "end" if len(ends[record.arm]) == 1 else record.identity
        if (
            twin := first.setdefault((record.arm, key), record)
        ) is not record and record.status == "finished":
            repeats.append((record, twin))
    return repeats
