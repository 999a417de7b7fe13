"""`--time SECONDS`: the arms of a grid timed in turns, once they are trained. What is measured lies
in the grid's folder, and `nocap.judge.pace` takes the speeds from it. On a CPU the arms have one
thread, unless their threads are what differs."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from nocap.config.compose import Composed, composed
from nocap.config.flags import TIME
from nocap.config.keys import require
from nocap.config.trainer import Device
from nocap.display import plural
from nocap.launch.grid import Cell, Grid
from nocap.launch.sweep import replaced
from nocap.sessions.places import ROUNDS
from nocap.sessions.session import Session


@dataclass(frozen=True, kw_only=True, slots=True)
class InTurns:
    """A timing of all arms of a grid, in turns."""

    seconds: float  # of rounds, without the warm-up

    def plan(self, grid: Grid) -> str:
        """Say before the first run what will be timed.

        Errors:
            ValueError: the arms cannot be timed in turns: they are not on one device of one kind.
        """
        trainers = [cell.plan.run.trainer for cell in grid.cells]
        several = max(trainer.devices for trainer in trainers)
        require(
            several == 1, "trainer.devices", f"be 1 with {TIME}, which times one device", several
        )
        kinds = sorted({trainer.device.value for trainer in trainers})
        require(
            len(kinds) == 1,
            "trainer.device",
            f"be the same in all arms with {TIME}",
            ", ".join(kinds),
        )
        return (
            f"after the last run, nocap times {plural(len(arms_of(grid)), 'arm')} in turns, for "
            f"{self.seconds:g} s and the warm-up"
        )

    def measure(self, grid: Grid, before: Path | None) -> None:
        """Time the arms, unless that was done. `before`: the folder of a grid of the same arms with
        fewer seeds, whose timing is taken.

        Errors:
            FailedError: nothing was measured.
        """
        session = Session(place=ROUNDS, arms=arms_of(grid), how={"seconds": self.seconds})
        path = session.path(grid.folder, 1)
        known = session.path(before, 1) if before is not None else None
        if known is not None and known.exists() and not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(known, path)
        session.run(grid.folder)


def arms_of(grid: Grid) -> dict[str, Composed]:
    """Return the arms by their ids, without those that show another arm's lengths."""
    cells: dict[str, Cell] = {}
    for cell in grid.cells:
        request = cell.plan.request
        if request is None or request.length_of is None:
            cells.setdefault(cell.plan.arm, cell)
    trainers = [cell.plan.run.trainer for cell in cells.values()]
    same_threads = len({trainer.threads for trainer in trainers}) == 1
    arm_of = _as_it_is
    if trainers[0].device is Device.cpu and same_threads:
        arm_of = _on_one_thread
    return {name: arm_of(cell) for name, cell in cells.items()}


def _as_it_is(cell: Cell) -> Composed:
    """Return the arm as it is trained."""
    return Composed(overrides=cell.overrides, run=cell.plan.run, choices={})


def _on_one_thread(cell: Cell) -> Composed:
    """Return the arm on one thread, whose CPU time other work changes less than a clock; compiled
    as it is trained."""
    compiled = cell.plan.run.trainer.compile.value
    return composed(replaced(cell.overrides, ["trainer.threads=1", f"trainer.compile={compiled}"]))
