"""The end of a grid: the counts of its runs, why some are not finished, the comparison with its
page, and what a tracker's server lacks."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from nocap.config.errors import EXIT_CODES
from nocap.config.paths import shown
from nocap.display import plural
from nocap.judge.compare import compare
from nocap.launch.executor import GOES_ON
from nocap.launch.grid import REPORT, Cell, Grid
from nocap.launch.grid_page import drop_page, write_page
from nocap.launch.run_result import RunResult
from nocap.launch.upload import comparison_facts, send_left
from nocap.report.comparison_tables import render
from nocap.store.record_files import TRAIN_LOG, RunStatus
from nocap.store.runs import load_runs
from nocap.store.tracking import has_unsent, show_commands, track_comparison

# where the status alone is unclear
MEANINGS = {RunStatus.preempted: "stopped before its end", RunStatus.waiting: "not started"}


@dataclass(frozen=True, kw_only=True, slots=True)
class EndedCell:
    """A cell of a grid, and how it ended."""

    cell: Cell
    result: RunResult

    @property
    def status(self) -> RunStatus:
        """Return the status of its run."""
        return self.result.status


def report(
    grid: Grid,
    results: Mapping[str, RunResult],
    *,
    stopped: bool,
    goes_on: str = GOES_ON,
    conclude: Callable[[], None] | None = None,
) -> int:
    """Print how a grid ended, and in the end its comparison, or what `conclude` prints. Return the
    exit code. `results`: identity → how that run ended; `goes_on`: what a person reads of a grid
    that was stopped."""
    cells = _ended(grid, results)
    counts = Counter(each.status for each in cells)
    _print_counts(grid, cells, counts)
    for each in cells:
        is_waiting = stopped and each.status is RunStatus.waiting
        if each.status is not RunStatus.finished and not is_waiting:
            _print_reason(each)
    if stopped:
        print(goes_on, flush=True)
        return EXIT_CODES[RunStatus.preempted]
    is_compared = True
    if conclude is not None:
        conclude()
    elif counts[RunStatus.finished]:
        is_compared = _compare(grid)
    else:
        drop_page(grid.folder)
    _send_left(grid)
    _print_commands(grid)
    if counts.keys() & {RunStatus.failed, RunStatus.waiting, RunStatus.damaged} or not is_compared:
        return EXIT_CODES[RunStatus.failed]
    if RunStatus.preempted in counts:
        return EXIT_CODES[RunStatus.preempted]
    return 0


def _ended(grid: Grid, results: Mapping[str, RunResult]) -> list[EndedCell]:
    """Return each cell with its result; one that has none has not started."""
    waiting = RunResult(status=RunStatus.waiting)
    cells = list[EndedCell]()
    for cell in grid.cells:
        result = results.get(cell.plan.identity, waiting)
        cells.append(EndedCell(cell=cell, result=result))
    return cells


def _print_counts(grid: Grid, cells: Sequence[EndedCell], counts: Mapping[RunStatus, int]) -> None:
    """Print how many cells ended how, and which arms were left out."""
    now = sum(each.result.trained and each.status is RunStatus.finished for each in cells)
    parts = [f"{n} {MEANINGS.get(status, status)}" for status, n in sorted(counts.items())]
    print(f"grid {grid.name}: {', '.join(parts)}; {now} trained now", flush=True)
    for arm in grid.left_out:
        print(f"left out: {arm.arm} ({plural(arm.cells, 'cell')}): {arm.reason}", flush=True)


def _print_reason(ended: EndedCell) -> None:
    """Print on stderr, in a line, why a cell is not finished."""
    reason = ended.result.reason or MEANINGS.get(ended.status, ended.status)
    log = ended.cell.plan.run_dir / TRAIN_LOG
    if log.exists():
        reason = f"{reason}; see {log}"
    what = "not finished"
    if ended.status is RunStatus.diverged:
        what = "diverged; this is its result"
    print(f"nocap: {what}: {ended.cell.label} ({reason})", file=sys.stderr)


def _send_left(grid: Grid) -> None:
    """Send what a tracker's server lacks, and print what is left."""
    line = send_left([cell.plan for cell in grid.cells], grid.folder)
    if line is not None:
        print(f"tracker: {line}", flush=True)


def _print_commands(grid: Grid) -> None:
    """Print where the page is, and the commands that show more."""
    page = grid.folder / REPORT
    if page.is_file():
        print(f"report: {shown(page)}")
    folder = shown(grid.folder)
    print(f"compare: python -m nocap.compare {folder}")
    print(f"curves: python -m nocap.plot {folder}", flush=True)


def _compare(grid: Grid) -> bool:
    """Print the comparison. A page that says something else, as a kill leaves it, is written and
    tracked again.

    An error here loses no run: it is a line, and the grid's command ends with 1, without a page.
    Returns whether there was none.
    """
    has_page = False
    try:
        comparison = compare(load_runs([grid.folder]))
        print(f"\n{render(comparison)}\n")
        is_new = write_page(grid.folder, comparison)
        has_page = True
        tracker = grid.cells[0].plan.run.tracker
        if is_new:
            facts = comparison_facts(grid.folder, comparison)
            address = track_comparison(tracker, facts)
            if address and not has_unsent(tracker, grid.folder):
                print(f"tracker: {address}")
        folders = {cell.label: cell.plan.run_dir for cell in grid.cells}
        for command in show_commands(tracker, grid.folder, folders):
            print(f"tracker: {command}")
    except Exception as error:
        if not has_page:
            drop_page(grid.folder)
        print(f"nocap: no comparison: {type(error).__name__}: {error}", file=sys.stderr)
        return False
    return True
