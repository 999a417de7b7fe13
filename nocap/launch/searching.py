"""A search carried out: its trials are trained like the cells of a grid. It chooses settings and is no evidence for a claim.

Optuna keeps the trials, in SQLite in the search's folder; their runs are found by their identity, and lie beside all others. No torch here.
"""

from __future__ import annotations

import errno
import math
import re
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nocap.config.compose import Composed, as_in
from nocap.config.keys import is_fault, require
from nocap.launch.grid import Cell, Datasets, Grid, RefusedError, Result
from nocap.launch.plan import plan, sound
from nocap.launch.runner import Runner
from nocap.launch.search import Search, Space, describe, ends, optuna, propose, words_of
from nocap.options.launcher import Slots
from nocap.store import lease
from nocap.store.identity import digest

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

FILE = "search.db"
Compose = Callable[[Sequence[str]], Composed]
Log = Callable[[str], None]


class Trials:
    """A search's trials, in SQLite as Optuna has it. Each change is one transaction: after a kill it was made, or it was not."""

    def __init__(self, path: Path) -> None:
        """
        Errors:
            OSError: it cannot be written. ValueError: what is there is something else.
        """
        tools = optuna()
        self._path, self._made = path, tools.trial.create_trial
        self._states = tools.trial.TrialState
        require(not path.is_symlink() and (path.is_file() or not path.exists()), str(path), "be a file, or not be there", "something else")
        connect = {"creator": lambda: sqlite3.connect(path)}  # no name of a folder is read as a part of a URL
        with self._disk():
            self._storage = tools.storages.RDBStorage("sqlite://", engine_kwargs=connect)
            self._study = tools.create_study(storage=self._storage, study_name="search", load_if_exists=True)

    def all(self) -> list[FrozenTrial]:
        with self._disk():
            return list(self._study.get_trials(deepcopy=False))

    def add(self, params: Mapping[str, Any], space: Space, *, refused: str | None = None) -> None:
        """Add a trial, which now runs; one that was `refused` has ended, as the worst."""
        ended = {"state": self._states.RUNNING} if refused is None else {"value": math.inf, "user_attrs": {"refused": refused}}
        with self._disk():
            self._study.add_trial(self._made(params=dict(params), distributions=space, **ended))

    def tell(self, number: int, loss: float) -> None:
        with self._disk():
            self._study.tell(number, loss)

    def close(self) -> None:
        self._storage.remove_session()
        self._storage.engine.dispose()

    @contextmanager
    def _disk(self) -> Iterator[None]:
        from optuna.exceptions import StorageInternalError
        from sqlalchemy.exc import DatabaseError, OperationalError

        try:
            yield
        except (DatabaseError, StorageInternalError, RuntimeError) as error:
            cause = error.__cause__ if isinstance(error, StorageInternalError) and error.__cause__ else error
            said = str(getattr(cause, "orig", cause)).strip().splitlines()[0]
            if isinstance(cause, OperationalError):
                raise OSError(errno.EIO, said, str(self._path)) from error
            remedy = "move it away, and the search begins again with the runs that there are"
            raise ValueError(f"{self._path} must be a search's trials, got {said}; {remedy}") from error


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """A trial as people see it."""

    number: int  # from 1
    words: tuple[str, ...]
    status: str  # finished, diverged, refused, open
    screened: float | None  # the loss after the shorter schedule, where there is one
    val_loss: float | None  # after the whole schedule
    reason: str | None = None  # why it was refused
    whole: Cell | None = None  # its run of the whole schedule, where it has one

    @property
    def order(self) -> tuple[float, float]:
        """The lowest loss first, and of the rest the lowest that was screened."""
        return tuple(math.inf if loss is None else loss for loss in (self.val_loss, self.screened))  # type: ignore[return-value]


