"""`--multirun`: expand the overrides into cells, check the whole grid, train what is missing,
report how it ended.

nocap runs a grid itself. Hydra's own sweeper would train all cells in one process, and check each
only when its turn comes.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from enum import Enum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf

from nocap import outside
from nocap.config import hardware
from nocap.config.choices import is_launcher, of_a_grid, overrides_of
from nocap.config.compose import Composed, composed
from nocap.config.errors import FailedError
from nocap.config.keys import EXIT_CODES, check_keys, require
from nocap.config.paths import shown
from nocap.config.plain import explained, made
from nocap.config.run import Run
from nocap.config.trainer import Search, Trainer
from nocap.display import plural
from nocap.launch import lengths, search, until
from nocap.launch.executor import GOES_ON
from nocap.launch.grid import REPORT, Cell, Grid, check, expand
from nocap.launch.mirror import send_left, told
from nocap.launch.plan import DAMAGED, RunResult, outcome
from nocap.launch.runner import Devices, Runner, one_at_a_time
from nocap.options.launcher import Launcher, OfCluster, Target
from nocap.options.launcher.pool import Pool
from nocap.options.launcher.slurm import Slurm
from nocap.store.files import write_file
from nocap.store.tracking import gathered, left, track_comparison

if TYPE_CHECKING:
    from nocap.judge.compared_arms import Comparison

TIME = "--time"
SKIP = "--skip-refused"


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


def multirun(
    overrides: Sequence[str],
    *,
    look: Callable[[Grid], str] | None = None,
    zipped: bool = False,
    fail_fast: bool = False,
    detach: bool = False,
    equal_loss: bool = False,
    until_shown: str | None = None,
    timer: Timer | None = None,
    skip_refused: bool = False,
) -> int:
    """Train the grid of these overrides, or with `look` only print what that says of it. Its exit
    code. `zipped`: what is swept goes in pairs, but for seeds. `fail_fast`: the first cell that
    fails stops the others. `detach`: leave the cells to Slurm once they are handed over; the same
    command later reports. `equal_loss`: train the baseline at its other lengths, too.
    `until_shown`: go on with more seeds, up to so many, until what is open is shown. `timer`: what
    times the arms in turns, when all of them are trained. `skip_refused`: train the cells that are
    valid, and name those that are left out.

    Errors:
        ValueError: an override is invalid, or a cell, or with `skip_refused` every cell. Nothing
            was trained.
    """
    # as Hydra's plugin is called
    renamed = [
        word.replace("hydra/launcher=submitit_slurm", "hydra/launcher=slurm") for word in overrides
    ]
    searched, words = search.asked(renamed)
    given = overrides_of(words, grid=True)
    config = of_a_grid(given)
    launcher, asked = launcher_option(config), _overrides(config, given)
    if searched is not None:
        others = {"--plan": look, "--zip": zipped, "--fail-fast": fail_fast, "--detach": detach}
        others |= {
            lengths.FLAG: equal_loss,
            until.FLAG: until_shown is not None,
            TIME: timer is not None,
        }
        others |= {SKIP: skip_refused}
        wrong = ", ".join(flag for flag, value in others.items() if value)
        require(not wrong, wrong, "be left out of a search", f"search={searched.sampler.name}")
        return _search(searched, asked, launcher)
    _check_launched(launcher, fail_fast=fail_fast, detach=detach, timed=timer is not None)
    swept = [override.key_or_group for override in asked if override.is_sweep_override()]

    def grid_of(overrides: Sequence[Override]) -> Grid:
        cells = expand(overrides, zipped=zipped)
        grid = _checked(cells, swept, launcher, skip_refused=skip_refused)
        if not equal_loss:
            return grid
        more = lengths.cells_of(grid, composed)
        fitting = [cell.overrides for cell in grid.cells]  # what is left out was said
        whole = _checked(fitting, swept, launcher, more=more)
        whole = replace(whole, left_out=grid.left_out)
        print(lengths.cost(grid, whole), flush=True)
        return whole

    every = [asked]
    if until_shown is not None:
        require(
            not detach,
            until.FLAG,
            "be left out with --detach: each look waits for the one before",
            "both",
        )
        every = until.looks(asked, until.budget(until_shown))
        print(until.plan_of(every), flush=True)
    if look is not None:
        grid = grid_of(every[0])
        _planned_timing(timer, grid, None)
        print(look(grid))
        return 0
    code = 0
    before: Path | None = None  # the folder of the look before
    for at_look in every:
        grid = grid_of(at_look)
        timed = _planned_timing(timer, grid, before)
        code = _trained(grid, launcher, fail_fast=fail_fast, detach=detach, timed=timed)
        before = grid.folder
        if code or until_shown is None:
            return code
        still = until.open_in(grid.folder)
        print(until.told(still, until.seeds_in(at_look), last=at_look is every[-1]), flush=True)
        if not still:
            break
    return code


def _check_launched(
    launcher: Launcher | None, *, fail_fast: bool, detach: bool, timed: bool
) -> None:
    """Refuse flags that this launcher cannot carry out.

    Errors:
        ValueError: there is such a flag.
    """
    in_queue = isinstance(launcher, Slurm)
    require(
        not detach or in_queue, "--detach", "be given with hydra/launcher=slurm", "another launcher"
    )
    rule = "be left out of hydra/launcher=slurm, whose queue starts the cells"
    require(not (fail_fast and in_queue), "--fail-fast", rule, "given")
    here = not isinstance(launcher, OfCluster)
    require(
        here or not timed, TIME, "be left out on a cluster: arms are timed on this machine", "given"
    )


def _planned_timing(
    timer: Timer | None, grid: Grid, before: Path | None
) -> Callable[[], None] | None:
    """Say what will be timed, and return what times it; `None`: nothing is."""
    if timer is None:
        return None
    print(timer.plan(grid), flush=True)
    return partial(timer.measure, grid, before)


def _checked(
    cells: Sequence[Sequence[str]],
    swept: Sequence[str],
    launcher: Launcher | None,
    *,
    more: Sequence[Sequence[str]] = (),
    skip_refused: bool = False,
) -> Grid:
    """Return the grid of these cells, and of `more` that show the first arm at other lengths."""
    if isinstance(launcher, OfCluster):
        return _for_target(cells, swept, launcher, more=more, skip_refused=skip_refused)
    return check(
        cells, swept=swept, compose=composed, log=print, lengths=more, skip_refused=skip_refused
    )


def _trained(
    grid: Grid,
    launcher: Launcher | None,
    *,
    fail_fast: bool,
    detach: bool,
    timed: Callable[[], None] | None,
) -> int:
    """Return the exit code of a grid whose cells were carried out."""
    todo = [cell.plan.run for cell in grid.cells if outcome(cell.plan) is None]
    if todo:
        drop_report(grid.folder)
    executor = launcher.executor(grid.folder) if launcher is not None and todo else one_at_a_time()
    grid.write()
    print(
        f"grid {grid.name}: {len(grid.cells)} cells, "
        f"{len(grid.cells) - len(todo)} done, {len(todo)} to train",
        flush=True,
    )
    if todo and (about := executor.describe(todo)):
        print(about, flush=True)
    if todo:
        _begin_tracking(todo[0], grid.name)
    runner = Runner(grid, executor, fail_fast=fail_fast, detach=detach)
    try:
        results = runner.run()
    finally:
        executor.close()
    statuses = {result.status for result in results.values()}
    # one that had no job to leave has come to its end
    stopped = runner.stopping and (not detach or "waiting" in statuses)
    has_times = stopped or timed is None or _measured(timed)
    code = _report(grid, results, stopped=stopped, goes_on=executor.goes_on)
    if not has_times:
        return code or EXIT_CODES["failed"]
    return EXIT_CODES["failed"] if (fail_fast or detach) and "failed" in statuses else code


def _begin_tracking(run: Run, group: str) -> None:
    """Say where the runs of a grid will stand together."""
    line = run.tracker.begin_grid(group)
    if line is not None:
        print(f"tracker: {line}", flush=True)


def _measured(timed: Callable[[], None]) -> bool:
    """Time the arms, and say whether they were. An error loses no run: it is a line."""
    try:
        timed()
    except FailedError as error:
        print(f"nocap: not timed: {error}", file=sys.stderr)
        return False
    return True


MACHINE = (
    "device",
    "precision",
    "compile",
    "threads",
)  # of the trainer: what follows from the machine


def _for_target(
    cells: Sequence[Sequence[str]],
    swept: Sequence[str],
    launcher: OfCluster,
    *,
    more: Sequence[Sequence[str]],
    skip_refused: bool,
) -> Grid:
    """Return the grid as runs on the machines of a cluster."""
    target = launcher.target

    def compose(words: Sequence[str]) -> Composed:
        first = composed(words)
        more = _of_machine(target, [name for name in first.defaults if name in MACHINE])
        return composed([*words, *more]) if more else first

    with hardware.target(target.name, target.torch):
        grid = check(
            cells, swept=swept, compose=compose, log=print, lengths=more, skip_refused=skip_refused
        )
    whole = [
        replace(cell, overrides=(*cell.overrides, *_of_machine(cell.plan.run.trainer, MACHINE)))
        for cell in grid.cells
    ]
    return replace(grid, cells=tuple(whole))


def _of_machine(place: Target | Trainer, names: Iterable[str]) -> list[str]:
    """Return what it has as overrides."""
    return [
        f"trainer.{name}={value.name if isinstance(value, Enum) else value}"
        for name in names
        if (value := getattr(place, name)) is not None
    ]


def _overrides(config: DictConfig, given: Sequence[Override]) -> list[Override]:
    """Return the overrides of the cells: a yaml's sweeps, and the command line's, which goes before
    them."""
    chosen = config.hydra.runtime.choices["hydra/sweeper"]
    require(
        chosen == "basic",
        "hydra/sweeper",
        "stay basic: nocap itself checks, skips and resumes the cells of a grid",
        chosen,
    )
    sweeper: Any = OmegaConf.to_container(config.hydra.sweeper)
    own = overrides_of([f"{key}={value}" for key, value in (sweeper.get("params") or {}).items()])
    return list(
        {
            override.get_key_element(): override
            for override in [*own, *given]
            if not is_launcher(override)
        }.values()
    )


@explained()
def launcher_option(config: DictConfig) -> Launcher | None:
    """Return the launcher that `config.hydra.launcher` is. None: none was chosen.

    Errors:
        ValueError: an unknown kind or key, or a wrong value.
    """
    keys: Any = OmegaConf.to_container(config.hydra.launcher, resolve=True)
    chosen = config.hydra.runtime.choices["hydra/launcher"]
    if chosen == "basic":
        # what Hydra has where none is chosen
        ok = keys.keys() == {"_target_"} and keys["_target_"].endswith(".BasicLauncher")
        require(ok, "hydra.launcher", "be chosen before its keys, as in hydra/launcher=pool", keys)
        return None
    require(
        "_target_" not in keys,
        "hydra/launcher",
        "be basic, pool, slurm or ray, or from outside: Hydra's are not run",
        chosen,
    )
    option: Launcher = made(
        outside.option("launcher", "hydra.launcher", keys), keys, "hydra.launcher."
    )
    check_keys("hydra.launcher", option)
    return option


def _search(searched: Search, overrides: Sequence[Override], launcher: Launcher | None) -> int:
    """Carry out a search, and print what came of it. Its exit code."""
    rule = "be basic or pool in a search, which begins a trial on this machine when another ends"
    require(launcher is None or isinstance(launcher, Pool), "hydra/launcher", rule, "another")
    rule = f"be left to search.seed={searched.seed} in a search"
    require(all(override.key_or_group != "seed" for override in overrides), "seed", rule, "seed=…")
    swept = search.space_of([override for override in overrides if override.is_sweep_override()])
    fixed = [str(override.input_line) for override in overrides if not override.is_sweep_override()]
    searching = search.Searching(searched, swept, fixed=fixed, compose=composed)
    print("\n".join(searching.head), flush=True)
    _begin_tracking(searching.base.run, searching.grid.name)
    devices = Devices(jobs=launcher.jobs) if isinstance(launcher, Pool) else one_at_a_time()
    with closing(devices):
        results, stopped = searching.run(devices)
    return _report(
        searching.of_trials(),
        results,
        stopped=stopped,
        conclude=lambda: print(f"\n{searching.table()}"),
    )


# --- the report -----------------------------------------------------------------------------------

STATUSES = {
    "preempted": "stopped half-way",
    "waiting": "not started",
}  # where the status alone is unclear


def _report(
    grid: Grid,
    results: Mapping[str, RunResult],
    *,
    stopped: bool,
    goes_on: str = GOES_ON,
    conclude: Callable[[], None] | None = None,
) -> int:
    """Print counts, what is unfinished and why, and in the end the comparison, or what `conclude`
    says. The grid's exit code."""
    waiting = RunResult(summary={"status": "waiting"})
    ended = [(cell, results.get(cell.plan.identity, waiting)) for cell in grid.cells]
    counts = Counter(result.status for _, result in ended)
    now = sum(result.trained and result.status == "finished" for _, result in ended)
    told = [f"{n} {STATUSES.get(status, status)}" for status, n in sorted(counts.items())]
    print(f"grid {grid.name}: {', '.join(told)}; {now} trained now", flush=True)
    for each in grid.left_out:
        print(f"left out: {each.arm} ({plural(each.cells, 'cell')}): {each.reason}", flush=True)
    for cell, result in ended:
        if result.status != "finished" and not (stopped and result.status == "waiting"):
            _explain(cell, result)
    if stopped:
        print(goes_on, flush=True)
        return EXIT_CODES["preempted"]
    compared = True
    if conclude is not None:
        conclude()
    elif counts["finished"]:
        compared = _compare(grid)
    else:
        drop_report(grid.folder)
    for line in send_left([cell.plan for cell in grid.cells], grid.folder):
        print(f"tracker: {line}", flush=True)
    if (grid.folder / REPORT).is_file():
        print(f"report: {shown(grid.folder / REPORT)}")
    print(
        f"compare: python -m nocap.compare {shown(grid.folder)}\ncurves: python -m "
        f"nocap.plot {shown(grid.folder)}",
        flush=True,
    )
    if counts.keys() & {"failed", "waiting", DAMAGED} or not compared:
        return EXIT_CODES["failed"]
    return EXIT_CODES["preempted"] if "preempted" in counts else 0


