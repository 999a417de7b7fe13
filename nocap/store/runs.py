"""Find runs on the disk by folder, grid, glob or name, and load their records. A run that cannot be
read is named, never dropped in silence."""

from __future__ import annotations

import difflib
import glob
import math
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from nocap.config.keys import require
from nocap.config.paths import expanded
from nocap.display import plural, shorten
from nocap.store.grid_file import GRID, GridCell, cells_of, is_grid
from nocap.store.grid_timing import Timing, timings_in
from nocap.store.record import Record, read_record
from nocap.store.record_files import MANIFEST, SUMMARY, digest, read_json
from nocap.store.times import moment

OUTPUTS = Path("outputs")  # names are looked for here
LAST = "last"  # the run that was started or gone on with last
CANDIDATES = 8  # that a message lists


@dataclass(kw_only=True, slots=True)
class Found:
    """Hold the runs of some paths, and what is wrong there."""

    records: list[Record] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    unreadable: dict[str, str] = field(default_factory=dict)  # folder's name → why
    timings: list[Timing] = field(default_factory=list)  # of grids among them, the newest first


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
            found.problems.append(f"{path}: left out, because it holds no run of nocap's own")
    by_identity = _records(folders.values(), found, rows=rows)
    grids = _grids(arguments)
    for grid in grids:
        try:
            found.timings += timings_in(grid)
        except ValueError as error:
            found.problems.append(f"nocap leaves out a timing: {error}")
    lengths = _lengths(grids)
    for identity, record in by_identity.items():
        found.records.append(replace(record, length_of=lengths.get(identity, record.length_of)))
    is_one_grid = len(arguments) == 1 and is_grid(expanded(arguments[0]))
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
            same = f"the same run is in {first.folder} (identity {first.identity})"
            found.problems.append(f"{folder}: left out: {same}")
    return by_identity


def _grids(arguments: Sequence[str]) -> list[Path]:
    """List the folders of grids among these paths."""
    folders = map(expanded, arguments)
    return [folder for folder in folders if is_grid(folder) and not _is_run(folder)]


def _lengths(grids: Sequence[Path]) -> dict[str, str | None]:
    """Return the arm whose other length each cell of these grids shows, whoever trained the cell
    first."""
    lengths = dict[str, str | None]()
    for grid in grids:
        for cell in cells_of(grid):
            lengths[cell.identity] = cell.length_of
    return lengths


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
    rule = "a run, a folder of runs or a grid's folder, but holds no run"
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
    rule = f"a run, a folder, a glob, or a run's name or identity in {root}, but no run was found"
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
    require(len(folders) <= 1, name, "name only one run", f"{len(folders)}: {names}")


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
    """List the run folders of a run, of a grid in its cells' order, or of a folder by name."""
    if _is_run(target):
        return [target]
    if is_grid(target):
        folders = [_folder_of(cell, target) for cell in cells_of(target)]
        return [folder for folder in folders if folder is not None]
    return run_folders(_place_of_runs(target))


def _place_of_runs(target: Path) -> Path:
    inner = target / "runs"
    return inner if inner.is_dir() else target


def holds_runs(folder: Path) -> bool:
    """Say whether a folder is a run's, or has runs in it. None of them is read."""
    return _is_run(folder) or bool(run_folders(_place_of_runs(folder)))


def _folder_of(cell: GridCell, grid: Path) -> Path | None:
    """Return the folder of a cell's run, beside all others in `runs/`; None: nobody started it. A
    damaged run is known by the name that it was given."""
    root = grid.absolute().parents[1] / "runs"
    folder = of_identity(root, cell.identity)
    if folder is None:
        folder = root / Path(cell.name).name  # never outside
    if not _is_run(folder):
        return None
    return folder


def without_record(target: Path) -> Iterator[str]:
    """Yield lines about a grid's cells that have no record, and about other cells than those whose
    digest the folder's name has."""
    if _is_run(target) or not is_grid(target):
        return
    cells = cells_of(target)
    missing = [cell.name for cell in cells if _folder_of(cell, target) is None]
    if missing:
        yield f"{target}: {plural(len(missing), 'cell')} without a record ({shorten(missing)})"
    digest_in_name = re.search(r"-([0-9a-f]{8})$", target.absolute().name)
    identities = sorted(cell.identity for cell in cells)
    own_digest = digest({"identities": identities})[:8]
    if digest_in_name and digest_in_name[1] != own_digest:
        yield f"{target / GRID}: the file's cells do not match the folder's name"


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
