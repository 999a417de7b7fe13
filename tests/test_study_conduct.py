"""What a study trains beside its arms: shorter schedules that branch, a search, as many steps as a budget allows."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nocap.launch.grid import Cell
from nocap.store.record import read_json
from nocap.study import budget, conduct, training, tuning
from nocap.study.__main__ import main
from nocap.study.budget import OVERHEAD, steps_for
from nocap.study.conduct import carry_out
from nocap.study.prepared import Prepared, lengths_of, prepare
from nocap.study.sessions import SessionError
from tests.attempts import state_of
from tests.conftest import REPO, Door, the_run
from tests.studies import LOSS, Json, at, claim, loaded, record, study, written

RACE = claim(LOSS, id="M.time", metric="time_to_target_s", scale="ratio", expected=[1.05, None], target="baseline")
COSINE = [*study()["words"], "schedule=cosine"]


def prepared(tmp_path: Path, *claims: Json, **changed: Any) -> Prepared:
    return prepare(loaded(tmp_path / "made", study(claims=list(claims), **changed)), "cpu", output_dir=str(tmp_path / "out"))


# --- shorter schedules -------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_shorter_schedule_is_the_run_it_would_have_been(
    tmp_path: Path, door: Door, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """Calibrated: the baseline alone is trained, whole and at half; the halves begin at the trunk's step 5, where their decay does."""
    monkeypatch.setenv("PYTHONPATH", str(REPO))
    content = study(claims=[LOSS], scales=at(lengths=[0.5]))
    written(tmp_path / "made", content)
    assert main([str(tmp_path / "made"), f"output_dir={tmp_path / 'out'}", "--calibrate"]) == 0
    said = capsys.readouterr().out
    place = tmp_path / "out" / "studies" / "made" / "cpu"
    assert not (place / "sessions").exists()
    manifests = {path.parent: read_json(path) or {} for path in place.glob("runs/*/manifest.json")}
    assert len(manifests) == 6
    assert all("-flash-" in folder.name for folder in manifests)
    steps = {folder: manifest["parts"]["config"]["trainer"]["steps"] for folder, manifest in manifests.items()}
    whole = {manifests[folder]["identity"]: folder for folder, n in steps.items() if n == 12}
    halves = [folder for folder, n in steps.items() if n == 6]
    assert (len(whole), len(halves)) == (3, 3)
    for half in halves:
        begun = manifests[half]["init"]
        assert begun["step"] == 5
        trunk = whole[begun["identity"]]
        assert begun["path"] == str(trunk / "checkpoints" / "step-00000005")
        assert manifests[half]["parts"]["config"]["seed"] == manifests[trunk]["parts"]["config"]["seed"]

    half = next(folder for folder in halves if "-s1-" in folder.name)
    words = [*content["words"], *content["scales"]["cpu"]["train"], "attention=flash", "trainer.steps=6", "seed=1"]
    scratch = door(*words, f"output_dir={tmp_path / 'scratch'}")
    assert scratch.code == 0, scratch.err
    again = the_run(tmp_path / "scratch")
    assert (read_json(again / "manifest.json") or {})["init"] is None
    losses = [(read_json(folder / "summary.json") or {})["val_loss"] for folder in (half, again)]
    assert losses[0] == losses[1]
    assert state_of(half)[0] == state_of(again)[0]

    ends = {folder: (read_json(folder / "summary.json") or {})["val_loss"] for folder in manifests}
    of_seed = {manifests[folder]["parts"]["config"]["seed"]: folder for folder in halves}
    slopes = [(ends[of_seed[manifests[t]["parts"]["config"]["seed"]]] - ends[t]) / math.log(2) for t in whole.values()]
    assert said.splitlines()[-1].startswith(f"exchange rate: {sum(slopes) / 3:.4f} [")
    assert "between 6 and 12 steps of mha (n=3)" in said


def test_where_a_shorter_schedule_begins(tmp_path: Path):
    """With wsd where its own decay does, if the long one is not decaying there yet; other schedules never run along."""

    def begins(*words: str, lengths: tuple[float, ...] = (0.25, 0.5, 0.75, 0.9)) -> list[tuple[int, int]]:
        plan = prepared(tmp_path, LOSS, words=[*study()["words"], "trainer.steps=100", *words], scales=at(lengths=list(lengths)))
        return [(short.composed.run.trainer.steps, short.branches_at) for short in lengths_of(plan, plan.train["mha"])]

    # decay 5, 10, 16, 19 of 25, 50, 75, 90 steps; the whole decays from 79
    assert begins() == [(25, 20), (50, 40), (75, 59), (90, 71)]
    assert begins("schedule.decay_steps=40", lengths=(0.25 * 2, 0.9)) == [(50, 10), (90, 50)]
    assert begins("schedule.decay_steps=30", "schedule.warmup_steps=20", lengths=(0.5,)) == [(50, 20)]
    with pytest.raises(ValueError, match=r"^scales.cpu.lengths: 25 of 100 steps: schedule.decay_steps must leave room .*, got 40$"):
        begins("schedule.decay_steps=40", lengths=(0.25,))
    assert begins("schedule.decay_steps=2", lengths=(0.99,)) == [(99, 97)]
    assert begins("schedule=cosine", lengths=(0.5,)) == begins("schedule=linear", lengths=(0.5,)) == [(50, 0)]


