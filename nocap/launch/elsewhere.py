"""A grid whose cells other machines train, here through a launcher of Hydra's such as submitit's (`nocap.launch.jobs` is for nocap's own).

What depends on the machine is decided where a cell runs, and with it the run's identity. So a cell has a key that is the same everywhere,
and its job notes in the grid's folder, in `cells/KEY.json`, which run it became.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hydra.plugins.launcher import Launcher

from nocap.config.compose import Composed, as_in, composed
from nocap.launch.attempt import hold
from nocap.launch.grid import FILE, Cell, Grid, Result
from nocap.launch.plan import Plan, outcome, settled
from nocap.store.record import read_json, write_json
from nocap.store.verify import ENDED, SUMMARY

CELLS = "cells"
MOST_JOBS = 1000  # handed over at once: Slurm takes arrays up to 1,000 unless its MaxArraySize says otherwise
DECIDED_THERE = "decided there: device, precision, compilation and threads that no key names, and so which runs they are"
Results = dict[str, Result]  # by identity


# --- in the job ----------------------------------------------------------------------------------------------------------------------


def composed_there(folder: Path, overrides: Sequence[str]) -> Composed:
    """A cell on the machine that trains it, with the precision and compilation that the grid's first cell would have here.

    Errors:
        ValueError: it cannot be trained here.
    """
    first, *_ = _entries(folder)
    return as_in(settled(first["overrides"], composed), overrides)


def overrides_of(folder: Path, key: str) -> list[str]:
    """Those of the cell with this key.

    Errors:
        ValueError: the grid has no such cell.
    """
    for entry in _entries(folder):
        if entry.get("key") == key:
            return list(entry["overrides"])
    raise ValueError(f"{folder / FILE} must have the cell {key}")


def note(folder: Path, overrides: Sequence[str], plan: Plan) -> None:
    """Say which run the cell of these overrides is."""
    for entry in _entries(folder):
        if sorted(entry["overrides"]) == sorted(overrides):
            found = {"identity": plan.identity, "run": plan.run_dir.name, "arm": plan.arm}
            (folder / CELLS).mkdir(exist_ok=True)
            write_json(folder / CELLS / f"{entry['key']}.json", found)


def _entries(folder: Path) -> list[dict[str, Any]]:
    entries = (read_json(folder / FILE) or {}).get("cells") or []
    if not entries:
        raise ValueError(f"{folder / FILE} must name the grid's cells")
    return list(entries)


# --- where the grid was started --------------------------------------------------------------------------------------------------------


def decided(grid: Grid) -> Grid:
    """The same grid, each cell as the run that it became, if it has begun."""
    keys = grid.keys or tuple(cell.plan.identity for cell in grid.cells)
    cells = tuple(became(grid.folder, key, cell) for key, cell in zip(keys, grid.cells, strict=True))
    return replace(grid, cells=cells, keys=keys)


def became(folder: Path, key: str, cell: Cell) -> Cell:
    """The cell with this key as the run that it became, if it has begun.

    Errors:
        ValueError: what its file names is no run.
    """
    path = folder / CELLS / f"{key}.json"
    if (found := read_json(path)) is None:
        return cell
    identity, run, arm = (str(found.get(key)) for key in ("identity", "run", "arm"))
    if not re.fullmatch(r"[0-9a-f]{12}", identity) or not re.fullmatch(rf"[^/]+-{identity}", run):
        raise ValueError(f"{path} must name a run and its identity, got {run!r} and {identity!r}")
    return replace(cell, plan=replace(cell.plan, identity=identity, run_dir=cell.plan.run_dir.with_name(run), arm=arm))


def train(grid: Grid, launcher: Launcher) -> tuple[Grid, Results, bool]:
    """Hand over the cells that are not done, and read what they left. Also whether a person stopped waiting."""
    todo = [(key, cell) for key, cell in zip(grid.keys, grid.cells, strict=True) if outcome(cell.plan) is None]
    handed = {key for key, _ in todo}
    name, reason, stopped = type(launcher).__name__, "its job left no record", False
    print(f"{name} trains them; its logs are in {grid.folder}", flush=True)
    print(DECIDED_THERE, flush=True)
    quoted = str(grid.folder).replace("\\", "\\\\").replace("'", "\\'")
    for first in range(0, len(todo), MOST_JOBS):
        part = todo[first : first + MOST_JOBS]
        try:
            launcher.launch([[f"+cell='{key}'", f"hydra.sweep.dir='{quoted}'"] for key, _ in part], first)
        except KeyboardInterrupt:
            stopped = True
            print("nocap: no longer waiting; what was handed over goes on", file=sys.stderr)
            break
        except Exception as error:  # a job was killed: submitit reports it at once, and the others go on
            reason = f"{name}: {str(error).strip().splitlines()[-1]}" if str(error).strip() else f"{name}: {type(error).__name__}"
            for begun in (became(grid.folder, key, cell) for key, cell in part):
                if begun.plan.run_dir.exists():
                    hold(begun.plan, wait_s=math.inf).close()
    grid = decided(grid)
    grid.write()
    reason = f"{reason}; logs in {grid.folder}"
    pairs = zip(grid.keys, grid.cells, strict=True)
    results = {cell.plan.identity: read(cell, trained=key in handed, reason=reason) for key, cell in pairs}
    return grid, results, stopped


def read(cell: Cell, *, trained: bool = False, reason: str | None = None) -> Result:
    """How a cell ended, from its record."""
    try:
        ended = outcome(cell.plan)
        summary = ended or read_json(cell.plan.run_dir / SUMMARY)
    except ValueError as error:
        return Result(status="failed", reason=str(error))
    if ended is None and summary is not None and summary.get("status") in ENDED:
        return Result(status="failed", reason="its record is damaged; the same command mends it")
    if summary is None:
        return Result(status="waiting", reason=reason or "not finished")
    return Result(status=summary["status"], trained=trained, summary=summary, reason=summary.get("error"))
