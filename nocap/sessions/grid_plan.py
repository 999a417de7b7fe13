"""What a grid would cost, for `--plan`: from a step of each arm that is measured here, before
anything is trained."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nocap.config import hardware
from nocap.config.compose import Composed
from nocap.config.defaults import COLD_S
from nocap.config.flags import EQUAL_LOSS, PLAN
from nocap.config.run import Run
from nocap.config.trainer import Device
from nocap.display import BYTES, duration, size, three_digits
from nocap.launch.grid import Cell, Grid
from nocap.report.table import Column, Table
from nocap.report.terminal import prose
from nocap.sessions.figures import StepFigures
from nocap.sessions.foresight import foreseen
from nocap.sessions.places import PACE
from nocap.sessions.session import Session

OVERHEAD = 1.15  # validation and checkpoints beside the steps
START_S = 1.0  # a guess at the start of a worker, as COLD_S is one at compilation
COLUMNS = (
    Column(title="arm"),
    Column(title="cells"),
    Column(title="done"),
    Column(title="a step", show=lambda step_ms: f"{three_digits(step_ms)} ms"),
    Column(title="a run", show=duration),
    Column(title="checkpoints", show=size),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class ArmCells:
    """The cells of an arm."""

    name: str
    cells: list[Cell]
    to_train: list[Cell]


@dataclass(frozen=True, kw_only=True, slots=True)
class ArmCost:
    """The cost of an arm that has cells to train. `None`: its step could not be timed."""

    step_ms: float | None
    run_s: float | None
    all_s: float | None  # of all its cells
    checkpoint_bytes: float


def of_grid(grid: Grid, *, lengths_by: str | None = EQUAL_LOSS) -> str:
    """Return a text with a row for each arm, the sum, and what the grid can show. `lengths_by`: see
    `foreseen`.

    Errors:
        FailedError: the first arm cannot be timed.
    """
    arms = _arms(grid)
    costs = _costs(arms, grid.folder.parents[1] / "plans" / grid.name)
    n = sum(len(arm.to_train) for arm in arms)
    cells = len(grid.cells)
    lines = [prose(f"grid {grid.name}: {cells} cells, {cells - n} done, {n} to train")]
    lines.append(str(_table(arms, costs)))
    if n:
        lines += map(prose, _sums(costs, grid.folder))
    lines += foreseen(grid, lengths_by=lengths_by)
    return "\n".join(lines)


def _arms(grid: Grid) -> list[ArmCells]:
    """Sort the cells by their arms. An arm has the name of what is swept, without the seed."""
    cells: dict[str, list[Cell]] = {}
    for cell in grid.cells:
        name = cell.label
        if cell.varied:
            name = " ".join(cell.arm_words) or cell.plan.arm
        cells.setdefault(name, []).append(cell)
    arms = list[ArmCells]()
    for name, of_arm in cells.items():
        to_train = [cell for cell in of_arm if cell.plan.end().is_open]
        arms.append(ArmCells(name=name, cells=of_arm, to_train=to_train))
    return arms


def _costs(arms: Sequence[ArmCells], folder: Path) -> dict[str, ArmCost]:
    """Return the cost of each arm that has cells to train, from a step that is timed now."""
    unfinished = [arm for arm in arms if arm.to_train]
    if not unfinished:
        return {}
    steps = _time_steps(unfinished, folder)
    return {arm.name: _cost(arm.to_train, steps[arm.name]) for arm in unfinished}


def _time_steps(arms: Sequence[ArmCells], folder: Path) -> dict[str, StepFigures]:
    """Time a step of each arm."""
    runs = dict[str, Composed]()
    for arm in arms:
        first = arm.to_train[0]
        runs[arm.name] = Composed(overrides=first.overrides, run=first.plan.run, choices={})
    trainer = next(iter(runs.values())).run.trainer
    is_missing = trainer.device is Device.cuda and not hardware.cuda_devices()
    if is_missing:
        raise ValueError(
            f"{PLAN} with trainer.device=cuda needs a machine with a GPU, because it times a "
            "step of each arm"
        )
    session = Session(place=PACE, arms=runs, how={"rounds": 1})
    figures = session.run(folder).figures
    return {name: row for name, row in figures.items() if isinstance(row, StepFigures)}


def _cost(cells: Sequence[Cell], step: StepFigures) -> ArmCost:
    """Return the cost of an arm's cells."""
    run = cells[0].plan.run
    run_s = _run_s(run, step)
    return ArmCost(
        step_ms=step.step_ms,
        run_s=run_s,
        all_s=None if run_s is None else len(cells) * run_s,
        checkpoint_bytes=_checkpoint_bytes(run, len(cells), step),
    )


def _run_s(run: Run, step: StepFigures) -> float | None:
    """Return the seconds that a run takes; `None`: its step could not be timed."""
    if not step.tokens_per_s:
        return None
    start_s = START_S + COLD_S[run.trainer.compile]
    return run.tokens_before(run.trainer.steps) / step.tokens_per_s * OVERHEAD + start_s


def _checkpoint_bytes(run: Run, n_cells: int, step: StepFigures) -> float:
    """Count the bytes of weights and of the optimizer's state: those of the cell that trains, and
    those of each cell's steps that are kept."""
    mib = step.memory_mib or {}
    one_mib = sum(mib.get(part) or 0.0 for part in ("parameters", "optimizer"))
    checkpoints = run.trainer.keep_checkpoints + n_cells * len(run.trainer.keep_steps)
    return one_mib * BYTES["M"] * checkpoints


def _table(arms: Sequence[ArmCells], costs: dict[str, ArmCost]) -> Table:
    """Draw a row for each arm."""
    rows = list[list[object]]()
    for arm in arms:
        row: list[object] = [arm.name, len(arm.cells), len(arm.cells) - len(arm.to_train)]
        cost = costs.get(arm.name)
        if cost is None:
            row += [None, None, None]
        else:
            row += [cost.step_ms, cost.run_s, cost.checkpoint_bytes]
        rows.append(row)
    return Table(title="", columns=COLUMNS, rows=rows)


def _sums(costs: dict[str, ArmCost], folder: Path) -> list[str]:
    """Say what all arms take together, and which are not in it. `folder`: of the grid."""
    all_s = sum(cost.all_s or 0.0 for cost in costs.values())
    needed = sum(cost.checkpoint_bytes for cost in costs.values())
    disk = next(part for part in folder.parents if part.exists())
    free = shutil.disk_usage(disk).free
    lines = [f"together {duration(all_s)}, if the cells train one after the other"]
    not_enough = ": not enough" if needed > free else ""
    lines.append(f"checkpoints {size(needed)} at most, free {size(free)}{not_enough}")
    untimed = [name for name, cost in costs.items() if cost.run_s is None]
    if untimed:
        lines.append(
            f"this sum leaves out arms whose step could not be timed: {', '.join(untimed)}"
        )
    lines.append("nocap timed one step of each arm on this machine, and trained nothing")
    return lines
