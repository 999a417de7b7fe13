"""The file of a grid, `grid.json`: its name, what it may hold, and how it is read. `nocap.launch`
writes it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from nocap.store.json_shapes import Json
from nocap.store.record_files import REQUEST, read_json

GRID = "grid.json"  # in a grid's folder: {"cells": [{"identity": …}, …]}
SHAPE = {
    "name": str,
    "cells": [{"identity": str, "run": str, "arm": str, "seed": int, "asked": REQUEST}],
}


@dataclass(frozen=True, kw_only=True, slots=True)
class GridCell:
    """A cell as the file of its grid lists it."""

    identity: str
    name: str  # of its run's folder, as the grid has planned it
    length_of: str | None  # the arm whose other length it shows


def is_grid(folder: Path) -> bool:
    """Say whether a folder is a grid's."""
    return (folder / GRID).is_file()


def read_grid(folder: Path) -> Json | None:
    """Read the file of the grid in a folder; None where there is none.

    Errors:
        ValueError: it is damaged.
    """
    return read_json(folder / GRID, SHAPE)


def cells_of(folder: Path) -> list[GridCell]:
    """Return the cells of the grid in a folder.

    Errors:
        ValueError: its file is damaged.
    """
    content = read_grid(folder) or {}
    cells = list[GridCell]()
    for row in content.get("cells") or ():
        identity = row and row.get("identity")
        if not identity:
            continue
        request = row.get("asked") or {}
        cell = GridCell(
            identity=identity,
            name=row.get("run") or identity,
            length_of=request.get("length_of"),
        )
        cells.append(cell)
    return cells
