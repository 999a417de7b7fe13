"""Read the records of runs. What cannot be read is named, never dropped in silence."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from nocap.config.keys import flat
from nocap.config.outward import redact, visible
from nocap.config.paths import expanded
from nocap.store.find import find, without_record
from nocap.store.formats import plural, shorten
from nocap.store.measurement import Ending, Measurement
from nocap.store.metrics import METRICS, OF_A_RUN
from nocap.store.record import SCHEMA_VERSION, Row, read_json
from nocap.store.verify import Ended, check, read_ended

LONGEST_NAME = 500  # characters; a file system takes 255

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
    content: str = ""  # SHA-256 of its rows

    def number(self, *keys: str) -> float | None:
        """A finite number of the summary, by its path; `None` where there is none, as in older records."""
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
        found = [self.number("clock_s", line) for line in TRAIN_LINES]
        return None if found[0] is None else sum(seconds or 0.0 for seconds in found)

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
    found = []
    for name in OF_A_RUN:
        is_lost = record.status == "diverged" and METRICS[name].made_by == "train"
        value, ending = (None, Ending.diverged) if is_lost else (record.value(name), Ending.measured)
        if is_lost or value is not None:
            at, when = record.machine[0], record.started
            metric = METRICS[name]
            found.append(Measurement(arm=record.arm, repeat=record.seed, metric=metric, value=value, ending=ending, where=at, when=when))
    return found


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
    found = Found()
    places = [str(path) for path in paths]
    folders: dict[Path, Path] = {}
    for path in places:
        try:
            folders |= {folder.resolve(): folder for folder in find(path)}
        except ValueError:
            if not os.path.lexists(expanded(path)) or (path == places[-1] and not folders):
                raise
            found.problems.append(f"{path}: left out, it holds no run")
    for folder in folders.values():
        try:
            record = read(folder, problems=found.problems)
        except ValueError as error:
            found.unreadable[folder.name] = str(error)
            continue
        if twin := next((r for r in found.records if _is_copy(record, r)), None):
            found.problems.append(f"{folder}: left out, it is the same run as {twin.folder} (identity {twin.identity})")
        else:
            found.records.append(record)
    found.problems += [line for path in places for line in without_record(expanded(path))]
    return found


def records(paths: Iterable[str | Path]) -> list[Record]:
    """Those that can be read. A warning names each other one, and says what is wrong."""
    found = load(paths)
    for line in found.lines():
        warnings.warn(visible(line), stacklevel=3)
    return found.records


def _is_copy(record: Record, other: Record) -> bool:
    """The same run, or the same rows under another name: no two runs have the same clocks."""
    return record.identity == other.identity or (bool(record.content) and record.content == other.content)


def read(folder: Path, *, problems: list[str]) -> Record:
    """One run's record. Lines of its metrics that are torn or foreign are skipped and counted in `problems`.

    Errors:
        ValueError: the folder is no run, its record is damaged or contradicts itself, or a newer nocap wrote it.
    """
    ended = read_ended(folder)
    record = glance(folder, sound=ended is None)  # its digests were checked with its rows
    return replace(
        record,
        curve=_curve(folder, ended, problems) if ended is not None else Curve(),
        content=ended.content if ended is not None and ended.rows else "",
    )


def glance(folder: Path, *, sound: bool = True) -> Record:
    """A record without its rows, as a list of many runs shows it. Without `sound`, what it says of itself is believed.

    Errors:
        ValueError: the folder is no run, its record cannot be read or was changed, or a newer nocap wrote it.
    """
    if sound:
        manifest, summary = check(folder)
    else:
        manifest, summary = (read_json(folder / name) or {} for name in ("manifest.json", "summary.json"))
    summary = summary or {"status": "not finished"}
    for file, content in (("manifest.json", manifest), ("summary.json", summary)):
        if (version := content.get("schema_version") or 0) > SCHEMA_VERSION:
            raise ValueError(f"{file} has schema_version {version}, and this nocap reads up to {SCHEMA_VERSION}")
    parts = manifest.get("parts") or {}
    if not isinstance(dig(parts, "config"), Mapping) or not manifest.get("identity"):
        raise ValueError("manifest.json has no identity or no parts.config")
    name = str(manifest.get("name") or folder.name.rpartition("-")[0] or folder.name)[:LONGEST_NAME]
    arm = str(manifest.get("arm") or name)[:LONGEST_NAME]
    shown, name, arm = redact((parts["config"], name, arm))  # another's nocap may have left a secret
    config = dict(flat(shown))
    seed = config.pop("seed", summary.get("seed"))
    if type(seed) is not int:
        raise ValueError(f"the seed must be an integer, got {seed!r}")
    status = str(summary.get("status", "unknown"))
    return Record(
        folder=folder,
        identity=str(manifest["identity"]),
        name=name,
        arm=arm,
        seed=seed,
        status=status,
        started=str(((manifest.get("attempts") or [{}])[0] or {}).get("started") or ""),
        config=config,
        parts=parts,
        manifest=manifest,
        summary=summary,
        curve=Curve(),
    )


def _curve(folder: Path, ended: Ended, problems: list[str]) -> Curve:
    curve = Curve()
    for row in ended.rows:
        if (loss := number(row.get("val/loss"))) is not None:
            curve.step.append(row["step"])
            curve.tokens.append(int(number(row.get("tokens")) or 0))
            curve.train_s.append(train_s(row))
            curve.val_loss.append(loss)
            curve.val_bpb.append(number(row.get("val/bpb")))
    if bad := ended.bad_lines:
        path = folder / "metrics.jsonl"
        problems.append(f"{path}: {plural(len(bad), 'corrupt line')} skipped ({shorten(f'line {n}' for n in bad)})")
    return curve


def train_s(row: Row) -> float:
    """Seconds of training before this row's validation: its clock is read after the step that follows the validation."""
    clock = sum(number(row.get(f"clock/{line}_s")) or 0.0 for line in TRAIN_LINES)
    return max(0.0, clock - (number(row.get("perf/step_ms")) or 0.0) / 1e3)
