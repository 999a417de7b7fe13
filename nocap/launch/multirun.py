"""`--multirun`: expand the overrides into cells, check the whole grid, train what is missing, report how it ended.

nocap runs a grid itself. Hydra's own sweeper would train all cells in one process, and check each only when its turn comes.
"""

from __future__ import annotations

import copy
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra import initialize_config_dir
from hydra._internal.callbacks import Callbacks
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Glob, IntervalSweep, Override, RangeSweep
from hydra.core.plugins import Plugins
from hydra.types import HydraContext, RunMode
from omegaconf import DictConfig, OmegaConf, open_dict

from nocap.config import gate, hardware, registry
from nocap.config.compose import Composer
from nocap.config.exits import EXIT_CODES
from nocap.config.keys import check_keys, require
from nocap.config.paths import conf_dir
from nocap.launch import elsewhere, jobs, search
from nocap.launch.attempt import GOES_ON, clean
from nocap.launch.cell import cell as task
from nocap.launch.grid import REPORT, Cell, Grid, Result, check
from nocap.launch.plan import DAMAGED, Plan, outcome
from nocap.launch.runner import Runner
from nocap.launch.searching import Searching
from nocap.launch.tracked import track_grid, upload_all
from nocap.options.launcher import Launcher as Launching
from nocap.options.launcher import One, Slots
from nocap.report.table import aligned
from nocap.store.formats import plural
from nocap.store.verify import SUMMARY

if TYPE_CHECKING:
    from nocap.judge.compare import Comparison

Results = dict[str, Result]  # by identity


def multirun(overrides: Sequence[str], *, look: Callable[[Grid], str] | None = None) -> int:
    """Train the grid of these overrides, or with `look` only print what that says of it. Its exit code.

    Errors:
        ValueError: an override or a cell is invalid. Nothing was trained.
    """
    gate.check_words(overrides)
    searched, overrides = search.asked(overrides)
    require(searched is None or look is None, "--plan", "be left out of a search, whose trials are not known before", "search=…")
    gate.check_overrides(overrides, grid=True)
    with initialize_config_dir(str(conf_dir()), version_base="1.3", job_name="nocap"):
        hydra = GlobalHydra.instance().hydra
        assert hydra is not None
        config = hydra.compose_config("train", [*overrides, "hydra.mode=MULTIRUN"], RunMode.MULTIRUN)
        gate.check_hydra(config)
        HydraConfig.instance().set_config(copy.deepcopy(config))  # for a yaml with ${hydra:…}. It makes its own read-only.
        context = HydraContext(hydra.config_loader, Callbacks())
        try:
            own = launcher_option(config)
            slots = own.slots() if own else _slots(config)
            searching = None if searched is None else _searching(searched, config, context, slots)
            with hardware.elsewhere(slots is None):
                grid = _check(config, context) if searching is None else searching.grid
            if look is not None:
                print(look(grid))
                return 0
            grid = elsewhere.decided(grid) if slots is None else grid
            with open_dict(config):
                config.hydra.sweep.dir = str(grid.folder)
            hydras = None if slots or own else Plugins.instance().instantiate_launcher(context, task, config)
        except KeyboardInterrupt:
            print("nocap: stopped before the first cell", file=sys.stderr)
            return EXIT_CODES["preempted"]
        if searching is not None:
            assert slots is not None
            return _search(searching, slots)
        grid.write()
        total, done = len(grid.cells), sum(outcome(cell.plan) is not None for cell in grid.cells)
        print(f"grid {grid.name}: {total} cells, {done} done, {total - done} to train", flush=True)
        if done == total:
            for cell in grid.cells:
                clean(cell.plan)
            return _report(grid, {cell.plan.identity: elsewhere.read(cell) for cell in grid.cells}, stopped=False)
        if slots is not None:
            return _train_here(grid, slots)
        if own is not None:
            grid, results, stopped = jobs.train(grid, own.cluster())
        else:
            assert hydras is not None
            grid, results, stopped = elsewhere.train(grid, hydras)
        return _report(grid, results, stopped=stopped)


BASIC = {"_target_": "hydra._internal.core_plugins.basic_sweeper.BasicSweeper", "max_batch_size": None}


def _check(config: DictConfig, context: HydraContext) -> Grid:
    overrides = _overrides(config, context)
    last = {override.get_key_element(): override for override in overrides}  # the command line goes before a file's sweeps
    swept = [override.key_or_group for override in last.values() if override.is_sweep_override()]
    _check_size([override for override in last.values() if override.is_sweep_override()])
    compose = Composer(context.config_loader, config).composed
    return check(BasicSweeper.split_arguments(overrides, None)[0], swept=swept, compose=compose, log=print)


