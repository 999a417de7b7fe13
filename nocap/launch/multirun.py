"""`--multirun`: read the command, check the whole grid, and train what is missing.

nocap runs a grid itself. Hydra's own sweeper would train all cells in one process, and check each
only when its turn comes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf

from nocap.config.choices import of_a_grid
from nocap.config.compose import composed
from nocap.config.errors import EXIT_CODES, FailedError
from nocap.config.flags import PLAN, UNTIL_SHOWN, GridFlags
from nocap.config.keys import require
from nocap.config.overrides import is_launcher, overrides_of
from nocap.config.run import Run
from nocap.config.trainer import Search
from nocap.launch import baseline_lengths, search, seed_looks
from nocap.launch.chosen_launcher import check_flags, launcher_option, plan_grid_for
from nocap.launch.executor import Executor
from nocap.launch.grid import Grid
from nocap.launch.grid_end import report
from nocap.launch.grid_page import drop_page
from nocap.launch.runner import Runner, clean_ended
from nocap.launch.search_space import space_of
from nocap.launch.sweep import expand
from nocap.launch.this_machine import ThisMachine, one_at_a_time
from nocap.options.launcher import Launcher
from nocap.store.record_files import RunStatus


class Timer(Protocol):
    """What times the arms of a grid in turns (`nocap.sessions.in_turns`)."""

    def plan(self, grid: Grid) -> str:
        """Say before the first run what will be timed.

        Errors:
            ValueError: the arms cannot be timed in turns.
        """

    def measure(self, grid: Grid, before: Path | None) -> None:
        """Time the arms, unless that was done. `before`: the folder of a grid of the same arms with
        fewer seeds, whose timing is taken.

        Errors:
            FailedError: nothing was measured.
        """


def multirun(overrides: Sequence[str], flags: GridFlags, *, timer: Timer | None = None) -> int:
    """Train the grid or the search of these overrides, and return the command's exit code. `timer`:
    what times the arms when all of them are trained.

    Errors:
        ValueError: an override or a flag is invalid, or a cell, or with `--skip-refused` every
            cell. Nothing was trained.
    """
    command = _command(overrides, flags, timer)
    if command.search is not None:
        command.check_search(command.search, flags.names)
        return _train_search(command.search, command)
    check_flags(command.launcher, flags)
    return _train_looks(command)


def print_plan(
    overrides: Sequence[str],
    flags: GridFlags,
    describe: Callable[[Grid], str],
    *,
    timer: Timer | None = None,
) -> None:
    """Print what `describe` says of the grid of these overrides, which is checked and not trained.

    Errors:
        ValueError: as for `multirun`, or they make a search.
    """
    command = _command(overrides, flags, timer)
    if command.search is not None:
        command.check_search(command.search, [PLAN, *flags.names])
    check_flags(command.launcher, flags)
    grid = command.grid(command.looks()[0])
    command.print_timing(grid)
    print(describe(grid))


# --- the command ----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Command:
    """A grid's command: the overrides of its cells, who trains them, and its flags."""

    overrides: Sequence[Override]
    launcher: Launcher | None
    search: Search | None  # that draws settings, in place of the combinations of a grid
    flags: GridFlags
    timer: Timer | None

    @property
    def swept(self) -> list[str]:
        """List the keys that are swept."""
        return [each.key_or_group for each in self.overrides if each.is_sweep_override()]

    def looks(self) -> list[Sequence[Override]]:
        """Return the overrides of each look at the grid, and print how many seeds they have. There
        is one look without `--until-shown`.

        Errors:
            ValueError: the looks cannot be planned.
        """
        most = self.flags.until_shown
        if most is None:
            return [self.overrides]
        if self.flags.detach:
            line = f"{UNTIL_SHOWN} does not work with --detach: each look waits for the look before"
            raise ValueError(line)
        looks = seed_looks.looks(self.overrides, most)
        print(seed_looks.plan_of(looks), flush=True)
        return looks

    def grid(self, overrides: Sequence[Override]) -> Grid:
        """Return the checked grid of a look.

        Errors:
            ValueError: as for `grid.plan_grid`.
        """
        cells = expand(overrides, zipped=self.flags.zip)
        grid = plan_grid_for(cells, self.swept, self.launcher, skip_refused=self.flags.skip_refused)
        if not self.flags.equal_loss:
            return grid
        others = baseline_lengths.cells_of(grid, composed)
        valid = [cell.overrides for cell in grid.cells]  # it was printed what is left out
        longer = plan_grid_for(valid, self.swept, self.launcher, lengths=others)
        print(baseline_lengths.cost(grid, longer), flush=True)
        return replace(longer, left_out=grid.left_out)

    def print_timing(self, grid: Grid) -> None:
        """Print what will be timed, if it is asked for.

        Errors:
            ValueError: the arms cannot be timed in turns.
        """
        if self.timer is not None:
            print(self.timer.plan(grid), flush=True)

    def devices(self) -> ThisMachine | None:
        """Return this machine's devices, which the launcher shares out; None: it has others."""
        if self.launcher is None:
            return one_at_a_time()
        return self.launcher.devices()

    def check_search(self, options: Search, names: Sequence[str]) -> None:
        """Refuse what no search takes. `names`: of the flags that are given.

        Errors:
            ValueError: there is such a flag, or another launcher, or a seed.
        """
        if names:
            raise ValueError(f"{names[0]} does not work with search={options.sampler.name}")
        rule = "be basic or pool in a search, because a search starts its trials on this machine"
        require(self.devices() is not None, "hydra/launcher", rule, "another launcher")
        if any(each.key_or_group == "seed" for each in self.overrides):
            raise ValueError("seed does not work in a search: set search.seed")


