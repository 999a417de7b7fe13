"""Runs on the disk: found by folder, grid, glob or name, and read. What cannot be read is named, never
dropped in silence."""

from __future__ import annotations

import difflib
import glob
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from nocap.config.keys import flat, require
from nocap.config.outward import redact
from nocap.config.paths import expanded
from nocap.store.formats import plural, shorten
from nocap.store.metrics import METRICS, OF_A_RUN, Ending, Measurement, moment
from nocap.store.record import (
    ENDED,
    MANIFEST,
    SHAPES,
    SUMMARY,
    Metrics,
    Row,
    check_record,
    digest,
    filled,
    read_json,
)
from nocap.store.timing import Timing, timings_in

OUTPUTS = Path("outputs")  # names are looked for here
LAST = "last"  # the run that was started or gone on with last
CANDIDATES = 8  # that a message lists
GRID = "grid.json"  # in a grid's folder: {"cells": [{"identity": …}, …]}
UNKNOWN = "unknown"  # a machine
Config = Mapping[str, Any]  # of a run, without the seed: key with dots → a value of YAML
Parts = Mapping[str, Any]  # of an identity
SYSTEM = "system"  # trainer.malloc of records that do not have it
# of the clock: what it takes to train a run, and what it learns from
TRAIN_LINES = ("train", "data", "teacher")


@dataclass(frozen=True, kw_only=True, slots=True)
class Curve:
    """The validations of a run. `train_s` is training, its waits for data and a teacher's training up to that
    step, nothing else."""

    step: list[int] = field(default_factory=list)
    tokens: list[int | None] = field(default_factory=list)
    train_s: list[float | None] = field(default_factory=list)
    val_loss: list[float] = field(default_factory=list)
    val_bpb: list[float | None] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """Where a run was timed, and how its memory was allocated."""

    fingerprint: str  # of the hardware
    devices: int
    malloc: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """A run as its folder has it. Manifest and summary have every object and list of `SHAPES`, an empty one
    where there is none."""

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
    # the arm whose loss at another length it shows, by the command that asked for it; None: it is its own
    length_of: str | None = None

    def __post_init__(self) -> None:
        for name, file in {"manifest": MANIFEST, "summary": SUMMARY}.items():
            object.__setattr__(self, name, filled(getattr(self, name), SHAPES[file]))

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
        clock = self.summary["clock_s"]
        return sum(clock.get(line) or 0.0 for line in TRAIN_LINES) if clock else None

    @property
    def when(self) -> tuple[float, int, float, str]:
        """Return what sorts runs, in whatever order they are listed: when a command asked for it, where that
        command had its arm, and when it was started."""
        asked = self.manifest["attempts"][0]["asked"]
        started = moment(self.started)
        at = moment(asked.get("at") or "")
        early = -math.inf if started is None else started
        return (early if at is None else at, asked.get("place") or 0, early, self.folder.name)

    @property
    def attempt(self) -> Mapping[str, Any]:
        """The last one."""
        return cast(Mapping[str, Any], self.manifest["attempts"][-1])

    @property
    def hardware(self) -> Mapping[str, Any]:
        return cast(Mapping[str, Any], self.summary["hardware"] or self.manifest["hardware"])

    @property
    def imported(self) -> Mapping[str, Any]:
        """Of a run whose log another trainer wrote: its format, what named its arm and its seed, whether the
        user said its hardware, and of a log without steps its length."""
        return cast(Mapping[str, Any], self.manifest["imported"])

    @property
    def machine(self) -> Machine:
        """What a run was timed on: times are comparable where it is equal."""
        return Machine(
            fingerprint=str(self.hardware.get("fingerprint", UNKNOWN)),
            devices=int(self.number("devices") or 1),
            malloc=str(self.hardware.get("malloc", SYSTEM)),
        )

    @property
    def machine_name(self) -> str:
        machine = self.machine
        if self.imported:
            return machine.fingerprint
        host = f" on {self.hardware['host']}" if "host" in self.hardware else ""
        malloc = "" if machine.malloc == SYSTEM else f", {machine.malloc}"
        name = self.hardware.get("name", "unknown")
        return f"{machine.devices} × {name}{host} ({machine.fingerprint}{malloc})"

    def tokens_hash(self, split: str) -> str:
        """Which tokens: the shards' hashes, or, for a record that does not list its shards, the whole data
        manifest."""
        named = [str(shard["sha256"]) for shard in self.manifest["data"][split] if shard.get("sha256")]
        return "+".join(named) or str(self.parts.get("data"))


def measurements(record: Record) -> list[Measurement]:
    """What a run measured at its end. A diverged run has no loss, and says so."""
    rows = list[Measurement]()
    for metric in map(METRICS.__getitem__, OF_A_RUN):
        lost = record.status == "diverged" and metric.made_by == "train"
        value, ending = (None, Ending.diverged) if lost else (record.value(metric.name), Ending.measured)
        if lost or value is not None:
            rows.append(
                Measurement(
                    arm=record.arm,
                    repeat=record.seed,
                    metric=metric,
                    value=value,
                    ending=ending,
                    where=record.machine.fingerprint,
                    when=record.started,
                )
            )
    return rows


