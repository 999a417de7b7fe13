"""Read the records of runs. What cannot be read is named, never dropped in silence."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nocap.config.keys import flat, require
from nocap.config.outward import redact, visible
from nocap.config.paths import expanded
from nocap.store.find import find, without_record
from nocap.store.metrics import METRICS, OF_A_RUN, Ending, Measurement
from nocap.store.record import ENDED, MANIFEST, SCHEMA_VERSION, SUMMARY, Metrics, Row, check_record, read_json

TRAIN_LINES = ("train", "data", "teacher")  # of the clock: what it takes to train a run, and what it learns from


@dataclass(frozen=True, kw_only=True, slots=True)
class Curve:
    """The validations of a run. `train_s` is training, its waits for data and a teacher's training up to that step, nothing else."""

    step: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    train_s: list[float] = field(default_factory=list)
    val_loss: list[float] = field(default_factory=list)
    val_bpb: list[float | None] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """A run as its folder has it."""

    folder: Path
    identity: str
    name: str
    arm: str
    seed: int
    status: str
    started: str  # of the first attempt, as the manifest has it
    config: dict[str, Any]  # flat, without the seed
    parts: Mapping[str, Any]
    manifest: Mapping[str, Any]
    summary: Mapping[str, Any]
    curve: Curve

    def number(self, *keys: str) -> float | None:
        """A number of the summary, by its path; `None` where it was not measured."""
        return number(dig(self.summary, *keys))

    def value(self, metric: str) -> float | None:
        """What the run measured in a metric, in the metric's unit."""
        return self.train_s if metric == "train_s" else self.number(*METRICS[metric].path)

    @property
    def val_loss(self) -> float | None:
        return self.value("val_loss")

    @property
    def train_s(self) -> float | None:
        """Seconds of training: its waits for data and a teacher's training included."""
        clock = dig(self.summary, "clock_s")
        return sum(clock.get(line) or 0.0 for line in TRAIN_LINES) if clock else None

    @property
    def attempt(self) -> Mapping[str, Any]:
        """The last one."""
        attempt: Mapping[str, Any] = self.manifest["attempts"][-1]
        return attempt

    @property
    def hardware(self) -> Mapping[str, Any]:
        return self.summary.get("hardware") or self.manifest.get("hardware") or {}

    @property
    def machine(self) -> tuple[str, int]:
        """Times are comparable where this is equal: the hardware's fingerprint, and how many devices."""
        return str(self.hardware.get("fingerprint", "unknown")), int(self.number("devices") or 1)

    @property
    def machine_name(self) -> str:
        fingerprint, devices = self.machine
        host = f" on {self.hardware['host']}" if "host" in self.hardware else ""
        return f"{devices} × {self.hardware.get('name', 'unknown')}{host} ({fingerprint})"

    def tokens_hash(self, split: str) -> str:
        """Which tokens: the shards' hashes, or, for a record that does not list its shards, the whole data manifest."""
        named = [str(digest) for shard in dig(self.manifest, "data", split) or [] if (digest := dig(shard, "sha256"))]
        return "+".join(named) or str(self.parts.get("data"))


def measurements(record: Record) -> list[Measurement]:
    """What a run measured at its end. A diverged run has no loss, and says so."""
    rows = list[Measurement]()
    for metric in map(METRICS.__getitem__, OF_A_RUN):
        lost = record.status == "diverged" and metric.made_by == "train"
        value, ending = (None, Ending.diverged) if lost else (record.value(metric.name), Ending.measured)
        if lost or value is not None:
            at, when = record.machine[0], record.started
            rows.append(Measurement(arm=record.arm, repeat=record.seed, metric=metric, value=value, ending=ending, where=at, when=when))
    return rows


@dataclass(kw_only=True, slots=True)
class Found:
    """What the paths held."""

    records: list[Record] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    unreadable: dict[str, str] = field(default_factory=dict)  # folder's name → why

    def lines(self) -> list[str]:
        """All that is wrong, for people."""
        return [*(f"{name}: left out, {why}" for name, why in self.unreadable.items()), *self.problems]


