"""What a grid can show, for `--plan`: the least difference by its seeds, and by more of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nocap.config.flags import EQUAL_LOSS
from nocap.config.keys import flat
from nocap.display import NONE
from nocap.judge.equal_loss import STEPS
from nocap.judge.interval import LEAST_PAIRS
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
from nocap.report.table import Column, Table
from nocap.report.terminal import prose
from nocap.store.record import Record
from nocap.store.runs import load_runs

SEED_FACTORS = (1, 2, 4)  # the seeds


@dataclass(frozen=True, kw_only=True, slots=True)
class Crossed:
    """A key of a full crossing."""

    levels: int  # beside the baseline's
    others: int  # combinations of the other keys, over which each level is a mean


def foreseen(grid: Grid, *, lengths_by: str | None = EQUAL_LOSS) -> Iterator[str]:
    """Say what the grid can show with its seeds and with more, and with longer runs in the same
    time. `lengths_by`: what trains the baseline at its other lengths; `None`: nobody asked for
    these."""
    cells = _own_cells(grid)
    base = cells[0].plan
    n_arms = len({cell.plan.arm for cell in cells}) - 1  # beside the baseline
    seeds = len({cell.plan.run.seed for cell in cells if cell.plan.arm == base.arm})
    if n_arms < 1:
        return
    records = records_in(grid.folder.parents[1])
    config = dict(flat(base.identity_parts["config"]))
    known = noise_of(records, config)
    steps = base.run.trainer.steps
    if steps not in known:
        shape = f"this model, data, batch and {STEPS}={steps}"
        reason = f"no two arms of {shape} have three seeds in common in {base.run.output_dir}"
        yield prose(f"nocap does not know which difference {seeds} seeds can show: {reason}")
        return
    noise = known[steps]
    factors = _crossed(cells)
    yield str(_table(noise, seeds, n_arms, factors))
    yield prose(
        f"noise between two arms with the same seed: {noise.sd:.4f} nats, from {noise.pairs} "
        "pairs of such runs"
    )
    yield from _longer(known, steps, seeds, n_arms)
    at_equal_loss = noise_at_equal_loss(records, config)
    if isinstance(at_equal_loss, NoiseAtEqualLoss):
        yield from _at_equal_loss(at_equal_loss, seeds, n_arms, factors)
    elif lengths_by is not None:
        source = f"{lengths_by} trains and times them"
        yield prose(
            f"nocap does not know which gain in time at equal loss {seeds} seeds can show: "
            f"{at_equal_loss} ({source})"
        )


def _own_cells(grid: Grid) -> list[Cell]:
    """List the cells without those that show an arm's loss at another length."""
    cells = list[Cell]()
    for cell in grid.cells:
        request = cell.plan.request
        if request is None or request.length_of is None:
            cells.append(cell)
    return cells


def records_in(output_dir: Path) -> list[Record]:
    """List the runs of an output folder without their rows; none, where none has ended."""
    runs = output_dir / "runs"
    if not any(runs.glob("*/summary.json")):
        return []
    return load_runs([runs], rows=False).records


def _columns(factors: Iterable[str], show: Callable[[float], str]) -> list[Column]:
    """Return a column for the seeds, one for the arms, and one for each key of a crossing."""
    columns = [Column(title="seeds"), Column(title="arm by arm", show=show)]
    for key in factors:
        columns.append(Column(title=f"by factor, {key}", show=show))
    return columns


def _table(noise: Noise, seeds: int, n_arms: int, factors: Mapping[str, Crossed]) -> Table:
    """Draw the least difference in loss that is shown, a row a number of seeds."""
    rows = list[list[float]]()
    for times in SEED_FACTORS:
        n = seeds * times
        row = [n, detectable(noise.sd, n, arms=n_arms)]
        for factor in factors.values():
            sd = noise.of_level(factor.others)
            row.append(detectable(sd, n, arms=factor.levels))
        rows.append(row)
    title = f"differences that are shown in {POWER:.0%} of grids, in nats"
    return Table(title=title, columns=_columns(factors, _difference), rows=rows)


def _difference(x: float) -> str:
    return f"{x:.4f}" if math.isfinite(x) else NONE


def _at_equal_loss(
    noise: NoiseAtEqualLoss, seeds: int, n_arms: int, factors: Mapping[str, Crossed]
) -> Iterator[str]:
    """Say which gains in the time at equal loss are shown."""
    rows = list[list[float]]()
    for times in SEED_FACTORS:
        n = seeds * times
        row = [n, detectable_time(noise, n, levels=n_arms)]
        for factor in factors.values():
            row.append(detectable_time(noise, n, levels=factor.levels, others=factor.others))
        rows.append(row)
    title = f"gains in the time at equal loss that are shown in {POWER:.0%} of grids"
    yield str(Table(title=title, columns=_columns(factors, _share), rows=rows))
    slope = 1 - 2**noise.slope
    yield prose(
        f"noise of the time a token between two arms with the same seed: {noise.pace:.1%}; twice "
        f"the steps lower the baseline's loss by {slope:.1%}"
    )


def _share(x: float) -> str:
    return f"{x:.1%}" if math.isfinite(x) else NONE


def _crossed(cells: Sequence[Cell]) -> dict[str, Crossed]:
    """Return the keys of a full crossing; nothing where the cells are no crossing of two keys."""
    levels = dict[str, set[str]]()
    for key in cells[0].plan.swept:
        of_key = {_level(cell, key) for cell in cells}
        if key != "seed" and len(of_key) > 1:
            levels[key] = of_key
    arms = len({cell.plan.arm for cell in cells})
    combinations = math.prod(map(len, levels.values()))
    if len(levels) < 2 or combinations != arms:
        return {}
    crossed = dict[str, Crossed]()
    for key, of_key in levels.items():
        crossed[key] = Crossed(levels=len(of_key) - 1, others=arms // len(of_key))
    return crossed


def _level(cell: Cell, key: str) -> str:
    """Return the override that gives a cell its value of a key."""
    for word in cell.overrides:
        if word.partition("=")[0].lstrip("+~") == key:
            return word
    return ""


def _longer(known: Mapping[int, Noise], steps: int, seeds: int, n_arms: int) -> Iterator[str]:
    """Say what the same time shows with runs of another length whose noise is known."""
    for length, noise in known.items():
        fewer = seeds * steps // length
        if length <= steps or fewer < LEAST_PAIRS:
            continue
        least = detectable(noise.sd, fewer, arms=n_arms)
        yield prose(
            f"in the same time, {fewer} seeds of {length:,} steps can show {least:.4f} for each "
            "arm; effects are also larger with more steps (docs/statistics.md)"
        )
