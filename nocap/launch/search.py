"""A search: `search=tpe search.trials=40 'optimizer.lr=interval(1e-4, 1e-2)'`. A loop asks Optuna
for settings, trains them, and tells it the losses.

It chooses settings and is no evidence for a claim. Its trials are runs like all others. `grid.json`
in its folder lists them, and their losses are in their records. A trial follows from the seed, its
number and the losses of the trials before it alone, so that a search that was killed goes on with
the trials that it would have had. In a pool, trials are asked for in batches, as many as there is
room for. No torch here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from nocap.config.arm_defaults import as_baseline, as_in
from nocap.config.compose import Composed
from nocap.config.defaults import BEYOND_GRAPHS
from nocap.config.explain import one_line_errors
from nocap.config.keys import is_fault, require
from nocap.config.override_keys import is_of_search
from nocap.config.overrides import parse_override
from nocap.config.plain import dataclass_from
from nocap.config.trainer import Search
from nocap.display import plural
from nocap.launch.grid import Cell, Grid, plan_grid
from nocap.launch.plan import Datasets, plan
from nocap.launch.run_result import RunResult
from nocap.launch.runner import Runner
from nocap.launch.search_space import Params, Space, describe, ends, params_of, propose, words_of
from nocap.launch.search_trial import SearchTrial
from nocap.launch.this_machine import ThisMachine
from nocap.report.table import Column, Table
from nocap.store import lease
from nocap.store.grid_file import read_grid
from nocap.store.record_files import RunStatus, digest

MOST_TRIALS = 10  # trials of the table on a terminal


@one_line_errors()
def options_in(words: Sequence[str]) -> tuple[Search | None, list[str]]:
    """Return the search that a command's overrides ask for, and the other overrides.

    Errors:
        HydraException, ValueError: an override that cannot be parsed; a wrong key or value of the
            search.
    """
    of_search = list[str]()
    others = list[str]()
    for word in words:
        parse_override(word)
        if is_of_search(word):
            of_search.append(word)
        else:
            others.append(word)
    if not of_search:
        return None, others
    keys = [re.sub(r"^search=", "search.sampler=", word.lstrip("+")) for word in of_search]
    tree: Any = OmegaConf.from_dotlist(keys)
    return dataclass_from(Search, tree.search, "search."), others


# --- carried out ----------------------------------------------------------------------------------


def plan_search(
    search: Search,
    space: Space,
    *,
    fixed: Sequence[str],
    compose: Callable[[Sequence[str]], Composed],
) -> SearchRun:
    """Check a search, and return it. `fixed`: the overrides of every trial. The space's first end
    decides the precision, compilation, micro-batch and CUDA graphs of all.

    Errors:
        ValueError: the space's ends cannot be trained. Nothing has been written but the data's
            cache.
    """
    rule = "have a key to search, as in 'optimizer.lr=tag(log, interval(1e-4, 1e-2))'"
    require(bool(space), "search", rule, "none")
    fixed = (*fixed, f"seed={search.seed}")
    datasets = Datasets()
    at_ends = [(*fixed, *end) for end in ends(space)]
    base, beyond = as_baseline(compose(at_ends[0]), at_ends[1:], compose)
    compose_trial = partial(as_in, base, compose_arm=compose)
    grid = plan_grid(
        at_ends,
        swept=tuple(space),
        compose=compose_trial,
        log=lambda line: None,
        datasets=datasets,
    )
    _check_ends(at_ends, grid, space, n_fixed=len(fixed))
    name = _name(search, space, sorted(cell.plan.identity for cell in grid.cells))
    notes = list[str]()
    if beyond is not None:
        words = " ".join(beyond[len(fixed) :])
        why = f"in {words} {BEYOND_GRAPHS}"
        notes.append(f"note: trainer.cuda_graphs=false for all trials: {why}")
    return SearchRun(
        search=search,
        space=space,
        fixed=fixed,
        base=base,
        compose=compose_trial,
        datasets=datasets,
        grid=Grid(name=name, folder=grid.folder.with_name(name), swept=tuple(space), cells=()),
        notes=notes,
    )


def _check_ends(
    at_ends: Sequence[tuple[str, ...]], grid: Grid, space: Space, *, n_fixed: int
) -> None:
    """Refuse a space of which two ends are the same run. `grid`: has each run of them once.

    Errors:
        ValueError: there are such ends.
    """
    n_own = n_fixed + len(space)  # beyond these are what the baseline decides for all
    distinct = {cell.overrides[:n_own] for cell in grid.cells}
    twins = [" ".join(words[n_fixed:]) for words in at_ends if words not in distinct]
    rule = "have only keys and values that change the run"
    require(not twins, "search", rule, ", ".join(twins))


def _name(search: Search, space: Space, identities: Sequence[str]) -> str:
    """Return the name of the folder: equal for the same question, however many trials it has.
    `identities`: of the runs at the space's ends."""
    content = {
        **_options(search),
        "trials": None,
        "space": _ranges(space),
        "ends": identities,
    }
    last_words = [name.rpartition(".")[2] for name in space]
    keys = "-".join(re.sub(r"[^\w.]+", "_", word) for word in last_words)
    return f"search-{keys[:50]}-{digest(content)}"


def _options(search: Search) -> dict[str, Any]:
    """Return the keys of a search as `grid.json` has them."""
    return {**asdict(search), "sampler": search.sampler.name, "seeds": [search.seed]}


def _ranges(space: Space) -> dict[str, str]:
    """Say of each key what is drawn from."""
    return {name: describe(distribution) for name, distribution in space.items()}


