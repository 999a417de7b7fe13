"""The baseline of a grid at other lengths, for the time at equal loss (`judge.equal_loss`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from nocap.config.compose import Composed
from nocap.config.keys import require
from nocap.config.plain import to_plain
from nocap.judge.equal_loss import SHARES, STEPS
from nocap.launch.grid import Cell, Grid, replaced
from nocap.store.formats import plural

FLAG = "--equal-loss"


def cells_of(grid: Grid, compose: Callable[[Sequence[str]], Composed]) -> list[tuple[str, ...]]:
    """Return the overrides of the cells that train the baseline, which is the first arm, at its other lengths
    with each of its seeds.

    Errors:
        ValueError: its steps are too few, or swept.
    """
    base = grid.cells[0]
    steps = base.plan.run.trainer.steps
    others = _others(steps)
    rule = "be left out where trainer.steps is swept, whose values are other lengths"
    require(STEPS not in grid.swept, FLAG, rule, "given")
    require(len({*others, steps}) == 3, STEPS, f"be 2 or more with {FLAG}", steps)
    words = [_at(base, length, compose) for length in others]
    own = [cell for cell in grid.cells if cell.plan.arm == base.plan.arm]
    return [replaced(cell.overrides, more) for more in words for cell in own]


def _others(steps: int) -> list[int]:
    """Return the other lengths of a schedule of so many steps."""
    return [round(share * steps) for share in SHARES]


def _at(base: Cell, steps: int, compose: Callable[[Sequence[str]], Composed]) -> list[str]:
    """Return the overrides that make a cell a whole schedule of so many steps: its counts of steps the same
    shares of them, where they do not follow by themselves. Whether it is compiled follows from the steps, and
    stays as it is."""
    run = base.plan.run
    words = [f"{STEPS}={steps}", f"trainer.compile={run.trainer.compile.value}"]
    follows = to_plain(compose(replaced(base.overrides, words)).run)["schedule"]
    for key, value in to_plain(run)["schedule"].items():
        wanted = steps / run.trainer.steps * value if key.endswith("_steps") else None
        if wanted is not None and abs(follows[key] - wanted) > 1:
            words.append(f"schedule.{key}={round(wanted)}")
    return words


def cost(grid: Grid, whole: Grid) -> str:
    """Say before the first run what the other lengths cost."""
    lengths = " and ".join(f"{steps:,}" for steps in _others(grid.cells[0].plan.run.trainer.steps))
    more = len(whole.cells) - len(grid.cells)
    return (
        f"equal loss: the baseline also trains for {lengths} steps: {plural(more, 'run')} more, as much as "
        f"{sum(SHARES):.1f} arms"
    )
