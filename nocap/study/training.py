"""The training cells of a study, through the grid's own machinery: checked together, trained seed by seed, each once. No torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from nocap.config.compose import Composed
from nocap.launch.board import Board
from nocap.launch.grid import Cell, Grid, RefusedError, check
from nocap.launch.plan import outcome, plan
from nocap.launch.runner import Result, Runner
from nocap.options.launcher.pool import Devices
from nocap.store.runs import Record, read
from nocap.study.arms import with_seed


class StoppedError(Exception):
    """A request to stop came: what was trained is saved, and the same command goes on."""


class FailedError(RuntimeError):
    """A run failed that all that comes after it needs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """A run that a study needs: an arm with a seed."""

    arm: str
    seed: int
    composed: Composed  # with the seed


def wanted(arms: Mapping[str, Composed], seeds: Sequence[int]) -> list[Wanted]:
    return [Wanted(arm=name, seed=seed, composed=with_seed(arm, seed)) for seed in seeds for name, arm in arms.items()]


def grid_of(cells: Sequence[Wanted], *, label: str, claims: Mapping[str, str]) -> tuple[Grid, dict[int, Cell]]:
    """The grid that trains them, and which cell is whose (by index: two of them may be the same run). `claims` go into each record's head.

    Errors:
        ValueError: a run that will not do; the first is named, with how many there are.
    """
    known = {cell.composed.overrides: cell.composed for cell in cells}
    overrides = [cell.composed.overrides for cell in cells]
    try:
        grid = check(overrides, swept=("seed",), compose=lambda one: known[tuple(one)], say=lambda line: None)
    except RefusedError as refused:
        raise ValueError(refused.lines[0]) from refused
    names: dict[str, list[str]] = {}
    for cell in cells:
        names.setdefault(_identity(grid, cell), []).append(cell.arm)
    labelled = tuple(
        replace(
            cell,
            label=f"{label} {'='.join(dict.fromkeys(names[cell.plan.identity]))} seed={cell.plan.run.seed}",
            plan=replace(cell.plan, claims=dict(claims)),
        )
        for cell in grid.cells
    )
    grid = replace(grid, cells=labelled)
    by_identity = {cell.plan.identity: cell for cell in grid.cells}
    return grid, {i: by_identity[_identity(grid, cell)] for i, cell in enumerate(cells)}


def _identity(grid: Grid, wanted: Wanted) -> str:
    return plan(wanted.composed.run, choices=wanted.composed.choices, dataset=grid.cells[0].plan.dataset).identity


def train(grid: Grid) -> dict[str, Result]:
    """Train what is missing, as many cells at once as the machine has room for. Identity → how it ended.

    Errors:
        StoppedError: somebody asked to stop.
    """
    if all(outcome(cell.plan) is not None for cell in grid.cells):
        return {}
    grid.write()
    runner = Runner(grid, slots=Devices(jobs=None), board=Board())
    results = runner.run()
    if runner.stopping:
        raise StoppedError("stopped; what was trained is saved, and the same command goes on")
    return results


def records_of(cells: Sequence[Wanted], of: Mapping[int, Cell], *, problems: list[str]) -> list[tuple[Wanted, Record]]:
    """What each of these runs left, where it has come to its end. `of` as `grid_of` gives it."""
    found = [(cell, record_of(of[i], problems=problems)) for i, cell in enumerate(cells)]
    return [(cell, record) for cell, record in found if record is not None]


def record_of(cell: Cell, *, problems: list[str]) -> Record | None:
    """What a finished or diverged cell left; what of it cannot be read goes into `problems`."""
    folder: Path = cell.plan.run_dir
    return read(folder, problems=problems) if outcome(cell.plan) is not None else None
