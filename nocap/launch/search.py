"""A search: `search=tpe search.trials=40 'optimizer.lr=interval(1e-4, 1e-2)'`. A loop asks Optuna
for settings, trains them, and tells it the losses.

It chooses settings and is no evidence for a claim. Its trials are runs like all others. `grid.json`
in its folder lists them, and their losses are in their records. A trial follows from the seed, its
number and the losses of the trials before it alone, so that a search that was killed goes on with
the trials that it would have had. In a pool, trials are asked for in batches, as many as there is
room for. No torch here; Optuna is imported only by what needs it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from hydra.core.override_parser.types import IntervalSweep, Override, RangeSweep
from omegaconf import OmegaConf

from nocap.config.choices import parse_override
from nocap.config.compose import Composed, as_baseline, as_in
from nocap.config.defaults import BEYOND_GRAPHS
from nocap.config.keys import is_fault, require
from nocap.config.plain import explained, made
from nocap.config.trainer import Sampler, Search
from nocap.display import loss, plural
from nocap.launch.grid import Cell, Grid, check, values_of
from nocap.launch.plan import Datasets, plan
from nocap.launch.run_folder import sound
from nocap.launch.run_result import RunResult
from nocap.launch.runner import Devices, Runner
from nocap.report.table import Column, Table
from nocap.store import lease
from nocap.store.identity import digest
from nocap.store.record_files import RunStatus, read_json
from nocap.store.runs import GRID

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.samplers import BaseSampler

# digits of a number that is proposed, and of one of a range: what is trained can be typed
DIGITS = 6
STEP_DIGITS = 12
MOST_TRIALS = 10  # trials of the table on a terminal
Space = dict[str, "BaseDistribution"]  # key or group → what it may be
Params = Mapping[str, Any]  # key or group → a value of it


@explained()
def options_in(words: Sequence[str]) -> tuple[Search | None, list[str]]:
    """Return the search that a command's overrides ask for, and the other overrides.

    Errors:
        HydraException, ValueError: an override that cannot be parsed; a wrong key or value of the
            search.
    """
    of_search = list[str]()
    others = list[str]()
    for word in words:
        override = parse_override(word)
        if re.match(r"search(\.|=)", str(override.input_line)):
            of_search.append(word)
        else:
            others.append(word)
    if not of_search:
        return None, others
    keys = [word.replace("search=", "search.sampler=") for word in of_search]
    tree: Any = OmegaConf.from_dotlist(keys)
    return made(Search, tree.search, "search."), others


# --- what is searched -----------------------------------------------------------------------------


def space_of(sweeps: Sequence[Override]) -> Space:
    """Return Hydra's sweeps as Optuna's distributions.

    Errors:
        ValueError: a sweep that nothing can be drawn from.
    """
    return {sweep.get_key_element(): _distribution(sweep) for sweep in sweeps}


def _distribution(override: Override) -> BaseDistribution:
    """Return what a sweep draws from.

    Errors:
        ValueError: nothing can be drawn from it.
    """
    from optuna.distributions import CategoricalDistribution

    name = override.get_key_element()
    swept = override.value()
    line = override.input_line
    tags: set[str] = getattr(swept, "tags", set())
    known = {"log"} if isinstance(swept, IntervalSweep) else set[str]()
    rule = "have no tag except log of an interval, as in tag(log, interval(1e-4, 1e-2))"
    require(tags <= known, name, rule, line)
    is_shuffled = getattr(swept, "shuffle", False)
    require(not is_shuffled, name, "not be shuffled: a search has an order of its own", line)
    if isinstance(swept, IntervalSweep):
        return _interval(name, swept, str(line), log="log" in tags)
    values = list(dict.fromkeys(values_of(override)))  # which refuses a range without a step
    if isinstance(swept, RangeSweep):
        return _range(name, swept, str(line))
    require(bool(values), name, "be swept over values", line)
    return CategoricalDistribution(values)


def _interval(name: str, swept: IntervalSweep, line: str, *, log: bool) -> BaseDistribution:
    """Return the numbers of an interval, whole ones where both ends are; `log`: by their logarithm.

    Errors:
        ValueError: it has no inside, or no logarithm.
    """
    from optuna.distributions import FloatDistribution, IntDistribution

    low = swept.start or 0
    high = swept.end or 0
    rule = "be an interval from a lower number to a higher"
    require(-math.inf < low < high < math.inf, name, rule, line)
    require(not log or low > 0, name, "be above 0, because the search takes its logarithm", line)
    if isinstance(low, int) and isinstance(high, int):
        return IntDistribution(low, high, log=log)
    return FloatDistribution(float(low), float(high), log=log)


def _range(name: str, swept: RangeSweep, line: str) -> BaseDistribution:
    """Return the steps of a range, in decimal arithmetic, because Hydra's own floats may reach the
    stop.

    Errors:
        ValueError: it has fewer than two steps.
    """
    from optuna.distributions import FloatDistribution, IntDistribution

    start = Decimal(str(swept.start or 0))
    stop = Decimal(str(swept.stop or 0))
    step = Decimal(str(swept.step))
    steps = math.ceil((stop - start) / step) - 1
    require(steps > 0, name, "be a range of at least two", line)
    last = start + steps * step
    low = min(start, last)
    high = max(start, last)
    if isinstance(swept.start or 0, int) and isinstance(swept.step, int):
        return IntDistribution(int(low), int(high), step=abs(int(step)))
    return FloatDistribution(float(low), float(high), step=abs(float(step)))


def words_of(space: Space, params: Params) -> tuple[str, ...]:
    """Return the overrides that set these values."""
    return tuple(f"{name}={params[name]}" for name in space)


def params_of(space: Space, words: Sequence[str]) -> Params:
    """Return the values that these overrides set: the opposite of `words_of`."""
    texts = dict(word.split("=", 1) for word in words)
    # a number has the type of its distribution's ends, and a choice is a text
    kinds: dict[str, Any] = {name: type(getattr(each, "low", "")) for name, each in space.items()}
    return {name: kinds[name](texts[name]) for name in space}


def describe(distribution: BaseDistribution) -> str:
    """Say what is drawn from, as in `0.0001 to 0.01, log`."""
    d: Any = distribution
    if hasattr(d, "choices"):
        return ", ".join(d.choices)
    text = f"{d.low} to {d.high}"
    if d.step not in (None, 1):
        text += f", in steps of {d.step}"
    elif isinstance(d.low, int):
        text += ", whole numbers"
    if d.log:
        text += ", log"
    return text


def ends(space: Space) -> list[tuple[str, ...]]:
    """Return the overrides at the space's ends, which can be tried before the first trial: of each
    key in turn each choice or both ends, and the others at their first."""
    values = {name: _end_values(distribution) for name, distribution in space.items()}
    first = {name: of_key[0] for name, of_key in values.items()}
    distinct = dict[tuple[str, ...], None]()
    for name, of_key in values.items():
        for value in of_key:
            words = words_of(space, {**first, name: value})
            distinct[words] = None
    return list(distinct)


def _end_values(distribution: BaseDistribution) -> Sequence[Any]:
    """Return each choice, or both ends."""
    d: Any = distribution
    if hasattr(d, "choices"):
        return list(d.choices)
    return [d.low, d.high]


def propose(search: Search, space: Space, before: Sequence[tuple[Params, float | None]]) -> Params:
    """Return the settings of the trial after these, each with its loss where that is known. They
    follow from the arguments alone."""
    import optuna
    from optuna.trial import TrialState, create_trial

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    sequence = np.random.SeedSequence([search.seed, len(before)])
    own_seed = int(sequence.generate_state(1)[0])
    study = optuna.create_study(sampler=_sampler(search.sampler, own_seed))
    for params, value in before:
        state = TrialState.RUNNING if value is None else TrialState.COMPLETE
        trial = create_trial(params=dict(params), distributions=space, value=value, state=state)
        study.add_trial(trial)
    params = study.ask(space).params
    return {name: _rounded(distribution, params[name]) for name, distribution in space.items()}


def _sampler(sampler: Sampler, seed: int) -> BaseSampler:
    """Return Optuna's sampler of this name. For `tpe` a trial that runs counts as bad."""
    from optuna.samplers import RandomSampler, TPESampler

    if sampler is Sampler.random:
        return RandomSampler(seed=seed)
    return TPESampler(seed=seed, constant_liar=True)