def _overrides(config: DictConfig, context: HydraContext) -> list[Override]:
    """All overrides of the cells, those of a file first."""
    hydra = config.hydra
    if named := [override for override in hydra.overrides.hydra if override.lstrip("+~").startswith("hydra.sweep.")]:
        raise ValueError(f"{named[0]}: a grid's folder is below output_dir, and its name follows from its cells")
    sweeper: Any = OmegaConf.to_container(hydra.sweeper)
    params = sweeper.pop("params", None) or {}
    require(sweeper == BASIC, "hydra/sweeper", "stay basic: nocap itself checks, skips and resumes the cells of a grid", sweeper)
    arguments = [*(f"{key}={value}" for key, value in params.items()), *hydra.overrides.task]
    gate.check_words(arguments)
    return OverridesParser.create(config_loader=context.config_loader).parse_overrides(arguments)


MOST_CELLS = 10_000


def _check_size(sweeps: Sequence[Override]) -> None:
    """Refuse a grid that is too large before it is expanded, and words that no sweep can go over."""
    cells = 1
    for override in sweeps:
        key, swept = override.get_key_element(), override.value()
        _check_glob(override)
        if isinstance(swept, IntervalSweep):
            require(
                False,
                key,
                "be swept over values: nocap draws none from an interval but in a search, as with search=tpe",
                override.input_line,
            )
        elif isinstance(swept, RangeSweep):
            cells *= search.range_length(key, swept)
        elif isinstance(swept, ChoiceSweep):
            cells *= len(swept.list)
        require(cells <= MOST_CELLS, key, f"make at most {MOST_CELLS:,} cells with what else is swept", override.input_line)


def _check_glob(override: Override) -> None:
    ok = not isinstance(override.value(), Glob) or override.get_key_element() in registry.groups()
    require(ok, override.get_key_element(), "be a group where its options are chosen by glob", override.input_line)


def launcher_option(config: DictConfig) -> Launching | None:
    """nocap's own launcher that `config.hydra.launcher` is. None: it is one of Hydra's.

    Errors:
        ValueError: an unknown kind or key, or a wrong value.
    """
    keys: Any = OmegaConf.to_container(config.hydra.launcher, resolve=True)
    if "kind" not in keys:
        return None
    kinds = registry.options("launcher")
    kind = keys["kind"]
    require(isinstance(kind, str) and kind in kinds, "hydra.launcher.kind", f"be one of {', '.join(kinds)}", repr(kind))
    known = [f.name for f in fields(kinds[kind])]
    for key in keys:
        require(key in known, f"hydra.launcher.{key}", f"be a key of {kind}, which has {', '.join(known[1:]) or 'none'}", keys[key])
    option = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(kinds[kind]), keys))
    assert isinstance(option, Launching)
    check_keys("hydra.launcher", option)
    return option


def _slots(config: DictConfig) -> Slots | None:
    """Where this process trains the cells with a launcher of Hydra's. None: one such as submitit's trains them elsewhere."""
    gate.check_launcher(config)
    return One() if config.hydra.runtime.choices["hydra/launcher"] == "basic" else None


def _train_here(grid: Grid, slots: Slots) -> int:
    if about := slots.describe([cell.plan.run for cell in grid.cells]):
        print(about, flush=True)
    runner = Runner(grid, slots=slots)
    return _report(grid, runner.run(), stopped=runner.stopping)


# --- a search ----------------------------------------------------------------------------------------------------------------------


def _searching(searched: search.Search, config: DictConfig, context: HydraContext, slots: Slots | None) -> Searching:
    chosen = config.hydra.runtime.choices["hydra/launcher"]
    rule = "be basic or pool in a search, which begins a trial on this machine when another ends"
    require(slots is not None, "hydra/launcher", rule, chosen)
    last = {override.get_key_element(): override for override in _overrides(config, context)}
    require("seed" not in last, "seed", f"be left to search.seed={searched.seed} in a search", "seed=…")
    sweeps = [override for override in last.values() if override.is_sweep_override()]
    for override in sweeps:
        _check_glob(override)
    fixed = [f"{override.get_key_element()}={override.get_value_element_as_str()}" for override in last.values() if override not in sweeps]
    compose = Composer(context.config_loader, config).composed
    return Searching(searched, search.space_of(sweeps), fixed=fixed, compose=compose)


