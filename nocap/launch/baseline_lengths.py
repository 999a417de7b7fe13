"""The baseline of a grid or a study at other lengths, for the time at equal loss
(`judge.equal_loss`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from nocap.config.compose import Composed
from nocap.config.flags import EQUAL_LOSS
from nocap.config.keys import require
from nocap.config.plain import to_plain
from nocap.config.run import Run
from nocap.display import plural
from nocap.judge.equal_loss import SHARES, STEPS
from nocap.launch.grid import Grid
from nocap.launch.sweep import replaced

Compose = Callable[[Sequence[str]], Composed]


def cells_of(grid: Grid, compose: Compose) -> list[tuple[str, ...]]:
    """Return the overrides of the cells that train the baseline, which is the first arm, at its
    other lengths with each of its seeds.

    Errors:
        ValueError: its steps are too few, or swept.
    """
    base = grid.cells[0]
    if STEPS in grid.swept:
        line = f"{EQUAL_LOSS} does not work if you sweep {STEPS}: the flag itself varies {STEPS}"
        raise ValueError(line)
    others = others_of(base.plan.run.trainer.steps, requested_by=EQUAL_LOSS)
    words = [words_at(base.overrides, base.plan.run, length, compose) for length in others]
    own = [cell for cell in grid.cells if cell.plan.arm == base.plan.arm]
    return [replaced(cell.overrides, more) for more in words for cell in own]


def others_of(steps: int, *, requested_by: str) -> list[int]:
    """Return the other lengths of a schedule of so many steps. `requested_by`: a flag or a key.

    Errors:
        ValueError: it is too short to have them.
    """
    others = [round(share * steps) for share in SHARES]
    require(len({*others, steps}) == 3, STEPS, f"be 2 or more with {requested_by}", steps)
    return others


def words_at(overrides: Sequence[str], run: Run, steps: int, compose: Compose) -> list[str]:
    """Return the overrides that make the run of `overrides` a whole schedule of so many steps: its
    counts of steps the same shares of them, where they do not follow by themselves. Whether it is
    compiled follows from the steps, and stays as it is."""
    words = [f"{STEPS}={steps}", f"trainer.compile={run.trainer.compile.value}"]
    follows = to_plain(compose(replaced(overrides, words)).run)["schedule"]
    for key, value in to_plain(run)["schedule"].items():
        if not key.endswith("_steps"):
            continue
        wanted = steps / run.trainer.steps * value
        if abs(follows[key] - wanted) > 1:
            words.append(f"schedule.{key}={round(wanted)}")
    return words


def cost(grid: Grid, longer: Grid) -> str:
    """Say before the first run what the other lengths cost. `longer`: the grid with them."""
    more = len(longer.cells) - len(grid.cells)
    return f"equal loss: {cost_of('the baseline', grid.cells[0].plan.run.trainer.steps, more)}"


def cost_of(name: str, steps: int, runs: int) -> str:
    """Say what it costs to train a baseline of so many steps at its other lengths, with so many
    runs."""
    lengths = " and ".join(f"{length:,}" for length in others_of(steps, requested_by=EQUAL_LOSS))
    return (
        f"{name} also trains for {lengths} steps: {plural(runs, 'run')} more, as much as "
        f"{sum(SHARES):.1f} arms"
    )