def _explain(cell: Cell, result: RunResult) -> None:
    """Say on stderr, in a line, why a cell is not finished."""
    log = cell.plan.run_dir / "train.log"
    reason = "; ".join(
        [
            result.reason or STATUSES.get(result.status, result.status),
            *([f"see {log}"] if log.exists() else []),
        ]
    )
    what = "diverged, which is its result" if result.status == "diverged" else "not finished"
    print(f"nocap: {what}: {cell.label} ({reason})", file=sys.stderr)


def _compare(grid: Grid) -> bool:
    """Print the comparison. A report that says something else, as a kill leaves it, is written and
    tracked again.

    An error here loses no run: it is a line, and the grid's command ends with 1, without a report.
    Returns whether there was none.
    """
    is_current = False  # the report
    try:
        from nocap.judge.compare import compare
        from nocap.report import comparison as report
        from nocap.report.arms import render
        from nocap.store.runs import load_runs as load

        comparison = compare(load([grid.folder]))
        path = grid.folder / REPORT
        print(f"\n{render(comparison)}\n")
        again = f"python -m nocap.compare {shown(grid.folder)} --html report.html"
        content = report.render(comparison, command=again).encode()
        changed = not path.is_file() or path.read_bytes() != content
        if changed:
            write_file(path, content)
        is_current = True
        if changed and (message := track_grid(grid, comparison, report=path)):
            print(f"tracker: {message}")
        for command in gathered(
            grid.cells[0].plan.run.tracker,
            grid.folder,
            {cell.label: cell.plan.run_dir for cell in grid.cells},
        ):
            print(f"tracker: {command}")
    except Exception as error:
        if not is_current:
            drop_report(grid.folder)
        print(f"nocap: no comparison: {type(error).__name__}: {error}", file=sys.stderr)
        return False
    return True


def drop_report(folder: Path) -> None:
    """Remove a grid's report, which is not of its runs as they are, or as they will be."""
    if (folder / REPORT).is_file():
        (folder / REPORT).unlink()


def track_grid(grid: Grid, comparison: Comparison, *, report: Path) -> str | None:
    """Return a grid's comparison as a run of its group; where that is online."""
    tracker = grid.cells[0].plan.run.tracker
    address = track_comparison(tracker, **told(grid.folder, comparison), report=report)
    return None if left(tracker, grid.folder) else address