def _search(searching: Searching, slots: Slots) -> int:
    """Carry out a search, and print what came of it. Its exit code."""
    from nocap.launch import search_report

    print("\n".join(search_report.head(searching)), flush=True)
    searching.run(slots)
    trials, folder = searching.trials(), _shown(searching.grid.folder)
    by_status: dict[str, int] = {}
    for trial in trials:
        by_status[trial.status] = by_status.get(trial.status, 0) + 1
    now = sum(result.trained and result.status == "finished" for result in searching.results.values())
    counts = [f"{n} {SEARCHED.get(status, status)}" for status, n in by_status.items()]
    print(f"{searching.grid.name}: {', '.join(counts)}; {plural(now, 'run')} trained now", flush=True)
    cells = {cell.plan.identity: cell for cell in searching.cells()}
    left = {identity: result for identity, result in searching.results.items() if result.status not in ("finished", "diverged")}
    for identity, result in left.items():
        if not (searching.stopped and result.status == "waiting"):
            _explain(cells[identity], result)
    search_report.write(searching, trials, with_page=not searching.stopped)
    _say_uploads(searching.grid.folder, [cell.plan for cell in cells.values()])
    if searching.stopped:
        print(GOES_ON, flush=True)
        return EXIT_CODES["preempted"]
    names, rows = search_report.rows(searching, trials[: search_report.MOST])
    print(f"\n{aligned(names, rows)}\n\n{search_report.note(searching)}\nreport: {folder}/{REPORT}", flush=True)
    if any(result.status != "preempted" for result in left.values()):
        return EXIT_CODES["failed"]
    return EXIT_CODES["preempted"] if left else 0


SEARCHED = {"open": "not finished", "refused": "that cannot be trained"}  # a trial's status, where that alone is unclear


# --- the report --------------------------------------------------------------------------------------------------------------------

STATUSES = {"preempted": "stopped half-way", "waiting": "not started"}  # where the status alone is unclear


def _report(grid: Grid, results: Results, *, stopped: bool) -> int:
    """Print counts, what is unfinished and why, the comparison. The grid's exit code."""
    by_status: dict[str, list[Cell]] = {}
    for cell in grid.cells:
        by_status.setdefault(results[cell.plan.identity].status, []).append(cell)
    now = sum(result.trained and result.status == "finished" for result in results.values())
    counts = [f"{len(cells)} {STATUSES.get(status, status)}" for status, cells in sorted(by_status.items())]
    print(f"grid {grid.name}: {', '.join(counts)}; {now} trained now", flush=True)
    for status, cells in by_status.items():
        if status != "finished" and not (stopped and status == "waiting"):
            for cell in cells:
                _explain(cell, results[cell.plan.identity])
    if stopped:
        print(GOES_ON, flush=True)
        return EXIT_CODES["preempted"]
    _compare(grid, any_finished="finished" in by_status, trained=any(result.trained for result in results.values()))
    if by_status.keys() & {"failed", "waiting", DAMAGED}:
        return EXIT_CODES["failed"]
    return EXIT_CODES["preempted"] if "preempted" in by_status else 0


def _explain(cell: Cell, result: Result) -> None:
    """Why a cell is not finished, in a line on stderr."""
    log = cell.plan.run_dir / "train.log"
    reason = "; ".join([result.reason or STATUSES.get(result.status, result.status), *([f"see {log}"] if log.exists() else [])])
    what = "diverged, which is its result" if result.status == "diverged" else "not finished"
    print(f"nocap: {what}: {cell.label} ({reason})", file=sys.stderr)


def _compare(grid: Grid, *, any_finished: bool, trained: bool) -> None:
    """Print the comparison. A report older than its runs is written and tracked again. An error here changes nothing about the grid."""
    folder = _shown(grid.folder)
    if any_finished:
        try:
            from nocap.judge.compare import compare
            from nocap.report.arms import render
            from nocap.store.runs import load

            comparison = compare(load([grid.folder]))
            print(f"\n{render(comparison)}\n")
            if trained or _report_is_older(grid):
                _write_report(grid, comparison)
            print(f"report: {folder}/{REPORT}")
        except Exception as error:
            print(f"nocap: no comparison: {type(error).__name__}: {error}", file=sys.stderr)
    _say_uploads(grid.folder, [cell.plan for cell in grid.cells])
    print(f"compare: python -m nocap.compare {folder}", flush=True)


def _say_uploads(folder: Path, plans: Sequence[Plan]) -> None:
    for line in upload_all(folder, plans):
        print(f"tracker: {line}", flush=True)


def _shown(folder: Path) -> str:
    return os.path.relpath(folder) if folder.is_relative_to(Path.cwd()) else str(folder)


def _report_is_older(grid: Grid) -> bool:
    """Whether a run ended after the report was written, or there is none: a kill came in between."""
    path = grid.folder / REPORT
    written = path.stat().st_mtime_ns if path.is_file() else 0
    summaries = (cell.plan.run_dir / SUMMARY for cell in grid.cells)
    return any(path.is_file() and path.stat().st_mtime_ns > written for path in summaries)


def _write_report(grid: Grid, comparison: Comparison) -> None:
    """`report.html` in the grid's folder, and with W&B a run of the group that holds the verdicts and the report."""
    from nocap.report import comparison as report

    path = grid.folder / REPORT
    report.write(comparison, path)
    if message := track_grid(grid, comparison.json(), report=path):
        print(f"tracker: {message}")
