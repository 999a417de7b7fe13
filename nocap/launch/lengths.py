"""The baseline of a grid at other lengths, for the time at equal loss (`judge.equal_loss`)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from nocap.config.keys import require
from nocap.config.plain import to_plain
from nocap.config.run import Run
from nocap.judge.equal_loss import SHARES, STEPS
from nocap.launch.grid import Cell, Grid, key_of
from nocap.store.formats import plural

FLAG = "--equal-loss"


def cells_of(grid: Grid) -> list[tuple[str, ...]]:
    """Return the overrides of the cells that train the baseline, which is the first arm, at its other lengths
    with each of its seeds.

    Errors:
        ValueError: its steps are too few, or swept.
    """
    base = grid.cells[0].plan
    steps = base.run.trainer.steps
    rule = "be left out where trainer.steps is swept, whose values are other lengths"
    require(STEPS not in grid.swept, FLAG, rule, "given")
    lengths = [round(share * steps) for share in SHARES]
    require(len({*lengths, steps}) == 3, STEPS, f"be 3 or more with {FLAG}", steps)
    own = [cell for cell in grid.cells if cell.plan.arm == base.arm]
    return [_at(cell, length) for length in lengths for cell in own]


def _at(cell: Cell, steps: int) -> tuple[str, ...]:
    """Return a cell's overrides for a whole schedule of so many steps. Whether it is compiled does not follow
    from them."""
    words = [
        f"{STEPS}={steps}",
        *_schedule(cell.plan.run, steps),
        f"trainer.compile={cell.plan.run.trainer.compile.value}",
    ]
    given = {key_of(word) for word in words}
    return (*(word for word in cell.overrides if key_of(word) not in given), *words)


def _schedule(run: Run, steps: int) -> list[str]:
    """Return the schedule's counts of steps, as the same shares of these."""
    config: Mapping[str, Any] = to_plain(run)["schedule"]
    share = steps / run.trainer.steps
    return [
        f"schedule.{key}={math.floor(share * value + 0.5)}"
        for key, value in config.items()
        if key.endswith("_steps")
    ]


def cost(grid: Grid, whole: Grid) -> str:
    """Say before the first run what the other lengths cost."""
    steps = grid.cells[0].plan.run.trainer.steps
    lengths = " and ".join(f"{round(share * steps):,}" for share in SHARES)
    more = len(whole.cells) - len(grid.cells)
    return (
        f"equal loss: the baseline also trains for {lengths} steps: {plural(more, 'run')} more, as much as "
        f"{sum(SHARES):.1f} arms"
    )
