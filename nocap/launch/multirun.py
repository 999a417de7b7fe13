"""`--multirun`: expand the overrides into cells, check the whole grid, train what is missing, report how it ended.

nocap runs a grid itself. Hydra's own sweeper would train all cells in one process, and check each only when its turn comes.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.core.override_parser.types import ChoiceSweep, Glob, IntervalSweep, Override, RangeSweep
from omegaconf import DictConfig, OmegaConf

from nocap import outside
from nocap.config import hardware, plain
from nocap.config.compose import Composed, composed, is_launcher, of_a_grid, overrides_of
from nocap.config.keys import EXIT_CODES, check_keys, require
from nocap.launch import search
from nocap.launch.attempt import GOES_ON
from nocap.launch.grid import REPORT, Cell, Grid, Result, check
from nocap.launch.plan import DAMAGED, outcome
from nocap.launch.runner import JOBS, Runner
from nocap.launch.tracked import track_grid, upload_all
from nocap.options.launcher import Launcher, OfCluster, Slots
from nocap.options.launcher.pool import One
from nocap.options.launcher.slurm import Slurm
from nocap.store.record import SUMMARY

if TYPE_CHECKING:
    from nocap.judge.compare import Comparison

Results = dict[str, Result]  # by identity


def multirun(
    overrides: Sequence[str],
    *,
    look: Callable[[Grid], str] | None = None,
    zipped: bool = False,
    fail_fast: bool = False,
    detach: bool = False,
) -> int:
    """Train the grid of these overrides, or with `look` only print what that says of it. Its exit code. `zipped`: what is swept goes in
    pairs, but for seeds. `fail_fast`: the first cell that fails stops the others. `detach`: leave the cells to Slurm once they are handed
    over; the same command later reports.

    Errors:
        ValueError: an override or a cell is invalid. Nothing was trained.
    """
    renamed = [word.replace("hydra/launcher=submitit_slurm", "hydra/launcher=slurm") for word in overrides]  # as Hydra's plugin is called
    searched, words = search.asked(renamed)
    require(searched is None or look is None, "--plan", "be left out of a search, whose trials are not known before", "search=…")
    given = overrides_of(words, grid=True)
    config = of_a_grid(given)
    try:
        launcher = launcher_option(config)
        slots = One() if launcher is None else launcher.slots()
        cells = _overrides(config, given)
        if searched is not None:
            require(not (zipped or fail_fast or detach), "search", "be given without --zip, --fail-fast and --detach", "one of them")
            return _search(searched, cells, slots)
        require(not detach or isinstance(launcher, Slurm), "--detach", "be given with hydra/launcher=slurm", "another launcher")
        grid = _check(cells, launcher, zipped=zipped)
    except KeyboardInterrupt:
        print("nocap: stopped before the first cell", file=sys.stderr)
        return EXIT_CODES["preempted"]
    if look is not None:
        print(look(grid))
        return 0
    grid.write()
    total, done = len(grid.cells), sum(outcome(cell.plan) is not None for cell in grid.cells)
    print(f"grid {grid.name}: {total} cells, {done} done, {total - done} to train", flush=True)
    cluster = launcher.cluster(grid.folder / JOBS) if launcher is not None and slots is None and done < total else None
    executor = cluster or slots or One()
    if done < total and (about := executor.describe([cell.plan.run for cell in grid.cells])):
        print(about, flush=True)
    runner = Runner(grid, slots=slots or One(), cluster=cluster, fail_fast=fail_fast, detach=detach)
    try:
        results = runner.run()
    finally:
        if cluster is not None:
            cluster.close()
    code = _report(grid, results, stopped=runner.stopping)
    return EXIT_CODES["failed"] if fail_fast and any(result.status == "failed" for result in results.values()) else code


def _check(overrides: Sequence[Override], launcher: Launcher | None, *, zipped: bool) -> Grid:
    """The grid's cells, as runs on the machine that will train them."""
    sweeps = [override for override in overrides if override.is_sweep_override()]
    _check_size(sweeps)
    cells, swept = _cells(overrides, zipped=zipped), [one.key_or_group for one in sweeps]
    if not isinstance(launcher, OfCluster):
        return check(cells, swept=swept, compose=composed, log=print)
    target = launcher.target
    stated = {name: value for name in MACHINE if (value := getattr(target, name)) is not None}

    def compose(words: Sequence[str]) -> Composed:
        first = composed(words)
        more = [f"trainer.{name}={_text(value)}" for name, value in stated.items() if name in first.defaults]
        return composed([*words, *more]) if more else first

    with hardware.target(target.name, target.torch):
        grid = check(cells, swept=swept, compose=compose, log=print)
    pinned = [
        replace(cell, overrides=(*cell.overrides, *(f"trainer.{name}={_text(getattr(cell.plan.run.trainer, name))}" for name in MACHINE)))
        for cell in grid.cells
    ]
    return replace(grid, cells=tuple(pinned))


