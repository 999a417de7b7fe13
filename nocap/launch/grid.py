"""A grid: what is swept, its cells, all checked before the first starts, in the order in which they
run, and the file that names them."""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

from hydra.core.override_parser.types import ChoiceSweep, Glob, IntervalSweep, Override, RangeSweep

from nocap import outside
from nocap.config.compose import Composed, as_in
from nocap.config.keys import is_fault, require
from nocap.config.lexer import texts_of_typed
from nocap.launch.plan import Datasets, Plan, plan, seeds_asked
from nocap.store.checkpoints import delete, unfinished
from nocap.store.identity import digest
from nocap.store.record import write_json
from nocap.store.runs import GRID

REPORT = "report.html"
MOST_CELLS = 10_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """A run of a grid."""

    overrides: tuple[str, ...]  # all of them, as Hydra takes them
    label: str  # those that the grid varies
    plan: Plan


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
        delete(unfinished(self.folder, older_than_s=60))  # another process may be writing one
        cells = [
            {
                "identity": cell.plan.identity,
                "run": cell.plan.run_dir.name,
                "arm": cell.plan.arm,
                "seed": cell.plan.run.seed,
                "asked": cell.plan.asked and cell.plan.asked.json(),
                "overrides": cell.overrides,
                "environment": cell.plan.parts["environment"],
            }
            for cell in self.cells
        ]
        content = {"name": self.name, "swept": self.swept, **(more or {}), "cells": cells}
        if self.left_out:
            content["left_out"] = [asdict(each) for each in self.left_out]
        write_json(self.folder / GRID, content, stage=stage)


# --- what is swept --------------------------------------------------------------------------------


def values_of(override: Override) -> list[str]:
    """Return the values that an override sweeps over.

    Errors:
        ValueError: it has none, or too many.
    """
    name, swept, line = override.get_key_element(), override.value(), override.input_line
    if isinstance(swept, Glob):
        require(
            name in outside.groups(), name, "be a group where its options are chosen by glob", line
        )
        return swept.filter(outside.yamls(name))
    require(
        not isinstance(swept, IntervalSweep),
        name,
        "be swept over values: nocap draws none from an interval but in a search, as with "
        "search=tpe",
        line,
    )
    if isinstance(swept, RangeSweep):
        numbers = (swept.start or 0, swept.stop or 0, swept.step)
        require(
            all(map(math.isfinite, numbers)) and swept.step != 0,
            name,
            "be a range of numbers with a step",
            line,
        )
        n = sum(1 for _ in itertools.islice(swept.range(), MOST_CELLS + 1))
        require(n <= MOST_CELLS, name, f"make at most {MOST_CELLS:,} cells", line)
    values = list(override.sweep_string_iterator())
    if not (isinstance(swept, ChoiceSweep) and swept.simple_form):
        return values
    # the characters that were typed, for a key of text: Hydra writes 1_000 as 1000
    typed = texts_of_typed(str(line))
    for i, value in enumerate(swept.list):
        if value is None or isinstance(value, int | float):
            values[i] = next(typed)
    return values


def expand(overrides: Sequence[Override], *, zipped: bool) -> list[tuple[str, ...]]:
    """Return the cells' overrides: every combination of what is swept. `zipped`: the first values
    together, the second, and so on, each with every seed.

    Errors:
        ValueError: nothing can be swept so.
    """
    words = [
        [f"{override.get_key_element()}={value}" for value in values_of(override)]
        if override.is_sweep_override()
        else [str(override.input_line)]
        for override in overrides
    ]
    paired = [
        zipped and override.is_sweep_override() and override.key_or_group != "seed"
        for override in overrides
    ]
    lists = list(itertools.compress(words, paired))
    rest = [values for values, pair in zip(words, paired, strict=True) if not pair]
    lengths = [len(values) for values in lists]
    require(len({*lengths}) <= 1, "--zip", "be given lists of one length", lengths)
    rows = list(zip(*lists, strict=True)) if lists else [()]
    total = len(rows) * math.prod(map(len, rest))
    require(total <= MOST_CELLS, "a grid", f"have at most {MOST_CELLS:,} cells", f"{total:,}")
    return [(*combination, *row) for row in rows for combination in itertools.product(*rest)]


# --- checked --------------------------------------------------------------------------------------


