"""Logs that somebody else's trainer wrote, as records with less in them, so that they are compared as
nocap's own runs are.

A format (`nocap.sources.formats`) gives rows; here they become runs, and `nocap.sources.naming` says
which arm and seed each is. A run's last row with a loss is its end. What such a record lacks (code, data,
config) nobody can check: it says that it is imported, and its comparison is exploratory.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

import yaml

from nocap.config.keys import flat, require
from nocap.config.outward import redact
from nocap.config.paths import expanded
from nocap.sources import naming
from nocap.sources.files import LogFile, of_paths
from nocap.sources.naming import NamedRun
from nocap.sources.rows import TOLD, Columns, LoggedRun, runs_of, title
from nocap.store import runs
from nocap.store.formats import shorten
from nocap.store.record import digest
from nocap.store.runs import Curve, Found, Record

SAME_CURVE = 5  # validations that are equal in two runs of an arm by no chance
TIME = "time"  # a budget
ENDS = ("finished", "diverged")  # of runs that are compared
EQUAL_TIME = 0.01  # by how much times may differ that one budget ended
CONFIGS = ("hparams.yaml", ".hydra/overrides.yaml")  # beside a log, or above it


@dataclass(frozen=True, kw_only=True, slots=True)
class Imported:
    """What a record says of the log that it is from."""

    format: str
    arm: str | None  # what named its arm
    seed: str | None  # what named its seed; None: nothing
    hardware: str | None  # "said": the user did
    length: float | None  # where it ended, of a log without steps: epochs, tokens


@dataclass(kw_only=True)
class _Run:
    """A run of a log, on its way to a record."""

    log: LogFile
    run: LoggedRun
    alone: bool  # in its file
    content: str  # what copies share
    named: NamedRun
    name: str  # from the folder of all logs on
    nth: int  # of the runs that its log tells apart by where they begin alone
    status: str = "finished"
    final: float | None = None  # bits per byte, measured after training

    @property
    def end(self) -> float | None:
        """Where its last loss stands on its axis."""
        return self.run.last(self.run.axis) if self.run.axis else None


@dataclass(kw_only=True)
class _Loaded:
    """What was read of all logs."""

    found: Found = field(default_factory=Found)
    runs: list[_Run] = field(default_factory=list)


# --- from paths to runs -------------------------------------------------------------------------------------


def load(
    paths: Sequence[str],
    *,
    format: str | None = None,
    columns: Columns | None = None,
    hardware: str | None = None,
    names: str = "",
    lengths: bool = True,
) -> Found:
    """Runs of these paths: nocap's own, or where none has such, those of logs. A log that cannot be read is
    named and left out. `lengths`: a run that is shorter than the others of its arm is unfinished.

    Errors:
        ValueError: a path that is neither, logs of several formats, a format that cannot be used, or runs
            that may be of one arm or of several.
    """
    # logs beside nocap's own runs are named there, and left out
    if not format and not all(map(_may_be_logs, paths)):
        typed = bool(columns or hardware or names)
        rule = "hold no runs of nocap's own, with --columns, --names or --hardware"
        require(not typed, shorten(paths), rule, "some")
        return runs.load(paths)
    logs, lines = of_paths(paths, format)
    loaded = _Loaded()
    loaded.found.problems += lines
    root = naming.common_parts([log.folders for log in logs])
    for log in logs:
        _read(log, root, loaded, columns or {})
    every = _in_time(loaded.runs)
    _name(every, names)
    for run in every:
        run.status = _status(run.run)
    loaded.found.problems += _settle_finals(every)
    if lengths:
        _settle_lengths(every)
    _make_records(every, loaded.found, hardware)
    return loaded.found


def _may_be_logs(path: str) -> bool:
    """Whether it is there and is nothing of nocap's own."""
    place = expanded(path)
    if (place / runs.GRID).is_file():
        return False
    if place.is_dir():
        with suppress(ValueError):
            return not runs.find(path)
    return place.exists()


def _read(log: LogFile, root: int, loaded: _Loaded, columns: Columns) -> None:
    """Add the runs of a log, or why there are none."""
    try:
        read = runs_of(log.rows(), columns)
        settings, config_name = _config_beside(log, root)
    except ValueError as error:
        loaded.found.unreadable[log.shown] = str(error)
        return
    except Exception as error:  # the format may be anybody's
        loaded.found.unreadable[log.shown] = f"{type(error).__name__}: {' '.join(str(error).split())}"
        return
    loaded.found.problems += [f"{log.shown}: {line}" for line in read.lines]
    content = _content(log)
    alone = len(read.runs) == 1
    often = Counter[str]()
    short = "/".join([*log.folders[root:], log.path.name])
    for run in read.runs:
        own = run.facts.get("run", "")
        inside = "" if alone else f":{title(run.facts)}"
        named = NamedRun(
            shown=f"{short}{inside}",
            numbered=own.isdecimal() and not alone,
            folders=log.folders[root:],
            file=log.stem,
            own="" if own.isdecimal() else own,
            home=log.stem if log.given and not alone else _home(log),
            config=run.config or settings,
            config_name="settings in the logs" if run.config else config_name,
            path="/".join(filter(None, [*log.folders, log.stem, "" if alone else own])),
        )
        one = _Run(
            log=log,
            run=run,
            alone=alone,
            content=content,
            named=named,
            name=named.shown,
            nth=often[title(run.facts)],
        )
        loaded.runs.append(one)
        often[title(run.facts)] += 1


