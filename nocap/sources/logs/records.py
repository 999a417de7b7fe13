"""Turn runs of logs into records: what such a record has and lacks, which of them count once, and
which are refused as they may be two arms."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import count
from typing import Any

from nocap.config.keys import require
from nocap.config.outgoing_text import redact
from nocap.display import shorten
from nocap.sources.logs.arms_and_seeds import FLAGS
from nocap.sources.logs.columns import MARKS
from nocap.sources.logs.files import LogFile
from nocap.sources.logs.run import LogRun
from nocap.sources.logs.run_names import RunNames
from nocap.store.record import Curve, Record
from nocap.store.record_files import ENDED, RunStatus, digest
from nocap.store.runs import Found

SAME_CURVE = 5  # validations that are equal in two runs of an arm by no chance
TIME = "time"  # a budget


@dataclass(frozen=True, kw_only=True, slots=True)
class Imported:
    """What a record says of the log that it is from."""

    format: str
    arm: str | None  # what named its arm
    seed: str | None  # what named its seed; None: nothing
    hardware: str | None  # "said": the user did
    length: float | None  # where it ended, of a log without steps: epochs, tokens, calls of log


@dataclass(kw_only=True)
class ImportedRun:
    """A run of a log, on its way to a record."""

    log: LogFile
    run: LogRun
    content: str  # what copies share
    names: RunNames
    name: str  # from the folder of all logs on
    nth: int  # of the runs that its log tells apart by where they begin alone
    status: RunStatus  # finished, diverged or unfinished
    reason: str = ""  # why it is unfinished
    final: float | None = None  # bits per byte, measured after training

    @property
    def end(self) -> float | None:
        """Return where the run's last loss stands on its axis."""
        return self.run.last(self.run.axis) if self.run.axis else None

    @property
    def status_text(self) -> str:
        """Return the status, or why the run is unfinished, as its record has it."""
        return self.reason or self.status.value

    def stop_short(self, reason: str) -> None:
        """Take the run as unfinished."""
        self.status = RunStatus.unfinished
        self.reason = reason

    def take_final(self, name: str) -> None:
        """Take a loss that was measured after training as the one that counts."""
        self.final = self.run.finals[name]
        if not math.isfinite(self.final):
            self.status = RunStatus.diverged


def make_records(every: Sequence[ImportedRun], found: Found, hardware: str | None) -> None:
    by_identity = dict[str, Record]()
    seeds = count(-1, -1)
    by_record = dict[str, ImportedRun]()
    for each in every:
        try:
            record = _record(each, hardware)
        except ValueError as error:
            found.unreadable[each.log.title] = str(error)
            continue
        # a seed which it shares with no other
        own = record if record.seed >= 0 else replace(record, seed=next(seeds))
        if (twin := by_identity.setdefault(own.identity, own)) is not own:
            found.problems.append(
                f"{each.log.title}: left out, because it is the same as {twin.name}"
            )
        else:
            by_record[own.identity] = each
    found.records = list(by_identity.values())
    repeats = _repeats(found.records)
    repeated = {repeat.identity for repeat, _ in repeats}
    found.records = [record for record in found.records if record.identity not in repeated]
    for repeat, first in repeats:
        found.problems.append(
            f"{repeat.name}: left out, because its losses are equal to those of {first.name}. It "
            "is a copy, or its trainer reads no seed"
        )
    _check_apart(found.records, by_record)


