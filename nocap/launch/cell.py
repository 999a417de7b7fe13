"""Train one composed config in a process of its own. A cluster's job imports it by this module's
name."""

from __future__ import annotations

import os

from nocap.training.process import leave, watch_parent

if __name__ == "__main__":
    # before the imports below, which take seconds
    watch_parent(int(os.environ["NOCAP_PARENT"]))

import math
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

from nocap import outside
from nocap.config.compose import Composed, composed
from nocap.config.keys import EXIT_CODES, require
from nocap.config.outward import guarded
from nocap.launch import attempt
from nocap.launch.head import typed_keys, write_record_head
from nocap.launch.plan import Asked, Plan, headline, nothing_to_train, plan, sound
from nocap.store import lease
from nocap.store.record import MANIFEST, SUMMARY, read_json
from nocap.store.runs import GRID
from nocap.training.heartbeat import Heartbeat
from nocap.training.terminal import table

SHOWN_S = 10.0


def single(overrides: Sequence[str], *, started: float) -> NoReturn:
    """Train one run, or take part in it as a rank of torchrun's; the process ends with its exit
    code. `started`: a `time.monotonic()`.

    Errors:
        ValueError: it cannot be trained.
    """
    if "RANK" in os.environ:
        ranks = int(os.environ.get("WORLD_SIZE", "1"))
        rank = composed([f"trainer.devices={ranks}", *overrides])
        watch_parent(os.getppid())
        devices = rank.run.trainer.devices
        require(devices == ranks, "trainer.devices", f"be torchrun's {ranks} ranks", devices)
        _train_as_rank(_planned(rank, overrides), started=started)
    code = attempt.start(_planned(composed(overrides), overrides), started=started)
    raise SystemExit(code)


def _planned(cell: Composed, overrides: Sequence[str]) -> Plan:
    """Return the plan of the run that these overrides make."""
    return replace(plan(cell.run, choices=cell.choices), swept=typed_keys(cell.run, overrides))


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
        return ["-m", "nocap.launch.cell", self.folder, self.identity]

    def __call__(self) -> int:
        """Return its exit code. A SystemExit passes: with it submitit ends a job that is
        requeued."""
        with guarded():
            try:
                planned = _cell(Path(self.folder), self.identity)
                # A cell that another process trains is waited for: then there is nothing left to
                # do, or all of it.
                return attempt.start(planned, started=time.monotonic(), wait_s=math.inf)
            except ValueError as error:
                print(f"nocap: {error}", file=sys.stderr)
                return EXIT_CODES["refused"]
            # the edge of a cluster's job: its neighbours in the array go on, and the log has the
            # traceback
            except Exception:
                traceback.print_exc()
                return EXIT_CODES["failed"]

    def checkpoint(self) -> Any:
        """Return the job that Slurm requeues; submitit calls it when the run has saved."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


def _cell(folder: Path, identity: str) -> Plan:
    """Return the plan of a cell, which is the run that the grid has planned.

    Errors:
        ValueError: it is another run on this machine, or the grid has no such cell.
    """
    grid = read_json(folder / GRID) or {}
    matching = [cell for cell in grid.get("cells") or () if cell.get("identity") == identity]
    if not matching:
        raise ValueError(f"{folder / GRID} must have the cell {identity}")
    cell = matching[0]
    request = cell.get("asked")
    asked = None
    if request:
        asked = Asked(**request | {"seeds": tuple(request["seeds"])})
    own = composed(cell["overrides"])
    swept = tuple(grid.get("swept") or ())
    planned = replace(
        plan(own.run, choices=own.choices), grid=folder.name, swept=swept, asked=asked
    )
    here = _in_words(planned.parts["environment"])
    there = _in_words(cell["environment"])
    require(
        here == there, "hydra.launcher.target", f"be the machine where the job runs ({here})", there
    )
    require(
        planned.identity == identity,
        str(folder / GRID),
        "be planned with this code and data",
        "others",
    )
    return planned


def _in_words(environment: Mapping[str, object]) -> str:
    """Return the values of an environment, in a line."""
    return ", ".join(map(str, environment.values()))


def _train_as_rank(plan: Plan, *, started: float) -> NoReturn:
    """Train as one rank of a torchrun that the user or a cluster's launcher started, also over
    several nodes.

    Every rank reads the same config. Rank 0 alone decides whether there is something to train, and
    where.

    Errors:
        ValueError: another process is training this run, or the ranks have other files from outside
            or other output folders.
    """
    from nocap.launch.worker import work  # torch
    from nocap.training.world import join

    world = join(plan.run.trainer.device, timeout_s=plan.run.trainer.hang_timeout_s)
    code = [outside.state(), plan.parts["source"]]
    rule = "hold the same files, which import the same, on every rank"
    require(world.from_main(code) == code, "--config-dir", rule, outside.state())
    run_lease: lease.Lease | None = None
    problem: str | None = None
    summary: dict[str, Any] | None = None
    if world.is_main:
        try:
            summary = sound(plan)
            if summary is None:
                run_lease = _begin(plan, ranks=world.size)
        except ValueError as error:
            problem = str(error)
    problem, summary, run_dir = world.from_main([problem, summary, str(plan.run_dir)])
    if problem:
        raise ValueError(problem)
    if summary is None:
        if world.is_main:
            print(headline(plan), flush=True)
        shared = world.all(_appears(Path(run_dir) / MANIFEST))
        require(shared, "output_dir", "be a folder that all nodes share", run_dir)
        status = work(plan.run, Path(run_dir), started=started)
    else:
        if world.is_main:
            print(nothing_to_train(plan, summary), flush=True)
        status = summary["status"]
    if world.is_main:
        written = read_json(plan.run_dir / SUMMARY)
        if written is not None:
            print(table(written, run_dir=plan.run_dir), flush=True)
    if status in ("preempted", "diverged"):
        # torchrun stops the others when one leaves with another code than 0: wait until rank 0 has
        # saved
        world.from_main(status)
    if run_lease is not None:
        run_lease.close()
    leave(EXIT_CODES[status])


def _begin(plan: Plan, *, ranks: int) -> lease.Lease:
    """Take the lease of a run, write the head of its record, and return the lease.

    Errors:
        ValueError: another process is training this run.
    """
    run_lease = attempt.hold(plan)
    stage = run_lease.stage()
    os.environ["NOCAP_STAGE"] = str(stage)
    write_record_head(plan, stage)
    Heartbeat.create(plan.run_dir, ranks=ranks)
    return run_lease


def _appears(path: Path) -> bool:
    """Say whether a file is there, or comes within the seconds that a shared file system may take
    to show it."""
    ends = time.monotonic() + SHOWN_S
    while not path.exists() and time.monotonic() < ends:
        time.sleep(0.1)
    return path.exists()


if __name__ == "__main__":
    raise SystemExit(CellJob(*sys.argv[1:])())
