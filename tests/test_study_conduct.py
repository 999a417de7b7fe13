"""What a study trains beside its arms: shorter schedules that branch, a search, as many steps as a budget allows."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nocap.store.measurement import Ending
from nocap.store.record import read_json
from nocap.study import conduct
from nocap.study.__main__ import main
from nocap.study.cells import Cells, FailedError, Wanted
from nocap.study.conduct import Tuned, carry_out
from nocap.study.keeper import Keeper
from nocap.study.measured import steps_to_target
from nocap.study.plan import OVERHEAD, StudyPlan, prepare, shorter, steps_for
from nocap.study.sessions import SessionError
from tests.attempts import state_of
from tests.conftest import REPO, Door, the_run
from tests.studies import LOSS, RACE, STEPS, STUDY, Json, at, law, loaded, record, study, written
from tests.test_search import fake as fake

COSINE = [*STUDY["overrides"], "schedule=cosine"]


def prepared(tmp_path: Path, *claims: Json, **changed: Any) -> StudyPlan:
    return prepare(loaded(tmp_path / "made", study(claims=list(claims), **changed)), "cpu", output_dir=str(tmp_path / "out"))


def without_training(
    monkeypatch: pytest.MonkeyPatch, losses: Callable[[Wanted], float | None] = lambda run: math.nan
) -> list[list[Wanted]]:
    """The runs of each call to train, of which none is trained. `losses`: null diverged, NaN not run."""
    asked: list[list[Wanted]] = []

    def records(cells: Cells, problems: list[str]) -> list[tuple[Wanted, Any]]:
        ends = [(run, losses(run)) for run, _ in cells.of]
        return [
            (run, record(run.arm, run.seed, run.composed.run.trainer.steps, loss))
            for run, loss in ends
            if loss is None or not math.isnan(loss)
        ]

    monkeypatch.setattr(Cells, "train", lambda cells, before_seed=None, watch=None: asked.append([run for run, _ in cells.of]) or {})
    monkeypatch.setattr(Cells, "records", records)
    return asked


# --- shorter schedules -------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_shorter_schedule_is_the_run_it_would_have_been(tmp_path: Path, door: Door, monkeypatch: pytest.MonkeyPatch):
    """In a race arms are trained whole and at half; the halves begin at the whole run's step 5, where their decay does."""
    monkeypatch.setenv("PYTHONPATH", str(REPO))
    content = study(claims=[STEPS], scales=at(lengths=[0.5], least_length=0.5))
    written(tmp_path / "made", content)
    assert main([str(tmp_path / "made"), f"output_dir={tmp_path / 'out'}"]) == 0
    manifests = {path.parent: read_json(path) or {} for path in (tmp_path / "out").glob("runs/*-flash-*/manifest.json")}
    assert len(manifests) == 6
    steps = {folder: manifest["parts"]["config"]["trainer"]["steps"] for folder, manifest in manifests.items()}
    whole = {manifests[folder]["identity"]: folder for folder, n in steps.items() if n == 12}
    halves = [folder for folder, n in steps.items() if n == 6]
    assert (len(whole), len(halves)) == (3, 3)
    for half in halves:
        begun = manifests[half]["init"]
        assert begun["step"] == 5
        base = whole[begun["identity"]]
        assert begun["path"] == str(base / "checkpoints" / "step-00000005")
        assert manifests[half]["parts"]["config"]["seed"] == manifests[base]["parts"]["config"]["seed"]

    half = next(folder for folder in halves if "-s1-" in folder.name)
    overrides = [*content["overrides"], *content["scales"]["cpu"]["train"], "attention=flash", "trainer.steps=6", "seed=1"]
    scratch = door(*overrides, f"output_dir={tmp_path / 'scratch'}")
    assert scratch.code == 0, scratch.err
    again = the_run(tmp_path / "scratch")
    assert (read_json(again / "manifest.json") or {})["init"] is None
    losses = [(read_json(folder / "summary.json") or {})["val_loss"] for folder in (half, again)]
    assert losses[0] == losses[1]
    assert state_of(half)[0] == state_of(again)[0]


@pytest.mark.slow
def test_where_a_shorter_schedule_begins(tmp_path: Path):
    """With wsd where its own decay does, if the long one is not decaying there yet; other schedules never run along."""

    def begins(*overrides: str, lengths: tuple[float, ...] = (0.25, 0.5, 0.75, 0.9)) -> list[tuple[int, int]]:
        plan = prepared(tmp_path, LOSS, overrides=[*STUDY["overrides"], "trainer.steps=100", *overrides], scales=at(lengths=list(lengths)))
        return [(short.composed.run.trainer.steps, short.branches_at) for short in shorter(plan, plan.train["mha"])]

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
    (short,) = shorter(plan, plan.train["mha"])
    assert short.branches_at == 5
    alone = short.of("mha", 2, record("mha", 2, 12, 3.0))  # its folder is nowhere
    assert alone is not None
    assert alone.composed.run.trainer.init_from is None
    assert (alone.composed.run.seed, alone.composed.run.trainer.steps) == (2, 6)
    assert short.of("mha", 2, record("mha", 2, 12, None)) is None  # nothing is learnt from an arm that diverges
    (short,) = shorter(plan, prepared(tmp_path, LOSS, overrides=COSINE).train["mha"])
    assert short.branches_at == 0


