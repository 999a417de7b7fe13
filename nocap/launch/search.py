"""A search: `search=tpe search.trials=40 'optimizer.lr=interval(1e-4, 1e-2)'`. A loop that asks Optuna and
tells it losses.

It chooses settings and is no evidence for a claim. Its trials are runs like all others; `grid.json` in its
folder lists them, and their losses are in their records. A trial follows from the seed, its number and the
losses of the trials before it alone, so that a search that was killed goes on with the trials that it would
have had. In a pool, trials are asked for in batches, as many as there is room for. No torch here; Optuna is
imported only by what needs it.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from hydra.core.override_parser.types import IntervalSweep, Override, RangeSweep
from omegaconf import OmegaConf

from nocap.config.compose import Composed, as_in, parsed
from nocap.config.keys import is_fault, require
from nocap.config.plain import explained, made
from nocap.config.trainer import Sampler, Search
from nocap.launch.grid import REPORT, Cell, Grid, Result, check, values_of
from nocap.launch.plan import Datasets, plan, sound
from nocap.launch.runner import Devices, Runner
from nocap.report.table import aligned
from nocap.store import lease
from nocap.store.files import write_file
from nocap.store.formats import loss, plural
from nocap.store.identity import digest
from nocap.store.record import read_json
from nocap.store.runs import GRID

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

# of a number that is proposed, and of one of a range: what is trained can be typed
DIGITS, STEP_DIGITS = 6, 12
MOST = 10  # trials of the table on a terminal
BEST, ENOUGH = (
    0.25,
    12,
)  # the good share of the trials where importance is told; from so many trials on
Space = dict[str, "BaseDistribution"]  # key or group → what it may be
Params = Mapping[str, Any]


@explained()
def asked(words: Sequence[str]) -> tuple[Search | None, list[str]]:
    """The search that a command's overrides ask for, and the other overrides.

    Errors:
        HydraException, ValueError: an override that cannot be parsed; a wrong key or value of the search.
    """
    own = [word for word in words if re.match(r"search(\.|=)", str(parsed(word).input_line))]
    if not own:
        return None, list(words)
    given: Any = OmegaConf.from_dotlist([word.replace("search=", "search.sampler=") for word in own])
    return made(Search, given.search, "search."), [word for word in words if word not in own]


# --- what is searched ---------------------------------------------------------------------------------------


def space_of(sweeps: Sequence[Override]) -> Space:
    """Hydra's sweeps as Optuna's distributions.

    Errors:
        ValueError: a sweep that nothing can be drawn from.
    """
    return {sweep.get_key_element(): _distribution(sweep) for sweep in sweeps}


def _distribution(override: Override) -> BaseDistribution:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    name, swept, line = override.get_key_element(), override.value(), override.input_line
    tags: set[str] = getattr(swept, "tags", set())
    log = "log" in tags
    known = {"log"} if isinstance(swept, IntervalSweep) else set[str]()
    require(
        tags <= known, name, "have no tag but an interval's log, as in tag(log, interval(1e-4, 1e-2))", line
    )
    require(
        not getattr(swept, "shuffle", False), name, "not be shuffled: a search has an order of its own", line
    )
    if isinstance(swept, IntervalSweep):
        low, high = swept.start or 0, swept.end or 0
        require(
            -math.inf < low < high < math.inf, name, "be an interval from a lower number to a higher", line
        )
        require(not log or low > 0, name, "be above 0 to be searched by its logarithm", line)
        is_whole = isinstance(low, int) and isinstance(high, int)
        return (
            IntDistribution(int(low), int(high), log=log)
            if is_whole
            else FloatDistribution(float(low), float(high), log=log)
        )
    values = list(dict.fromkeys(values_of(override)))
    if not isinstance(swept, RangeSweep):
        require(bool(values), name, "be swept over something", line)
        return CategoricalDistribution(values)
    start, stop, step = (Decimal(str(number)) for number in (swept.start or 0, swept.stop or 0, swept.step))
    steps = math.ceil((stop - start) / step) - 1  # Hydra's own floats may reach the stop
    require(steps > 0, name, "be a range of at least two", line)
    least, most = sorted((start, start + steps * step))
    if isinstance(swept.start or 0, int) and isinstance(swept.step, int):
        return IntDistribution(int(least), int(most), step=abs(int(step)))
    return FloatDistribution(float(least), float(most), step=abs(float(step)))


def words_of(space: Space, params: Params) -> tuple[str, ...]:
    return tuple(f"{name}={params[name]}" for name in space)


def params_of(space: Space, words: Sequence[str]) -> Params:
    """The opposite."""
    given = dict(word.split("=", 1) for word in words)
    kinds: dict[str, Any] = {
        name: type(getattr(distribution, "low", "")) for name, distribution in space.items()
    }
    return {name: kinds[name](given[name]) for name in space}


def describe(distribution: BaseDistribution) -> str:
    """`0.0001 to 0.01, log`."""
    d: Any = distribution
    if hasattr(d, "choices"):
        return ", ".join(d.choices)
    step = (
        f", in steps of {d.step}"
        if d.step not in (None, 1)
        else ", whole numbers"
        if isinstance(d.low, int)
        else ""
    )
    return f"{d.low} to {d.high}{step}{', log' if d.log else ''}"


def ends(space: Space) -> list[tuple[str, ...]]:
    """The words at the space's ends, which can be tried before the first trial: of each key in turn each
    choice or both ends, the others at their first."""
    kinds: dict[str, Any] = dict(space)  # each kind of distribution has what it needs
    choices = {name: getattr(d, "choices", None) or (d.low, d.high) for name, d in kinds.items()}
    first = {name: values[0] for name, values in choices.items()}
    return list(
        dict.fromkeys(
            words_of(space, {**first, name: value}) for name, values in choices.items() for value in values
        )
    )


def propose(search: Search, space: Space, before: Sequence[tuple[Params, float | None]]) -> Params:
    """The trial after these, each with its loss if that is known. It follows from what is given alone."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    own = int(np.random.SeedSequence([search.seed, len(before)]).generate_state(1)[0])
    trial, samplers = optuna.trial, optuna.samplers
    if search.sampler is Sampler.sobol:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            sobol = samplers.QMCSampler(scramble=True, seed=search.seed)
        study, none = optuna.create_study(sampler=sobol), trial.create_trial(state=trial.TrialState.RUNNING)
        # the next point of the sequence
        drawn = [sobol.sample_relative(study, none, space) for _ in range(len(before) + 1)][-1]
    else:
        tpe = samplers.TPESampler(seed=own, constant_liar=True)  # a trial that runs counts as bad
        study = optuna.create_study(
            sampler=tpe if search.sampler is Sampler.tpe else samplers.RandomSampler(seed=own)
        )
        for params, value in before:
            state = trial.TrialState.RUNNING if value is None else trial.TrialState.COMPLETE
            study.add_trial(
                trial.create_trial(params=dict(params), distributions=space, value=value, state=state)
            )
        drawn = study.ask(space).params
    return {name: _typed(distribution, drawn[name]) for name, distribution in space.items()}