def _rounded(distribution: BaseDistribution, value: Any) -> Any:
    """Return a value that can be typed: a number has few digits, and stays within its ends."""
    d: Any = distribution
    if not isinstance(value, float):
        return value
    digits = STEP_DIGITS if d.step else DIGITS
    rounded = float(f"{value:.{digits}g}")
    return min(max(rounded, d.low), d.high)


# --- carried out ----------------------------------------------------------------------------------


@dataclass(kw_only=True, slots=True)
class SearchTrial:
    """A training with settings that the search chose."""

    number: int  # from 1
    words: tuple[str, ...]
    cell: Cell | None = None
    status: RunStatus = RunStatus.open  # later finished, diverged, or refused: it cannot be trained
    val_loss: float | None = None
    reason: str | None = None  # why it is refused

    @property
    def loss(self) -> float | None:
        """Return the loss that the sampler gets; None: the trial has not ended."""
        if self.status in (RunStatus.diverged, RunStatus.refused):
            return math.inf
        return self.val_loss

    @property
    def rank(self) -> tuple[bool, float, int]:
        """Return what trials are sorted by: those that can be trained first, then by loss, then by
        number."""
        loss = math.inf if self.loss is None else self.loss
        return self.status is RunStatus.refused, loss, self.number

    def json(self) -> dict[str, Any]:
        """Return the trial's entry in `grid.json`."""
        return {
            "trial": self.number,
            "overrides": self.words,
            "status": self.status,
            "val_loss": self.val_loss,
            "reason": self.reason,
        }

    def row(self) -> list[str]:
        """Return the trial's row of the table: number, loss, a value a key, and what a reader must
        know."""
        values = [word.partition("=")[2] for word in self.words]
        return [str(self.number), loss(self.val_loss), *values, self._note()]

    def _note(self) -> str:
        """Return what a reader must know beside the loss."""
        if self.status is RunStatus.finished:
            return ""
        if self.status is RunStatus.open:
            return "not finished"
        if self.status is RunStatus.refused:
            return f"cannot be trained: {self.reason}"
        return self.status