def _config_beside(log: LogFile, root: int) -> tuple[dict[str, str], str]:
    """Read the settings that stand beside a log, or in a folder above it that is not that of all logs."""
    if not log.path.exists():
        return {}, ""
    depth = max(len(log.folders) - root, 0)
    for folder in [log.folder, *log.folder.parents[: depth + 1]]:
        for name in CONFIGS:
            if (folder / name).is_file():
                return _settings(folder / name), name
    return {}, ""


def _settings(path: Path) -> dict[str, str]:
    """
    Errors:
        ValueError: it is no yaml of settings.
    """
    try:
        tree = yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.BaseLoader)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path.name} must be yaml ({' '.join(str(error).split())[:80]})") from None
    if isinstance(tree, list):  # of overrides
        pairs = [str(each).lstrip("+~").partition("=") for each in tree]
        return {key: value for key, _, value in pairs}
    return {key: str(value) for key, value in flat(tree)} if isinstance(tree, dict) else {}


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
        left = naming.OF_THE_SEED.sub("", part).strip("=_- .")
        is_repeat = naming.NEVER.fullmatch(part) or naming.WHEN.fullmatch(part) or naming.HASH.fullmatch(part)
        if left and not is_repeat and not naming.NUMBER.fullmatch(left):
            return part
    return log.folders[-1] if log.folders else log.shown


def _in_time(every: Sequence[_Run]) -> list[_Run]:
    """Sort runs by their start, where all logs say it."""
    starts = [each.run.facts.get("started") for each in every]
    if not all(starts) or len({len(str(start)) for start in starts}) > 1:
        return list(every)
    return sorted(every, key=lambda each: each.run.facts["started"])


# --- arms, seeds and ends -----------------------------------------------------------------------------------


def _name(every: Sequence[_Run], template: str) -> None:
    """
    Errors:
        ValueError: a seed that is none, or names that do not say which runs are of one arm.
    """
    for each in every:
        facts = each.run.facts
        if facts.get("arm"):
            each.named.arm = facts["arm"]
            each.named.arm_from = "the logs"
        if facts.get("seed"):
            each.named.seed = facts["seed"]
            each.named.seed_from = "the logs"
    naming.name([each.named for each in every], template)


def _status(run: LoggedRun) -> str:
    """Say how a run ended, by its log alone."""
    losses = [run.last(key) for key in ("val_loss", "val_bpb")]
    if not all(math.isfinite(x) for x in losses if x is not None):
        return "diverged"
    ended = run.facts.get("ended", "finished")
    total = run.now.get("total")
    reached = run.reached.get("step")
    is_short = total is not None and reached is not None and reached < total - 1
    if ended == "finished" and is_short and run.facts.get("budget") != TIME:
        return f"unfinished: {reached:,.0f} of {total:,.0f} steps"
    return ended


def _settle_lengths(every: Sequence[_Run]) -> None:
    """Call runs unfinished whose last loss stands before that of the longest run of their arm."""
    by_arm: dict[tuple[str, str | None], list[_Run]] = {}
    for each in every:
        if each.status == "finished" and each.run.facts.get("budget") != TIME and each.end is not None:
            by_arm.setdefault((each.named.arm, each.run.axis), []).append(each)
    for (_, axis), members in by_arm.items():
        ends = [each.end or 0.0 for each in members]
        longest = max(ends)
        times = [each.run.last("train_s") for each in members]
        known = [x for x in times if x is not None]
        if len(known) == len(times) and max(known) - min(known) <= EQUAL_TIME * max(known):
            continue
        least = longest - 1 if axis == "step" else longest * (1 - EQUAL_TIME)
        for each, end in zip(members, ends, strict=True):
            if end < least:
                units = "steps" if axis == "step" else f"{axis}s".removesuffix("ss")
                each.status = f"unfinished: {end:,.4g} of {longest:,.4g} {units}, as others of its arm have"