def test_without_its_checkpoint_a_shorter_schedule_is_trained_from_its_start(tmp_path: Path):
    plan = prepared(tmp_path, LOSS, scales=at(lengths=[0.5]))
    (short,) = lengths_of(plan, plan.train["mha"])
    assert short.branches_at == 5
    alone = short.of("mha", 2, record("mha", 2, 12, 3.0))  # its folder is nowhere
    assert alone is not None
    assert alone.composed.run.trainer.init_from is None
    assert (alone.composed.run.seed, alone.composed.run.trainer.steps) == (2, 6)
    assert short.of("mha", 2, record("mha", 2, 12, None)) is None  # nothing is learnt from an arm that diverges
    (short,) = lengths_of(plan, prepared(tmp_path, LOSS, words=COSINE).train["mha"])
    assert short.branches_at == 0


# --- a search ----------------------------------------------------------------------------------------------------------------------

LRS = [["optimizer.lr=1e-3"], ["optimizer.lr=2e-3"], ["optimizer.lr=4e-3"]]
SEARCH: Json = {"seeds": [7, 8], "trials": {"mha": LRS}, "follow": {"mqa": "mha"}}
Losses = Callable[[float, int], float | None]


@pytest.fixture
def searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Search without training: `losses` of learning rate and seed, null diverged, NaN not run."""

    def search(losses: Losses, *, run: bool = True, **changed: Any) -> tuning.Tuned:
        def told(cell: Cell, *, problems: list[str]) -> Any:
            lr, seed = cell.plan.run.optimizer.lr, cell.plan.run.seed
            loss = losses(lr, seed)
            return None if loss is not None and math.isnan(loss) else record("mha", seed, 12, loss)

        monkeypatch.setattr(tuning, "train", lambda grid: trained.append(len(grid.cells)) or {})
        monkeypatch.setattr(training, "record_of", told)
        plan = prepared(tmp_path, LOSS, tune={**SEARCH, **changed})
        return tuning.tune(plan.study, plan.train, claims=plan.claims, run=run, problems=[])

    trained: list[int] = []
    search.trained = trained  # type: ignore[attr-defined]
    return search


def test_the_lowest_mean_over_its_seeds_wins_and_the_follower_takes_it(searched: Any):
    table = {(1e-3, 7): 3.0, (1e-3, 8): 3.4, (2e-3, 7): 3.1, (2e-3, 8): 3.2, (4e-3, 7): 2.9, (4e-3, 8): 3.6}
    found = searched(lambda lr, seed: table[lr, seed])
    assert searched.trained == [6]
    assert found.words == {"mha": LRS[1], "mqa": LRS[1]}
    assert [trial["val_loss"] for trial in found.trials] == [pytest.approx(3.2), pytest.approx(3.15), pytest.approx(3.25)]
    assert [trial["picked"] for trial in found.trials] == [False, True, False]
    assert [trial["words"] for trial in found.trials] == LRS
    assert all((trial["arm"], trial["seeds"]) == ("mha", [7, 8]) for trial in found.trials)


def test_a_trial_that_diverged_on_any_seed_is_the_worst(searched: Any):
    found = searched(lambda lr, seed: None if (lr, seed) == (2e-3, 8) else lr)
    assert found.words["mha"] == LRS[0]
    found = searched(lambda lr, seed: 9.0 if lr == 4e-3 else None)
    assert found.words["mha"] == LRS[2]
    assert [trial["val_loss"] for trial in found.trials] == [None, None, 9.0]
    with pytest.raises(ValueError, match=r"^tune.trials.mha must have a trial that does not diverge, got 3 that all did$"):
        searched(lambda lr, seed: None)


def test_a_trial_that_was_not_run_on_every_seed_picks_nothing(searched: Any):
    def half(lr: float, seed: int) -> float:
        return math.nan if (lr, seed) == (4e-3, 8) else 3.0

    found = searched(half, run=False)
    assert found.words == {}
    assert not any(trial["picked"] for trial in found.trials)
    assert found.trials[2]["val_loss"] is None
    assert searched.trained == []
    with pytest.raises(tuning.FailedError, match="the search of mha has runs that failed, and picks nothing"):
        searched(half)


def test_winners_are_what_the_arms_are_trained_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    seen: list[list[float]] = []
    monkeypatch.setattr(tuning, "train", lambda grid: {})
    monkeypatch.setattr(
        training, "record_of", lambda cell, problems: record("mha", cell.plan.run.seed, 12, abs(cell.plan.run.optimizer.lr - 2e-3))
    )
    monkeypatch.setattr(conduct, "train", lambda grid: seen.append([cell.plan.run.optimizer.lr for cell in grid.cells]) or {})
    plan = prepared(tmp_path, LOSS, tune=SEARCH)
    done = carry_out(plan, run=True)
    assert seen == [[2e-3] * 6]
    assert [done.arms["train"][arm].overrides[-1] for arm in ("mha", "mqa")] == LRS[1] * 2
    assert carry_out(plan, run=True, only="mha").arms["train"].keys() == {"mha"}
    assert seen[1] == [2e-3] * 3


# --- a budget ----------------------------------------------------------------------------------------------------------------------

PACE = {"mha": 1e-5, "mqa": 2e-5}  # seconds a token; 512 tokens a step


def test_a_budgets_steps_by_hand(tmp_path: Path):
    def steps(hours: float, *claims: Json, **changed: Any) -> int:
        return steps_for(prepared(tmp_path, *claims, **changed), PACE, hours)

    hours = 1.0
    a_step = 3 * 1e-5 * 512 + 3 * 2e-5 * 512  # three seeds of each arm
    assert steps(hours, LOSS) == math.floor(hours * 3600 / OVERHEAD / a_step / 16) * 16 == 67920
    half = a_step + 3 * 0.75 * 1e-5 * 512  # the baseline again at a quarter and half
    assert steps(hours, LOSS, scales=at(lengths=[0.25, 0.5])) == math.floor(hours * 3600 / OVERHEAD / half / 16) * 16
    race = half + 3 * 0.75 * 2e-5 * 512
    assert steps(hours, RACE, scales=at(lengths=[0.25, 0.5])) == math.floor(hours * 3600 / OVERHEAD / race / 16) * 16
    tuned = a_step + 3 * 2 * 1e-5 * 512  # three trials on two seeds, of the arm that leads
    assert steps(hours, LOSS, tune=SEARCH) == math.floor(hours * 3600 / OVERHEAD / tuned / 16) * 16
    least = 16 * a_step * OVERHEAD / 3600
    assert steps(least * 1.001, LOSS) == 16
    with pytest.raises(ValueError, match=rf"^budget_h must allow 16 steps of every run, {least:.2g} h, got"):
        steps(least * 0.999, LOSS)


def test_the_same_budget_goes_on_with_the_same_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    held, trained = list[list[str]](), list[set[int]]()

    def hold_all(sessions: Any, folder: Path, **how: Any) -> list[Json]:
        held.append([one.what for one in sessions])
        speed = 1 if len(held) == 1 else 2  # a second pilot would find another pace
        return [{"measured": {"arms": {arm: {"tokens_per_s": speed / s} for arm, s in PACE.items()}}} for _ in sessions]

    monkeypatch.setattr(budget, "hold_all", hold_all)
    monkeypatch.setattr(conduct, "train", lambda grid: trained.append({cell.plan.run.trainer.steps for cell in grid.cells}) or {})
    plan = prepared(tmp_path, LOSS, scales=at(budget=True))
    said: list[str] = []
    for _ in range(2):
        done = carry_out(plan, run=True, budget_h=0.01, say=said.append)
        assert {arm.run.trainer.steps for arm in done.arms["train"].values()} == {672}
    assert held == [["pace"]]
    assert trained == [{672}, {672}]
    kept = json.loads((plan.folder / "budget-0.01h.json").read_text())
    assert (kept["budget_h"], kept["steps"]) == (0.01, 672)
    assert "0.01 h are 672 steps a run" in said

    assert carry_out(plan, run=False, budget_h=0.01, say=said.append).arms["train"]["mha"].run.trainer.steps == 672
    with pytest.raises(ValueError, match=r"budget_h must be one that the study was begun with, to be judged, got 0.02"):
        carry_out(plan, run=False, budget_h=0.02)
    carry_out(plan, run=True, budget_h=0.02, only="mha")  # of which the whole study's arms decide, and a new pilot
    assert held == [["pace"], ["pace"]]
    assert trained[-1] == {math.floor(0.02 * 3600 / OVERHEAD / (0.5 * 3 * 512 * 3e-5) / 16) * 16}


def test_a_pilot_that_fails_ends_its_study_in_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    def fails(*args: Any, **how: Any) -> None:
        raise SessionError("pace, seed 0: no memory; see a.log")

    monkeypatch.setattr(budget, "hold_all", fails)
    written(tmp_path / "made", study(scales=at(budget=True)))
    assert main([str(tmp_path / "made"), f"output_dir={tmp_path / 'out'}", "budget_h=1"]) == 1
    assert capsys.readouterr().err == "nocap: made: pace, seed 0: no memory; see a.log\n"
    assert not (tmp_path / "out").exists()
