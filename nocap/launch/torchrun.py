"""A rank of a run that somebody else's torchrun started: several nodes, or a cluster's own launcher."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

from nocap import outside
from nocap.config.compose import EXIT_CODES
from nocap.config.keys import require
from nocap.config.run import Run
from nocap.launch import plan as planning
from nocap.launch.attempt import hold
from nocap.launch.worker import work
from nocap.store.record import read_json
from nocap.training.heartbeat import Heartbeat
from nocap.training.process import leave, watch_parent
from nocap.training.terminal import table
from nocap.training.world import join


def train_as_rank(run: Run, *, choices: Mapping[str, str | None], started: float) -> NoReturn:
    """Train as one rank. Every rank reads the same config; rank 0 alone decides whether there is something to do, and where.

    Errors:
        ValueError: the world is not of `trainer.devices` ranks, or another process is training this run.
    """
    watch_parent(os.getppid())
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    require(run.trainer.devices == world_size, "trainer.devices", f"be torchrun's {world_size} ranks", run.trainer.devices)
    plan = planning.plan(run, choices=choices)
    world = join(run.trainer.device, timeout_s=run.trainer.hang_timeout_s)
    require(world.from_main(outside.state()) == outside.state(), "--config-dir", "hold the same files on every rank", outside.state())
    holder, problem, ended = None, None, None
    if world.is_main:
        try:
            if (ended := planning.outcome(plan)) is None:
                holder = hold(plan)
                planning.write_record_head(plan)
                Heartbeat.create(plan.run_dir, ranks=world.size)
        except ValueError as error:
            problem = str(error)
    problem, ended, run_dir = world.from_main((problem, ended, str(plan.run_dir)))
    if problem:
        raise ValueError(problem)
    if world.is_main:
        for notice in plan.notices:
            print(f"note: {notice}", flush=True)
        print(planning.headline(plan) if ended is None else planning.nothing_to_train(plan, ended), flush=True)
    status = work(run, Path(run_dir), started=started) if ended is None else ended["status"]
    if world.is_main and (summary := read_json(Path(run_dir) / "summary.json")) is not None:
        print(table(summary, run_dir=Path(run_dir)), flush=True)
    if status in ("preempted", "diverged"):
        world.from_main(status)  # torchrun stops the others when one leaves with another code than 0: wait until rank 0 has saved
    if holder is not None:
        holder.close()
    leave(EXIT_CODES[status])
