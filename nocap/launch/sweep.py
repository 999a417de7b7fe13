"""`--multirun`: expand, check the whole grid, train what is missing, say what came of it."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra._internal.core_plugins.basic_launcher import BasicLauncher
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, open_dict

from nocap.config.compose import EXIT_CODES
from nocap.launch.attempt import hold
from nocap.launch.board import Board
from nocap.launch.composer import composer
from nocap.launch.grid import Cell, Grid, RefusedError, check
from nocap.launch.plan import outcome
from nocap.launch.runner import Result, Runner
from nocap.options.launcher import One, Slots
from nocap.store.identity import digest
from nocap.store.record import read_json

if TYPE_CHECKING:
    from nocap.judge.result import Comparison

Results = dict[str, Result]  # by identity


def sweep(arguments: list[str], *, split: Callable[..., Any], context: HydraContext, task: TaskFunction, config: DictConfig) -> Results:
    """Train the grid of these overrides. Ends the process with the grid's exit code unless that is 0."""
    if named := [word for word in config.hydra.overrides.hydra if word.lstrip("+~").startswith("hydra.sweep.")]:
        raise ValueError(f"{named[0]}: a grid's folder is below output_dir, and its name follows from its cells")
    parser = OverridesParser.create(config_loader=context.config_loader)
    overrides = parser.parse_overrides(arguments)
    words_of_cells = split(overrides, None)[0]
    last = {override.get_key_element(): override for override in overrides}  # the command line goes before a file's sweeps
    swept = [override.key_or_group for override in last.values() if override.is_sweep_override()]
    try:
        grid = check(words_of_cells, swept=swept, compose=composer(context.config_loader, config), say=print)
        with open_dict(config):
            config.hydra.sweep.dir = str(grid.folder)
        launcher = Plugins.instance().instantiate_launcher(hydra_context=context, task_function=task, config=config)
    except RefusedError as refused:
        for line in refused.lines:
            print(f"nocap: {line}", file=sys.stderr)
        raise SystemExit(EXIT_CODES["refused"]) from None
    except KeyboardInterrupt:
        print("nocap: stopped before the first cell", file=sys.stderr)
        raise SystemExit(EXIT_CODES["preempted"]) from None
    grid.write()
    results, stopped = _train(grid, launcher)
    if code := _tell(grid, results, stopped=stopped):
        raise SystemExit(code)
    return results


# --- training ----------------------------------------------------------------------------------------------------------------------


def _slots(launcher: Launcher) -> Slots | None:
    """Where this process trains the cells; `None`: the launcher does it elsewhere."""
    if isinstance(launcher, BasicLauncher):
        return One()
    slots: Slots | None = launcher.slots() if hasattr(launcher, "slots") else None  # nocap's own launchers have it, Hydra's do not
    return slots


def _train(grid: Grid, launcher: Launcher) -> tuple[Results, bool]:
    """How each cell ended, and whether a request to stop came."""
    total, done = len(grid.cells), sum(outcome(cell.plan) is not None for cell in grid.cells)
    print(f"grid {grid.name}: {total} cells, {done} done, {total - done} to train", flush=True)
    if done == total:
        return {cell.plan.identity: _read(cell) for cell in grid.cells}, False
    slots = _slots(launcher)
    return _train_here(grid, slots) if slots else _train_elsewhere(grid, launcher)


def _train_here(grid: Grid, slots: Slots) -> tuple[Results, bool]:
    if said := slots.say([cell.plan.run for cell in grid.cells]):
        print(said, flush=True)
    runner = Runner(grid, slots=slots, board=Board())
    return runner.run(), runner.stopping


def _read(cell: Cell, *, trained: bool = False, reason: str | None = None) -> Result:
    """What the record says."""
    try:
        summary = read_json(cell.plan.run_dir / "summary.json")
    except ValueError as error:
        return Result(status="failed", reason=str(error))
    if summary is None:
        return Result(status="waiting", reason=reason or "not finished")
    return Result(status=summary["status"], trained=trained, summary=summary, reason=summary.get("error"))


