"""One rank of a torchrun that the user or a cluster's launcher started, also over several nodes.

Every rank reads the same config. Rank 0 alone decides whether there is something to train, and
where.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import NoReturn

from nocap import outside
from nocap.config.errors import EXIT_CODES
from nocap.config.keys import require
from nocap.launch import environment
from nocap.launch.attempt import hold
from nocap.launch.first_screen import headline, nothing_to_train
from nocap.launch.heartbeat import Heartbeat
from nocap.launch.plan import Plan
from nocap.launch.process import leave
from nocap.launch.record_head import write_record_head
from nocap.launch.run_table import table
from nocap.launch.worker import work
from nocap.store import lease
from nocap.store.json_shapes import Json
from nocap.store.record_files import MANIFEST, SUMMARY, RunStatus, read_json
from nocap.training.world import World, join

SHARED_S = 10.0  # that a shared file system may take to show a file to another node


def train_as_rank(plan: Plan, *, started: float) -> NoReturn:
    """Train as one rank; the process ends with the run's exit code.

    Errors:
        ValueError: another process is training this run, or the ranks have other files from outside
            or other output folders.
    """
    world = join(plan.run.trainer.device, timeout_s=plan.run.trainer.hang_timeout_s)
    _check_code(plan, world)
    run_lease: lease.Lease | None = None
    problem: str | None = None
    summary: Json | None = None
    if world.is_main:
        try:
            summary = plan.end().believe()
            if summary is None:
                run_lease = _begin(plan, ranks=world.size)
        except ValueError as error:
            problem = str(error)
    problem, summary, run_dir = world.from_main([problem, summary, str(plan.run_dir)])
    if problem:
        raise ValueError(problem)
    if summary is None:
        status = _train(plan, world, Path(run_dir), started=started)
    else:
        status = RunStatus(summary["status"])
        if world.is_main:
            print(nothing_to_train(plan, summary), flush=True)
    if world.is_main:
        written = read_json(plan.run_dir / SUMMARY)
        if written is not None:
            print(table(written, run_dir=plan.run_dir), flush=True)
    if status in (RunStatus.preempted, RunStatus.diverged):
        # torchrun stops the others when one leaves with another code than 0: wait until rank 0 has
        # saved
        world.from_main(status.value)
    if run_lease is not None:
        run_lease.close()
    leave(EXIT_CODES[status])


def _check_code(plan: Plan, world: World) -> None:
    """Refuse a rank whose files from outside are not those of rank 0.

    Errors:
        ValueError: they are not.
    """
    code = [outside.state(), plan.identity_parts["source"]]
    rule = "hold the same files on every rank"
    require(world.from_main(code) == code, "--config-dir", rule, outside.state())


def _begin(plan: Plan, *, ranks: int) -> lease.Lease:
    """Take the lease of a run, write the head of its record, and return the lease.

    Errors:
        ValueError: another process is training this run.
    """
    run_lease = hold(plan)
    stage = run_lease.stage()
    os.environ[environment.STAGE] = str(stage)
    write_record_head(plan, stage)
    Heartbeat.create(plan.run_dir, ranks=ranks)
    return run_lease


def _train(plan: Plan, world: World, run_dir: Path, *, started: float) -> RunStatus:
    """Train in the folder of rank 0, and return how the run ended.

    Errors:
        ValueError: this node does not see that folder.
    """
    if world.is_main:
        print(headline(plan), flush=True)
    is_shared = world.all(_appears(run_dir / MANIFEST))
    require(is_shared, "output_dir", "be a folder that all nodes share", run_dir)
    return work(plan.run, run_dir, started=started)


def _appears(path: Path) -> bool:
    """Say whether a file is there, or comes within the seconds that a shared file system may take
    to show it."""
    ends = time.monotonic() + SHARED_S
    while not path.exists() and time.monotonic() < ends:
        time.sleep(0.1)
    return path.exists()
