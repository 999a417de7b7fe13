"""What a grid can show, for `--plan`: the least difference by its seeds, and by more of them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from nocap.config.keys import flat
from nocap.judge.equal_loss import STEPS
from nocap.judge.power import POWER, Noise, detectable, noise_of
from nocap.launch.grid import Cell, Grid
from nocap.report.table import Column, Table
from nocap.store.formats import NONE
from nocap.store.runs import load

TIMES = (1, 2, 4)  # the seeds


def foreseen(grid: Grid) -> Iterator[str]:
    """Say what the grid can show with its seeds and with more, and with longer runs in the same time."""
    cells = [cell for cell in grid.cells if cell.plan.asked is None or cell.plan.asked.length_of is None]
    base = cells[0].plan
    arms = list(dict.fromkeys(cell.plan.arm for cell in cells))
    seeds = len({cell.plan.run.seed for cell in cells if cell.plan.arm == base.arm})
    if len(arms) < 2:
        return
    runs = grid.folder.parents[1] / "runs"
    records = load([runs]).records if any(runs.glob("*/summary.json")) else []
    known = noise_of(records, dict(flat(base.parts["config"])))
    steps = base.run.trainer.steps
    if steps not in known:
        yield (
            f"what {seeds} seeds can show is not known: no two arms of this model, data, batch and "
            f"{STEPS}={steps} share three seeds in {base.run.output_dir}"
        )
        return
    noise = known[steps]
    yield str(_table(noise, seeds, len(arms) - 1, _crossed(cells)))
    yield f"noise: {noise.sd:.4f} nats between two arms of one seed, from {noise.pairs} pairs of such runs"
    yield from _longer(known, steps, seeds, len(arms) - 1)


def _table(noise: Noise, seeds: int, arms: int, factors: dict[str, tuple[int, int]]) -> Table:
    """Draw a row a number of seeds; a column for the arms, and one for each key of a crossing."""
    columns = [Column(title="seeds"), Column(title="arm by arm", show=_difference)]
    columns += [Column(title=f"by factor, {key}", show=_difference) for key in factors]
    rows = [
        [
            seeds * times,
            detectable(noise.sd, seeds * times, arms=arms),
            *(
                detectable(noise.of_level(others), seeds * times, arms=levels)
                for levels, others in factors.values()
            ),
        ]
        for times in TIMES
    ]
    return Table(
        title=f"differences that are shown in {POWER:.0%} of grids, in nats", columns=columns, rows=rows
    )


def _difference(x: float) -> str:
    return f"{x:.4f}" if math.isfinite(x) else NONE


def _crossed(cells: Sequence[Cell]) -> dict[str, tuple[int, int]]:
    """Return, for each key of a full crossing, how many levels it has beside the baseline's, and over how
    many combinations of the others each is a mean; nothing where the cells are no crossing of two keys."""
    swept = [key for key in cells[0].plan.swept if key != "seed"]
    levels = {key: {_level(cell, key) for cell in cells} for key in swept}
    levels = {key: of_key for key, of_key in levels.items() if len(of_key) > 1}
    arms = len({cell.plan.arm for cell in cells})
    if len(levels) < 2 or math.prod(map(len, levels.values())) != arms:
        return {}
    return {key: (len(of_key) - 1, arms // len(of_key)) for key, of_key in levels.items()}


def _level(cell: Cell, key: str) -> str:
    """Return the override that gives a cell its value of a key."""
    return next((word for word in cell.overrides if word.partition("=")[0].lstrip("+~") == key), "")


def _longer(known: dict[int, Noise], steps: int, seeds: int, arms: int) -> Iterator[str]:
    """Say what the same time shows with runs of another length whose noise is known."""
    for length, noise in known.items():
        fewer = seeds * steps // length
        if length <= steps or fewer < 3:
            continue
        least = detectable(noise.sd, fewer, arms=arms)
        yield (
            f"in the same time {fewer} seeds of {length:,} steps show {least:.4f} arm by arm; effects are "
            "larger there, too (docs/statistics.md)"
        )
