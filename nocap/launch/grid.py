"""A grid: its cells, all checked before the first starts, in the order in which they run, and the
file that names them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from nocap.config.arm_defaults import as_baseline, as_in
from nocap.config.compose import Composed
from nocap.config.defaults import BEYOND_GRAPHS
from nocap.config.keys import is_fault
from nocap.config.override_keys import key_of
from nocap.judge.equal_loss import STEPS
from nocap.launch.plan import Datasets, Plan, plan
from nocap.launch.seed_request import seed_requests
from nocap.store.file_writing import delete, unfinished
from nocap.store.grid_file import GRID
from nocap.store.record_files import digest, write_json

REPORT = "report.html"
UNFINISHED_S = 60  # after which a file that is half written has no writer any more
NAME_LENGTH = 60  # characters of a grid's readable name


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """A run of a grid."""

    overrides: tuple[str, ...]  # all of them, as Hydra takes them
    label: str
    plan: Plan
    # what sets it apart: the overrides that the grid varies, or a study's words
    varied: tuple[str, ...] = ()

    @property
    def arm_words(self) -> list[str]:
        """Return what sets the cell's arm apart."""
        return without_seed(self.varied)

    def json(self) -> dict[str, Any]:
        """Return the cell's entry in `grid.json`."""
        request: dict[str, Any] | None = None
        if self.plan.request is not None:
            request = self.plan.request.json()
        return {
            "identity": self.plan.identity,
            "run": self.plan.run_dir.name,
            "arm": self.plan.arm,
            "seed": self.plan.run.seed,
            "asked": request,
            "overrides": self.overrides,
            "environment": self.plan.identity_parts["environment"],
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class LeftOut:
    """An arm of a grid that is refused."""

    arm: str  # the overrides that the grid varies, without the seed
    reason: str
    cells: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Grid:
    name: str
    folder: Path
    swept: tuple[str, ...]  # keys
    cells: tuple[Cell, ...]
    left_out: tuple[LeftOut, ...] = ()  # what was asked for, and is refused

    def write(self, *, more: Mapping[str, Any] | None = None, stage: Path | None = None) -> None:
        """Write `grid.json`, where `nocap.compare` finds the grid's runs; `more`: what else it
        holds."""
        self.folder.mkdir(parents=True, exist_ok=True)
        # another process may be writing one
        delete(unfinished(self.folder, older_than_s=UNFINISHED_S))
        cells = [cell.json() for cell in self.cells]
        content = {"name": self.name, "swept": self.swept, **(more or {}), "cells": cells}
        if self.left_out:
            content["left_out"] = [asdict(each) for each in self.left_out]
        write_json(self.folder / GRID, content, stage=stage)


# --- planned -------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Refusal:
    """A cell that cannot be trained."""

    varied: tuple[str, ...]  # the overrides that the grid varies
    reason: str

    @property
    def label(self) -> str:
        return label_of(self.varied)

    @property
    def arm(self) -> str:
        """Return the label without the seed, unless the seed is all of it."""
        return " ".join(without_seed(self.varied)) or self.label


class Planner:
    """Composes and plans the cells of a grid, and collects those that are refused."""

    def __init__(
        self,
        *,
        swept: Sequence[str],
        labelled: Sequence[str],
        compose: Callable[[Sequence[str]], Composed],
        datasets: Datasets,
        log: Callable[[str], None],
    ) -> None:
        """Begin without a cell. `labelled`: the keys that a cell's label shows."""
        self.refusals = list[Refusal]()
        self.experiments = set[str | None]()  # of the cells
        self._swept = swept
        self._labelled = labelled
        self._compose = compose
        self._datasets = datasets
        self._log = log
        self._first: Composed | None = None  # decides what follows from the machine for all

    def cells(self, every: Sequence[Sequence[str]]) -> list[Cell]:
        """Return the cells of these overrides that can be trained."""
        cells = list[Cell]()
        for number, overrides in enumerate(every):
            varied = _varied(overrides, self._labelled)
            try:
                cells.append(self._cell(overrides, varied, others=every[number + 1 :]))
            except ValueError as error:
                if is_fault(error):
                    raise
                self.refusals.append(Refusal(varied=varied, reason=str(error)))
        return cells

    def _cell(
        self,
        overrides: Sequence[str],
        varied: tuple[str, ...],
        *,
        others: Sequence[Sequence[str]],
    ) -> Cell:
        """Compose and plan a cell. `others`: those after it, which it decides for where it is the
        first.

        Errors:
            ValueError: it is invalid.
        """
        composed = as_in(self._first, overrides, self._compose)
        if self._first is None:
            composed = self._baseline(composed, others)
            self._first = composed
        planned = plan(composed.run, choices=composed.choices, datasets=self._datasets)
        self.experiments.add(composed.choices.get("experiment"))
        label = label_of(varied)
        if not self._swept:
            label = planned.name
        return Cell(overrides=composed.overrides, label=label, plan=planned, varied=varied)

    def _baseline(self, first: Composed, others: Sequence[Sequence[str]]) -> Composed:
        """Return the first cell, without CUDA graphs where it has them by default and another cell
        cannot have them."""
        baseline, beyond = as_baseline(first, others, self._compose)
        if beyond is not None:
            why = f"in {label_of(_varied(beyond, self._swept))} {BEYOND_GRAPHS}"
            self._log(f"note: trainer.cuda_graphs=false for all arms: {why}")
        return baseline


def _varied(overrides: Sequence[str], keys: Sequence[str]) -> tuple[str, ...]:
    """Return those of a cell's overrides that the grid varies."""
    return tuple(override for override in overrides if key_of(override) in keys)


def label_of(varied: Sequence[str]) -> str:
    """Return what a person reads of the overrides that a grid varies."""
    return " ".join(varied) or "the only cell"


def without_seed(varied: Sequence[str]) -> list[str]:
    """Return the overrides that are no seed's."""
    return [override for override in varied if key_of(override) != "seed"]


def plan_grid(
    cells: Sequence[Sequence[str]],
    *,
    swept: Sequence[str],
    compose: Callable[[Sequence[str]], Composed],
    log: Callable[[str], None],
    datasets: Datasets | None = None,
    lengths: Sequence[Sequence[str]] = (),
    skip_refused: bool = False,
) -> Grid:
    """Return the grid of these cells, each given by its overrides: seed by seed, every arm of a
    seed in the order given, each run once. `lengths`: cells more, of the first arm at other
    lengths. `skip_refused`: leave out the cells that are invalid.

    Errors:
        ValueError: at least one cell is invalid, or with `skip_refused` all are; a line for each.
            Nothing has been written but the data's cache.
    """
    if datasets is None:
        datasets = Datasets()
    labelled = list(swept)
    if lengths:
        labelled.append(STEPS)  # by which a person tells a length from the arm
    planner = Planner(swept=swept, labelled=labelled, compose=compose, datasets=datasets, log=log)
    own = planner.cells(cells)
    of_lengths = planner.cells(lengths)
    every = [*own, *of_lengths]
    for cell in every:
        for notice in cell.plan.notices:
            log(f"note: {notice}")
    refusals = planner.refusals
    left_out = list[LeftOut]()
    if skip_refused and every:
        left_out = _left_out(refusals)
        refusals = []
    for arm in left_out:
        log(f"left out: {arm.arm}: {arm.reason}")
    _refuse([*refusals, *_several_outputs(every)], len(cells))
    distinct = _each_once(every, log)
    folder = _folder(distinct, swept=swept, experiments=planner.experiments)
    requested = _with_requests(distinct, of_lengths, swept=swept, grid=folder.name)
    return Grid(
        name=folder.name,
        folder=folder,
        swept=tuple(swept),
        cells=tuple(requested),
        left_out=tuple(left_out),
    )


def _left_out(refusals: Sequence[Refusal]) -> list[LeftOut]:
    """Return an arm once, whatever its seeds."""
    counts = Counter[tuple[str, str]]()
    for refusal in refusals:
        counts[refusal.arm, refusal.reason] += 1
    return [LeftOut(arm=arm, reason=reason, cells=n) for (arm, reason), n in counts.items()]


def _several_outputs(cells: Sequence[Cell]) -> list[Refusal]:
    """Return a refusal where the cells have several output folders."""
    outputs = sorted({cell.plan.run.output_dir for cell in cells})
    if len(outputs) <= 1:
        return []
    reason = "output_dir must be the same for all cells of a grid"
    return [Refusal(varied=(f"output_dir={','.join(outputs)}",), reason=reason)]


def _refuse(refusals: Sequence[Refusal], total: int) -> None:
    """Refuse a grid with refused cells.

    Errors:
        ValueError: there are some; a line for each. Where all are refused for the same reason, one
            line.
    """
    if not refusals:
        return
    reasons = {refusal.reason for refusal in refusals}
    if len(refusals) == total and len(reasons) == 1:
        raise ValueError(f"{refusals[0].reason} (so in all {total} cells; nocap trained none)")
    lines = [f"{refusal.label}: {refusal.reason}" for refusal in refusals]
    lines.append(
        f"nocap refused {len(refusals)} of {total} cells, and trained none (--skip-refused trains "
        "the others)"
    )
    raise ValueError("\n".join(lines))


def _each_once(cells: Sequence[Cell], log: Callable[[str], None]) -> list[Cell]:
    """Return the cells seed by seed, each run once."""
    seeds = list(dict.fromkeys(cell.plan.run.seed for cell in cells))
    distinct = dict[str, Cell]()
    for cell in sorted(cells, key=lambda cell: seeds.index(cell.plan.run.seed)):
        twin = distinct.setdefault(cell.plan.identity, cell)
        if twin is not cell:
            log(
                f"these two cells are the same run, which trains once: {cell.label} and "
                f"{twin.label}"
            )
    return list(distinct.values())


def _folder(cells: Sequence[Cell], *, swept: Sequence[str], experiments: set[str | None]) -> Path:
    """Name a grid by its runs: the same runs are the same grid, in whatever order they were asked
    for. `experiments`: that the cells choose."""
    root = cells[0].plan.run_dir.parents[1] / "grids"
    hashed = digest({"identities": sorted(cell.plan.identity for cell in cells)})[:8]
    existing = sorted(root.glob(f"*-{hashed}"))
    if existing:
        return existing[0]
    parts = list[str | None]()
    if len(experiments) == 1:
        parts += experiments
    parts += [key.rpartition(".")[2] for key in swept]
    readable = "-".join(re.sub(r"[^\w.]+", "_", part) for part in parts if part)
    return root / f"{readable[:NAME_LENGTH] or 'grid'}-{hashed}"


def _with_requests(
    cells: Sequence[Cell], of_lengths: Sequence[Cell], *, swept: Sequence[str], grid: str
) -> list[Cell]:
    """Return the cells with the name of their grid, and with what its command asks for."""
    requests = seed_requests((cell.plan.arm, cell.plan.run.seed) for cell in cells)
    base = cells[0].plan.arm
    for cell in of_lengths:
        arm = cell.plan.arm
        requests[arm] = replace(requests[arm], length_of=base)
    planned = list[Cell]()
    for cell in cells:
        request = requests[cell.plan.arm]
        own = replace(cell.plan, grid=grid, swept=tuple(swept), request=request)
        planned.append(replace(cell, plan=own))
    return planned