def check(
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
    valid, experiments, bad = list[Cell](), set[str | None](), list[tuple[str, str]]()
    first, datasets = cast(Composed | None, None), Datasets() if datasets is None else datasets
    # by its steps a person tells a length from the arm
    shown = [*swept, "trainer.steps"] if lengths else swept
    other_lengths = list[Cell]()
    for place, overrides in enumerate((*cells, *lengths)):
        label = (
            " ".join(override for override in overrides if key_of(override) in shown)
            or "the only cell"
        )
        try:
            composed = as_in(first, overrides, compose)
            first = first or composed
            planned = plan(composed.run, choices=composed.choices, datasets=datasets)
        except ValueError as error:
            if is_fault(error):
                raise
            bad.append((label, str(error)))
            continue
        for notice in planned.notices:
            log(f"note: {notice}")
        valid.append(
            Cell(overrides=composed.overrides, label=label if swept else planned.name, plan=planned)
        )
        if place >= len(cells):
            other_lengths.append(valid[-1])
        experiments.add(composed.choices.get("experiment"))
    left_out = list[LeftOut]()
    if skip_refused and valid:
        left_out = _left_out(bad)
        bad = []
        for each in left_out:
            log(f"left out: {each.arm}: {each.reason}")
    if len(outputs := {cell.plan.run.output_dir for cell in valid}) > 1:
        bad.append(
            (
                f"output_dir={','.join(sorted(outputs))}",
                "output_dir must be the same for all cells of a grid",
            )
        )
    if bad:
        raise ValueError("\n".join(_refusal(bad, len(cells))))
    seeds = list(dict.fromkeys(cell.plan.run.seed for cell in valid))
    distinct = dict[str, Cell]()
    for cell in sorted(valid, key=lambda cell: seeds.index(cell.plan.run.seed)):
        if (twin := distinct.setdefault(cell.plan.identity, cell)) is not cell:
            log(f"trained once, it is the same run: {cell.label} and {twin.label}")
    ordered = list(distinct.values())
    folder = _folder(
        ordered, swept=swept, prefix=experiments.pop() if len(experiments) == 1 else None
    )
    asked = seeds_asked(cell.plan for cell in ordered)
    for cell in other_lengths:
        asked[cell.plan.arm] = replace(asked[cell.plan.arm], length_of=valid[0].plan.arm)
    named = tuple(
        replace(
            cell,
            plan=replace(
                cell.plan, grid=folder.name, swept=tuple(swept), asked=asked[cell.plan.arm]
            ),
        )
        for cell in ordered
    )
    return Grid(
        name=folder.name, folder=folder, swept=tuple(swept), cells=named, left_out=tuple(left_out)
    )


def _left_out(bad: Sequence[tuple[str, str]]) -> list[LeftOut]:
    """Return an arm once, whatever its seeds."""
    counts = Counter[tuple[str, str]]()
    for label, reason in bad:
        words = [word for word in label.split() if key_of(word) != "seed"]
        counts[" ".join(words) or label, reason] += 1
    return [LeftOut(arm=arm, reason=reason, cells=n) for (arm, reason), n in counts.items()]


def key_of(override: str) -> str:
    return override.lstrip("+~").partition("=")[0].partition("@")[0]


def replaced(overrides: Sequence[str], more: Sequence[str]) -> tuple[str, ...]:
    """Return overrides of which some are replaced."""
    given = {key_of(word) for word in more}
    return (*(word for word in overrides if key_of(word) not in given), *more)


def _refusal(bad: Sequence[tuple[str, str]], total: int) -> list[str]:
    """Return a line for each bad cell. Where all are bad in the same way, one line."""
    if len(bad) == total and len({reason for _, reason in bad}) == 1:
        return [f"{bad[0][1]} (all {total} cells; none was trained)"]
    return [
        *(f"{label}: {reason}" for label, reason in bad),
        f"{len(bad)} of {total} cells refused; none was trained",
    ]


def _folder(cells: Sequence[Cell], *, swept: Sequence[str], prefix: str | None) -> Path:
    """Name a grid by its runs: the same runs are the same grid, in whatever order they were asked
    for."""
    root = cells[0].plan.run_dir.parents[1] / "grids"
    hashed = digest({"identities": sorted(cell.plan.identity for cell in cells)})[:8]
    if existing := sorted(root.glob(f"*-{hashed}")):
        return existing[0]
    parts = [prefix, *(key.rpartition(".")[2] for key in swept)]
    readable = "-".join(re.sub(r"[^\w.]+", "_", part) for part in parts if part)
    return root / f"{readable[:60] or 'grid'}-{hashed}"