class Searching:
    """A search, checked and ready to be carried out.

    Errors:
        ValueError: the space's ends cannot be trained. Nothing has been written but the data's
            cache.
    """

    def __init__(
        self,
        search: Search,
        space: Space,
        *,
        fixed: Sequence[str],
        compose: Callable[[Sequence[str]], Composed],
    ) -> None:
        """Check the space. `fixed`: the overrides of every trial. The space's first end decides the
        precision, compilation, micro-batch and CUDA graphs of all."""
        rule = "have a key to search, as in 'optimizer.lr=tag(log, interval(1e-4, 1e-2))'"
        require(bool(space), "search", rule, "none")
        self.search = search
        self.space = space
        self.fixed = (*fixed, f"seed={search.seed}")
        self._datasets = Datasets()
        self._trials = list[SearchTrial]()
        at_ends = [(*self.fixed, *end) for end in ends(space)]
        # what all trials have besides what is searched
        self.base, beyond = as_baseline(compose(at_ends[0]), at_ends[1:], compose)
        self._compose = partial(as_in, self.base, compose=compose)
        grid = check(
            at_ends,
            swept=tuple(space),
            compose=self._compose,
            log=lambda line: None,
            datasets=self._datasets,
        )
        self._check_ends(at_ends, grid)
        self._ranges = {name: describe(distribution) for name, distribution in space.items()}
        self._options = {**asdict(search), "sampler": search.sampler.name, "seeds": [search.seed]}
        name = self._name(sorted(cell.plan.identity for cell in grid.cells))
        self.grid = Grid(
            name=name, folder=grid.folder.with_name(name), swept=tuple(space), cells=()
        )
        line = (
            f"{name}: {search.sampler.name}, {plural(search.trials, 'trial')} on seed {search.seed}"
        )
        axes = [f"  {axis}: {text}" for axis, text in self._ranges.items()]
        self.head = [line, *axes]
        if beyond is not None:
            words = " ".join(beyond[len(self.fixed) :])
            why = f"in {words} {BEYOND_GRAPHS}"
            self.head.append(f"  note: trainer.cuda_graphs=false for all trials: {why}")

    def _check_ends(self, at_ends: Sequence[tuple[str, ...]], grid: Grid) -> None:
        """Refuse a space of which two ends are the same run. `grid`: has each run of them once.

        Errors:
            ValueError: there are such ends.
        """
        n_fixed = len(self.fixed)
        n_own = n_fixed + len(self.space)  # beyond these are what the baseline decides for all
        distinct = {cell.overrides[:n_own] for cell in grid.cells}
        twins = [" ".join(words[n_fixed:]) for words in at_ends if words not in distinct]
        rule = "have only keys and values that change the run"
        require(not twins, "search", rule, ", ".join(twins))

    def _name(self, identities: Sequence[str]) -> str:
        """Return the name of the folder: equal for the same question, however many trials it has.
        `identities`: of the runs at the space's ends."""
        content = {**self._options, "trials": None, "space": self._ranges, "ends": identities}
        last_words = [name.rpartition(".")[2] for name in self.space]
        keys = "-".join(re.sub(r"[^\w.]+", "_", word) for word in last_words)
        return f"search-{keys[:50]}-{digest(content)}"

    def run(
        self, devices: Devices, *, log: Callable[[str], None] = print
    ) -> tuple[dict[str, RunResult], bool]:
        """Train what is missing, as many trials at once as there is room for. Return how each run
        of this process ended, by identity, and whether a request to stop came.

        Errors:
            lease.HeldError: another process carries out this search.
            OSError, ValueError: its trials cannot be kept, or a run's record is damaged.
        """
        self.grid.folder.mkdir(parents=True, exist_ok=True)
        with lease.acquire(self.grid.folder) as lock:
            more = partial(self._batch, devices.at_once(self.base.run), lock.stage(), log)
            runner = Runner(self.of_trials(), devices, more=more, total=self.search.trials)
            results = runner.run()
            self._write(lock.stage())
            return results, runner.stopping

    def _batch(self, room: int, stage: Path, log: Callable[[str], None]) -> list[Cell]:
        """Return the runs of the next trials, written down before they begin. They know the losses
        of the batches before theirs. None: enough."""
        cells = list[Cell]()
        while not cells and len(self._trials) < self.search.trials:
            self.trials()  # which reads how those before ended
            n_trials = len(self._trials)
            n_before_batch = n_trials // room * room
            last = min(n_before_batch + room, self.search.trials)
            for number in range(n_trials + 1, last + 1):
                trial = self._next(number, n_before_batch)
                self._trials.append(trial)
                self._write(stage)
                if trial.cell is not None:
                    cells.append(trial.cell)
                for line in _lines(trial):
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
            composed = self._compose([*self.fixed, *words])
            planned = plan(composed.run, choices=composed.choices, datasets=self._datasets)
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

    def trials(self) -> list[SearchTrial]:
        """Return all trials that there are, the lowest loss first.

        Errors:
            ValueError: what lists them, or a run's record, is damaged.
        """
        if not self._trials:
            self._trials = self._trials_on_disk()
        for trial in self._trials:
            _read_end(trial)
        return sorted(self._trials, key=lambda trial: trial.rank)

    def _trials_on_disk(self) -> list[SearchTrial]:
        """Return the trials that `grid.json` lists, by their numbers."""
        content = read_json(self.grid.folder / GRID)
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
        more = {"search": self._options, "space": self._ranges, "trials": trials}
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
        note = f"chosen on seed {self.search.seed} alone: judge the best settings by other seeds"
        return f"{table}\n\n{note}"


def _lines(trial: SearchTrial) -> list[str]:
    """Return the lines that are printed of a trial before it begins."""
    if trial.cell is not None:
        return [f"note: {notice}" for notice in trial.cell.plan.notices]
    words = " ".join(trial.words)
    return [f"trial {trial.number}: {words} cannot be trained, which is its result: {trial.reason}"]


def _read_end(trial: SearchTrial) -> None:
    """Read how a trial's run ended, once it has.

    Errors:
        ValueError: the run's record is damaged.
    """
    if trial.cell is None or trial.status is not RunStatus.open:
        return
    end = sound(trial.cell.plan)
    if end is None:
        return
    trial.status = RunStatus.diverged
    if end["status"] == RunStatus.finished:
        trial.val_loss = end.get("val_loss")
    if trial.val_loss is not None:
        trial.status = RunStatus.finished