def weights(space: Space, ended: Sequence[tuple[Params, float]]) -> dict[str, float]:
    """How much each key alone sets the best trials apart, as shares of the whole, the largest first
    (PED-ANOVA, arXiv:2304.10255). What diverged is among the worst. Of one key, or of few trials, nothing."""
    import optuna

    if len(space) == 1 or len(ended) < ENOUGH:
        return {}
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study()
    for rank, (params, _) in enumerate(sorted(ended, key=lambda trial: trial[1])):
        study.add_trial(optuna.trial.create_trial(params=dict(params), distributions=space, value=rank))
    evaluator = optuna.importance.PedAnovaImportanceEvaluator(target_quantile=BEST)
    return optuna.importance.get_param_importances(study, evaluator=evaluator)


def _typed(distribution: BaseDistribution, value: Any) -> Any:
    """What is trained can be typed: a number has few digits."""
    d: Any = distribution
    return (
        min(max(float(f"{value:.{STEP_DIGITS if d.step else DIGITS}g}"), d.low), d.high)
        if isinstance(value, float)
        else value
    )


# --- carried out --------------------------------------------------------------------------------------------


@dataclass(kw_only=True, slots=True)
class Trial:
    number: int  # from 1
    words: tuple[str, ...]
    cell: Cell | None = None
    status: str = "open"  # not finished; later finished, diverged, or refused: it cannot be trained
    val_loss: float | None = None
    reason: str | None = None  # why it is refused

    @property
    def loss(self) -> float | None:
        """What the sampler is told. None: it has not ended."""
        return math.inf if self.status in ("diverged", "refused") else self.val_loss

    def json(self) -> dict[str, Any]:
        names = {"trial": self.number, "overrides": self.words, "status": self.status}
        return {**names, "val_loss": self.val_loss, "reason": self.reason}


