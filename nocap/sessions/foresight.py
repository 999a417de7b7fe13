"""What a grid can show, for `--plan`: the least difference by its seeds, and by more of them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from nocap.config.keys import flat
from nocap.judge.equal_loss import STEPS
from nocap.judge.power import (
    POWER,
    Noise,
    NoiseAtEqualLoss,
    detectable,
    detectable_time,
    noise_at_equal_loss,
    noise_of,
)
from nocap.launch.grid import Cell, Grid
from nocap.launch.lengths import FLAG
from nocap.report.table import Column, Table
from nocap.store.formats import NONE
from nocap.store.runs import Record, load

TIMES = (1, 2, 4)  # the seeds


def foreseen(grid: Grid, *, lengths_by: str | None = FLAG) -> Iterator[str]:
    """Say what the grid can show with its seeds and with more, and with longer runs in the same time.
    `lengths_by`: what trains the baseline at its other lengths; `None`: nobody asked for these."""
    cells = [cell for cell in grid.cells if cell.plan.asked is None or cell.plan.asked.length_of is None]
    base = cells[0].plan
    arms = list(dict.fromkeys(cell.plan.arm for cell in cells))
    seeds = len({cell.plan.run.seed for cell in cells if cell.plan.arm == base.arm})
    if len(arms) < 2:
        return
    records = records_in(grid.folder.parents[1])
    config = dict(flat(base.parts["config"]))
    known = noise_of(records, config)
    steps = base.run.trainer.steps
    if steps not in known:
        yield (
            f"what {seeds} seeds can show is not known: no two arms of this model, data, batch and "
            f"{STEPS}={steps} share three seeds in {base.run.output_dir}"
        )
        return
    noise = known[steps]
    factors = _crossed(cells)
    yield str(_table(noise, seeds, len(arms) - 1, factors))
    yield f"noise: {noise.sd:.4f} nats between two arms of one seed, from {noise.pairs} pairs of such runs"
    yield from _longer(known, steps, seeds, len(arms) - 1)
    at_equal_loss = noise_at_equal_loss(records, config)
    if isinstance(at_equal_loss, NoiseAtEqualLoss):
        yield from _at_equal_loss(at_equal_loss, seeds, len(arms) - 1, factors)
    elif lengths_by is not None:
        yield (
            f"what {seeds} seeds can show of the time at equal loss is not known: {at_equal_loss} "
            f"({lengths_by} trains and times them)"
        )


def records_in(output_dir: Path) -> list[Record]:
    """List the runs of an output folder without their rows; none, where none has ended."""
    runs = output_dir / "runs"
    return load([runs], rows=False).records if any(runs.glob("*/summary.json")) else []


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


def _at_equal_loss(
    noise: NoiseAtEqualLoss, seeds: int, arms: int, factors: dict[str, tuple[int, int]]
) -> Iterator[str]:
    """Say which gains in the time at equal loss are shown."""
    columns = [Column(title="seeds"), Column(title="arm by arm", show=_share)]
    columns += [Column(title=f"by factor, {key}", show=_share) for key in factors]
    rows = list[list[float]]()
    for times in TIMES:
        row = [seeds * times, detectable_time(noise, seeds * times, levels=arms)]
        for levels, others in factors.values():
            row.append(detectable_time(noise, seeds * times, levels=levels, others=others))
        rows.append(row)
    title = f"gains in the time at equal loss that are shown in {POWER:.0%} of grids"
    yield str(Table(title=title, columns=columns, rows=rows))
    yield (
        f"noise: {noise.pace:.1%} of the time a token between two arms of one seed; twice the steps take "
        f"{1 - 2**noise.slope:.1%} off the baseline's loss"
    )


def _share(x: float) -> str:
    return f"{x:.1%}" if math.isfinite(x) else NONE


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
