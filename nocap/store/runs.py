"""Find runs on the disk by folder, grid, glob or name, and read them. A run that cannot be read is
named, never dropped in silence."""

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
from nocap.display import plural, shorten
from nocap.store.metrics import METRICS, OF_A_RUN, Ending, Measurement, moment
from nocap.store.record import (
    ENDED,
    MANIFEST,
    SHAPES,
    SUMMARY,
    Metrics,
    Row,
    RunStatus,
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
    """Hold the validations of a run. `train_s` is training, its waits for data and a teacher's
    training up to that step, nothing else."""

    step: list[int] = field(default_factory=list)
    tokens: list[int | None] = field(default_factory=list)
    train_s: list[float | None] = field(default_factory=list)
    val_loss: list[float] = field(default_factory=list)
    val_bpb: list[float | None] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """Say where a run was timed, and how its memory was allocated."""

    fingerprint: str  # of the hardware
    devices: int
    malloc: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """Hold a run as its folder has it. Manifest and summary have every object and list of `SHAPES`,
    an empty one where there is none."""

    folder: Path
    identity: str
    name: str
    arm: str
    seed: int
    status: str  # a `RunStatus`, or what the log of another trainer says
    started: str  # of the first attempt, as the manifest has it
    config: dict[str, Any]  # flat, without the seed
    parts: Mapping[str, Any]
    manifest: Mapping[str, Any]
    summary: Mapping[str, Any]
    curve: Curve
    # the arm whose loss at another length it shows, by the command that asked for it; None: it is
    # its own
    length_of: str | None = None

    def __post_init__(self) -> None:
        for name, file in {"manifest": MANIFEST, "summary": SUMMARY}.items():
            object.__setattr__(self, name, filled(getattr(self, name), SHAPES[file]))

    def number(self, *keys: str) -> float | None:
        """Return a number of the summary, by its path; None where it was not measured."""
        return number(dig(self.summary, *keys))

    def value(self, metric: str) -> float | None:
        """Return the run's measurement of a metric, in the metric's unit."""
        if metric == "train_s":
            return self.train_s
        return self.number(*METRICS[metric].path)

    @property
    def val_loss(self) -> float | None:
        return self.value("val_loss")

    @property
    def train_s(self) -> float | None:
        """Return the seconds of training, with its waits for data and a teacher's training."""
        clock = self.summary["clock_s"]
        if not clock:
            return None
        return sum(clock.get(line) or 0.0 for line in TRAIN_LINES)

    @property
    def when(self) -> tuple[float, int, float, str]:
        """Return what sorts runs, in whatever order they are listed: when a command asked for it,
        where that command had its arm, and when it was started."""
        request = self.manifest["attempts"][0]["asked"]
        started = moment(self.started)
        if started is None:
            started = -math.inf
        requested = moment(request.get("at") or "")
        if requested is None:
            requested = started
        return requested, request.get("place") or 0, started, self.folder.name

    @property
    def attempt(self) -> Mapping[str, Any]:
        """Return the last attempt."""
        return cast(Mapping[str, Any], self.manifest["attempts"][-1])

    @property
    def hardware(self) -> Mapping[str, Any]:
        """Return the hardware of the end, or of the last start where the run has not ended."""
        return cast(Mapping[str, Any], self.summary["hardware"] or self.manifest["hardware"])

    @property
    def imported(self) -> Mapping[str, Any]:
        """Return the facts of a run whose log another trainer wrote: its format, what named its arm
        and its seed, whether the user said its hardware, and the length of a log without steps."""
        return cast(Mapping[str, Any], self.manifest["imported"])

    @property
    def machine(self) -> Machine:
        """Return the machine that timed the run: times are comparable where it is equal."""
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
        name = self.hardware.get("name", "unknown")
        text = f"{machine.devices} × {name}"
        if "host" in self.hardware:
            text = f"{text} on {self.hardware['host']}"
        details = machine.fingerprint
        if machine.malloc != SYSTEM:
            details = f"{details}, {machine.malloc}"
        return f"{text} ({details})"

    def tokens_hash(self, split: str) -> str:
        """Return the shards' hashes, which say what tokens a split has. A record that does not list
        its shards has the hash of its data."""
        shards = self.manifest["data"][split]
        hashes = [str(shard["sha256"]) for shard in shards if shard.get("sha256")]
        return "+".join(hashes) or str(self.parts.get("data"))


def measurements(record: Record) -> list[Measurement]:
    """Return what a run measured at its end. A diverged run has no loss, and says so."""
    rows = list[Measurement]()
    for name in OF_A_RUN:
        metric = METRICS[name]
        value = record.value(name)
        ending = Ending.measured
        if record.status == RunStatus.diverged and metric.made_by == "train":
            value = None
            ending = Ending.diverged
        elif value is None:
            continue
        row = Measurement(
            arm=record.arm,
            repeat=record.seed,
            metric=metric,
            value=value,
            ending=ending,
            where=record.machine.fingerprint,
            when=record.started,
        )
        rows.append(row)
    return rows


@dataclass(kw_only=True, slots=True)
class Found:
    """Hold the runs of some paths, and what is wrong there."""

    records: list[Record] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    unreadable: dict[str, str] = field(default_factory=dict)  # folder's name → why
    timings: list[Timing] = field(default_factory=list)  # of grids among them, the newest first


def dig(tree: Any, *keys: str) -> Any:
    """Return the value at a path of keys; None where there is none."""
    for key in keys:
        if not isinstance(tree, Mapping):
            return None
        tree = tree.get(key)
    return tree


def number(value: object) -> float | None:
    """Return a finite number, and None for any other value."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if not math.isfinite(value):
        return None
    return float(value)


def load_runs(paths: Iterable[str | Path], *, outputs: Path = OUTPUTS, rows: bool = True) -> Found:
    """Load all runs of these paths, each once, in the order in which commands asked for them,
    however they are named; those of one grid in the order of its cells. `outputs`: see `find`;
    `rows`: see `read_record`.

    Of several paths, as a shell makes them of `outputs/*`, those that are there and hold no run
    (Hydra's multirun.yaml) are named.

    Errors:
        ValueError: a path that is nothing; no path holds a run.
    """
    arguments = [str(path) for path in paths]
    found = Found()
    folders = dict[Path, Path]()
    for path in arguments:
        try:
            for folder in find(path, outputs=outputs):
                folders[folder.resolve()] = folder
        except ValueError:
            is_last = path == arguments[-1]
            if not os.path.lexists(expanded(path)) or (is_last and not folders):
                raise
            found.problems.append(f"{path}: left out, it holds no run of nocap's own")
    by_identity = _records(folders.values(), found, rows=rows)
    grids = _grids(arguments)
    for grid in grids:
        try:
            found.timings += timings_in(grid)
        except ValueError as error:
            found.problems.append(f"a timing is left out: {error}")
    lengths = _lengths(grids)
    for identity, record in by_identity.items():
        found.records.append(replace(record, length_of=lengths.get(identity, record.length_of)))
    is_one_grid = len(arguments) == 1 and (expanded(arguments[0]) / GRID).is_file()
    if not is_one_grid:
        found.records.sort(key=lambda record: record.when)
    for path in arguments:
        found.problems += without_record(expanded(path))
    return found


def _records(folders: Iterable[Path], found: Found, *, rows: bool) -> dict[str, Record]:
    """Return identity → record of the runs in these folders. Put those that cannot be read, and
    copies, into `found`."""
    by_identity = dict[str, Record]()
    for folder in folders:
        try:
            record = read_record(folder, rows=rows)
        except ValueError as error:
            found.unreadable[folder.name] = str(error)
            continue
        first = by_identity.setdefault(record.identity, record)
        if first is not record:
            same = f"it is the same run as {first.folder} (identity {first.identity})"
            found.problems.append(f"{folder}: left out, {same}")
    return by_identity


def _grids(arguments: Sequence[str]) -> list[Path]:
    """List the folders of grids among these paths."""
    folders = map(expanded, arguments)
    return [folder for folder in folders if (folder / GRID).is_file() and not _is_run(folder)]


def _lengths(grids: Sequence[Path]) -> dict[str, str | None]:
    """Return the arm whose other length each cell of these grids shows, whoever trained the cell
    first."""
    lengths = dict[str, str | None]()
    for grid in grids:
        for cell in _cells(grid):
            lengths[cell.identity] = cell.length_of
    return lengths


def read_record(folder: Path, *, rows: bool = True) -> Record:
    """Read one run's record; without `rows`, as a list of many runs shows it.

    Errors:
        ValueError: the folder is no run, its record cannot be read or was changed, or a newer nocap
            wrote it.
    """
    manifest, summary = check_record(folder)
    # a nocap of somebody else may have written a secret
    name = redact(manifest.get("name") or folder.name)
    arm = redact(manifest.get("arm") or name)
    config = dict(flat(redact(dig(manifest, "parts", "config") or {})))
    seed = config.pop("seed", None)
    require(type(seed) is int, "the seed of manifest.json", "be an integer", seed)
    attempts = manifest.get("attempts") or []
    require(bool(attempts) and all(attempts), "manifest.json", "list the run's attempts", attempts)
    status = summary.get("status") or RunStatus.unfinished.value
    curve = Curve()
    if rows and status in ENDED:
        curve = _curve(Metrics(folder / "metrics.jsonl").rows())
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
        curve=curve,
        length_of=(attempts[0].get("asked") or {}).get("length_of"),
    )


def _curve(rows: Sequence[Row]) -> Curve:
    """Return the validations among logged rows."""
    points = [row for row in rows if row.get("val/loss") is not None]
    return Curve(
        step=[row["step"] for row in points],
        tokens=[row.get("tokens") or 0 for row in points],
        train_s=[train_s(row) for row in points],
        val_loss=[row["val/loss"] for row in points],
        val_bpb=[row.get("val/bpb") for row in points],
    )


def train_s(row: Row) -> float:
    """Return the seconds of training before this row's validation. Its clock is read after the step
    that follows the validation."""
    clock_s = sum(row.get(f"clock/{line}_s") or 0.0 for line in TRAIN_LINES)
    step_s = (row.get("perf/step_ms") or 0.0) / 1e3
    return max(0.0, clock_s - step_s)


# --- names ----------------------------------------------------------------------------------------


def find(path: str, *, outputs: Path = OUTPUTS) -> list[Path]:
    """Find the run folders that a path, glob or name stands for; a name is looked for in the `runs`
    of `outputs`.

    A name is `last`, the run that was started or gone on with last; a folder's name, an identity,
    or the readable name of runs or of an arm; or the beginning of one run's name or identity.

    Errors:
        ValueError: there is no such run, or what is no whole name begins several: the message lists
            them.
    """
    target = expanded(path)
    root = outputs / "runs"
    if target.is_dir():
        folders = _below(target)
    else:
        folders = _matching(path, target) or _runs_named(path, root)
    if folders:
        return folders
    rule = "a run, a folder of runs or a grid's folder, and holds no run"
    if not target.is_dir():
        rule = _names_rule(path, root)
    raise ValueError("; ".join([f"{path} must be {rule}", *without_record(target)]))


def _matching(path: str, target: Path) -> list[Path]:
    """Return the run folders that a glob matches."""
    if not glob.has_magic(path):
        return []
    folders = list[Path]()
    for match in sorted(glob.glob(str(target), recursive=True)):
        folder = Path(match)
        if folder.is_dir():
            folders += _below(folder)
    return folders


def _names_rule(path: str, root: Path) -> str:
    """Say what names a run, and which names are near to this one."""
    rule = f"a run, a folder, a glob, or a run's name or identity in {root}, and no run was found"
    names = [folder.name for folder in run_folders(root)]
    if not names:
        return rule
    near = difflib.get_close_matches(path, names, n=CANDIDATES, cutoff=0.3) or names
    return f"{rule}; there: {shorten(near, most=CANDIDATES)}"


def find_one(path: str, *, outputs: Path = OUTPUTS) -> Path:
    """Find the one run folder that a path or name stands for.

    Errors:
        ValueError: there is none, or there are several.
    """
    folders = find(path, outputs=outputs)
    _refuse_several(path, folders)
    return folders[0]


def _refuse_several(name: str, folders: Sequence[Path]) -> None:
    """Refuse a name of several runs.

    Errors:
        ValueError: that; the message lists them.
    """
    names = shorten((folder.name for folder in folders), most=CANDIDATES)
    require(len(folders) <= 1, name, "be one run", f"{len(folders)}: {names}")


def run_folders(root: Path) -> list[Path]:
    """List the run folders right below, by name."""
    return sorted(folder for folder in root.glob("[!.]*/") if _is_run(folder))


def _is_run(folder: Path) -> bool:
    """Say whether a folder has a run's files, of whatever kind: one that is no file is a damaged
    run, which is named."""
    return any(os.path.lexists(folder / name) for name in (MANIFEST, SUMMARY))


def _in_order(folders: Iterable[Path], attempt: int = 0) -> list[Path]:
    """Sort runs as they were started, or with attempt -1 as they were gone on with last."""
    return sorted(folders, key=lambda folder: (_started(folder, attempt), folder.name))


def _started(folder: Path, attempt: int) -> float:
    """Read when an attempt began; a run that does not say it comes first."""
    with suppress(ValueError, LookupError, TypeError):  # the reader of a damaged one names it
        manifest = read_json(folder / MANIFEST) or {}
        began = moment(str(manifest["attempts"][attempt]["started"]))
        if began is not None:
            return began
    return -math.inf


def _below(target: Path) -> list[Path]:
    """List the run folders of a run, of a grid in the order of its cells, or of a folder by name."""
    if _is_run(target):
        return [target]
    if (target / GRID).is_file():
        return [cell.folder for cell in _cells(target) if cell.folder is not None]
    return run_folders(_place_of_runs(target))


def _place_of_runs(target: Path) -> Path:
    inner = target / "runs"
    return inner if inner.is_dir() else target


def holds_runs(folder: Path) -> bool:
    """Say whether a folder is a run's, or has runs in it. None of them is read."""
    return _is_run(folder) or bool(run_folders(_place_of_runs(folder)))


@dataclass(frozen=True, kw_only=True, slots=True)
class GridCell:
    """A cell as the file of its grid lists it."""

    identity: str
    name: str  # of its run's folder, as the grid has planned it
    length_of: str | None  # the arm whose other length it shows
    folder: Path | None  # of its run; None: nobody started it


def _cells(grid: Path) -> list[GridCell]:
    """Return a grid's cells. Their runs lie beside all others in `runs/`. A damaged run is known by
    the name that it was given."""
    root = grid.absolute().parents[1] / "runs"
    content = read_json(grid / GRID) or {}
    cells = list[GridCell]()
    for row in content.get("cells") or ():
        identity = row and row.get("identity")
        if not identity:
            continue
        name = row.get("run") or identity
        folder = of_identity(root, identity)
        if folder is None:
            folder = root / Path(name).name  # never outside
        request = row.get("asked") or {}
        cell = GridCell(
            identity=identity,
            name=name,
            length_of=request.get("length_of"),
            folder=folder if _is_run(folder) else None,
        )
        cells.append(cell)
    return cells


def without_record(target: Path) -> Iterator[str]:
    """Yield lines about a grid's cells that have no record, and about other cells than those whose
    digest the folder's name has."""
    if _is_run(target) or not (target / GRID).is_file():
        return
    cells = _cells(target)
    missing = [cell.name for cell in cells if cell.folder is None]
    if missing:
        yield f"{target}: {plural(len(missing), 'cell')} without a record ({shorten(missing)})"
    digest_in_name = re.search(r"-([0-9a-f]{8})$", target.absolute().name)
    identities = sorted(cell.identity for cell in cells)
    own_digest = digest({"identities": identities})[:8]
    if digest_in_name and digest_in_name[1] != own_digest:
        yield f"{target / GRID}: it lists other cells than those that made the folder's name"


def of_identity(root: Path, identity: str) -> Path | None:
    """Find the folder below `root` of the run with this identity: its name is its manifest's, or it
    has no manifest yet. A copy is another's."""
    if not root.is_dir():
        return None
    # names first: a path for each of ten thousand runs, for each cell of a grid, is half an hour
    names = [name for name in os.listdir(root) if name.endswith(f"-{identity}")]
    for name in sorted(names):
        folder = root / name
        if not folder.is_dir():
            continue
        with suppress(ValueError):
            manifest = read_json(folder / MANIFEST)
            if manifest is None or name == f"{manifest.get('name')}-{manifest.get('identity')}":
                return folder
    return None


def _runs_named(name: str, root: Path) -> list[Path]:
    """Return the runs that `find` says a name stands for.

    Errors:
        ValueError: it begins the names of several.
    """
    folders = run_folders(root)
    if name == LAST:
        return _in_order(folders, attempt=-1)[-1:]
    exact = list[Path]()
    by_beginning = list[Path]()
    for folder in folders:
        identity = folder.name.rpartition("-")[2]
        if name in (folder.name, identity) or folder.name.startswith(f"{name}-"):
            exact.append(folder)
        elif folder.name.startswith(name) or identity.startswith(name):
            by_beginning.append(folder)
    if exact:
        return _in_order(exact)
    _refuse_several(name, by_beginning)
    return by_beginning