class Searching:
    """A search, checked and ready to be carried out.

    Errors:
        ValueError: the space's ends cannot be trained. Nothing has been written but the data's cache.
    """

    def __init__(
        self,
        search: Search,
        space: Space,
        *,
        fixed: Sequence[str],
        compose: Callable[[Sequence[str]], Composed],
    ) -> None:
        """`fixed`: the overrides of every trial. The space's first end decides the precision and compilation
        of all."""
        require(
            bool(space),
            "search",
            "have something to search, as in 'optimizer.lr=tag(log, interval(1e-4, 1e-2))'",
            "no such override",
        )
        self.search, self.space, self.fixed = search, space, (*fixed, f"seed={search.seed}")
        self._datasets, self._trials = Datasets(), list[Trial]()
        words = [(*self.fixed, *end) for end in ends(space)]
        self._base = compose(words[0])
        self._compose = partial(as_in, self._base, compose=compose)
        grid = check(
            words, swept=tuple(space), compose=self._compose, log=lambda line: None, datasets=self._datasets
        )
        kept = {cell.overrides[: len(words[0])] for cell in grid.cells}
        same = [" ".join(word[len(self.fixed) :]) for word in words if word not in kept]
        require(not same, "search", "be over keys and values that change the run", ", ".join(same))
        self._described = {name: describe(distribution) for name, distribution in space.items()}
        self._asked = {**asdict(search), "sampler": search.sampler.name, "seeds": [search.seed]}
        content = {
            **self._asked,
            "trials": None,
            "space": self._described,
            "ends": sorted(cell.plan.identity for cell in grid.cells),
        }
        keys = "-".join(re.sub(r"[^\w.]+", "_", name.rpartition(".")[2]) for name in space)
        name = f"search-{keys[:50]}-{digest(content)}"
        self.grid = Grid(name=name, folder=grid.folder.with_name(name), swept=tuple(space), cells=())
        line = f"{name}: {search.sampler.name}, {plural(search.trials, 'trial')} on seed {search.seed}"
        self.head = [line, *(f"  {axis}: {text}" for axis, text in self._described.items())]
        # below the table
        self.note = f"chosen on seed {search.seed}: what the settings are worth, other seeds tell"

    def run(self, devices: Devices, *, log: Callable[[str], None] = print) -> tuple[dict[str, Result], bool]:
        """Train what is missing, as many trials at once as there is room for. Identity → how a run ended, of
        this process, and whether a request to stop came.

        Errors:
            lease.HeldError: another process carries out this search.
            OSError, ValueError: its trials cannot be kept, or a run's record is damaged.
        """
        self.grid.folder.mkdir(parents=True, exist_ok=True)
        with lease.acquire(self.grid.folder) as lock:
            more = partial(self._batch, devices.at_once(self._base.run), lock.stage(), log)
            runner = Runner(self.of_trials(), devices, more=more, total=self.search.trials)
            results = runner.run()
            self._write(lock.stage())
            return results, runner.stopping

    def _batch(self, room: int, stage: Path, log: Callable[[str], None]) -> list[Cell]:
        """The runs of the next trials, written down before they begin. They know the losses of the batches
        before theirs. None: enough."""
        cells = list[Cell]()
        while not cells and (known := len(self._trials)) < self.search.trials:
            self.trials()  # which reads how those before ended
            begin = known // room * room
            for number in range(known + 1, min(begin + room, self.search.trials) + 1):
                before = [
                    (params_of(self.space, trial.words), trial.loss if trial.number <= begin else None)
                    for trial in self._trials
                ]
                trial = self.trial(number, words_of(self.space, propose(self.search, self.space, before)))
                self._trials.append(trial)
                self._write(stage)
                if trial.cell is None:
                    log(
                        f"trial {number}: {' '.join(trial.words)} cannot be trained, which is its result: "
                        f"{trial.reason}"
                    )
                else:
                    cells.append(trial.cell)
                    for notice in trial.cell.plan.notices:
                        log(f"note: {notice}")
        return cells

    def trial(self, number: int, words: tuple[str, ...]) -> Trial:
        try:
            composed = self._compose([*self.fixed, *words])
            planned = plan(composed.run, choices=composed.choices, datasets=self._datasets)
        except ValueError as error:
            if is_fault(error):
                raise
            return Trial(number=number, words=words, status="refused", reason=str(error))
        planned = replace(planned, grid=self.grid.name, swept=self.grid.swept)
        cell = Cell(overrides=composed.overrides, label=f"trial {number}: {' '.join(words)}", plan=planned)
        return Trial(number=number, words=words, cell=cell)

    def trials(self) -> list[Trial]:
        """What there is, the lowest loss first.

        Errors:
            ValueError: what lists them, or a run's record, is damaged.
        """
        if not self._trials and (kept := read_json(self.grid.folder / GRID)) is not None:
            listed = sorted(kept["trials"], key=lambda trial: trial["trial"])
            self._trials = [self.trial(n, tuple(trial["overrides"])) for n, trial in enumerate(listed, 1)]
        for trial in self._trials:
            if trial.cell and trial.status == "open" and (end := sound(trial.cell.plan)) is not None:
                trial.val_loss = end.get("val_loss") if end["status"] == "finished" else None
                trial.status = "diverged" if trial.val_loss is None else "finished"
        return sorted(
            self._trials,
            key=lambda candidate: (
                candidate.status == "refused",
                math.inf if candidate.loss is None else candidate.loss,
                candidate.number,
            ),
        )

    def of_trials(self) -> Grid:
        """The grid of all runs that there are."""
        cells = {trial.cell.plan.identity: trial.cell for trial in self.trials() if trial.cell is not None}
        return replace(self.grid, cells=tuple(cells.values()))

    def _write(self, stage: Path) -> None:
        more = {"search": self._asked, "space": self._described}
        trials = [trial.json() for trial in self.trials()]
        self.of_trials().write(more={**more, "trials": trials}, stage=stage)

    # --- what came of it ------------------------------------------------------------------------------------

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Head and rows."""
        said = {"finished": "", "open": "not finished"}
        rows = [
            [
                str(trial.number),
                loss(trial.val_loss),
                *(word.partition("=")[2] for word in trial.words),
                f"cannot be trained: {trial.reason}"
                if trial.status == "refused"
                else said.get(trial.status, trial.status),
            ]
            for trial in self.trials()
        ]
        return ["trial", "val loss", *self.space, ""], rows

    def page(self) -> str:
        from nocap.report import page

        trials, (names, rows) = self.trials(), self.table()
        best = trials[0]
        lowest = (
            f"; the lowest loss is {loss(best.val_loss)}, with {' '.join(best.words)}"
            if best.val_loss is not None
            else ""
        )
        axes = [
            {"name": name, "log": getattr(d, "log", False), "words": hasattr(d, "choices")}
            for name, d in self.space.items()
        ]
        ended = [
            (params_of(self.space, trial.words), trial.loss) for trial in trials if trial.loss is not None
        ]
        shares = [*weights(self.space, ended).items()]
        return page.render(
            "search",
            kind="nocap search",
            title=f"{plural(len(trials), 'trial')}{lowest}",
            data={"keys": axes, "weights": shares, "trials": [trial.json() for trial in trials]},
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
