"""The search of one arm before its study, by the engine of `--multirun search=…`; the ledger has its runs like all others."""

from __future__ import annotations

import math
from dataclasses import dataclass

from nocap.config.compose import Composed, composed
from nocap.launch.grid import Cell
from nocap.launch.plan import outcome
from nocap.launch.search import space_of_words
from nocap.launch.searching import Searching, Trial
from nocap.options.launcher.pool import Devices
from nocap.store.runs import read
from nocap.study.cells import StoppedError, Wanted
from nocap.study.keeper import Keeper
from nocap.study.spec import Tune


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchedTrial:
    """A trial of an arm's search."""

    words: list[str]
    loss: float  # mean over the seeds; infinite where a run diverged, NaN where there is none of whole length
    is_open: bool  # whether a run is missing


def searched(tune: Tune, arm: str, at: Composed, keeper: Keeper, *, run: bool, problems: list[str]) -> list[SearchedTrial]:
    """The trials of an arm, in their order; with `run`, after those that are missing were trained.

    Errors:
        ValueError: the space cannot be trained, another process carries out this search, or its record is damaged.
        StoppedError: somebody asked to stop.
    """
    assert tune.search is not None
    space = space_of_words(tune.space[arm], f"tune.space.{arm}")
    searching = Searching(tune.search, space, fixed=at.overrides, compose=composed, base=at, seeds=tune.seeds)
    if run:
        _train(searching, arm, keeper, problems)
    return [_seen(trial) for trial in sorted(searching.trials(), key=lambda trial: trial.number)]


def _train(searching: Searching, arm: str, keeper: Keeper, problems: list[str]) -> None:
    from nocap.launch import search_report

    def watch(cell: Cell, event: str) -> None:
        for number, whole, mine in searching.runs():
            if mine.plan.identity == cell.plan.identity:
                keeper.watch(_wanted(arm, number, whole, mine), mine, event)

    try:
        searching.run(Devices(jobs=None), watch=watch)
    finally:
        ended = [run for run in searching.runs() if outcome(run[2].plan) is not None]
        keeper.ran([(_wanted(arm, *run), read(run[2].plan.run_dir, problems=problems)) for run in ended])
    search_report.write(searching, searching.trials())
    if searching.stopped:
        raise StoppedError("stopped; what was trained is saved, and the same command goes on")


def _wanted(arm: str, number: int, whole: bool, cell: Cell) -> Wanted:
    made = Composed(overrides=cell.overrides, run=cell.plan.run, choices={})
    return Wanted(arm=f"{arm}, trial {number}", seed=made.run.seed, composed=made, short=0 if whole else made.run.trainer.steps)


def _seen(trial: Trial) -> SearchedTrial:
    lost = trial.status in ("diverged", "refused")
    loss = trial.val_loss if trial.val_loss is not None else math.inf if lost else math.nan
    return SearchedTrial(words=list(trial.words), loss=loss, is_open=trial.status == "open")