def dig(tree: Any, *keys: str) -> Any:
    for key in keys:
        tree = tree.get(key) if isinstance(tree, Mapping) else None
    return tree


def number(value: object) -> float | None:
    ok = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if ok else None  # type: ignore[arg-type]


def load(paths: Iterable[str | Path]) -> Found:
    """All runs of these paths, each once, in the order they were started; those of a grid in the order of its cells.

    Of several paths, as a shell makes them of `outputs/*`, those that are there and hold no run (Hydra's multirun.yaml) are named.

    Errors:
        ValueError: a path that is nothing; no path holds a run.
    """
    found, places, folders = Found(), [str(path) for path in paths], dict[Path, Path]()
    for path in places:
        try:
            folders |= {folder.resolve(): folder for folder in find(path)}
        except ValueError:
            if not os.path.lexists(expanded(path)) or (path == places[-1] and not folders):
                raise
            found.problems.append(f"{path}: left out, it holds no run")
    by_identity = dict[str, Record]()
    for folder in folders.values():
        try:
            record = read(folder)
        except ValueError as error:
            found.unreadable[folder.name] = str(error)
            continue
        if (twin := by_identity.setdefault(record.identity, record)) is not record:
            found.problems.append(f"{folder}: left out, it is the same run as {twin.folder} (identity {twin.identity})")
    found.records = list(by_identity.values())
    found.problems += [line for path in places for line in without_record(expanded(path))]
    return found


def records(paths: Iterable[str | Path]) -> list[Record]:
    """Those that can be read. A warning names each other one, and says what is wrong."""
    found = load(paths)
    for line in found.lines():
        warnings.warn(visible(line), stacklevel=3)
    return found.records


def read(folder: Path, *, rows: bool = True, sound: bool = True) -> Record:
    """One run's record; without `rows`, as a list of many runs shows it. Without `sound`, what it says of itself is believed.

    Errors:
        ValueError: the folder is no run, its record cannot be read or was changed, or a newer nocap wrote it.
    """
    manifest, summary = check_record(folder) if sound else [read_json(folder / name) or {} for name in (MANIFEST, SUMMARY)]
    version = max(content.get("schema_version") or 0 for content in (manifest, summary))
    require(version <= SCHEMA_VERSION, "schema_version", f"be at most {SCHEMA_VERSION} for this nocap", version)
    name = manifest.get("name") or folder.name
    shown, name, arm = redact((dig(manifest, "parts", "config") or {}, name, manifest.get("arm") or name))  # of another's nocap
    config = dict(flat(shown))
    seed = config.pop("seed", None)
    require(type(seed) is int, "the seed of manifest.json", "be an integer", seed)
    attempts = manifest.get("attempts") or []
    require(bool(attempts) and all(attempts), "manifest.json", "list the run's attempts", attempts)
    status = summary.get("status") or "not finished"
    return Record(
        folder=folder,
        identity=str(manifest.get("identity")),
        name=name,
        arm=arm,
        seed=seed,
        status=status,
        started=str(attempts[0].get("started") or ""),
        config=config,
        parts=manifest.get("parts") or {},
        manifest=manifest,
        summary=summary,
        curve=_curve(Metrics(folder / "metrics.jsonl").rows()) if rows and status in ENDED else Curve(),
    )


def _curve(rows: Sequence[Row]) -> Curve:
    points = [row for row in rows if row.get("val/loss") is not None]
    return Curve(
        step=[row["step"] for row in points],
        tokens=[row.get("tokens") or 0 for row in points],
        train_s=[train_s(row) for row in points],
        val_loss=[row["val/loss"] for row in points],
        val_bpb=[row.get("val/bpb") for row in points],
    )


def train_s(row: Row) -> float:
    """Seconds of training before this row's validation: its clock is read after the step that follows the validation."""
    clock = sum(row.get(f"clock/{line}_s") or 0.0 for line in TRAIN_LINES)
    return max(0.0, clock - (row.get("perf/step_ms") or 0.0) / 1e3)
