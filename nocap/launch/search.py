"""A search: `search=tpe search.trials=40 'optimizer.lr=interval(1e-4, 1e-2)'`. A loop that asks Optuna and tells it losses.

It chooses settings and is no evidence for a claim. Its trials are runs like all others; `grid.json` in its folder lists them, and their
losses are in their records. A trial follows from the seed, its number and the losses of the trials before it alone, so that a search
that was killed goes on with the trials that it would have had. In a pool, trials are asked for in batches, as many as there is room for.
No torch here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nocap.config.compose import Composed, as_in
from nocap.config.keys import is_fault, require
from nocap.launch.grid import REPORT, Cell, Datasets, Grid, Result, check, dataset_of, named
from nocap.launch.plan import plan, settled, sound
from nocap.launch.runner import Devices, Runner
from nocap.launch.space import Search, Space, describe, ends, params_of, propose, weights, words_of
from nocap.report import page
from nocap.report.table import aligned
from nocap.store import lease
from nocap.store.files import write_file
from nocap.store.formats import loss, plural
from nocap.store.identity import digest
from nocap.store.record import read_json, write_json
from nocap.store.runs import GRID

if TYPE_CHECKING:
    pass

MOST = 10  # trials of the table on a terminal
Compose = Callable[[Sequence[str]], Composed]


@dataclass(kw_only=True, slots=True)
class Trial:
    number: int  # from 1
    words: tuple[str, ...]
    first: Cell | None = None  # its run of the length that is proposed by
    whole: Cell | None = None  # its run of the whole schedule
    reason: str | None = None  # why it cannot be trained
    screened: float | None = None  # the loss after the shorter schedule, where there is one
    val_loss: float | None = None  # after the whole schedule
    status: str = "open"  # finished, diverged, refused

    @property
    def order(self) -> tuple[bool, float, float, int]:
        """The lowest loss first, and of the rest the lowest that was screened."""
        val_loss, screened = (math.inf if value is None else value for value in (self.val_loss, self.screened))
        return (self.status == "refused", val_loss, screened, self.number)

    def json(self) -> dict[str, Any]:
        losses = {"val_loss": self.val_loss, "screened": self.screened}
        return {"trial": self.number, "overrides": self.words, "status": self.status, **losses, "reason": self.reason}


class Searching:
    """A search, checked and ready to be carried out.

    Errors:
        RefusedError: the space's ends cannot be trained. Nothing has been written but the data's cache.
    """

    def __init__(self, search: Search, space: Space, *, fixed: Sequence[str], compose: Compose) -> None:
        """`fixed`: the overrides of every trial. The space's first end decides the precision and compilation of all."""
        require(bool(space), "search", "have something to search, as in 'optimizer.lr=tag(log, interval(1e-4, 1e-2))'", "no such override")
        self.search, self.space, self.fixed = search, space, (*fixed, f"seed={search.seed}")
        self._datasets, self._trials, self._losses = Datasets(), list[Trial](), dict[str, float]()
        self.note = f"chosen on seed {search.seed}: what the settings are worth, other seeds tell"  # below the table
        self.results, self.stopped = dict[str, Result](), False  # identity → how a run ended, of this process
        words = [(*self.fixed, *end) for end in ends(space)]
        self._base = settled(words[0], compose)
        self._compose: Compose = lambda words: as_in(self._base, words, compose)
        grid = check(words, swept=tuple(space), compose=self._compose, log=lambda line: None, datasets=self._datasets)
        kept = {cell.overrides[: len(words[0])] for cell in grid.cells}
        same = [" ".join(word[len(self.fixed) :]) for word in words if word not in kept]
        require(not same, "search", "be over keys and values that change the run", ", ".join(same))
        self.described = {name: describe(distribution) for name, distribution in space.items()}
        self.asked = {**asdict(search), "sampler": search.sampler.name, "seeds": [search.seed]}
        content = {**self.asked, "trials": None, "space": self.described, "ends": sorted(cell.plan.identity for cell in grid.cells)}
        keys = "-".join(re.sub(r"[^\w.]+", "_", name.rpartition(".")[2]) for name in space)
        name = f"search-{keys[:50]}-{digest(content)}"
        self.grid = Grid(name=name, folder=grid.folder.with_name(name), swept=tuple(space), cells=())

    def cell(self, number: int, words: Sequence[str], *, screened: bool) -> Cell:
        """The run of a trial: of its whole schedule, or `screened` of a whole one of the share of its steps.

        Errors:
            ValueError: there is no such run.
        """
        composed, label, share = self._compose([*self.fixed, *words]), f"trial {number}", self.search.screen
        if screened and share is not None:
            steps = max(1, round(share * composed.run.trainer.steps))
            composed, label = self._compose([*composed.overrides, f"trainer.steps={steps}"]), f"{label}, {share:g} of its steps"
        planned = plan(composed.run, choices=composed.choices, dataset=dataset_of(composed.run, self._datasets))
        planned = replace(planned, grid=self.grid.name, swept=self.grid.swept)
        return Cell(overrides=composed.overrides, label=f"{label}: {' '.join(words)}", plan=planned)

    def run(self, devices: Devices, *, log: Callable[[str], None] = print) -> None:
        """Train what is missing, as many trials at once as there is room for.

        Errors:
            lease.HeldError: another process carries out this search.
            OSError, ValueError: its trials cannot be kept, or a run's record is damaged.
        """
        self.grid.folder.mkdir(parents=True, exist_ok=True)
        with lease.acquire(self.grid.folder) as lock:
            stage, room = lock.stage(), devices.at_once(self._base.run)
            known = sorted(self.trials(), key=lambda trial: trial.number)
            self._train([trial.first for trial in known], devices, more=lambda: self._batch(room, stage, log), total=self.search.trials)
            if self.search.screen is not None and not self.stopped:
                self._promote()
                self._train([trial.whole for trial in self.trials()], devices)
            self._write(stage)

    def _train(self, cells: Sequence[Cell | None], devices: Devices, **more: Any) -> None:
        runner = Runner(replace(self.grid, cells=tuple(cell for cell in cells if cell is not None)), devices, **more)
        self.results |= runner.run()
        self.stopped = runner.stopping

    def _batch(self, room: int, stage: Path, log: Callable[[str], None]) -> list[Cell]:
        """The runs of the next trials, written down before they begin. They know the losses of the batches before theirs. None: enough."""
        cells = list[Cell]()
        while not cells and (known := len(self._trials)) < self.search.trials:
            begin = known // room * room
            for number in range(known + 1, min(begin + room, self.search.trials) + 1):
                losses = [self._loss(trial.first) if trial.number <= begin else None for trial in self._trials]
                before = [(params_of(self.space, trial.words), value) for trial, value in zip(self._trials, losses, strict=True)]
                self._trials.append(trial := self._trial(number, words_of(self.space, propose(self.search, self.space, before))))
                self._write(stage)
                if trial.first is None:
                    log(f"trial {number}: {' '.join(trial.words)} cannot be trained, which is its result: {trial.reason}")
                else:
                    cells.append(trial.first)
                    for notice in trial.first.plan.notices:
                        log(f"note: {notice}")
        return cells

    def _trial(self, number: int, words: tuple[str, ...]) -> Trial:
        try:
            first = self.cell(number, words, screened=True)
        except ValueError as error:
            if is_fault(error):
                raise
            return Trial(number=number, words=words, reason=str(error))
        return Trial(number=number, words=words, first=first, whole=first if self.search.screen is None else None)

    def _loss(self, cell: Cell | None) -> float | None:
        """The validation loss of this run, infinite where it diverged, or cannot be trained. None: it has not ended."""
        if cell is None:
            return math.inf
        if cell.plan.identity not in self._losses and (end := sound(cell.plan)):
            value = end.get("val_loss")
            self._losses[cell.plan.identity] = math.inf if end["status"] == "diverged" or value is None else float(value)
        return self._losses.get(cell.plan.identity)

    def _promote(self) -> None:
        """The best share of the trials that were screened are trained in whole (successive halving, arXiv:1502.07943, but over whole
        schedules: half-way through a run the order says little)."""
        share = self.search.screen or 0.0
        losses = [(math.inf if (value := self._loss(trial.first)) is None else value, trial.number) for trial in self._trials]
        best = sorted(losses)[: math.ceil(share * len(losses)) if len(losses) >= self.search.trials else 0]
        for value, number in best:
            if value < math.inf:
                trial = self._trials[number - 1]
                trial.whole = self.cell(number, trial.words, screened=False)

    # --- what came of it -----------------------------------------------------------------------------------------------------------------

    def cells(self) -> list[Cell]:
        """Of all runs that there are."""
        cells = [cell for trial in self._trials for cell in (trial.first, trial.whole) if cell is not None]
        return list({cell.plan.identity: cell for cell in cells}.values())

    def trials(self) -> list[Trial]:
        """What there is, the lowest loss first: those of whole schedules before those that were only screened."""
        if not self._trials and (kept := read_json(self.grid.folder / GRID)) is not None:
            listed = sorted(kept["trials"], key=lambda trial: trial["trial"])
            self._trials = [self._trial(n, tuple(trial["overrides"])) for n, trial in enumerate(listed, 1)]
            self._promote()
        for trial in self._trials:
            screened, whole = self._loss(trial.first), self._loss(trial.whole)
            trial.screened = None if self.search.screen is None else page.finite(screened)
            trial.val_loss = page.finite(whole)
            is_open = screened is None or whole is None
            has_diverged = screened == math.inf or (trial.whole is not None and whole == math.inf)
            trial.status = "refused" if trial.first is None else "open" if is_open else "diverged" if has_diverged else "finished"
        return sorted(self._trials, key=lambda trial: trial.order)

    def _write(self, stage: Path) -> None:
        """As a grid's `grid.json`: its cells are the runs of whole schedules."""
        trials = self.trials()
        cells = {trial.whole.plan.identity: named(trial.whole) for trial in trials if trial.whole is not None}
        content: dict[str, Any] = {"name": self.grid.name, "swept": self.grid.swept, "search": self.asked, "space": self.described}
        content |= {"trials": [trial.json() for trial in trials], "cells": [*cells.values()]}
        write_json(self.grid.folder / GRID, content, stage=stage)

    @property
    def head(self) -> list[str]:
        """What is searched, and how."""
        search, share = self.search, self.search.screen
        screen = "" if share is None else f"; all at {share:g} of their steps, then the best {share:g} of them at all steps"
        line = f"{self.grid.name}: {search.sampler.name}, {plural(search.trials, 'trial')} on seed {search.seed}{screen}"
        return [line, *(f"  {name}: {text}" for name, text in self.described.items())]

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Head and rows."""
        screen = self.search.screen
        names = ["trial", "val loss", *([] if screen is None else [f"at {screen:g} of the steps"]), *self.space, ""]
        rows = []
        for trial in self.trials():
            said = {"finished": "", "open": "not finished", "refused": f"cannot be trained: {trial.reason}"}.get(trial.status, trial.status)
            losses = [loss(trial.val_loss), *([] if screen is None else [loss(trial.screened)])]
            rows.append([str(trial.number), *losses, *(word.partition("=")[2] for word in trial.words), said])
        return names, rows

    def page(self) -> str:
        trials, (names, rows) = self.trials(), self.table()
        best = trials[0]
        lowest = f"; the lowest loss is {loss(best.val_loss)}, with {' '.join(best.words)}" if best.val_loss is not None else ""
        space: dict[str, Any] = self.space
        ended = [(params_of(space, trial.words), value) for trial in trials if (value := self._loss(trial.first)) is not None]
        shares = [*weights(space, ended).items()]
        axes = [{"name": name, "log": getattr(one, "log", False), "words": hasattr(one, "choices")} for name, one in space.items()]
        return page.render(
            "search",
            kind="nocap search",
            title=f"{plural(len(trials), 'trial')}{lowest}",
            data=page.finite({"screen": self.search.screen, "keys": axes, "weights": shares, "trials": [trial.json() for trial in trials]}),
            weights=shares,
            lines=self.head,
            note=self.note,
            names=names,
            rows=rows,
            keys=[*self.space],
        )

    def report(self) -> str:
        """Write the page. The table of the best trials for a terminal."""
        write_file(self.grid.folder / REPORT, self.page().encode())
        names, rows = self.table()
        return f"{aligned(names, rows[:MOST])}\n\n{self.note}"