class Searching:
    """A search, checked and ready to be carried out.

    Errors:
        RefusedError: the space's ends cannot be trained. Nothing has been written but the data's cache.
    """

    def __init__(self, search: Search, space: Space, *, fixed: Sequence[str], compose: Compose) -> None:
        """`fixed`: the overrides of every trial. The space's first end decides the precision and compilation of all."""
        require(bool(space), "search", "have something to search, as in 'optimizer.lr=tag(log, interval(1e-4, 1e-2))'", "no such override")
        require("seed" not in space, "seed", "be left to search.seed: every trial has the same", "a sweep")
        self.search, self.space, self.fixed = search, space, tuple(fixed)
        self._compose, self._datasets = compose, Datasets()
        self._base: Composed | None = None
        self._known: dict[int, Cell] = {}  # trial → its run of the length that it is proposed by
        self._whole: dict[int, Cell] = {}
        self._kept: list[FrozenTrial] | None = None  # of `FILE`, when it was last read
        self.results: dict[str, Result] = {}  # identity → how a run ended, of this process
        self.stopped = self._enough = False
        self._stage: Path | None = None  # of the search's lease
        self.grid = self._checked()

    # --- cells ---------------------------------------------------------------------------------------------------------------------------

    def _checked(self) -> Grid:
        """Whether the space's ends can be trained. The same search has the same folder."""
        refused: dict[str, str] = {}  # reason → the first place
        found: dict[tuple[str, ...], Cell] = {}
        for words in (tried := ends(self.space)):
            try:
                for share in dict.fromkeys([self.search.screen, None]):
                    found[words] = self.cell(words, "", share=share)
            except ValueError as error:
                if is_fault(error):
                    raise
                found.pop(words, None)
                name = str(error).partition(":")[0]
                if name in self.space and "converted to Integer" in str(error):
                    error = ValueError(f"{name} must be whole numbers, as int(interval(…)) draws them, got {describe(self.space[name])}")
                refused.setdefault(str(error), " ".join(words))
        if refused:
            everywhere = len(refused) == 1 and not found
            raise RefusedError([reason if everywhere else f"{where}: {reason}" for reason, where in refused.items()])
        for i, (name, distribution) in enumerate(self.space.items()):
            others = [words[:i] + words[i + 1 :] for words in tried]
            mine = {found[words].plan.identity for words, other in zip(tried, others, strict=True) if other == others[0]}  # it alone varies
            require(len(mine) > 1, name, "be a key that changes the run, at two values or more", describe(distribution))
        content = asdict(self.search) | {"sampler": self.search.sampler.name, "seeds": (self.search.seed,), "trials": None}
        content |= {"space": {name: describe(one) for name, one in self.space.items()}}
        content |= {"ends": sorted(cell.plan.identity for cell in found.values())}
        names = "-".join(re.sub(r"[^\w.]+", "_", name.rpartition(".")[2]) for name in self.space)
        name = f"search-{names[:50]}-{digest(content)}"
        root = next(iter(found.values())).plan.run_dir.parents[1] / "grids"
        return Grid(name=name, folder=root / name, swept=tuple(self.space), cells=())

    def cell(self, words: Sequence[str], label: str, *, share: float | None) -> Cell:
        """The run of a trial, or that of a whole schedule of this `share` of its steps.

        Errors:
            ValueError: there is no such run.
        """
        composed = self._arm([*self.fixed, *words, f"seed={self.search.seed}"])
        if share is not None:
            composed = self._arm([*composed.overrides, f"trainer.steps={max(1, round(share * composed.run.trainer.steps))}"])
        planned = plan(composed.run, choices=composed.choices, dataset=self._datasets.of(composed.run))
        if label:
            planned = replace(planned, grid=self.grid.name, swept=self.grid.swept)
        return Cell(overrides=composed.overrides, label=label, plan=planned)

    def _arm(self, words: Sequence[str]) -> Composed:
        found = as_in(self._base, words, self._compose)
        self._base = self._base or found
        return found

    # --- trials --------------------------------------------------------------------------------------------------------------------------

    def run(self, slots: Slots, *, log: Log = print) -> None:
        """Train what is missing, as many trials at once as there is room for.

        Errors:
            lease.HeldError: another process carries out this search.
            OSError, ValueError: its trials cannot be kept, or a run's record is damaged.
        """
        self.grid.folder.mkdir(parents=True, exist_ok=True)
        with lease.acquire(self.grid.folder) as held:
            self._stage = held.stage()
            trials = Trials(self.grid.folder / FILE)
            try:
                self._run(trials, slots, log)
            finally:
                trials.close()

    def _run(self, trials: Trials, slots: Slots, log: Log) -> None:
        self._read(trials.all())
        runner = Runner(self._with(self._known), slots=slots, more=lambda: self._next(trials, log), total=self.search.trials)
        self.results |= runner.run()
        lease.check(self._stage)
        self._tell(trials)
        self.stopped = runner.stopping
        self._kept = trials.all()
        self._promote(self._kept)
        if not self.stopped and self.search.screen is not None:
            runner = Runner(self._with(self._whole), slots=slots)
            self.results |= runner.run()
            lease.check(self._stage)
            self.stopped = runner.stopping

    def cells(self) -> list[Cell]:
        """Of all runs that there are or will be."""
        return [*self._known.values(), *(self._whole.values() if self.search.screen is not None else ())]

    def _with(self, cells: Mapping[int, Cell]) -> Grid:
        return replace(self.grid, cells=tuple(cells.values()))

    def _read(self, trials: Sequence[FrozenTrial]) -> None:
        """The runs of the trials that there are."""
        for trial in trials:
            if "refused" not in trial.user_attrs:
                self._known[trial.number] = self._short(trial.number, trial.params)

    def _short(self, number: int, params: Mapping[str, Any]) -> Cell:
        words, share = words_of(self.space, params), self.search.screen
        at = f", {share:g} of its steps" if share is not None else ""
        return self.cell(words, f"trial {number + 1}{at}: {' '.join(words)}", share=share)

    def _next(self, trials: Trials, log: Log) -> list[Cell]:
        """The run of a new trial, of which there is a record before they begin. None: there are enough."""
        lease.check(self._stage)
        while not self._enough and (number := len(before := trials.all())) < self.search.trials:
            if self._tell(trials, before):
                continue
            params = propose(self.search, self.space, before)
            try:
                cell = self._short(number, params)
            except ValueError as error:
                if is_fault(error):
                    raise
                trials.add(params, self.space, refused=str(error))
                log(f"trial {number + 1}: {' '.join(words_of(self.space, params))} cannot be trained, which is its result: {error}")
                continue
            trials.add(params, self.space)
            for notice in cell.plan.notices:
                log(f"note: {notice}")
            if twin := next((one for one in self._known.values() if one.plan.identity == cell.plan.identity), None):
                log(f"trained once, it is the same run: {cell.label} and {twin.label}")
            self._known[number] = cell
            return [cell]
        self._enough = True
        return []

    def _tell(self, trials: Trials, now: Sequence[FrozenTrial] | None = None) -> bool:
        """Note the losses of the trials whose runs have ended since; whether there are any."""
        open_ = [trial.number for trial in (trials.all() if now is None else now) if not trial.state.is_finished()]
        losses = {number: loss for number in open_ if (loss := _loss(self._known[number])) is not None}
        for number, loss in losses.items():
            trials.tell(number, loss)
        return bool(losses)

    def _promote(self, trials: Sequence[FrozenTrial]) -> None:
        """The trials that are trained in whole: all; or of those that were screened, the best share (successive halving, arXiv:1502.07943,
        but over whole schedules: half-way through a run the order says little)."""
        share = self.search.screen
        if share is None:
            self._whole = dict(self._known)
        elif len(trials) >= self.search.trials and not self.stopped:
            losses = {one.number: one.value for one in trials if one.value is not None and math.isfinite(one.value)}
            for number in sorted(losses, key=lambda number: (losses[number], number))[: math.ceil(share * len(trials))]:
                words = words_of(self.space, trials[number].params)
                self._whole[number] = self.cell(words, f"trial {number + 1}: {' '.join(words)}", share=None)

    # --- what came of it -----------------------------------------------------------------------------------------------------------------

    def trials(self) -> list[Trial]:
        """What there is, the lowest loss first: those of whole schedules before those that were only screened."""
        path = self.grid.folder / FILE
        if self._kept is None and path.is_file():
            trials = Trials(path)
            try:
                self._kept = trials.all()
            finally:
                trials.close()
            self._read(self._kept)
            self._promote(self._kept)
        found = [self._trial(one) for one in self._kept or ()]
        return sorted(found, key=lambda trial: (trial.status == "refused", trial.order, trial.number))

    def _trial(self, trial: FrozenTrial) -> Trial:
        refused, whole = trial.user_attrs.get("refused"), self._whole.get(trial.number)
        first, last = _loss(self._known.get(trial.number)), _loss(whole)
        is_open = refused is None and (first is None or (whole is not None and last is None))
        return Trial(
            number=trial.number + 1,
            words=words_of(self.space, trial.params),
            status="refused" if refused else "open" if is_open else "diverged" if math.inf in (first, last) else "finished",
            screened=None if self.search.screen is None else _finite(first),
            val_loss=_finite(last),
            reason=refused,
            whole=whole,
        )


def _loss(cell: Cell | None) -> float | None:
    """The validation loss of this run, infinite where it diverged. None: it has not ended."""
    end = None if cell is None else sound(cell.plan)
    if not end:
        return None
    return math.inf if end["status"] == "diverged" or end.get("val_loss") is None else float(end["val_loss"])


def _finite(loss: float | None) -> float | None:
    return loss if loss is not None and math.isfinite(loss) else None
