"""Find runs by folder, grid, glob or name, and read their records. What cannot be read is named, never dropped in silence."""

from __future__ import annotations

import glob
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nocap.config import registry
from nocap.store.record import SCHEMA_VERSION, read_json

OUTPUTS = Path("outputs")  # names are looked for here
GRID = "grid.json"  # in a grid's folder: {"cells": [{"identity": …}, …]}

COMPARED = ("finished", "diverged")  # a loss that is no number is a result; a run that was cut short is none


@dataclass(frozen=True, kw_only=True, slots=True)
class Curve:
    """The validations of a run. `train_s` is training and its waits for data up to that step, nothing else."""

    step: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    train_s: list[float] = field(default_factory=list)
    val_loss: list[float] = field(default_factory=list)
    val_bpb: list[float | None] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """A run as its folder tells it."""

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
    inference: Mapping[str, Any] = field(default_factory=dict)  # latency.json, where `nocap.generate --latency` left one

    def number(self, *keys: str) -> float | None:
        """A finite number of the summary, by its path; `None` where there is none, as in older records."""
        return number(dig(self.summary, *keys))

    @property
    def val_loss(self) -> float | None:
        return self.number("val_loss")

    @property
    def train_s(self) -> float | None:
        """Seconds of training, its waits for data included: what `tokens_per_s` divides by."""
        train = self.number("clock_s", "train")
        return None if train is None else train + (self.number("clock_s", "data") or 0.0)

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
        shards = dig(self.manifest, "data", split) or []
        named = [str(dig(shard, "sha256")) for shard in shards if dig(shard, "sha256")]
        return "+".join(named) if named else str(self.parts.get("data"))


@dataclass(kw_only=True, slots=True)
class Found:
    """What the paths held."""

    records: list[Record] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    unreadable: dict[str, str] = field(default_factory=dict)  # folder's name → why


def dig(tree: Any, *keys: str) -> Any:
    for key in keys:
        tree = tree.get(key) if isinstance(tree, Mapping) else None
    return tree


def number(value: object) -> float | None:
    ok = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if ok else None  # type: ignore[arg-type]


