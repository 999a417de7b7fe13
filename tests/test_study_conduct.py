"""How a study is carried out: analyses, a search, races, sessions apart in time, a killed
command."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any
from unittest.mock import Mock

import pytest

from nocap.config.errors import FailedError, StoppedError
from nocap.launch.run_result import RunResult
from nocap.sessions.session import Session
from nocap.store.record_files import RunStatus
from nocap.study.__main__ import main
from nocap.study.log import read_log
from nocap.study.registration import registrations
from nocap.study.result_reader import read_result
from nocap.study.result_writer import to_json
from nocap.study.study_folder import load_study
from nocap.study.study_plan import shorter
from nocap.study.tasks import Training
from tests.lab import Lab, lab
from tests.studies import LOSS, RACE, SPEED, STEPS, STUDY, Json, at, claim, study, tree, written

__all__ = ["lab"]
ARMS = STUDY["arms"]


def told(lab: Lab, capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> list[str]:
    """Of the command: what the screen says of each claim."""
    assert main([str(lab.root / "made"), f"output_dir={lab.root / 'out'}", *words]) == code
    out = capsys.readouterr().out
    return [block for block in out.split("\n\n") if block.startswith("M.")]


# --- analyses -------------------------------------------------------------------------------------

SURE = claim(LOSS, id="M.sure")
UNSURE = claim(LOSS, id="M.unsure", expected=[0.0, None], arm="gqa")
THREE: Json = {
    "arms": {**ARMS, "gqa": ["attention=gqa"]},
    "claims": [SPEED, SURE, UNSURE],
    "seeds": list(range(12)),
}


def late(run: Training) -> float:
    """gqa is unsure for six pairs, and better with twelve."""
    if run.arm != "gqa":
        gain = 0.0
    else:
        gain = [0.9, 0.1, -0.05, 0.7, 0.9, 0.5][run.seed % 6]
    return 3.0 + 0.001 * run.seed - gain


def test_a_study_goes_on_by_itself_until_its_claims_are_decided(lab: Lab):
    """Also with seeds that are added."""
    lab.loss = late
    sixes = {**THREE, "seeds": list(range(6))}
    few = lab.carry(**sixes)["M.unsure"]
    assert few["word"] == "inconclusive"
    assert few["n"] == 6
    assert few["exploratory"] is None
    said = lab.said[:]
    claims = lab.carry(**THREE)
    keys = ("word", "n", "analysis", "notes", "exploratory")
    expected = {
        "M.speed": ["confirmed", 3, 1, [], None],
        "M.sure": ["confirmed", 3, 1, [], None],
        "M.unsure": ["confirmed", 12, 3, ["3 analyses"], None],
    }
    figures = {}
    for name, row in claims.items():
        figures[name] = [row[key] for key in keys]
    assert figures == expected
    assert claims["M.unsure"]["hash"] == few["hash"]
    first = []
    for seed in range(3):
        for arm in ("mha", "mqa", "gqa"):
            first.append(f"{arm}, seed {seed}")
    then = []
    for seed in range(3, 12):
        for arm in ("mha", "gqa"):
            then.append(f"{arm}, seed {seed}")
    tasks = [task for task in lab.tasks if "session" not in task]
    assert tasks == first + then
    lines = [line for line in lab.lines("analysis") if line["claim"] == "M.unsure"]
    analyses = [(line["number"], line["n"], line["word"]) for line in lines]
    assert analyses == [(1, 3, "inconclusive"), (2, 6, "inconclusive"), (3, 12, "confirmed")]
    assert "not decided yet; another analysis follows for M.unsure" in said


@pytest.mark.parametrize(
    ("arm", "seed", "n"),
    [("gqa", 4, 3), ("gqa", 7, 6), ("mha", 3, 3)],
)
def test_a_run_that_fails_in_a_later_analysis_ends_the_study_with_1(
    lab: Lab,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arm: str,
    seed: int,
    n: int,
):
    """Its claim goes on no more: no pair is passed over."""
    lab.loss = late
    written(lab.root / "made", study(**THREE))

    def train(runs: Sequence[Training], label: str, **more: Any) -> dict[str, RunResult]:
        fails = [run for run in runs if (run.arm, run.seed) == (arm, seed)]
        rest = [run for run in runs if run not in fails]
        lab.train(rest, label, **more)
        failed = RunResult(status=RunStatus.failed, reason="no room on the disk")
        return {run.plan.identity: failed for run in fails}

    monkeypatch.setattr("nocap.study.conductor.train", train)
    assert main([str(lab.root / "made"), f"output_dir={lab.root / 'out'}"]) == 1
    out, err = capsys.readouterr()
    assert f"nocap: {arm}, seed {seed}: failed, no room on the disk" in err
    words = out.split("\n\n")
    (said,) = [block for block in words if block.startswith("M.unsure")]
    assert f"n={n}" in said
    assert "inconclusive" in said
    for task in lab.tasks:
        for later in range(2 * n, 12):
            assert f"seed {later}" not in task


@pytest.mark.gate
def test_a_study_that_was_killed_goes_on_where_it_was(lab: Lab):
    """After twenty of its thirty tasks: the same tasks, each once, and the same results as of one
    that was not."""
    lab.loss = late
    whole = lab.carry("whole", "elsewhere/whole", **THREE)
    tasks = lab.tasks
    chance = random.Random(0)
    for after in sorted(chance.sample(range(1, len(tasks)), 20)):
        lab.killed(len(tasks) + after, **THREE)
        assert len(lab.tasks) == len(tasks) + after
    again = lab.carry(**THREE)
    assert sorted(lab.tasks[len(tasks) :]) == sorted(tasks)
    timeless = []
    for rows in (whole, again):
        timeless_rows = {name: {**row, "registered": ""} for name, row in rows.items()}
        timeless.append(timeless_rows)
    assert timeless[0] == timeless[1]
    assert sorted(lab.logged) == sorted(tasks)
    before = lab.log.read_text()
    lab.carry(**THREE)
    assert lab.log.read_text() == before


@pytest.mark.slow
def test_a_scale_about_some_claims_needs_their_arms_alone_and_binds_them_the_same(lab: Lab):
    three: Json = {
        "arms": {**ARMS, "relu2": ["mlp=relu2"]},
        "claims": [LOSS, claim(LOSS, id="M.relu2", arm="relu2")],
        "notes": {"M.relu2": "a note"},
        "tune": {"seeds": [7], "trials": dict.fromkeys(("mha", "mqa", "relu2"), LRS[:2])},
    }
    own = {"relu2": ["mlp.expansion=2"]}
    whole = lab.plan(**three, scales=at(own=own))
    some = lab.plan(**three, scales=at(own=own, claims=["M.loss"]))
    assert [*some.train] == ["mha", "mqa"]
    assert [*whole.train] == ["mha", "mqa", "relu2"]
    assert registrations(some) == {"M.loss": registrations(whole)["M.loss"]}
    scales = at(own=own, claims=["M.loss"])
    assert [*lab.carry(**three, scales=scales)] == ["M.loss"]
    names = {task.partition(",")[0] for task in lab.tasks}
    assert names == {"mha", "mqa"}


# --- a search -------------------------------------------------------------------------------------

LRS = [["optimizer.lr=1e-3"], ["optimizer.lr=2e-3"], ["optimizer.lr=4e-3"]]
SEARCH: Json = {"claims": [LOSS], "tune": {"seeds": [7, 8], "trials": {"mha": LRS, "mqa": LRS}}}


SEARCHES = [  # the lowest mean over its seeds wins; a trial that diverged on a seed is the worst
    ([(3.0, 3.4), (3.1, 3.2), (2.9, 3.6)], [3.2, 3.15, 3.25], 1),
    ([(1.0, 1.0), (0.1, None), (4.0, 4.0)], [1.0, None, 4.0], 0),
]


@pytest.mark.slow
@pytest.mark.parametrize(("losses", "means", "best"), SEARCHES)
def test_a_search_picks_what_each_arm_is_trained_with(
    lab: Lab,
    losses: Sequence[tuple[float | None, float | None]],
    means: list[float | None],
    best: int,
):
    rates = [1e-3, 2e-3, 4e-3]
    trained = set[float]()

    def loss(run: Training) -> float | None:
        lr = run.composed.run.optimizer.lr
        if run.seed > 2:
            return losses[rates.index(lr)][run.seed - 7]
        trained.add(lr)
        return 3.0 + 0.001 * run.seed

    lab.loss = loss
    done = lab.done(**SEARCH)
    for arm in ARMS:
        trials = [trial for trial in done.trials if trial.arm == arm]
        expected = []
        for x in means:
            expected.append(pytest.approx(x) if x else None)
        assert [trial.val_loss for trial in trials] == expected
        picked = [trial.picked for trial in trials]
        assert picked == [i == best for i in range(3)]
        assert [trial.words for trial in trials] == LRS

    assert trained == {rates[best]}
    assert lab.tasks[0] == "mha, trial 1, seed 7"
    assert len(lab.tasks) == 2 * 3 * 2 + 2 * 3


@pytest.mark.slow
def test_a_search_that_picks_nothing_ends_the_study_in_a_line(
    lab: Lab, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    """Where all its trials diverged, and where its runs failed."""
    lab.loss = lambda run: None
    written(lab.root / "made", study(**SEARCH))
    for _ in range(2):
        assert main([str(lab.root / "made"), f"output_dir={lab.root / 'out'}"]) == 1
        err = capsys.readouterr().err
        assert err.startswith("nocap: made: the search (tune) of arm mha has no result: ")
        assert err.count("\n") == 1
        monkeypatch.setattr(Training, "record", lambda run: None)


# --- races ----------------------------------------------------------------------------------------


def test_a_race_trains_shorter_schedules_each_with_its_own_whole_decay(lab: Lab):
    lab.loss = lambda run: (
        None
        if (run.arm, run.seed) == ("mqa", 1)
        else 3.0 - 0.1 * (run.other_length or 12) - (run.arm == "mqa")
    )
    scales = at(lengths=[0.25, 0.5])
    done = lab.done(claims=[RACE, STEPS], scales=scales)
    whole = []
    for seed in range(3):
        for arm in ARMS:
            whole.append(f"{arm}, seed {seed}")
    # nothing is learnt from one that diverged
    halves = []
    for steps in (3, 6):
        for name in whole:
            if name != "mqa, seed 1":
                halves.append(f"{name}, {steps} steps")
    tasks = [task for task in lab.tasks if "session" not in task]
    expected = whole + sorted(halves, key=lambda name: name.split(", ")[1])
    assert tasks == expected
    tasks = [task for task in lab.tasks if "session" in task]
    assert tasks == [f"pace session {n}" for n in (1, 2, 3)]
    assert sorted(done.evidence.shorter["mha", 0]) == [3, 6]
    words = [*STUDY["overrides"], "trainer.steps=100"]
    scales = at(lengths=[0.01, 0.5])
    long = lab.plan(claims=[RACE], overrides=words, scales=scales)
    runs = [made.run for made in shorter(long, long.train["mha"])]
    assert [run.trainer.steps for run in runs] == [1, 50]
    assert all(run.schedule.warmup_steps <= run.trainer.steps for run in runs)


# --- sessions -------------------------------------------------------------------------------------


def test_sessions_are_apart_in_time(lab: Lab):
    """What is trained in between is part of the wait."""
    lab.carry(scales=at(apart_min=5))
    assert lab.waits == [pytest.approx(5, abs=0.5)] * 2
    assert "waiting 5.0 min: sessions of timing are 5 minutes apart" in lab.said
    assert lab.tasks[:2] == ["bench session 1", "mha, seed 0"]
    lab.train_s = 200
    lab.waits.clear()
    scales = at(apart_min=5)
    lab.carry("long", "long", scales=scales)
    # before each seed's runs
    assert lab.waits == []
    tasks = enumerate(lab.tasks[9:])
    assert [i for i, task in tasks if "session" in task] == [0, 3, 6]


def test_sessions_on_another_day_are_added(lab: Lab):
    few = lab.carry(scales=at(sessions=2))["M.speed"]
    assert few["word"] == "inconclusive"
    assert few["reason"] == "missing"
    assert few["n"] == 2
    told = [lab.carry(scales=at(sessions=n))["M.speed"] for n in (5, 6, 3)]
    expected = [
        (3, None, []),
        (6, None, ["2 analyses"]),
        (6, None, ["2 analyses"]),  # what is there counts
    ]
    rows = [(row["n"], row["exploratory"], row["notes"]) for row in told]
    assert rows == expected
    tasks = [task for task in lab.tasks if "session" in task]
    assert tasks == [f"bench session {n}" for n in range(1, 7)]


def answered(capsys: pytest.CaptureFixture[str], *words: str) -> Json:
    """The JSON that the command answers."""
    assert main([*words]) == 0
    answer: Json = json.loads(capsys.readouterr().out)
    return answer


def test_a_program_adds_the_sessions_that_would_decide(
    lab: Lab, capsys: pytest.CaptureFixture[str]
):
    """It reads the command and what it takes from JSON, until none is left."""
    speedup = [1.24, 1.26, 1.23]
    lab.speed = lambda arm, number: 1000 * (speedup[number % 3] if arm == "mqa" else 1)
    written(lab.root / "made", study(claims=[SPEED], scales=at(apart_min=5)))
    out = f"output_dir={lab.root / 'out'}"
    first = answered(capsys, str(lab.root / "made"), out, "--json")
    (claim,) = first["claims"]
    assert claim["word"] == "inconclusive"
    more = claim["more"]["session"]
    assert first["next"]["sessions"] == 3 + more
    assert first["next"]["minutes"] == pytest.approx(more * (5 + 61 / 60))
    command = first["next"]["command"]
    assert command[:3] == ["python", "-m", "nocap.study"]
    last = answered(capsys, *command[3:])
    (decided,) = last["claims"]
    assert decided["n"] == 3 + more
    assert decided["word"] != "inconclusive"
    assert last["next"] is None


def test_the_next_sessions_are_beyond_all_that_were_held(
    lab: Lab, capsys: pytest.CaptureFixture[str]
):
    """Also where this command asks for fewer of them than one before."""
    speedup = [1.21, 1.28, 1.235]
    lab.speed = lambda arm, number: 1000 * (speedup[number % 3] if arm == "mqa" else 1)
    written(lab.root / "made", study(claims=[SPEED]))
    words = [str(lab.root / "made"), f"output_dir={lab.root / 'out'}"]
    answered(capsys, *words, "sessions=6", "--json")
    again = answered(capsys, *words, "--json")
    (claim,) = again["claims"]
    assert claim["n"] == 6
    assert again["next"]["sessions"] == 6 + claim["more"]["session"]


def test_no_sessions_are_next_where_seeds_are_missing_too(
    lab: Lab, capsys: pytest.CaptureFixture[str]
):
    lab.loss = lambda run: 3.0 + (run.arm == "mqa") * [0.5, 0.1, 0.3][run.seed]
    written(lab.root / "made", study(claims=[LOSS, SPEED]))
    out = f"output_dir={lab.root / 'out'}"
    answer = answered(capsys, str(lab.root / "made"), out, "--json")
    words = [claim["word"] for claim in answer["claims"]]
    assert "inconclusive" in words
    assert answer["next"] is None


def test_a_session_that_fails_is_named_and_its_place_has_no_more(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
):
    failed = FailedError("bench, session 1: no memory; see a.log")
    run = Mock()
    run.side_effect = failed
    monkeypatch.setattr(Session, "run", run)
    done = lab.done()
    assert done.problems == [str(failed)]
    assert run.call_count == 1
    runs = {*done.evidence.runs}
    expected = set()
    for arm in ARMS:
        for seed in range(3):
            expected.add((arm, seed))
    assert runs == expected
    assert lab.carry(run=False)["M.loss"]["word"] == "confirmed"


def test_a_request_to_stop_while_waiting_keeps_what_there_is(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(lab, "sleep", Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(StoppedError, match="stopped; nocap keeps the finished runs and sessions"):
        lab.carry(scales=at(apart_min=5))
    tasks = [task for task in lab.tasks if "session" in task]
    assert tasks == ["bench session 1"]
    assert len(lab.lines("run")) == 6


# --- the command ----------------------------------------------------------------------------------


def test_what_is_written_of_results_that_were_read_is_the_same(
    lab: Lab, capsys: pytest.CaptureFixture[str]
):
    folder = written(lab.root / "made", study())
    told(lab, capsys)
    (path,) = folder.glob("results.*.json")
    again = read_result(path, load_study(folder), read_log(lab.log))
    assert again is not None
    content = json.loads(path.read_text())
    text = json.dumps(to_json(again))
    assert json.loads(text) == content


@pytest.mark.slow
def test_a_label_is_on_the_screen_in_the_results_and_on_the_page(
    lab: Lab, capsys: pytest.CaptureFixture[str]
):
    folder = written(lab.root / "made", study())
    told(lab, capsys, "--judge", code=1)  # which writes nothing
    paths = lab.root.rglob("*")
    names = [path.name for path in paths if path.is_file()]
    assert names == ["study.yaml"]
    assert main([str(folder), f"output_dir={lab.root / 'out'}", "--json"]) == 0
    printed = capsys.readouterr()  # alone on stdout, and the same as those that are written
    (results,) = folder.glob("results.*.json")
    content = json.loads(results.read_text())
    answer = json.loads(printed.out)
    assert answer.pop("next") is None  # no session would decide more
    assert {"schema_version": content["schema_version"], **answer} == content
    assert printed.out.count("\n") == 1
    assert "exploratory" not in printed.err
    assert "M.loss" in printed.err
    late = claim(LOSS, id="M.late", scale="ratio", expected=[0.5, None])
    claims = [claim(SPEED, expected=[1.05, 1.3]), LOSS, late]
    written(folder, study(claims=claims))
    tasks = lab.tasks
    words = ["exploratory: " in text for text in told(lab, capsys)]
    assert words == [True, False, True]
    claims_json = json.loads(results.read_text())["claims"]
    labels = [row["exploratory"] is not None for row in claims_json]
    assert labels == [True, False, True]
    assert (folder / "README.md").read_text().count("exploratory: registered after ") == 2
    lab.log.unlink()
    for text in told(lab, capsys, "--judge"):
        assert "exploratory: not registered" in text
    assert lab.tasks == tasks
    assert not lab.log.exists()


def test_judging_names_what_is_missing(lab: Lab, capsys: pytest.CaptureFixture[str]):
    written(lab.root / "made", study())
    told(lab, capsys)
    (gone,) = lab.root.glob("out/runs/*mqa*-s1-*")
    gone.rename(lab.root / "gone")
    before = tree(lab.root)
    for text in told(lab, capsys, "--judge", code=1):
        assert "inconclusive" in text
        assert "1 missing (val_loss of mqa, seed 1)" in text
    assert tree(lab.root) == before
    (lab.root / "gone").rename(gone)
    next(lab.root.glob("out/studies/made/cpu/sessions/bench-3-*")).unlink()
    speed, loss = told(lab, capsys, "--judge", code=1)
    assert "1 missing (tokens_per_s, session 3)" in speed
    assert loss.startswith("M.loss confirmed")