def _record(each: ImportedRun, hardware: str | None) -> Record:
    run = each.run
    names = each.names
    seed = names.seed
    is_seed = not seed or bool(re.fullmatch(r"\d{1,18}(\.0)?", seed))
    require(is_seed, "seed", "be an integer of at least 0", seed)
    machine = run.facts.get("hardware") or hardware
    lost = each.status == RunStatus.diverged
    loss = run.last("val_loss")
    bpb = run.last("val_bpb") if each.final is None else each.final
    steps = run.last("step")
    tokens = run.last("tokens")
    seconds = _seconds(run)
    imported = Imported(
        format=each.log.format,
        arm=names.arm_from,
        seed=names.seed_from,
        hardware="said" if hardware and machine == hardware else None,
        length=None if run.axis == "step" else each.end,
    )
    summary: dict[str, Any] = {
        "status": each.status_text,
        "val_loss": None if lost else loss,
        "val_bpb": None if lost else bpb,
        "steps": None if steps is None else int(steps),
        "tokens": None if tokens is None else int(tokens),
        "clock_s": {} if seconds is None else {"train": seconds},
        "hardware": {"name": machine, "fingerprint": machine} if machine else {},
    }
    name, arm, summary = redact((each.name, names.arm, summary))
    # short logs are equal by chance, and each file is a run
    source = each.content if len(run.points) >= SAME_CURVE else str(each.log.path.absolute())
    return Record(
        folder=each.log.path,
        identity=digest([source, [run.facts.get(key) for key in MARKS], each.nth]),
        name=name,
        arm=arm,
        seed=int(seed.removesuffix(".0")) if seed else -1,
        status=each.status_text,
        started="",
        config=dict(run.levels) or {"arm": arm},
        parts={},
        manifest={"attempts": [{}], "imported": asdict(imported)},
        summary=summary,
        curve=_curve(run),
    )


def _seconds(run: LogRun) -> float | None:
    """Return its time of training; where a budget of time ended it, that is said after its last
    loss."""
    if not run.has_clock or not run.points:
        return None
    if run.facts.get("budget") == TIME:
        return run.now.get("train_s")
    return run.points[-1].get("train_s")


def _curve(run: LogRun) -> Curve:
    """Return the curve of the rows that have a loss in nats and a step."""
    points = [
        point
        for point in run.points
        if "step" in point and math.isfinite(point.get("val_loss", math.nan))
    ]
    tokens = list[int | None]()
    for point in points:
        trained_on = point.get("tokens")
        tokens.append(None if trained_on is None else int(trained_on))
    times: list[float | None] = [None] * len(points)
    if run.has_clock:
        times = [point.get("train_s") for point in points]
    return Curve(
        step=[int(point["step"]) for point in points],
        tokens=tokens,
        train_s=times,
        val_loss=[point["val_loss"] for point in points],
        val_bpb=[point.get("val_bpb") for point in points],
    )


def _repeats(records: Sequence[Record]) -> list[tuple[Record, Record]]:
    """List runs of an arm that say no more than one before them: the whole curve is equal, or all
    runs of the arm end at the same loss."""
    ends: dict[str, set[object]] = {}
    for record in records:
        ends.setdefault(record.arm, set()).add((record.val_loss, record.value("val_bpb")))
    first = dict[object, Record]()
    repeats = list[tuple[Record, Record]]()
    for record in records:
        if record.status != RunStatus.finished:
            continue
        curve = tuple(record.curve.val_loss)
        key: object = record.identity
        if len(curve) >= SAME_CURVE:
            key = curve
        elif len(ends[record.arm]) == 1:
            key = "end"
        twin = first.setdefault((record.arm, key), record)
        if twin is not record:
            repeats.append((record, twin))
    return repeats


def _check_apart(records: Sequence[Record], runs_: dict[str, ImportedRun]) -> None:
    """Check that no arm has two runs of a seed.

    Errors:
        ValueError: two runs of one arm and seed have other losses.
    """
    first: dict[tuple[str, int], Record] = {}
    for record in records:
        if record.status not in ENDED or record.seed < 0:
            continue
        other = first.setdefault((record.arm, record.seed), record)
        if other is record:
            continue
        raise ValueError(
            f"arm {record.arm}, seed {record.seed} has two runs with different losses, "
            f"{other.name} and {record.name}, and nocap does not average them; "
            f"{_apart(runs_[other.identity].run, runs_[record.identity].run)}{FLAGS}"
        )


def _apart(one: LogRun, other: LogRun) -> str:
    """Say by which columns and settings, the same in all rows of a run, two runs can be told
    apart."""
    names = list[str]()
    for name, text in one.common.items():
        if other.common.get(name, text) != text:
            names.append(name)
    if not names:
        return ""
    first = names[0]
    values = f"{one.common[first]} and {other.common[first]}"
    return (
        f"they differ in {shorten(names)} ({values}), so --columns arm={first} may separate them; "
    )