def _command(overrides: Sequence[str], flags: GridFlags, timer: Timer | None) -> Command:
    """Read what a grid's command asks for.

    Errors:
        ValueError: an override is invalid.
    """
    # as Hydra's plugin is called
    renamed = [
        word.replace("hydra/launcher=submitit_slurm", "hydra/launcher=slurm") for word in overrides
    ]
    options, others = search.options_in(renamed)
    typed = overrides_of(others, grid=True)
    config = of_a_grid(typed)
    launcher = launcher_option(config)
    return Command(
        overrides=_of_cells(config, typed),
        launcher=launcher,
        search=options,
        flags=flags,
        timer=timer,
    )


def _of_cells(config: DictConfig, typed: Sequence[Override]) -> list[Override]:
    """Return the overrides of the cells: a yaml's sweeps, and the command line's, which goes before
    them.

    Errors:
        ValueError: another sweeper is chosen.
    """
    chosen = config.hydra.runtime.choices["hydra/sweeper"]
    rule = "be basic, because nocap itself runs the cells of a grid"
    require(chosen == "basic", "hydra/sweeper", rule, chosen)
    sweeper: Any = OmegaConf.to_container(config.hydra.sweeper)
    sweeps = sweeper.get("params") or {}
    of_yaml = overrides_of([f"{key}={value}" for key, value in sweeps.items()])
    of_cells = dict[str, Override]()
    for override in [*of_yaml, *typed]:
        if not is_launcher(override):
            of_cells[override.get_key_element()] = override
    return list(of_cells.values())


# --- carried out ----------------------------------------------------------------------------------


def _train_looks(command: Command) -> int:
    """Train the grid of each look, until what is open is shown, and return the exit code."""
    code = 0
    before: Path | None = None  # the folder of the look before
    looks = command.looks()
    for overrides in looks:
        grid = command.grid(overrides)
        command.print_timing(grid)
        code = train_grid(grid, command, before=before)
        before = grid.folder
        if code or command.flags.until_shown is None:
            return code
        still_open = seed_looks.open_in(grid.folder)
        is_last = overrides is looks[-1]
        n_seeds = seed_looks.seeds_in(overrides)
        print(seed_looks.state_line(still_open, n_seeds, is_last=is_last), flush=True)
        if not still_open:
            break
    return code


def train_grid(grid: Grid, command: Command, *, before: Path | None = None) -> int:
    """Carry out the cells of a grid, report how it ended, and return the exit code. `before`: see
    `Timer.measure`."""
    flags = command.flags
    results = clean_ended(grid.cells)
    todo = [cell.plan.run for cell in grid.cells if cell.plan.identity not in results]
    executor = _begin(grid, command.launcher, todo)
    stopped = False
    with closing(executor):
        if todo:
            runner = Runner(
                grid, executor, fail_fast=flags.fail_fast, detach=flags.detach, results=results
            )
            results = runner.run()
            stopped = runner.stopping
    statuses = {result.status for result in results.values()}
    # one that had no job to leave has come to its end
    stopped = stopped and (not flags.detach or RunStatus.waiting in statuses)
    has_times = True
    if command.timer is not None and not stopped:
        has_times = _measure(command.timer, grid, before)
    code = report(grid, results, stopped=stopped, goes_on=executor.goes_on)
    if not has_times:
        return code or EXIT_CODES[RunStatus.failed]
    if (flags.fail_fast or flags.detach) and RunStatus.failed in statuses:
        return EXIT_CODES[RunStatus.failed]
    return code


def _begin(grid: Grid, launcher: Launcher | None, todo: Sequence[Run]) -> Executor:
    """Write the grid's file, print what is done and what is to train, and return what carries the
    cells out. A grid that trains has no report meanwhile."""
    if todo:
        drop_page(grid.folder)
    executor: Executor
    if todo and launcher is not None:
        executor = launcher.executor(grid.folder)
    else:
        executor = one_at_a_time()
    grid.write()
    n = len(grid.cells)
    line = f"grid {grid.name}: {n} cells, {n - len(todo)} done, {len(todo)} to train"
    print(line, flush=True)
    if todo:
        about = executor.describe(todo)
        if about:
            print(about, flush=True)
        _begin_tracking(todo[0], grid.name)
    return executor


def _begin_tracking(run: Run, group: str) -> None:
    """Print where the runs of a grid will stand together."""
    line = run.tracker.begin_grid(group)
    if line is not None:
        print(f"tracker: {line}", flush=True)


def _measure(timer: Timer, grid: Grid, before: Path | None) -> bool:
    """Time the arms, and say whether they were. An error loses no run: it is a line."""
    try:
        timer.measure(grid, before)
    except FailedError as error:
        print(f"nocap: not timed: {error}", file=sys.stderr)
        return False
    return True


def _train_search(options: Search, command: Command) -> int:
    """Carry out a search, report how it ended, and return the exit code."""
    swept = [each for each in command.overrides if each.is_sweep_override()]
    fixed = [str(each.input_line) for each in command.overrides if not each.is_sweep_override()]
    space = space_of(swept)
    run = search.plan_search(options, space, fixed=fixed, compose=composed)
    print(run.head(), flush=True)
    _begin_tracking(run.base.run, run.grid.name)
    devices = command.devices()
    assert devices is not None  # as `check_search` requires
    with closing(devices):
        results, stopped = run.run(devices)
    return report(
        run.of_trials(),
        results,
        stopped=stopped,
        conclude=lambda: print(f"\n{run.table()}"),
    )
