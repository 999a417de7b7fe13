"""A study that is carried out without training or timing: its runs and sessions are made by functions, and everything else is real."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from nocap.store.record import read_json, write_json
from nocap.store.runs import Record
from nocap.study import conduct, sittings
from nocap.study.cells import Cells, Wanted
from nocap.study.conduct import carry_out
from nocap.study.keeper import Keeper
from nocap.study.ledger import FILE, Ledger, read
from nocap.study.plan import StudyPlan, prepare
from nocap.study.results import results
from nocap.study.sessions import Session
from tests.studies import SEEN, Json, loaded, record, study


@dataclass
class Lab:
    root: Path
    loss: Callable[[Wanted], float] = lambda run: 3.0 + 0.001 * run.seed
    speed: Callable[[str, int], float] = lambda arm, seed: 1000.0 * (1.25 if arm == "mqa" else 1) + seed
    trained: list[Wanted] = field(default_factory=list)
    timed: list[Session] = field(default_factory=list)
    log: list[str] = field(default_factory=list)
    dies_after: float = float("inf")  # of so many runs: the command is killed when the next one has begun
    _made: dict[str, Record] = field(default_factory=dict)  # folder → its record
    _clock: Any = field(default_factory=itertools.count)

    def now(self) -> str:
        minutes, seconds = divmod(next(self._clock), 60)
        return f"2025-11-22T12:{minutes:02}:{seconds:02}+00:00"

    def plan(self, out: str = "out", folder: str = "made", **changed: Any) -> StudyPlan:
        return prepare(loaded(self.root / folder, study(**changed)), "cpu", output_dir=str(self.root / out))

    def carry(self, out: str = "out", folder: str = "made", *, run: bool = True, **changed: Any) -> dict[str, Json]:
        """Claim → its row."""
        self.log = []
        plan = self.plan(out, folder, **changed)
        done = carry_out(plan, run=run, log=self.log.append)
        hardware = {"fingerprint": Keeper(plan, writes=False).common["machine"]}
        ledger = read(plan.ledger) if plan.ledger else Ledger()
        return {claim["id"]: claim for claim in results(plan, done, ledger=ledger, hardware=hardware, command="made")["claims"]}

    @property
    def ledger(self) -> Path:
        return self.root / "made" / FILE

    def lines(self, *events: str) -> list[Json]:
        return [dict(line) for line in read(self.ledger).lines if not events or line["event"] in events]

    # --- what stands in for the machine --------------------------------------------------------------------------------------------

    def train(self, cells: Cells, before_seed: Callable[[], None] | None, watch: Any) -> None:
        for run, cell in cells.of:
            if before_seed:
                before_seed()
            folder = cell.plan.run_dir
            if folder.exists():
                continue
            watch(run, cell, "begun")
            if len(self.trained) >= self.dies_after:
                raise KeyboardInterrupt
            folder.mkdir(parents=True)
            made = record(run.arm, run.seed, run.composed.run.trainer.steps, self.loss(run), started=self.now())
            self._made[str(folder)] = replace(made, folder=folder, identity=cell.plan.identity)
            self.trained.append(run)

    def records(self, cells: Cells, problems: list[str]) -> list[tuple[Wanted, Record]]:
        return [(run, self._made[str(cell.plan.run_dir)]) for run, cell in cells.of if cell.plan.run_dir.exists()]

    def run_all(self, sessions: Sequence[Session], folder: Path, *, log: Any) -> list[Json]:
        for one in sessions:
            if one.found(folder) is None:
                arms = {arm: {**SEEN, "tokens_per_s": self.speed(arm, one.seed), "step_ms": 1.0} for arm in one.arms}
                words = {arm: list(made.overrides) for arm, made in one.arms.items()}
                content = {"kind": one.kind, "seed": one.seed, "started": self.now(), "arms": words, "measured": {"arms": arms}}
                write_json(one.path(folder), content)
                self.timed.append(one)
        return [read_json(one.path(folder)) or {} for one in sessions]


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    made = Lab(tmp_path)
    monkeypatch.setattr(Cells, "train", lambda cells, before_seed=None, watch=None: made.train(cells, before_seed, watch))
    monkeypatch.setattr(Cells, "records", lambda cells, problems: made.records(cells, problems))
    for place in (conduct, sittings):
        monkeypatch.setattr(place, "run_all", made.run_all)
    monkeypatch.setattr("nocap.study.ledger.now", made.now)
    for place in ("nocap.study.sessions", "nocap.store.identity"):  # a third of the time, and what they find stays the same
        monkeypatch.setattr(f"{place}.source_hashes", lambda run, of="identity": {})
    return made
