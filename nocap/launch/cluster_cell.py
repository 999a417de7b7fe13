"""A cell of a grid as a cluster's job: `python -m nocap.launch.cluster_cell FOLDER IDENTITY`.

A cluster's launcher imports the job by this module's name.
"""

from __future__ import annotations

from nocap.launch import environment
from nocap.launch.process import watch_parent

if __name__ == "__main__":
    # before the imports below, which take seconds
    watch_parent(environment.parent())

import math
import sys
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nocap.config.compose import composed
from nocap.config.errors import EXIT_CODES
from nocap.config.keys import require
from nocap.config.outgoing_text import guarded
from nocap.launch import attempt
from nocap.launch.plan import Plan, plan
from nocap.launch.seed_request import SeedRequest
from nocap.store.grid_file import GRID, read_grid
from nocap.store.record_files import RunStatus


@dataclass(frozen=True, slots=True)
class CellJob:
    """Train the cell that is this run of the grid in a folder, as a cluster's job."""

    folder: str
    identity: str

    @property
    def log(self) -> Path:
        """Return the file of what it prints."""
        return Path(self.folder) / "jobs" / f"{self.identity}.log"

    @property
    def words(self) -> list[str]:
        """Return what follows `python` in a command that does the same."""
        return ["-m", "nocap.launch.cluster_cell", self.folder, self.identity]

    def __call__(self) -> int:
        """Return its exit code. A SystemExit passes: with it submitit ends a job that is
        requeued."""
        with guarded():
            try:
                planned = planned_cell(Path(self.folder), self.identity)
                # A cell that another process trains is waited for: then there is nothing left to
                # do, or all of it.
                return attempt.run_and_report(planned, started=time.monotonic(), wait_s=math.inf)
            except ValueError as error:
                print(f"nocap: {error}", file=sys.stderr)
                return EXIT_CODES[RunStatus.refused]
            # the edge of a cluster's job: its neighbours in the array go on, and the log has the
            # traceback
            except Exception:
                traceback.print_exc()
                return EXIT_CODES[RunStatus.failed]

    def checkpoint(self) -> Any:
        """Return the job that Slurm requeues; submitit calls it when the run has saved."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


def planned_cell(folder: Path, identity: str) -> Plan:
    """Return the plan of a cell, which is the run that the grid has planned.

    Errors:
        ValueError: it is another run on this machine, or the grid has no such cell.
    """
    path = folder / GRID
    grid = read_grid(folder) or {}
    matching = [cell for cell in grid.get("cells") or () if cell.get("identity") == identity]
    if not matching:
        raise ValueError(f"{path} has no cell {identity}: type the grid's command again")
    cell = matching[0]
    request: SeedRequest | None = None
    if cell.get("asked"):
        request = SeedRequest.of_json(cell["asked"])
    own = composed(cell["overrides"])
    swept = tuple(grid.get("swept") or ())
    planned = plan(own.run, choices=own.choices)
    own_machine = _in_words(planned.identity_parts["environment"])
    target = _in_words(cell["environment"])
    rule = f"describe the machine where the job runs ({own_machine})"
    require(own_machine == target, "hydra.launcher.target", rule, target)
    is_same = planned.identity == identity
    require(
        is_same,
        str(path),
        "come from a command with the code and data of this job (type the grid's command again)",
        "other code or data",
    )
    return replace(planned, grid=folder.name, swept=swept, request=request)


def _in_words(environment: Mapping[str, object]) -> str:
    """Return the values of an environment, in a line."""
    return ", ".join(map(str, environment.values()))


if __name__ == "__main__":
    raise SystemExit(CellJob(*sys.argv[1:])())