def flat(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """`attention.n_kv_heads` for what the config nests."""
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _with_kinds(config: dict[str, Any]) -> dict[str, Any]:
    """A record from before every option had a kind has its group's first."""
    bare = [group for group in registry.groups() if f"{group}.kind" not in config and any(key.startswith(f"{group}.") for key in config)]
    return {**{f"{group}.kind": next(iter(registry.options(group))) for group in bare if group != "ideas"}, **config}


# --- finding -----------------------------------------------------------------------------------------------------------------------


def load(paths: Iterable[str | Path]) -> Found:
    """All runs of these paths, each once, in the order they were started; those of a grid in the order of its cells.

    Errors:
        ValueError: a path that is nothing, or holds no run.
    """
    found, seen = Found(), set()
    for folder in (folder for path in paths for folder in find(str(path))):
        if folder.resolve() in seen:
            continue
        seen.add(folder.resolve())
        try:
            record = read(folder, problems=found.problems)
        except ValueError as error:
            found.unreadable[folder.name] = str(error)
            continue
        if twin := next((r for r in found.records if r.identity == record.identity), None):
            found.problems.append(f"{folder}: left out, it is the same run as {twin.folder} (identity {record.identity})")
        else:
            found.records.append(record)
    return found


def find(path: str, *, outputs: Path = OUTPUTS) -> list[Path]:
    """The run folders that a path, glob or name stands for; a name is looked for in the `runs` of `outputs`."""
    place = Path(path).expanduser()
    if place.is_dir():
        folders = _below(place)
        if not folders:
            raise ValueError(f"{path} must be a run, a folder of runs or a grid's folder, and holds no run")
        return folders
    if glob.has_magic(path):
        matches = [Path(match) for match in sorted(glob.glob(str(place), recursive=True))]
        folders = [folder for match in matches if match.is_dir() for folder in _below(match)]
    else:
        folders = _named(path, outputs / "runs")
    if not folders:
        raise ValueError(f"{path} must be a run, a folder, a glob, or a run's name or identity in {outputs / 'runs'}, and no run was found")
    return folders


def find_one(path: str, *, outputs: Path = OUTPUTS) -> Path:
    """The one run folder that a path or name stands for."""
    folders = find(path, outputs=outputs)
    if len(folders) > 1:
        raise ValueError(f"{path} must be one run, got {len(folders)}: {shorten(f.name for f in folders)}")
    return folders[0]


def _is_run(folder: Path) -> bool:
    return (folder / "manifest.json").is_file() or (folder / "summary.json").is_file()


def _below(place: Path) -> list[Path]:
    if _is_run(place):
        return [place]
    if (place / GRID).is_file():
        return _cells(place)
    root = place / "runs" if (place / "runs").is_dir() else place
    return sorted((folder for folder in root.glob("[!.]*/") if _is_run(folder)), key=_started)


def _started(folder: Path) -> tuple[str, str]:
    try:
        manifest = read_json(folder / "manifest.json") or {}
    except ValueError:
        manifest = {}
    attempts = manifest.get("attempts") or [{}]
    return str(dig(attempts[0], "started") or ""), folder.name


def _cells(grid: Path) -> list[Path]:
    """A grid's runs, which lie beside all others in `runs/`; cells that nobody started yet have none."""
    content = read_json(grid / GRID) or {}
    wanted = [str(identity) for cell in content.get("cells", []) if (identity := dig(cell, "identity"))]
    by_identity = {folder.name.rpartition("-")[2]: folder for folder in (grid.parents[1] / "runs").glob("[!.]*/") if _is_run(folder)}
    return [by_identity[identity] for identity in dict.fromkeys(wanted) if identity in by_identity]


def _named(name: str, root: Path) -> list[Path]:
    """By a folder's whole name, an identity (or its first six digits or more), or a readable name, which may be that of an arm."""
    runs = sorted((folder for folder in root.glob("[!.]*/") if _is_run(folder)), key=_started)
    by_identity = [folder for folder in runs if len(name) >= 6 and folder.name.rpartition("-")[2].startswith(name)]
    return by_identity or [folder for folder in runs if folder.name == name or folder.name.startswith(f"{name}-")]


# --- reading -----------------------------------------------------------------------------------------------------------------------


def read(folder: Path, *, problems: list[str]) -> Record:
    """One run's record. Lines of its metrics that are torn or foreign are skipped and counted in `problems`.

    Errors:
        ValueError: the folder is no run, its record is damaged, or a newer nocap wrote it.
    """
    manifest = read_json(folder / "manifest.json")
    if manifest is None:
        raise ValueError("it has no manifest.json")
    summary = read_json(folder / "summary.json") or {"status": "not finished"}
    for file, content in (("manifest.json", manifest), ("summary.json", summary)):
        version = content.get("schema_version", 0)
        if not isinstance(version, int) or version > SCHEMA_VERSION:
            raise ValueError(f"{file} has schema_version {version}, and this nocap reads up to {SCHEMA_VERSION}")
    parts = manifest.get("parts") or {}
    if not isinstance(dig(parts, "config"), Mapping) or not manifest.get("identity"):
        raise ValueError("manifest.json has no identity or no parts.config")
    config = _with_kinds(dict(flat(parts["config"])))
    seed = config.pop("seed", summary.get("seed"))
    if not isinstance(seed, int):
        raise ValueError(f"the seed must be an integer, got {seed!r}")
    status = str(summary.get("status", "unknown"))
    name = str(manifest.get("name") or folder.name.rpartition("-")[0] or folder.name)
    return Record(
        folder=folder,
        identity=str(manifest["identity"]),
        name=name,
        arm=str(manifest.get("arm") or name),
        seed=seed,
        status=status,
        started=_started(folder)[0],
        config=config,
        parts=parts,
        manifest=manifest,
        summary=summary,
        curve=_curve(folder, problems) if status in COMPARED else Curve(),
        inference=_inference(folder, problems),
    )


def _inference(folder: Path, problems: list[str]) -> Mapping[str, Any]:
    try:
        content = read_json(folder / "latency.json") or {}
    except ValueError as error:
        problems.append(f"{folder.name}: no inference, {error}")
        return {}
    if content.get("schema_version", 0) > SCHEMA_VERSION:
        problems.append(f"{folder.name}: no inference, latency.json has schema_version {content['schema_version']}")
        return {}
    return content


def _curve(folder: Path, problems: list[str]) -> Curve:
    curve, bad = Curve(), []
    path = folder / "metrics.jsonl"
    lines = path.read_bytes().splitlines() if path.is_file() else []
    if not path.is_file():
        problems.append(f"{folder.name}: no metrics.jsonl, so no curve")
    for line_number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
            step = row["step"]
            if not isinstance(step, int):
                raise TypeError
        except (ValueError, TypeError, KeyError):
            bad.append(line_number)
            continue
        if (loss := number(row.get("val/loss"))) is None:
            continue
        curve.step.append(step)
        curve.tokens.append(int(number(row.get("tokens")) or 0))
        curve.train_s.append(_train_s(row))
        curve.val_loss.append(loss)
        curve.val_bpb.append(number(row.get("val/bpb")))
    if bad:
        problems.append(f"{path}: {len(bad)} corrupt line{'s'[: len(bad) > 1]} skipped ({shorten(f'line {n}' for n in bad)})")
    return curve


def _train_s(row: Mapping[str, Any]) -> float:
    """Seconds of training before this row's validation: its clock is read after the step that follows the validation."""
    clock = (number(row.get("clock/train_s")) or 0.0) + (number(row.get("clock/data_s")) or 0.0)
    return max(0.0, clock - (number(row.get("perf/step_ms")) or 0.0) / 1e3)


def shorten(words: Iterable[str], *, most: int = 4) -> str:
    """`a, b, c and 21 more`: enough to see what is meant."""
    shown = list(words)
    return ", ".join(shown) if len(shown) <= most else f"{', '.join(shown[: most - 1])} and {len(shown) - most + 1} more"