@pytest.mark.parametrize(
    ("gain", "then", "ending"),
    [
        (5.0, [("mqa", 16), ("mqa", 8)], Ending.measured),  # 64/5 lies between
        pytest.param(1.5, [], Ending.measured, marks=pytest.mark.slow),
        (100.0, [("mqa", 16), ("mqa", 8)], Ending.at_most),  # and no shorter: the least length is an eighth
        (0.3, [("mha", 16)], Ending.measured),  # the baseline reaches the arm's own end: there it is the one that goes on
    ],
)
def test_a_race_goes_on_until_its_loss_lies_between_two_lengths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gain: float, then: list[tuple[str, int]], ending: Ending
):
    def loss(run: Wanted) -> float:
        return law(run.composed.run.trainer.steps * (gain if run.arm == "mqa" else 1)) + 0.001 * run.seed

    asked, log = without_training(monkeypatch, loss), list[str]()
    scale = at(lengths=[0.5], least_length=0.125, train=["trainer.steps=64", "trainer.val_every=0"])
    plan = prepared(tmp_path, STEPS, scales=scale)
    monkeypatch.setattr(conduct, "places_of", lambda *args: [])
    done = carry_out(plan, run=True, log=log.append)
    ran = [{(one.arm, one.composed.run.trainer.steps) for one in runs} for runs in asked]
    assert ran == [{("mha", 64), ("mqa", 64)}, {("mha", 32), ("mqa", 32)}, *({one} for one in then)]
    assert [len(runs) for runs in asked[2:]] == [3] * len(then)
    found = {ending for _, ending in steps_to_target(plan.study.claims[0], plan.study, done.evidence).values()}
    assert found == {ending, Ending.measured}
    assert log == [f"{arm} reaches the loss of its race in its shortest schedule: {steps} steps are next" for arm, steps in then]
    again = carry_out(plan, run=False)
    assert again.evidence.lengths == done.evidence.lengths
    assert len(asked) == 2 + len(then)


# --- a search ----------------------------------------------------------------------------------------------------------------------

LRS = [["optimizer.lr=1e-3"], ["optimizer.lr=2e-3"], ["optimizer.lr=4e-3"]]
SEARCH: Json = {"seeds": [7, 8], "trials": {"mha": LRS}, "follow": {"mqa": "mha"}}


@pytest.fixture
def search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Tuned]:
    """Search without training: `losses` of learning rate and seed, null diverged, NaN not run."""

    def found(losses: Callable[[float, int], float | None], *, run: bool = True) -> Tuned:
        asked = without_training(monkeypatch, lambda wanted: losses(wanted.composed.run.optimizer.lr, wanted.seed))
        plan = prepared(tmp_path, LOSS, tune=SEARCH)
        tuned = conduct._tune(plan, Keeper(plan, writes=False), run=run, problems=[])
        assert [len(runs) for runs in asked] == [6] * run
        return tuned

    return found


def test_the_lowest_mean_over_its_seeds_wins_and_the_follower_takes_it(search: Any):
    table = {(1e-3, 7): 3.0, (1e-3, 8): 3.4, (2e-3, 7): 3.1, (2e-3, 8): 3.2, (4e-3, 7): 2.9, (4e-3, 8): 3.6}
    found = search(lambda lr, seed: table[lr, seed])
    assert found.overrides == {"mha": LRS[1], "mqa": LRS[1]}
    assert [trial.val_loss for trial in found.trials] == [pytest.approx(3.2), pytest.approx(3.15), pytest.approx(3.25)]
    assert [trial.picked for trial in found.trials] == [False, True, False]
    assert [trial.words for trial in found.trials] == LRS
    assert all((trial.arm, trial.seeds) == ("mha", [7, 8]) for trial in found.trials)
    assert [found.n_trials(arm) for arm in ("mha", "mqa")] == [3, 3]


def test_a_trial_that_diverged_on_any_seed_is_the_worst(search: Any):
    assert search(lambda lr, seed: None if (lr, seed) == (2e-3, 8) else lr).overrides["mha"] == LRS[0]
    found = search(lambda lr, seed: 9.0 if lr == 4e-3 else None)
    assert found.overrides["mha"] == LRS[2]
    assert [trial.val_loss for trial in found.trials] == [None, None, 9.0]
    with pytest.raises(ValueError, match=r"^tune.trials.mha must have a trial that does not diverge, got 3 that all did$"):
        search(lambda lr, seed: None)


