"""A search: `search=tpe search.trials=40 'optimizer.lr=interval(1e-4, 1e-2)'`. A loop of asking Optuna for a trial and telling it the loss.

It chooses settings and is no evidence for a claim. Its trials are runs like all others; `grid.json` in its folder lists them, and their
losses are in their records. A trial follows from the seed, its number and what is known of the trials before it alone, so that a search
that was killed goes on with the trials that it would have had. No torch here, and Optuna is imported only by what needs it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from hydra.core.override_parser.types import Glob, IntervalSweep, Override, RangeSweep
from omegaconf import OmegaConf

from nocap import outside
from nocap.config.compose import Composed, as_in, parsed
from nocap.config.errors import CONFIG_ERRORS, explain
from nocap.config.keys import check_keys, is_fault, key, require
from nocap.launch.grid import FILE, REPORT, Cell, Datasets, Grid, Result, check, named
from nocap.launch.plan import plan, settled, sound
from nocap.launch.runner import Runner
from nocap.options.launcher import Slots
from nocap.report import page
from nocap.report.table import aligned
from nocap.store import lease
from nocap.store.files import write_file
from nocap.store.formats import loss, plural
from nocap.store.identity import digest
from nocap.store.record import read_json, write_json

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

DIGITS = 6  # of a number that is proposed: what is trained can be typed
MOST = 10  # trials of the table on a terminal
Space = dict[str, "BaseDistribution"]  # key or group → what it may be
Params = Mapping[str, Any]
Compose = Callable[[Sequence[str]], Composed]


class Sampler(Enum):
    tpe = "tpe"  # tree-structured Parzen estimator (arXiv:2304.11127); its first ten trials are random
    random = "random"
    sobol = "sobol"  # scrambled: it covers the space evenly


@dataclass(kw_only=True, slots=True)
class Search:
    """`search=SAMPLER search.KEY=VALUE`, beside `--multirun`."""

    sampler: Sampler
    trials: int = key(ge=1, le=10_000, default=20)  # how many; the same search with more of them goes on
    screen: float | None = key(gt=0, lt=1, default=None)  # trials run this share of their steps first, and this share of them all steps
    seed: int = key(ge=0, lt=2**63, default=100)  # of the proposals and of the trials' runs: not one that a claim will use

    def __post_init__(self) -> None:
        check_keys("search", self)


def asked(words: Sequence[str]) -> tuple[Search | None, list[str]]:
    """The search that a command's overrides ask for, and the other overrides.

    Errors:
        HydraException, ValueError: an override that cannot be parsed; a wrong key or value of the search.
    """
    own = [word for word in words if re.match(r"search(\.|=)", str(parsed(word).input_line))]
    if not own:
        return None, list(words)
    try:
        config = OmegaConf.merge(
            {"search": OmegaConf.structured(Search)}, OmegaConf.from_dotlist([word.replace("search=", "search.sampler=") for word in own])
        )
        search = OmegaConf.to_object(config.search)
    except CONFIG_ERRORS as error:
        raise ValueError(explain(error).replace("search.sampler", "search")) from error
    assert isinstance(search, Search)
    return search, [word for word in words if word not in own]


# --- what is searched --------------------------------------------------------------------------------------------------------------------


def space_of(sweeps: Sequence[Override]) -> Space:
    """Hydra's sweeps as Optuna's distributions.

    Errors:
        ValueError: a sweep that nothing can be drawn from.
    """
    return {one.get_key_element(): _distribution(one) for one in sweeps}


def _distribution(override: Override) -> BaseDistribution:
    from optuna import distributions

    name, swept, line = override.get_key_element(), override.value(), override.input_line
    log = "log" in getattr(swept, "tags", ())
    low: Any
    high: Any
    step: Any
    known = {"log"} if isinstance(swept, IntervalSweep) else set[str]()
    require(getattr(swept, "tags", set()) <= known, name, "have no tag but an interval's log, as in tag(log, interval(1e-4, 1e-2))", line)
    require(not getattr(swept, "shuffle", False), name, "not be shuffled: a search has an order of its own", line)
    if isinstance(swept, IntervalSweep):
        low, high, step = swept.start or 0, swept.end or 0, None
        require(-math.inf < low < high < math.inf, name, "be an interval from a lower number to a higher", line)
        require(not log or low > 0, name, "be above 0 to be searched by its logarithm", line)
        whole = isinstance(low, int) and isinstance(high, int)
    elif isinstance(swept, RangeSweep):
        first, step, n = Decimal(str(swept.start or 0)), Decimal(str(swept.step)), range_length(name, swept)
        require(n > 1, name, "be a range of at least two", line)
        low, high = sorted((first, first + (n - 1) * step))
        whole = all(isinstance(one, int) for one in (swept.start or 0, swept.step))
    else:
        choices = list(dict.fromkeys(values_of(override)))
        require(bool(choices), name, "be swept over something", line)
        return distributions.CategoricalDistribution(choices)
    if whole:
        return distributions.IntDistribution(int(low), int(high), log=log, step=abs(int(step or 1)))
    return distributions.FloatDistribution(float(low), float(high), log=log, step=None if step is None else abs(float(step)))


def values_of(override: Override) -> list[str]:
    """The values that an override sweeps over."""
    swept = override.value()
    return swept.filter([*outside.yamls(override.key_or_group)]) if isinstance(swept, Glob) else list(override.sweep_string_iterator())


def range_length(name: str, swept: RangeSweep) -> int:
    """How many values a range has.

    Errors:
        ValueError: it is no range.
    """
    start, stop, step = swept.start or 0, swept.stop or 0, swept.step
    require(all(map(math.isfinite, (start, stop, step))) and step != 0, name, "be a range of numbers with a step", swept.step)
    return max(0, math.ceil((stop - start) / step))


def words_of(space: Space, params: Params) -> tuple[str, ...]:
    return tuple(f"{name}={params[name]}" for name in space)


def params_of(space: Space, words: Sequence[str]) -> Params:
    """The opposite."""
    given = dict(word.split("=", 1) for word in words)
    kinds: dict[str, Any] = {name: type(getattr(distribution, "low", "")) for name, distribution in space.items()}
    return {name: kinds[name](given[name]) for name in space}


def describe(distribution: BaseDistribution) -> str:
    """`0.0001 to 0.01, log`."""
    d: Any = distribution
    if hasattr(d, "choices"):
        return ", ".join(d.choices)
    step = f", in steps of {d.step}" if d.step not in (None, 1) else ", whole numbers" if isinstance(d.low, int) else ""
    return f"{d.low} to {d.high}{step}{', log' if d.log else ''}"


def ends(space: Space) -> list[tuple[str, ...]]:
    """The words at the space's ends, which can be tried before the first trial: of each key in turn each choice or both ends, the others at
    their first."""
    choices: dict[str, Any] = {}
    for name, d in space.items():
        choices[name] = getattr(d, "choices", None) or [getattr(d, end) for end in ("low", "high")]
    first = {name: values[0] for name, values in choices.items()}
    return list(dict.fromkeys(words_of(space, {**first, name: value}) for name, values in choices.items() for value in values))


# --- which trial comes next --------------------------------------------------------------------------------------------------------------


def propose(search: Search, space: Space, before: Sequence[tuple[Params, float | None]]) -> Params:
    """The trial after these, each with its loss if it has ended. It follows from what is given alone."""
    n = len(before)
    if search.sampler is Sampler.tpe:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        own = int(np.random.SeedSequence([search.seed, n]).generate_state(1)[0])
        study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=own, constant_liar=True))  # a trial that runs counts as bad
        for params, value in before:
            state = optuna.trial.TrialState.RUNNING if value is None else optuna.trial.TrialState.COMPLETE
            study.add_trial(optuna.trial.create_trial(params=dict(params), distributions=space, value=value, state=state))
        drawn = study.ask(space).params
    else:
        shares = (_sobol if search.sampler is Sampler.sobol else _random)(search.seed, n, len(space))
        drawn = {name: _at(distribution, float(u)) for (name, distribution), u in zip(space.items(), shares, strict=True)}
    return {name: _rounded(distribution, drawn[name]) for name, distribution in space.items()}


def _random(seed: int, n: int, d: int) -> np.ndarray:
    return np.random.default_rng([seed, n]).random(d)


def _sobol(seed: int, n: int, d: int) -> np.ndarray:
    from scipy.stats.qmc import Sobol

    sequence = Sobol(d, scramble=True, seed=seed)
    if n:  # SciPy goes forward by one or more
        sequence.fast_forward(n)
    return np.asarray(sequence.random(1)[0])


def _at(distribution: BaseDistribution, u: float) -> Any:
    """The value at this share, from 0 to 1, of a distribution."""
    d: Any = distribution
    if hasattr(d, "choices"):
        return d.choices[int(u * len(d.choices))]
    if d.log:
        half = 0.5 if isinstance(d.low, int) else 0.0  # each whole number has its share
        value = math.exp((1 - u) * math.log(d.low - half) + u * math.log(d.high + half))
        return min(max(round(value), d.low), d.high) if half else value
    return d.low + u * (d.high - d.low) if d.step is None else d.low + d.step * int(u * (round((d.high - d.low) / d.step) + 1))


def _rounded(distribution: BaseDistribution, value: Any) -> Any:
    d: Any = distribution
    return min(max(float(f"{value:.{12 if d.step else DIGITS}g}"), d.low), d.high) if isinstance(value, float) else value


# --- carried out -------------------------------------------------------------------------------------------------------------------------


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
        losses = [math.inf if value is None else value for value in (self.val_loss, self.screened)]
        return (self.status == "refused", *losses, self.number)  # type: ignore[return-value]

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
        self.results, self.stopped = dict[str, Result](), False  # identity → how a run ended, of this process
        tried = ends(space)
        base = settled([*self.fixed, *tried[0]], compose)
        self._compose: Compose = lambda words: as_in(base, words, compose)
        words = [(*self.fixed, *end) for end in tried]
        grid = check(words, swept=tuple(space), compose=self._compose, log=lambda line: None, datasets=self._datasets)
        kept = {cell.overrides[: len(words[0])] for cell in grid.cells}
        same = [" ".join(end) for end, cell in zip(tried, words, strict=True) if cell not in kept]
        require(not same, "search", "be over keys and values that change the run", ", ".join(same))
        self.described = {name: describe(distribution) for name, distribution in space.items()}
        content = {**asdict(search), "sampler": search.sampler.name, "seeds": (search.seed,), "trials": None, "space": self.described}
        content["ends"] = sorted(cell.plan.identity for cell in grid.cells)
        keys = "-".join(re.sub(r"[^\w.]+", "_", name.rpartition(".")[2]) for name in space)
        name = f"search-{keys[:50]}-{digest(content)}"
        self.grid = Grid(name=name, folder=grid.folder.with_name(name), swept=tuple(space), cells=())
        self.cell(0, tried[0], screened=search.screen is not None)

    def cell(self, number: int, words: Sequence[str], *, screened: bool) -> Cell:
        """The run of a trial: of its whole schedule, or `screened` of a whole one of the share of its steps.

        Errors:
            ValueError: there is no such run.
        """
        composed, label = self._compose([*self.fixed, *words]), f"trial {number}"
        if screened:
            assert self.search.screen is not None
            steps = max(1, round(self.search.screen * composed.run.trainer.steps))
            composed, label = (
                self._compose([*composed.overrides, f"trainer.steps={steps}"]),
                f"{label}, {self.search.screen:g} of its steps",
            )
        planned = plan(composed.run, choices=composed.choices, dataset=self._datasets.of(composed.run))
        planned = replace(planned, grid=self.grid.name, swept=self.grid.swept)
        return Cell(overrides=composed.overrides, label=f"{label}: {' '.join(words)}", plan=planned)

    def run(self, slots: Slots, *, log: Callable[[str], None] = print) -> None:
        """Train what is missing, as many trials at once as there is room for.

        Errors:
            lease.HeldError: another process carries out this search.
            OSError, ValueError: its trials cannot be kept, or a run's record is damaged.
        """
        self.grid.folder.mkdir(parents=True, exist_ok=True)
        with lease.acquire(self.grid.folder) as lock:
            stage = lock.stage()
            self.trials()
            self._train([trial.first for trial in self._trials], slots, more=lambda: self._next(stage, log), total=self.search.trials)
            if not self.stopped:
                self._promote()
            if self.search.screen is not None and not self.stopped:
                self._train([trial.whole for trial in self.trials()], slots)
            self._write(stage)

    def _train(self, cells: Sequence[Cell | None], slots: Slots, **more: Any) -> None:
        runner = Runner(replace(self.grid, cells=tuple(cell for cell in cells if cell is not None)), slots=slots, **more)
        self.results |= runner.run()
        self.stopped = runner.stopping

    def _next(self, stage: Path, log: Callable[[str], None]) -> list[Cell]:
        """The run of a new trial, which is written down before it begins. None: there are enough."""
        while len(self._trials) < self.search.trials:
            before = [(params_of(self.space, trial.words), self._loss(trial)) for trial in self._trials]
            trial = self._trial(len(before) + 1, words_of(self.space, propose(self.search, self.space, before)))
            self._trials.append(trial)
            self._write(stage)
            if trial.first is not None:
                for notice in trial.first.plan.notices:
                    log(f"note: {notice}")
                return [trial.first]
            log(f"trial {trial.number}: {' '.join(trial.words)} cannot be trained, which is its result: {trial.reason}")
        return []

    def _trial(self, number: int, words: tuple[str, ...]) -> Trial:
        try:
            first = self.cell(number, words, screened=self.search.screen is not None)
        except ValueError as error:
            if is_fault(error):
                raise
            return Trial(number=number, words=words, reason=str(error))
        return Trial(number=number, words=words, first=first, whole=first if self.search.screen is None else None)

    def _loss(self, trial: Trial) -> float | None:
        """The loss that the next trial is proposed by, infinite where there is none to come. None: it has not ended."""
        return math.inf if trial.first is None else self._loss_of(trial.first)

    def _loss_of(self, cell: Cell | None) -> float | None:
        """The validation loss of this run, infinite where it diverged. None: it has not ended."""
        if cell is not None and cell.plan.identity not in self._losses and (end := sound(cell.plan)):
            value = end.get("val_loss")
            self._losses[cell.plan.identity] = math.inf if end["status"] == "diverged" or value is None else float(value)
        return None if cell is None else self._losses.get(cell.plan.identity)

    def _promote(self) -> None:
        """The best share of the trials that were screened are trained in whole (successive halving, arXiv:1502.07943, but over whole
        schedules: half-way through a run the order says little)."""
        if (share := self.search.screen) is None:
            return
        losses = [(math.inf if (value := self._loss(trial)) is None else value, trial.number) for trial in self._trials]
        best = sorted(losses)[: math.ceil(share * len(losses)) if len(losses) >= self.search.trials else 0]
        for trial in self._trials:
            chosen = any(number == trial.number and value < math.inf for value, number in best)
            trial.whole = self.cell(trial.number, trial.words, screened=False) if chosen else None

    # --- what came of it -----------------------------------------------------------------------------------------------------------------

    def cells(self) -> list[Cell]:
        """Of all runs that there are."""
        cells = [cell for trial in self._trials for cell in (trial.first, trial.whole) if cell is not None]
        return list({cell.plan.identity: cell for cell in cells}.values())

    def trials(self) -> list[Trial]:
        """What there is, the lowest loss first: those of whole schedules before those that were only screened."""
        if not self._trials and (kept := read_json(self.grid.folder / FILE)) is not None:
            listed = sorted(kept["trials"], key=lambda trial: trial["trial"])
            self._trials = [self._trial(n, tuple(trial["overrides"])) for n, trial in enumerate(listed, 1)]
            self._promote()
        for trial in self._trials:
            losses = [self._loss_of(cell) for cell in (trial.first, trial.whole)]
            trial.screened, trial.val_loss = (value if value is not None and math.isfinite(value) else None for value in losses)
            if self.search.screen is None:
                trial.screened = None
            is_open = losses[0] is None or (trial.whole is not None and losses[1] is None)
            trial.status = "refused" if trial.first is None else "open" if is_open else "diverged" if math.inf in losses else "finished"
        return sorted(self._trials, key=lambda trial: trial.order)

    def _write(self, stage: Path) -> None:
        """As a grid's `grid.json`: its cells are the runs of whole schedules."""
        trials = self.trials()
        cells = {trial.whole.plan.identity: named(trial.whole) for trial in trials if trial.whole is not None}
        search = {**asdict(self.search), "sampler": self.search.sampler.name, "seeds": [self.search.seed]}
        content = {"name": self.grid.name, "swept": self.grid.swept, "search": search, "space": self.described}
        write_json(
            self.grid.folder / FILE, {**content, "trials": [trial.json() for trial in trials], "cells": [*cells.values()]}, stage=stage
        )

    @property
    def head(self) -> list[str]:
        """What is searched, and how."""
        search, screen = self.search, ""
        if search.screen is not None:
            screen = f"; all at {search.screen:g} of their steps, then the best {search.screen:g} of them at all steps"
        line = f"{self.grid.name}: {search.sampler.name}, {plural(search.trials, 'trial')} on seed {search.seed}{screen}"
        return [line, *(f"  {name}: {text}" for name, text in self.described.items())]

    @property
    def note(self) -> str:
        """What the table is not."""
        return f"chosen on seed {self.search.seed}: what the settings are worth, other seeds tell"

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
        axes = [{"name": name, "log": getattr(one, "log", False), "words": hasattr(one, "choices")} for name, one in space.items()]
        return page.render(
            "search",
            kind="nocap search",
            title=f"{plural(len(trials), 'trial')}{lowest}",
            data=page.finite({"screen": self.search.screen, "keys": axes, "trials": [trial.json() for trial in trials]}),
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