def _settle_finals(every: Sequence[_Run]) -> Iterator[str]:
    """Take of the losses that were measured after training the last one that all runs have."""
    ended = [each for each in every if each.status == "finished"]
    names = dict.fromkeys(name for each in ended for name in each.run.finals)
    if not names:
        return
    common = [name for name in names if all(name in each.run.finals for each in ended)]
    some = [name for name in names if name not in common]
    beside = f"; not all have {shorten(some)}" if some else ""
    if not common:
        yield f"runs have no final score in common, so their last validations are compared{beside}"
        return
    for each in ended:
        each.final = each.run.finals[common[-1]]
    yield f"compared: {common[-1]}, the last score that all runs have{beside}"


# --- records ------------------------------------------------------------------------------------------------


def _make_records(every: Sequence[_Run], found: Found, hardware: str | None) -> None:
    by_identity = dict[str, Record]()
    seeds = count(-1, -1)
    by_record = dict[str, _Run]()
    for each in every:
        try:
            record = _record(each, hardware)
        except ValueError as error:
            found.unreadable[each.log.shown] = str(error)
            continue
        # a seed which it shares with no other
        own = record if record.seed >= 0 else replace(record, seed=next(seeds))
        if (twin := by_identity.setdefault(own.identity, own)) is not own:
            found.problems.append(f"{each.log.shown}: left out, it is the same as {twin.name}")
        else:
            by_record[own.identity] = each
    found.records = list(by_identity.values())
    for repeat, first in _repeats(found.records):
        found.records.remove(repeat)
        found.problems.append(
            f"{repeat.name}: left out, its losses are those of {first.name}: a copy, or a trainer that takes "
            "no seed"
        )
    _check_apart(found.records, by_record)


def _record(each: _Run, hardware: str | None) -> Record:
    run, log, named = each.run, each.log, each.named
    stated = named.seed
    is_seed = not stated or bool(re.fullmatch(r"\d{1,18}(\.0)?", stated))
    require(is_seed, "seed", "be an integer from 0", stated)
    machine = run.facts.get("hardware") or hardware
    lost = each.status == "diverged"
    loss, bpb = run.last("val_loss"), run.last("val_bpb") if each.final is None else each.final
    steps, tokens = run.last("step"), run.last("tokens")
    seconds = _seconds(run)
    imported = Imported(
        format=log.format,
        arm=named.arm_from,
        seed=named.seed_from,
        hardware="said" if hardware and machine == hardware else None,
        length=each.end if run.axis in ("epoch", "tokens") else None,
    )
    summary: dict[str, Any] = {
        "status": each.status,
        "val_loss": None if lost else loss,
        "val_bpb": None if lost else bpb,
        "steps": None if steps is None else int(steps),
        "tokens": None if tokens is None else int(tokens),
        "clock_s": {} if seconds is None else {"train": seconds},
        "hardware": {"name": machine, "fingerprint": machine} if machine else {},
    }
    name, arm, summary = redact((each.name, named.arm, summary))
    # short logs are equal by chance, and each file is a run
    source = each.content if len(run.points) >= SAME_CURVE else str(log.path.absolute())
    return Record(
        folder=log.path,
        identity=digest([source, [run.facts.get(key) for key in TOLD], each.nth]),
        name=name,
        arm=arm,
        seed=int(float(stated)) if stated else -1,
        status=each.status,
        started="",
        config=dict(run.levels) or {"arm": arm},
        parts={},
        manifest={"attempts": [{}], "imported": asdict(imported)},
        summary=summary,
        curve=_curve(run),
    )


def _seconds(run: LoggedRun) -> float | None:
    """Return its time of training; where a budget of time ended it, that is said after its last loss."""
    if not run.clock or not run.points:
        return None
    if run.facts.get("budget") == TIME:
        return run.now.get("train_s")
    return run.points[-1].get("train_s")


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


def _check_apart(records: Sequence[Record], runs_: dict[str, _Run]) -> None:
    """
    Errors:
        ValueError: two runs of one arm and seed have other losses.
    """
    first: dict[tuple[str, int], Record] = {}
    for record in records:
        if record.status not in ENDS or record.seed < 0:
            continue
        other = first.setdefault((record.arm, record.seed), record)
        if other is record:
            continue
        here, there = runs_[record.identity], runs_[other.identity]
        apart = _columns_apart(here.run, there.run)
        columns = (
            f"they differ in {shorten(apart)}, so --columns arm={apart[0]} may tell them apart; "
            if apart
            else ""
        )
        raise ValueError(
            f"arm {record.arm}, seed {record.seed} has two runs with other losses, {other.name} and "
            f"{record.name}: they are never averaged; {columns}{naming.FLAGS}"
        )


def _columns_apart(here: LoggedRun, there: LoggedRun) -> list[str]:
    """List the columns and settings, the same in all rows of a run, that tell two runs apart."""
    shared = here.others.keys() & there.others.keys()
    return [key for key in here.others if key in shared and here.others[key] != there.others[key]]