@dataclass(kw_only=True)
class SearchRun:
    """A search that was checked, and its trials so far."""

    search: Search
    space: Space
    fixed: tuple[str, ...]  # the overrides of every trial
    base: Composed  # what all trials have besides what is searched
    compose: Callable[[Sequence[str]], Composed]
    datasets: Datasets
    grid: Grid  # its name and folder
    notes: Sequence[str]  # what a person should know before it starts
    _trials: list[SearchTrial] = field(init=False, default_factory=list)

    def head(self) -> str:
        """Return what a person reads before the first trial."""
        search = self.search
        trials = plural(search.trials, "trial")
        lines = [f"{self.grid.name}: {search.sampler.name}, {trials} on seed {search.seed}"]
        lines += [f"  {axis}: {text}" for axis, text in _ranges(self.space).items()]
        lines += [f"  {note}" for note in self.notes]
        return "\n".join(lines)

    def run(
        self, devices: ThisMachine, *, log: Callable[[str], None] = print
    ) -> tuple[dict[str, RunResult], bool]:
        """Train what is missing, as many trials at once as there is room for. Return how each run
        of this process ended, by identity, and whether a request to stop came.

        Errors:
            lease.HeldError: another process carries out this search.
            OSError, ValueError: its trials cannot be kept, or a run's record is damaged.
        """
        self.grid.folder.mkdir(parents=True, exist_ok=True)
        with lease.acquire(self.grid.folder) as lock:
            self.update()
            more = partial(self._batch, devices.at_once(self.base.run), lock.stage(), log)
            runner = Runner(self.of_trials(), devices, more=more, total=self.search.trials)
            results = runner.run()
            self.update()
            self._write(lock.stage())
            return results, runner.stopping

    def _batch(self, room: int, stage: Path, log: Callable[[str], None]) -> list[Cell]:
        """Return the runs of the next trials, written down before they begin. They know the losses
        of the batches before theirs. None: enough."""
        cells = list[Cell]()
        while not cells and len(self._trials) < self.search.trials:
            self.update()
            n_trials = len(self._trials)
            n_before_batch = n_trials // room * room
            last = min(n_before_batch + room, self.search.trials)
            for number in range(n_trials + 1, last + 1):
                trial = self._next(number, n_before_batch)
                self._trials.append(trial)
                self._write(stage)
                if trial.cell is not None:
                    cells.append(trial.cell)
                for line in trial.lines():
                    log(line)
        return cells

    def _next(self, number: int, n_known: int) -> SearchTrial:
        """Return the trial of this number. It knows the losses of the first trials, so many."""
        before = list[tuple[Params, float | None]]()
        for trial in self._trials:
            known_loss = trial.loss if trial.number <= n_known else None
            before.append((params_of(self.space, trial.words), known_loss))
        params = propose(self.search, self.space, before)
        return self.trial(number, words_of(self.space, params))

    def trial(self, number: int, words: tuple[str, ...]) -> SearchTrial:
        """Return a trial, composed and planned, or refused with the reason."""
        try:
            composed = self.compose([*self.fixed, *words])
            planned = plan(composed.run, choices=composed.choices, datasets=self.datasets)
        except ValueError as error:
            if is_fault(error):
                raise
            return SearchTrial(
                number=number, words=words, status=RunStatus.refused, reason=str(error)
            )
        planned = replace(planned, grid=self.grid.name, swept=self.grid.swept)
        label = f"trial {number}: {' '.join(words)}"
        cell = Cell(overrides=composed.overrides, label=label, plan=planned)
        return SearchTrial(number=number, words=words, cell=cell)

    def update(self) -> None:
        """Load the trials of an earlier command, where none is known yet, and read how those that
        were open have ended.

        Errors:
            ValueError: what lists them, or a run's record, is damaged.
        """
        if not self._trials:
            self._trials = self._trials_on_disk()
        for trial in self._trials:
            trial.read_end()

    def trials(self) -> list[SearchTrial]:
        """Return all trials that are known, the lowest loss first, as of the last `update`."""
        return sorted(self._trials, key=lambda trial: trial.rank)

    def _trials_on_disk(self) -> list[SearchTrial]:
        """Return the trials that `grid.json` lists, by their numbers."""
        content = read_grid(self.grid.folder)
        if content is None:
            return []
        rows = sorted(content["trials"], key=lambda row: row["trial"])
        trials = list[SearchTrial]()
        for number, row in enumerate(rows, start=1):
            trials.append(self.trial(number, tuple(row["overrides"])))
        return trials

    def of_trials(self) -> Grid:
        """Return the grid of all runs that there are."""
        planned = [trial.cell for trial in self.trials() if trial.cell is not None]
        cells = {cell.plan.identity: cell for cell in planned}
        return replace(self.grid, cells=tuple(cells.values()))

    def _write(self, stage: Path) -> None:
        """Write `grid.json`."""
        trials = [trial.json() for trial in self.trials()]
        more = {
            "search": _options(self.search),
            "space": _ranges(self.space),
            "trials": trials,
        }
        self.of_trials().write(more=more, stage=stage)

    def table(self) -> str:
        """Return the trials with the lowest losses as a table for a terminal, and what they are
        worth."""
        rows = [trial.row() for trial in self.trials()[:MOST_TRIALS]]
        columns = [
            Column(title="trial"),
            Column(title="val loss", keep=True),
            *(Column(title=key) for key in self.space),
            Column(title="", keep=True),
        ]
        table = Table(title="", columns=columns, rows=rows)
        note = (
            f"the search chose on seed {self.search.seed} alone; compare the best settings on "
            "other seeds"
        )
        return f"{table}\n\n{note}"