def _train_elsewhere(grid: Grid, launcher: Launcher) -> tuple[Results, bool]:
    """Hand the cells that are not done to a launcher of Hydra's, such as submitit's, and read what they left."""
    todo = [cell for cell in grid.cells if outcome(cell.plan) is None]
    folder = str(grid.folder).replace("\\", "\\\\").replace("'", "\\'")
    name, reason, stopped = type(launcher).__name__, "its job left no record", False
    print(f"{name} trains them; its logs are in {grid.folder}", flush=True)
    try:
        launcher.launch([[*cell.overrides, f"hydra.sweep.dir='{folder}'"] for cell in todo], 0)
    except KeyboardInterrupt:
        stopped = True
        print("nocap: no longer waiting; what was handed over goes on", file=sys.stderr)
    except Exception as error:  # a job was killed: submitit says so at once, and the others go on
        reason = f"{name}: {str(error).strip().splitlines()[-1]}" if str(error).strip() else f"{name}: {type(error).__name__}"
        for cell in todo:
            if cell.plan.run_dir.exists():
                hold(cell.plan, wait_s=math.inf).close()
    handed = {cell.plan.identity for cell in todo}
    reason = f"{reason}; logs in {grid.folder}"
    return {c.plan.identity: _read(c, trained=c.plan.identity in handed, reason=reason) for c in grid.cells}, stopped


# --- telling -----------------------------------------------------------------------------------------------------------------------


def _tell(grid: Grid, results: Results, *, stopped: bool) -> int:
    """Counts, what is unfinished and why, the comparison; the grid's exit code."""
    by_status: dict[str, list[Cell]] = {}
    for cell in grid.cells:
        by_status.setdefault(results[cell.plan.identity].status, []).append(cell)
    now = sum(result.trained and result.status == "finished" for result in results.values())
    names = {"preempted": "stopped half-way", "waiting": "not started"}
    counts = [f"{len(cells)} {names.get(status, status)}" for status, cells in sorted(by_status.items())]
    print(f"grid {grid.name}: {', '.join(counts)}; {now} trained now", flush=True)
    for status, cells in by_status.items():
        for cell in cells if status != "finished" and not (stopped and status == "waiting") else ():
            result = results[cell.plan.identity]
            log = cell.plan.run_dir / "train.log"
            reason = "; ".join([result.reason or names.get(status, status), *([f"see {log}"] if log.exists() else [])])
            word = "diverged, which is its result" if status == "diverged" else "not finished"
            print(f"nocap: {word}: {cell.label} ({reason})", file=sys.stderr)
    if stopped:
        print("the same command goes on", flush=True)
        return EXIT_CODES["preempted"]
    _compare(grid, any_finished="finished" in by_status, trained=any(result.trained for result in results.values()))
    if by_status.keys() & {"failed", "waiting"}:
        return EXIT_CODES["failed"]
    return EXIT_CODES["preempted"] if "preempted" in by_status else 0


def _compare(grid: Grid, *, any_finished: bool, trained: bool) -> None:
    """The comparison as a table, and after training also as a report and in the tracker. That one fails changes nothing about the grid."""
    folder = os.path.relpath(grid.folder) if grid.folder.is_relative_to(Path.cwd()) else str(grid.folder)
    if any_finished:
        try:
            from nocap.judge.compare import compare
            from nocap.judge.describe import render
            from nocap.store.runs import load

            comparison = compare(load([grid.folder]))
            print(f"\n{render(comparison)}\n")
            if trained:
                _report(grid, comparison)
            print(f"report: {folder}/report.html")
        except Exception as error:
            print(f"nocap: no comparison: {type(error).__name__}: {error}", file=sys.stderr)
    print(f"compare: python -m nocap.compare {folder}", flush=True)


def _report(grid: Grid, comparison: Comparison) -> None:
    """`report.html` in the grid's folder, and with W&B a run of the group that holds the verdicts and the report."""
    from nocap.judge import report
    from nocap.options.tracker import RunFacts
    from nocap.store.tracking import track_comparison

    path = grid.folder / "report.html"
    report.write(comparison, path)
    identity = digest({"grid": [cell.plan.identity for cell in grid.cells]})
    facts = RunFacts(
        identity=identity,
        name=grid.name,
        arm="comparison",
        seed=0,
        run_dir=grid.folder,
        config={"swept": list(grid.swept)},
        group=grid.name,
    )
    if said := track_comparison(grid.cells[0].plan.run.tracker, facts, comparison=comparison.json(), report=path):
        print(f"tracker: {said}")