def _cells(overrides: Sequence[Override], *, zipped: bool) -> list[tuple[str, ...]]:
    """Every combination of what is swept; with `zipped` the first values together, the second, and so on, each with every seed."""
    words = [_words(override) for override in overrides]
    paired = [one.is_sweep_override() and one.key_or_group != "seed" for one in overrides]
    if not zipped or not any(paired):
        return list(itertools.product(*words))
    lists, rest = list(itertools.compress(words, paired)), [values for values, pair in zip(words, paired, strict=True) if not pair]
    lengths = [len(values) for values in lists]
    require(len(set(lengths)) == 1, "--zip", "be given lists of one length", lengths)
    return [(*one, *row) for row in zip(*lists, strict=True) for one in itertools.product(*rest)]


MACHINE = ("device", "precision", "compile", "threads")  # of the trainer: what follows from the machine


def _text(value: object) -> str:
    return value.name if isinstance(value, Enum) else str(value)


def _words(override: Override) -> list[str]:
    """One for each value that it sweeps over."""
    if not override.is_sweep_override():
        return [str(override.input_line)]
    return [f"{override.get_key_element()}={value}" for value in search.values_of(override)]


def _overrides(config: DictConfig, given: Sequence[Override]) -> list[Override]:
    """The overrides of the cells: a yaml's sweeps, and the command line's, which goes before them."""
    chosen = config.hydra.runtime.choices["hydra/sweeper"]
    require(chosen == "basic", "hydra/sweeper", "stay basic: nocap itself checks, skips and resumes the cells of a grid", chosen)
    sweeper: Any = OmegaConf.to_container(config.hydra.sweeper)
    own = overrides_of([f"{key}={value}" for key, value in (sweeper.get("params") or {}).items()])
    return list({override.get_key_element(): override for override in [*own, *given] if not is_launcher(override)}.values())


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
    ok = not isinstance(override.value(), Glob) or override.get_key_element() in outside.groups()
    require(ok, override.get_key_element(), "be a group where its options are chosen by glob", override.input_line)


def launcher_option(config: DictConfig) -> Launcher | None:
    """The launcher that `config.hydra.launcher` is. None: none was chosen.

    Errors:
        ValueError, OmegaConfBaseException: an unknown kind or key, or a wrong value.
    """
    keys: Any = OmegaConf.to_container(config.hydra.launcher, resolve=True)
    chosen = config.hydra.runtime.choices["hydra/launcher"]
    if chosen == "basic":
        ok = keys.keys() == {"_target_"} and keys["_target_"].endswith(".BasicLauncher")  # what Hydra has where none is chosen
        require(ok, "hydra.launcher", "be chosen before its keys, as in hydra/launcher=pool", keys)
        return None
    require("_target_" not in keys, "hydra/launcher", "be basic, pool, slurm or ray, or from outside: Hydra's are not run", chosen)
    typed = OmegaConf.create({"hydra": {"launcher": plain.option("launcher", "hydra.launcher", keys)}})
    OmegaConf.update(typed, "hydra.launcher", keys, merge=True)
    option = OmegaConf.to_object(typed.hydra.launcher)
    assert isinstance(option, Launcher)
    check_keys("hydra.launcher", option)
    return option


