"""What a grid would cost, for `--plan`: from a step of each arm that is measured here, before anything is
trained."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from nocap.config.compose import Composed
from nocap.config.defaults import COLD_S
from nocap.launch.grid import Cell, Grid, key_of
from nocap.launch.lengths import FLAG
from nocap.launch.plan import outcome
from nocap.report.table import Column, Table
from nocap.sessions.figures import PACE, StepFigures
from nocap.sessions.foresight import foreseen
from nocap.sessions.session import Session
from nocap.store.formats import BYTES, duration, size, three_digits

OVERHEAD = 1.15  # validation and checkpoints beside the steps
START_S = 1.0  # a guess at the start of a worker, as COLD_S is one at compilation


def of_grid(grid: Grid, *, lengths_by: str | None = FLAG) -> str:
    """A line an arm, and the sum. `lengths_by`: see `foreseen`.

    Errors:
        FailedError: the first arm cannot be timed.
    """
    arms: dict[str, list[Cell]] = {}
    for cell in grid.cells:
        words = [word for word in cell.label.split() if key_of(word) != "seed"]
        arms.setdefault(" ".join(words) or cell.plan.arm, []).append(cell)
    todo = {arm: [cell for cell in cells if outcome(cell.plan) is None] for arm, cells in arms.items()}
    first = {arm: cells[0] for arm, cells in todo.items() if cells}
    timed = _timed(first, grid.folder.parents[1] / "plans" / grid.name)
    run_s = {arm: _run_s(cell, timed[arm]) for arm, cell in first.items()}
    kept = {arm: _checkpoints(todo[arm], timed[arm]) for arm in first}
    table = Table(
        title="",
        columns=[
            Column(title="arm"),
            Column(title="cells"),
            Column(title="done"),
            Column(title="a step", show=lambda step_ms: f"{three_digits(step_ms)} ms"),
            Column(title="a run", show=duration),
            Column(title="checkpoints", show=size),
        ],
        rows=[
            [
                arm,
                len(cells),
                len(cells) - len(todo[arm]),
                timed.get(arm, StepFigures()).step_ms,
                run_s.get(arm),
                kept.get(arm),
            ]
            for arm, cells in arms.items()
        ],
    )
    n = sum(map(len, todo.values()))
    lines = [
        f"grid {grid.name}: {len(grid.cells)} cells, {len(grid.cells) - n} done, {n} to train",
        str(table),
    ]
    if n:
        all_s, disk = sum(len(todo[arm]) * (s or 0.0) for arm, s in run_s.items()), sum(kept.values())
        free = shutil.disk_usage(next(part for part in grid.folder.parents if part.exists())).free
        untimed = [arm for arm, seconds in run_s.items() if seconds is None]
        lines += [
            f"together {duration(all_s)}, one cell after the other",
            f"checkpoints {size(disk)} at most, free {size(free)}{': not enough' if disk > free else ''}",
            *([f"not in it, for its step could not be timed: {', '.join(untimed)}"] if untimed else []),
            "measured: a step of each arm on this machine; nothing was trained",
        ]
    return "\n".join([*lines, *foreseen(grid, lengths_by=lengths_by)])


def _timed(first: dict[str, Cell], folder: Path) -> dict[str, StepFigures]:
    arms = {
        arm: Composed(overrides=cell.overrides, run=cell.plan.run, choices={}) for arm, cell in first.items()
    }
    if not arms:
        return {}
    figures = Session(place=PACE, arms=arms, how={"rounds": 1}).run(folder).figures
    return {name: row for name, row in figures.items() if isinstance(row, StepFigures)}


def _run_s(cell: Cell, timed: StepFigures) -> float | None:
    run = cell.plan.run
    speed = timed.tokens_per_s
    start_s = START_S + COLD_S[run.trainer.compile]
    return run.tokens_before(run.trainer.steps) / speed * OVERHEAD + start_s if speed else None


def _checkpoints(cells: Sequence[Cell], timed: StepFigures) -> float:
    """Count the bytes of weights and of the optimizer's state: those of the cell that trains, and those of
    each cell's steps that are kept."""
    run = cells[0].plan.run
    mib = timed.memory_mib or {}
    one = sum(mib.get(part) or 0.0 for part in ("parameters", "optimizer")) * BYTES["M"]
    return one * (run.trainer.keep_checkpoints + len(cells) * len(run.trainer.keep_steps))