@dataclass(kw_only=True, slots=True)
class Found:
    """What the paths held."""

    records: list[Record] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    unreadable: dict[str, str] = field(default_factory=dict)  # folder's name → why
    timings: list[Timing] = field(default_factory=list)  # of the grids that they are, the newest first


def dig(tree: Any, *keys: str) -> Any:
    for key in keys:
        tree = tree.get(key) if isinstance(tree, Mapping) else None
    return tree


def number(value: object) -> float | None:
    ok = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if ok else None  # type: ignore[arg-type]


def load(paths: Iterable[str | Path], *, outputs: Path = OUTPUTS, rows: bool = True) -> Found:
    """Load all runs of these paths, each once, in the order in which commands asked for them, however they
    are named; those of one grid in the order of its cells. `outputs`: see `find`; `rows`: see `read`.

    Of several paths, as a shell makes them of `outputs/*`, those that are there and hold no run (Hydra's
    multirun.yaml) are named.

    Errors:
        ValueError: a path that is nothing; no path holds a run.
    """
    runs, places, folders = Found(), [str(path) for path in paths], dict[Path, Path]()
    for path in places:
        try:
            folders |= {folder.resolve(): folder for folder in find(path, outputs=outputs)}
        except ValueError:
            if not os.path.lexists(expanded(path)) or (path == places[-1] and not folders):
                raise
            runs.problems.append(f"{path}: left out, it holds no run of nocap's own")
    by_identity = dict[str, Record]()
    for folder in folders.values():
        try:
            record = read(folder, rows=rows)
        except ValueError as error:
            runs.unreadable[folder.name] = str(error)
            continue
        if (twin := by_identity.setdefault(record.identity, record)) is not record:
            runs.problems.append(
                f"{folder}: left out, it is the same run as {twin.folder} (identity {twin.identity})"
            )
    grids = _grids(places)
    for grid in grids:
        try:
            runs.timings += timings_in(grid)
        except ValueError as error:
            runs.problems.append(f"a timing is left out: {error}")
    lengths = _lengths(grids)
    runs.records = [
        replace(record, length_of=lengths.get(record.identity, record.length_of))
        for record in by_identity.values()
    ]
    if len(places) > 1 or not (expanded(places[0]) / GRID).is_file():
        runs.records.sort(key=lambda record: record.when)
    runs.problems += [line for path in places for line in without_record(expanded(path))]
    return runs


def _grids(places: Sequence[str]) -> list[Path]:
    """List the folders of grids among these paths."""
    folders = map(expanded, places)
    return [folder for folder in folders if (folder / GRID).is_file() and not _is_run(folder)]


def _lengths(grids: Sequence[Path]) -> dict[str, str | None]:
    """Return the arm whose other length each cell of these grids shows, whoever trained the cell first."""
    cells = [cell for grid in grids for cell in _cells(grid)]
    return {cell["identity"]: (cell.get("asked") or {}).get("length_of") for cell in cells}


def read(folder: Path, *, rows: bool = True) -> Record:
    """One run's record; without `rows`, as a list of many runs shows it.

    Errors:
        ValueError: the folder is no run, its record cannot be read or was changed, or a newer nocap wrote it.
    """
    manifest, summary = check_record(folder)
    name = manifest.get("name") or folder.name
    # of another's nocap
    shown, name, arm = redact((dig(manifest, "parts", "config") or {}, name, manifest.get("arm") or name))
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
        length_of=(attempts[0].get("asked") or {}).get("length_of"),
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
    """Seconds of training before this row's validation: its clock is read after the step that follows the
    validation."""
    clock = sum(row.get(f"clock/{line}_s") or 0.0 for line in TRAIN_LINES)
    return max(0.0, clock - (row.get("perf/step_ms") or 0.0) / 1e3)


# --- names --------------------------------------------------------------------------------------------------


def find(path: str, *, outputs: Path = OUTPUTS) -> list[Path]:
    """The run folders that a path, glob or name stands for; a name is looked for in the `runs` of `outputs`.

    A name is `last`, the run that was started or gone on with last; a folder's name, an identity, or the
    readable name of runs or of an arm; or the beginning of one run's name or identity.

    Errors:
        ValueError: there is no such run, or what is no whole name begins several: the message lists them.
    """
    place = expanded(path)
    if place.is_dir():
        folders, rule = _below(place), "a run, a folder of runs or a grid's folder, and holds no run"
    else:
        matches = map(Path, sorted(glob.glob(str(place), recursive=True))) if glob.has_magic(path) else []
        folders = [run for match in matches if match.is_dir() for run in _below(match)] or _named(
            path, outputs / "runs"
        )
        rule = (
            f"a run, a folder, a glob, or a run's name or identity in {outputs / 'runs'}, and no "
            "run was found"
        )
        if not folders and (there := [folder.name for folder in run_folders(outputs / "runs")]):
            near = difflib.get_close_matches(path, there, n=CANDIDATES, cutoff=0.3) or there
            rule += f"; there: {shorten(near, most=CANDIDATES)}"
    if not folders:
        raise ValueError("; ".join([f"{path} must be {rule}", *without_record(place)]))
    return folders


