"""Find runs by folder, grid, glob or name: the one rule for every place where a run is named."""

from __future__ import annotations

import difflib
import glob
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from nocap.config.paths import expanded
from nocap.store.formats import plural, shorten
from nocap.store.record import digest, read_json

OUTPUTS = Path("outputs")  # names are looked for here
LAST = "last"  # the run that was started or gone on with last
CANDIDATES = 8  # that a message lists
GRID = "grid.json"  # in a grid's folder: {"cells": [{"identity": …}, …]}


def find(path: str, *, outputs: Path = OUTPUTS) -> list[Path]:
    """The run folders that a path, glob or name stands for; a name is looked for in the `runs` of `outputs`.

    A name is `last`, the run that was started or gone on with last; a folder's name, an identity, or the readable name of runs or of an
    arm; or the beginning of one run's name or identity.

    Errors:
        ValueError: there is no such run, or what is no whole name begins several: the message lists them.
    """
    place = expanded(path)
    if place.is_dir():
        folders, rule = _below(place), "a run, a folder of runs or a grid's folder, and holds no run"
    else:
        matches = map(Path, sorted(glob.glob(str(place), recursive=True))) if glob.has_magic(path) else []
        folders = [run for match in matches if match.is_dir() for run in _below(match)] or _named(path, outputs / "runs")
        rule = f"a run, a folder, a glob, or a run's name or identity in {outputs / 'runs'}, and no run was found"
        if not folders and (there := run_folders(outputs / "runs")):
            close = difflib.get_close_matches(path, [folder.name for folder in there], n=CANDIDATES, cutoff=0.3)
            rule += f"; there: {shorten(close or (folder.name for folder in there), most=CANDIDATES)}"
    if not folders:
        raise ValueError("; ".join([f"{path} must be {rule}", *without_record(place)]))
    return folders


def find_one(path: str, *, outputs: Path = OUTPUTS) -> Path:
    """The one run folder that a path or name stands for.

    Errors:
        ValueError: there is none, or there are several.
    """
    folders = find(path, outputs=outputs)
    if len(folders) > 1:
        raise ValueError(_several(path, folders))
    return folders[0]


def _several(name: str, folders: Iterable[Path]) -> str:
    names = [folder.name for folder in folders]
    return f"{name} must be one run, got {len(names)}: {shorten(names, most=CANDIDATES)}"


def run_folders(root: Path) -> list[Path]:
    """The run folders right below, by name."""
    return sorted(folder for folder in root.glob("[!.]*/") if _is_run(folder))


def _is_run(folder: Path) -> bool:
    """Whatever they are: what is no file is a damaged run, which is named."""
    return os.path.lexists(folder / "manifest.json") or os.path.lexists(folder / "summary.json")


def _in_order(folders: Iterable[Path], attempt: int = 0) -> list[Path]:
    """As they were started, or with attempt -1 gone on with last."""
    return sorted(folders, key=lambda folder: (_started(folder, attempt), folder.name))


def _started(folder: Path, attempt: int) -> str:
    with suppress(ValueError, LookupError, TypeError):  # a damaged one is named by who reads it
        return str((read_json(folder / "manifest.json") or {})["attempts"][attempt]["started"])
    return ""


def _below(place: Path) -> list[Path]:
    if _is_run(place):
        return [place]
    if (place / GRID).is_file():
        return [cell["folder"] for cell in _cells(place) if cell["folder"] is not None]
    return _in_order(run_folders(place / "runs" if (place / "runs").is_dir() else place))


def _cells(grid: Path) -> list[dict[str, Any]]:
    """A grid's cells, each with the `folder` of its run, which lies beside all others in `runs/`: None where nobody started it. A damaged
    run is known by the name that it was given."""
    root = grid.absolute().parents[1] / "runs"
    cells = [cell for cell in (read_json(grid / GRID) or {}).get("cells") or () if cell and cell.get("identity")]
    for cell in cells:
        folder = of_identity(root, cell["identity"]) or root / Path(cell.get("run") or cell["identity"]).name  # never outside
        cell["folder"] = folder if _is_run(folder) else None
    return cells


def without_record(place: Path) -> Iterator[str]:
    """Lines about a grid's cells that have none, and about other cells than those whose digest the folder's name has."""
    if _is_run(place) or not (place / GRID).is_file():
        return
    cells = _cells(place)
    if lost := [cell.get("run") or cell["identity"] for cell in cells if cell["folder"] is None]:
        yield f"{place}: {plural(len(lost), 'cell')} without a record ({shorten(lost)})"
    named = re.search(r"-([0-9a-f]{8})$", place.absolute().name)
    identities = sorted(cell.get("key") or cell["identity"] for cell in cells)  # a key: decided on another machine
    if named and named[1] != digest({"identities": identities})[:8]:
        yield f"{place / GRID}: it lists other cells than those that made the folder's name"


def of_identity(root: Path, identity: str) -> Path | None:
    """The folder below `root` of the run with this identity: its name is its manifest's, or it has none yet. A copy is another's."""
    names = os.listdir(root) if root.is_dir() else ()  # a path for each of ten thousand runs, for each cell of a grid, is half an hour
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
    whole = [f for f, identity in identities.items() if name in (f.name, identity) or f.name.startswith(f"{name}-")]
    begins = [f for f, identity in identities.items() if f.name.startswith(name) or identity.startswith(name)]
    if not whole and len(begins) > 1:
        raise ValueError(_several(name, begins))
    return _in_order(whole or begins)
