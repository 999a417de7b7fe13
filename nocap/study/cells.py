"""The runs of a study, as cells of one grid: checked together, trained seed by seed, each once. They lie beside all other runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from nocap.config.compose import Composed
from nocap.launch.grid import Cell, RefusedError, Result, check, key_of
from nocap.launch.plan import DAMAGED, outcome, plan
from nocap.launch.runner import Runner
from nocap.options.launcher.pool import Devices
from nocap.store.runs import Record, read
from nocap.store.verify import read_ended
from nocap.study.arms import with_seed


class StoppedError(Exception):
    """A request to stop: what was trained is saved, and the same command goes on."""


class FailedError(RuntimeError):
    """A run failed that later ones need."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """A run that a study needs: an arm with a seed."""

    arm: str
    seed: int
    composed: Composed  # with the seed
    short: int = 0  # the steps of a shorter schedule


Watch = Callable[[Wanted, Cell, str], None]  # told of a run, its cell, and that it is `begun`, or the status with which it ended


def wanted(arms: Mapping[str, Composed], needed: Mapping[int, Sequence[str]]) -> list[Wanted]:
    """`needed`: seed → arms."""
    runs = [(seed, name) for seed, names in needed.items() for name in names if name in arms]
    return [Wanted(arm=name, seed=seed, composed=with_seed(arms[name], seed)) for seed, name in runs]


class Cells:
    """Runs that belong together.

    Errors:
        ValueError: an invalid run; the first is named, with how many there are.
    """

    def __init__(self, runs: Sequence[Wanted], *, label: str) -> None:
        known = {run.composed.overrides: run.composed for run in runs}
        try:
            overrides = [run.composed.overrides for run in runs]
            grid = check(overrides, swept=("seed",), compose=lambda one: known[tuple(one)], log=lambda line: None)
        except RefusedError as refused:
            raise ValueError(refused.lines[0]) from refused
        dataset = grid.cells[0].plan.dataset
        identities = [plan(run.composed.run, choices=run.composed.choices, dataset=dataset).identity for run in runs]
        names: dict[str, list[str]] = {}  # two arms may be the same run
        for run, identity in zip(runs, identities, strict=True):
            names.setdefault(identity, []).append(run.arm)
        common = set.intersection(*map(set, overrides))
        swept = tuple(dict.fromkeys(key_of(word) for words in overrides for word in words if word not in common))
        cells = [
            replace(
                cell,
                label=f"{label} {'='.join(dict.fromkeys(names[cell.plan.identity]))} seed={cell.plan.run.seed}",
                plan=replace(cell.plan, swept=swept),
            )
            for cell in grid.cells
        ]
        by_identity = {cell.plan.identity: cell for cell in cells}
        self.grid, self.damaged = replace(grid, cells=tuple(cells)), set[tuple[str, int]]()
        self.of: list[tuple[Wanted, Cell]] = [(run, by_identity[i]) for run, i in zip(runs, identities, strict=True)]

    @property
    def done(self) -> int:
        return sum(outcome(cell.plan) is not None for cell in self.grid.cells)

    def train(self, before_seed: Callable[[], None] | None = None, *, watch: Watch = lambda run, cell, event: None) -> dict[str, Result]:
        """Train what is missing, as many cells at once as the machine has room for. Identity → how it ended. `before_seed`: called before
        each seed's cells, which then end before the next seed's begin. `watch`: told how each run goes.

        Errors:
            StoppedError: somebody asked to stop.
        """
        if self.done == len(self.grid.cells):
            return {}
        self.grid.write()
        results: dict[str, Result] = {}
        seeds = dict.fromkeys(cell.plan.run.seed for cell in self.grid.cells)
        for seed in seeds if before_seed else [None]:
            if before_seed:
                before_seed()
            cells = tuple(cell for cell in self.grid.cells if seed in (None, cell.plan.run.seed))
            told = lambda cell, event: self._tell(watch, cell, event)  # noqa: E731
            runner = Runner(replace(self.grid, cells=cells), slots=Devices(jobs=None), watch=told)
            results |= runner.run()
            if runner.stopping:
                raise StoppedError("stopped; what was trained is saved, and the same command goes on")
        return results

    def _tell(self, watch: Watch, cell: Cell, event: str) -> None:
        for run, mine in self.of:
            if mine.plan.identity == cell.plan.identity:
                watch(run, mine, event)

    def records(self, problems: list[str]) -> list[tuple[Wanted, Record]]:
        """Of the runs that finished or diverged. What cannot be read of a record goes into `problems`, and who is `damaged`."""
        found = []
        for run, cell in self.of:
            try:
                ended = read_ended(cell.plan.run_dir, identity=cell.plan.identity)
            except ValueError as error:
                problems.append(f"{DAMAGED}: {error}")
                self.damaged.add((run.arm, run.seed))
                continue
            if ended is not None:
                found.append((run, read(cell.plan.run_dir, problems=problems)))
        return found