def find_one(path: str, *, outputs: Path = OUTPUTS) -> Path:
    """The one run folder that a path or name stands for.

    Errors:
        ValueError: there is none, or there are several.
    """
    folders = find(path, outputs=outputs)
    _refuse_several(path, folders)
    return folders[0]


def _refuse_several(name: str, folders: Sequence[Path]) -> None:
    names = shorten((folder.name for folder in folders), most=CANDIDATES)
    require(len(folders) <= 1, name, "be one run", f"{len(folders)}: {names}")


def run_folders(root: Path) -> list[Path]:
    """The run folders right below, by name."""
    return sorted(folder for folder in root.glob("[!.]*/") if _is_run(folder))


def _is_run(folder: Path) -> bool:
    """Whatever they are: what is no file is a damaged run, which is named."""
    return os.path.lexists(folder / "manifest.json") or os.path.lexists(folder / "summary.json")


def _in_order(folders: Iterable[Path], attempt: int = 0) -> list[Path]:
    """As they were started, or with attempt -1 gone on with last."""
    return sorted(folders, key=lambda folder: (_started(folder, attempt), folder.name))


def _started(folder: Path, attempt: int) -> float:
    """Read when an attempt began; a run that does not say it comes first."""
    began = None
    with suppress(ValueError, LookupError, TypeError):  # a damaged one is named by who reads it
        began = moment(str((read_json(folder / "manifest.json") or {})["attempts"][attempt]["started"]))
    return -math.inf if began is None else began


def _below(place: Path) -> list[Path]:
    if _is_run(place):
        return [place]
    if (place / GRID).is_file():
        return [cell["folder"] for cell in _cells(place) if cell["folder"] is not None]
    return _in_order(run_folders(place / "runs" if (place / "runs").is_dir() else place))


def _cells(grid: Path) -> list[dict[str, Any]]:
    """A grid's cells, each with the `folder` of its run, which lies beside all others in `runs/`: None where
    nobody started it. A damaged run is known by the name that it was given."""
    root = grid.absolute().parents[1] / "runs"
    cells = [
        cell for cell in (read_json(grid / GRID) or {}).get("cells") or () if cell and cell.get("identity")
    ]
    for cell in cells:
        # never outside
        folder = of_identity(root, cell["identity"]) or root / Path(cell.get("run") or cell["identity"]).name
        cell["folder"] = folder if _is_run(folder) else None
    return cells


def without_record(place: Path) -> Iterator[str]:
    """Lines about a grid's cells that have none, and about other cells than those whose digest the folder's
    name has."""
    if _is_run(place) or not (place / GRID).is_file():
        return
    cells = _cells(place)
    if lost := [cell.get("run") or cell["identity"] for cell in cells if cell["folder"] is None]:
        yield f"{place}: {plural(len(lost), 'cell')} without a record ({shorten(lost)})"
    named = re.search(r"-([0-9a-f]{8})$", place.absolute().name)
    if named and named[1] != digest({"identities": sorted(cell["identity"] for cell in cells)})[:8]:
        yield f"{place / GRID}: it lists other cells than those that made the folder's name"


def of_identity(root: Path, identity: str) -> Path | None:
    """The folder below `root` of the run with this identity: its name is its manifest's, or it has none yet.
    A copy is another's."""
    # a path for each of ten thousand runs, for each cell of a grid, is half an hour
    names = os.listdir(root) if root.is_dir() else ()
    for folder in sorted(root / name for name in names if name.endswith(f"-{identity}")):
        with suppress(ValueError):
            manifest = read_json(folder / "manifest.json") if folder.is_dir() else {}
            if manifest is None or folder.name == f"{manifest.get('name')}-{manifest.get('identity')}":
                return folder
    return None


def _named(name: str, root: Path) -> list[Path]:
    """The runs that `find` says a name stands for.

    Errors:
        ValueError: it begins the names of several.
    """
    identities = {folder: folder.name.rpartition("-")[2] for folder in run_folders(root)}
    if name == LAST:
        return _in_order(identities, attempt=-1)[-1:]
    whole = [
        f for f, identity in identities.items() if name in (f.name, identity) or f.name.startswith(f"{name}-")
    ]
    begins = [f for f, identity in identities.items() if f.name.startswith(name) or identity.startswith(name)]
    if not whole:
        _refuse_several(name, begins)
    return _in_order(whole or begins)