def _search(searched: search.Search, overrides: Sequence[Override], slots: Slots | None) -> int:
    """Carry out a search, and print what came of it. Its exit code."""
    rule = "be basic or pool in a search, which begins a trial on this machine when another ends"
    require(slots is not None, "hydra/launcher", rule, "another")
    assert slots is not None
    rule = f"be left to search.seed={searched.seed} in a search"
    require(all(one.key_or_group != "seed" for one in overrides), "seed", rule, "seed=…")
    sweeps = [override for override in overrides if override.is_sweep_override()]
    for override in sweeps:
        _check_glob(override)
    fixed = [str(override.input_line) for override in overrides if override not in sweeps]
    searching = search.Searching(searched, search.space_of(sweeps), fixed=fixed, compose=composed)
    print("\n".join(searching.head), flush=True)
    searching.run(slots)
    grid = replace(searching.grid, cells=tuple(searching.cells()))
    return _report(grid, searching.results, stopped=searching.stopped, conclude=lambda: print(f"\n{searching.report()}"))


# --- the report --------------------------------------------------------------------------------------------------------------------

STATUSES = {"preempted": "stopped half-way", "waiting": "not started"}  # where the status alone is unclear


def _report(grid: Grid, results: Results, *, stopped: bool, conclude: Callable[[], None] | None = None) -> int:
    """Print counts, what is unfinished and why, and in the end the comparison, or what `conclude` says. The grid's exit code."""
    ended = [(cell, results.get(cell.plan.identity) or Result(status="waiting")) for cell in grid.cells]
    counts = Counter(result.status for _, result in ended)
    now = sum(result.trained and result.status == "finished" for _, result in ended)
    told = [f"{n} {STATUSES.get(status, status)}" for status, n in sorted(counts.items())]
    print(f"grid {grid.name}: {', '.join(told)}; {now} trained now", flush=True)
    for cell, result in ended:
        if result.status != "finished" and not (stopped and result.status == "waiting"):
            _explain(cell, result)
    if stopped:
        print(GOES_ON, flush=True)
        return EXIT_CODES["preempted"]
    if conclude is not None:
        conclude()
    elif counts["finished"]:
        _compare(grid, trained=any(result.trained for _, result in ended))
    for line in upload_all(grid.folder, [cell.plan for cell in grid.cells]):
        print(f"tracker: {line}", flush=True)
    folder = _shown(grid.folder)
    if (grid.folder / REPORT).is_file():
        print(f"report: {folder}/{REPORT}")
    print(f"compare: python -m nocap.compare {folder}", flush=True)
    if counts.keys() & {"failed", "waiting", DAMAGED}:
        return EXIT_CODES["failed"]
    return EXIT_CODES["preempted"] if "preempted" in counts else 0


def _explain(cell: Cell, result: Result) -> None:
    """Why a cell is not finished, in a line on stderr."""
    log = cell.plan.run_dir / "train.log"
    reason = "; ".join([result.reason or STATUSES.get(result.status, result.status), *([f"see {log}"] if log.exists() else [])])
    what = "diverged, which is its result" if result.status == "diverged" else "not finished"
    print(f"nocap: {what}: {cell.label} ({reason})", file=sys.stderr)


def _compare(grid: Grid, *, trained: bool) -> None:
    """Print the comparison. A report older than its runs is written and tracked again. An error here changes nothing about the grid."""
    try:
        from nocap.judge.compare import compare
        from nocap.report.arms import render
        from nocap.store.runs import load

        comparison = compare(load([grid.folder]))
        print(f"\n{render(comparison)}\n")
        if trained or _report_is_older(grid):
            _write_report(grid, comparison)
    except Exception as error:
        print(f"nocap: no comparison: {type(error).__name__}: {error}", file=sys.stderr)


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
