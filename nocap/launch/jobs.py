"""A grid whose cells are jobs of a cluster: each is told of as it ends, and one whose machine was lost goes on on another."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from nocap import outside
from nocap.launch import elsewhere
from nocap.launch.grid import Cell, Grid, Result
from nocap.launch.plan import outcome
from nocap.launch.runner import Progress
from nocap.launch.signals import stop_handler
from nocap.options.launcher import Cluster, Job

PASSED_ON = (outside.VARIABLE, "NOCAP_CACHE", "PYTHONPATH")  # no secrets: a cluster shows what it is given


def train(grid: Grid, cluster: Cluster) -> tuple[Grid, elsewhere.Results, bool]:
    """Train the cells that are not done, and read what they left. Also whether a request to stop came.

    Errors:
        ValueError: the cluster cannot run one of them. Nothing was started.
    """
    todo = {key: cell for key, cell in zip(grid.keys, grid.cells, strict=True) if outcome(cell.plan) is None}
    jobs, came = {key: _job(grid.folder, key, cell) for key, cell in todo.items()}, list[int]()
    with closing(cluster), stop_handler(came.append):
        logs = grid.folder / elsewhere.CELLS
        print(f"{cluster.describe(list(jobs.values()))}; logs are in {logs}\n{elsewhere.DECIDED_THERE}", flush=True)
        logs.mkdir(exist_ok=True)
        results = _carry_out(grid, todo, jobs, cluster, came)
    grid = elsewhere.decided(grid)
    grid.write()
    pairs = zip(grid.keys, grid.cells, strict=True)
    return grid, {cell.plan.identity: results.get(key) or elsewhere.read(cell) for key, cell in pairs}, bool(came)


def _carry_out(grid: Grid, todo: dict[str, Cell], jobs: dict[str, Job], cluster: Cluster, came: Sequence[int]) -> dict[str, Result]:
    """Key → how that cell ended."""
    progress, results, losses, stopped = Progress(grid, bars=False), dict[str, Result](), dict.fromkeys(jobs, 0), False
    for job in jobs.values():
        cluster.start(job)
    while len(results) < len(jobs):
        if came and not stopped:
            stopped = True
            cluster.stop()
        for end in cluster.ended():
            cell = todo[end.key]
            if end.lost and not came and losses[end.key] < cluster.restarts:
                losses[end.key] += 1
                progress.log(cell, "lost", f"{end.reason}; goes on elsewhere ({losses[end.key]} of {cluster.restarts})")
                cluster.start(jobs[end.key])
                continue
            reason = end.reason or f"see {jobs[end.key].log}"
            results[end.key] = elsewhere.read(elsewhere.became(grid.folder, end.key, cell), trained=True, reason=reason)
            if not (stopped and results[end.key].status == "waiting"):
                progress.ended(cell, results[end.key])
    return results


def _job(folder: Path, key: str, cell: Cell) -> Job:
    return Job(
        key=key,
        run=cell.plan.run,
        undecided=cell.plan.left,
        words=("-m", "nocap.launch.cell", str(folder), key),
        env={name: os.environ[name] for name in PASSED_ON if name in os.environ},
        folder=Path.cwd(),
        log=folder / elsewhere.CELLS / f"{key}.log",
    )