def test_a_trial_that_was_not_run_on_every_seed_picks_nothing(search: Any):
    def half(lr: float, seed: int) -> float:
        return math.nan if (lr, seed) == (4e-3, 8) else 3.0

    found = search(half, run=False)
    assert found.overrides == {}
    assert not any(trial.picked for trial in found.trials)
    assert found.trials[2].val_loss is None
    with pytest.raises(FailedError, match="the search of mha has runs that failed, and picks nothing"):
        search(half)


def test_winners_are_what_the_arms_are_trained_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    asked = without_training(monkeypatch, lambda wanted: abs(wanted.composed.run.optimizer.lr - 2e-3))
    plan = prepared(tmp_path, LOSS, tune=SEARCH)
    done = carry_out(plan, run=True)
    assert [run.composed.run.optimizer.lr for run in asked[1]] == [2e-3] * 6
    assert [done.arms["train"][arm].overrides[-1] for arm in ("mha", "mqa")] == LRS[1] * 2
    assert carry_out(plan, run=True, only="mha").arms["train"].keys() == {"mha"}
    assert [run.composed.run.optimizer.lr for run in asked[3]] == [2e-3] * 3


# --- a budget ----------------------------------------------------------------------------------------------------------------------

PACE = {"mha": 1e-5, "mqa": 2e-5}  # seconds a token; 512 tokens a step


def test_a_budgets_steps_by_hand(tmp_path: Path):
    def steps(hours: float, *claims: Json, **changed: Any) -> int:
        return steps_for(prepared(tmp_path, *claims, **changed), PACE, hours)

    hours = 1.0
    a_step = 3 * 1e-5 * 512 + 3 * 2e-5 * 512  # three seeds of each arm
    assert steps(hours, LOSS) == math.floor(hours * 3600 / OVERHEAD / a_step / 16) * 16 == 67920
    assert steps(hours, LOSS, scales=at(lengths=[0.25, 0.5])) == 67920  # nothing races
    race = a_step * 1.75  # both again at a quarter and half
    assert steps(hours, RACE, scales=at(lengths=[0.25, 0.5])) == math.floor(hours * 3600 / OVERHEAD / race / 16) * 16
    tuned = a_step + 3 * 2 * 1e-5 * 512  # three trials on two seeds, of the arm that leads
    assert steps(hours, LOSS, tune=SEARCH) == math.floor(hours * 3600 / OVERHEAD / tuned / 16) * 16
    least = 16 * a_step * OVERHEAD / 3600
    assert steps(least * 1.001, LOSS) == 16
    with pytest.raises(ValueError, match=rf"^budget_h must allow 16 steps of every run, {least:.2g} h, got"):
        steps(least * 0.999, LOSS)


def test_the_same_budget_goes_on_with_the_same_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pilots, log = list[list[str]](), list[str]()
    asked = without_training(monkeypatch)

    def run_all(sessions: Any, folder: Path, **how: Any) -> list[Json]:
        pilots.append([one.what for one in sessions])
        speed = 1 if len(pilots) == 1 else 2  # a second pilot would find another pace
        return [{"measured": {"arms": {arm: {"tokens_per_s": speed / s} for arm, s in PACE.items()}}} for _ in sessions]

    monkeypatch.setattr(conduct, "run_all", run_all)
    plan = prepared(tmp_path, LOSS, scales=at(budget=True))
    for _ in range(2):
        done = carry_out(plan, run=True, budget_h=0.01, log=log.append)
        assert {arm.run.trainer.steps for arm in done.arms["train"].values()} == {672}
        assert {run.composed.run.trainer.steps for run in asked[-1]} == {672}
    assert pilots == [["pace"]]
    kept = json.loads((plan.folder / "budget-0.01h.json").read_text())
    assert (kept["budget_h"], kept["steps"]) == (0.01, 672)
    assert "0.01 h are 672 steps a run" in log

    assert carry_out(plan, run=False, budget_h=0.01, log=log.append).arms["train"]["mha"].run.trainer.steps == 672
    with pytest.raises(ValueError, match=r"budget_h must be one that the study was begun with, to be judged, got 0.02"):
        carry_out(plan, run=False, budget_h=0.02)
    carry_out(plan, run=True, budget_h=0.02, only="mha")  # the steps come from the whole study's arms, and from a new pilot
    assert pilots == [["pace"], ["pace"]]
    steps = math.floor(0.02 * 3600 / OVERHEAD / (0.5 * 3 * 512 * 3e-5) / 16) * 16
    assert {run.composed.run.trainer.steps for run in asked[-1]} == {steps}


def test_a_pilot_that_fails_ends_its_study_in_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    def fails(*args: Any, **how: Any) -> None:
        raise SessionError("pace, seed 0: no memory; see a.log")

    monkeypatch.setattr(conduct, "run_all", fails)
    written(tmp_path / "made", study(scales=at(budget=True)))
    assert main([str(tmp_path / "made"), f"output_dir={tmp_path / 'out'}", "budget_h=1"]) == 1
    assert capsys.readouterr().err == "nocap: made: pace, seed 0: no memory; see a.log\n"
    assert not (tmp_path / "out" / "runs").exists()
