"""How a study is carried out: analyses, a search, races, sessions apart in time, a killed command, runs of
another machine."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from nocap.config.errors import FailedError, StoppedError
from nocap.study.__main__ import main
from nocap.study.plan import shorter
from nocap.study.registration import name_of, registrations
from nocap.study.tasks import Session, Training, write_rows
from tests.lab import Lab, lab
from tests.studies import LOSS, RACE, SPEED, STEPS, STUDY, Json, at, claim, study, written

__all__ = ["lab"]
ARMS = STUDY["arms"]


# --- analyses -----------------------------------------------------------------------------------------------

SURE, UNSURE = claim(LOSS, id="M.sure"), claim(LOSS, id="M.unsure", expected=[0.0, None], arm="gqa")
THREE: Json = {
    "arms": {**ARMS, "gqa": ["attention=gqa"]},
    "claims": [SPEED, SURE, UNSURE],
    "seeds": list(range(12)),
}


def late(run: Training) -> float:
    """gqa is unsure for six pairs, and better with twelve."""
    gain = 0.0 if run.arm != "gqa" else [0.9, 0.3, 0.1, 0.7, 0.8, 0.6][run.seed % 6]
    return 3.0 + 0.001 * run.seed - gain


def test_a_study_goes_on_by_itself_until_its_claims_are_decided(lab: Lab):
    lab.loss = late
    claims = lab.carry(**THREE)
    told = {name: (row["word"], row["n"], row["analysis"], row["notes"]) for name, row in claims.items()}
    assert told["M.speed"] == ("confirmed", 3, 1, [])
    assert told["M.sure"] == ("confirmed", 3, 1, [])
    assert told["M.unsure"] == ("confirmed", 12, 3, ["3 analyses"])
    first = [f"{arm}, seed {seed}" for seed in range(3) for arm in ("mha", "mqa", "gqa")]
    then = [f"{arm}, seed {seed}" for seed in range(3, 12) for arm in ("mha", "gqa")]
    assert [task for task in lab.tasks if "session" not in task] == first + then
    said = [
        (line["number"], line["n"], line["word"])
        for line in lab.lines("analysis")
        if line["claim"] == "M.unsure"
    ]
    assert said == [(1, 3, "inconclusive"), (2, 6, "inconclusive"), (3, 12, "confirmed")]
    assert [text for text in lab.said if "session" not in text] == [
        "not decided, and another analysis follows: M.unsure"
    ] * 2


def test_seeds_that_are_added_go_on_with_the_analyses(lab: Lab):
    lab.loss = late
    few = lab.carry(**{**THREE, "seeds": list(range(6))})["M.unsure"]
    assert (few["word"], few["n"], few["exploratory"]) == ("inconclusive", 6, None)
    tasks = lab.tasks
    more = lab.carry(**THREE)["M.unsure"]
    assert (more["word"], more["n"], more["exploratory"], more["hash"]) == (
        "confirmed",
        12,
        None,
        few["hash"],
    )
    assert lab.tasks[: len(tasks)] == tasks
    assert max(Counter(lab.tasks).values()) == 1


@pytest.mark.parametrize("after", [2, 14, 29])
def test_a_study_that_was_killed_goes_on_where_it_was(lab: Lab, tmp_path: Path, after: int):
    """Of 30 tasks: the same tasks, each once, and the same results as of one that was not."""
    lab.loss = late
    whole, tasks = lab.carry("whole", "elsewhere/whole", **THREE), lab.tasks
    lab.killed(len(tasks) + after, **THREE)
    assert len(lab.tasks) == len(tasks) + after
    again = lab.carry(**THREE)
    assert sorted(lab.tasks[len(tasks) :]) == sorted(tasks)
    timeless = [{name: {**row, "registered": ""} for name, row in rows.items()} for rows in (whole, again)]
    assert timeless[0] == timeless[1]
    results = [name_of(line) for line in lab.lines("run", "session")]
    assert sorted(results) == sorted(tasks)
    before = lab.log.read_text()
    lab.carry(**THREE)
    assert lab.log.read_text() == before


def test_a_scale_about_some_claims_needs_their_arms_alone_and_binds_them_the_same(lab: Lab):
    trials = {arm: [["optimizer.lr=1e-3"], ["optimizer.lr=2e-3"]] for arm in ("mha", "mqa", "relu2")}
    three: Json = {
        "arms": {**ARMS, "relu2": ["mlp=relu2"]},
        "claims": [LOSS, claim(LOSS, id="M.relu2", arm="relu2")],
    }
    three |= {"notes": {"M.relu2": "a note"}, "tune": {"seeds": [7], "trials": trials}}
    own = {"relu2": ["mlp.expansion=2"]}
    whole, some = (lab.plan(**three, scales=at(own=own, **only)) for only in ({}, {"claims": ["M.loss"]}))
    assert ([*some.train], [*whole.train]) == (["mha", "mqa"], ["mha", "mqa", "relu2"])
    assert registrations(some) == {"M.loss": registrations(whole)["M.loss"]}
    assert [*lab.carry(**three, scales=at(own=own, claims=["M.loss"]))] == ["M.loss"]
    assert {task.partition(",")[0] for task in lab.tasks} == {"mha", "mqa"}


# --- a search -----------------------------------------------------------------------------------------------

LRS = [["optimizer.lr=1e-3"], ["optimizer.lr=2e-3"], ["optimizer.lr=4e-3"]]
SEARCH: Json = {"claims": [LOSS], "tune": {"seeds": [7, 8], "trials": {"mha": LRS, "mqa": LRS}}}


def lr(run: Training) -> float:
    return run.composed.run.optimizer.lr  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("losses", "means", "best"),
    [
        ([(3.0, 3.4), (3.1, 3.2), (2.9, 3.6)], [3.2, 3.15, 3.25], 1),
        ([(1.0, 1.0), (0.1, None), (4.0, 4.0)], [1.0, None, 4.0], 0),
        ([(None, None), (None, 1.0), (9.0, 9.0)], [None, None, 9.0], 2),
    ],
    ids=[
        "the lowest mean over its seeds wins",
        "a trial that diverged on a seed is the worst",
        "the one that did not diverge",
    ],
)
def test_a_search_picks_what_each_arm_is_trained_with(
    lab: Lab, losses: Sequence[tuple[float | None, float | None]], means: list[float | None], best: int
):
    table, trained = {1e-3: losses[0], 2e-3: losses[1], 4e-3: losses[2]}, dict[tuple[str, int], float]()

    def loss(run: Training) -> float | None:
        trained[run.arm, run.seed] = lr(run)
        return table[lr(run)][run.seed - 7] if run.seed > 2 else 3.0 + 0.001 * run.seed

    lab.loss = loss
    done = lab.done(**SEARCH)
    for arm in ARMS:
        trials = [trial for trial in done.trials if trial["arm"] == arm]
        assert [trial["val_loss"] for trial in trials] == [
            mean if mean is None else pytest.approx(mean) for mean in means
        ]
        assert [trial["picked"] for trial in trials] == [i == best for i in range(3)]
        assert [trial["words"] for trial in trials] == LRS
    assert {rate for (_, seed), rate in trained.items() if seed < 3} == {[1e-3, 2e-3, 4e-3][best]}
    assert lab.tasks[0] == "mha, trial 1, seed 7"
    assert len(lab.tasks) == 2 * 3 * 2 + 2 * 3


def test_a_search_that_picks_nothing_ends_the_study_in_a_line(
    lab: Lab, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    """Where all its trials diverged, and where its runs failed."""
    lab.loss = lambda run: None
    written(lab.root / "made", study(**SEARCH))
    for _ in range(2):
        assert main([str(lab.root / "made"), f"output_dir={lab.root / 'out'}"]) == 1
        assert (
            capsys.readouterr().err
            == "nocap: made: the search of mha picks nothing: a run of it failed, or all its trials "
            "diverged\n"
        )
        monkeypatch.setattr(Training, "record", lambda run: None)
    assert not any(trial["picked"] for trial in lab.done(run=False, **SEARCH).trials)


# --- races --------------------------------------------------------------------------------------------------


def test_a_race_trains_shorter_schedules_each_with_its_own_whole_decay(lab: Lab):
    lab.loss = lambda run: (
        None if (run.arm, run.seed) == ("mqa", 1) else 3.0 - 0.1 * (run.short or 12) - (run.arm == "mqa")
    )
    done = lab.done(claims=[RACE, STEPS], scales=at(lengths=[0.25, 0.5]))
    whole = [f"{arm}, seed {seed}" for seed in range(3) for arm in ARMS]
    halves = [
        f"{name}, {steps} steps" for steps in (3, 6) for name in whole if name != "mqa, seed 1"
    ]  # nothing is learnt from one that diverged
    assert [task for task in lab.tasks if "session" not in task] == whole + sorted(
        halves, key=lambda name: name.split(", ")[1]
    )
    assert [task for task in lab.tasks if "session" in task] == [f"pace session {n}" for n in (1, 2, 3)]
    assert {key: sorted(by_steps) for key, by_steps in done.evidence.shorter.items()}["mha", 0] == [3, 6]
    long = lab.plan(
        claims=[RACE], overrides=[*STUDY["overrides"], "trainer.steps=100"], scales=at(lengths=[0.01, 0.5])
    )
    runs = [made.run for made in shorter(long, long.train["mha"])]
    assert [(run.trainer.steps, run.schedule.warmup_steps <= run.trainer.steps) for run in runs] == [
        (1, True),
        (50, True),
    ]


# --- sessions -----------------------------------------------------------------------------------------------


def spans(lab: Lab) -> list[tuple[int, str, str]]:
    """Number, start and end of each session's file."""
    files = sorted(lab.root.glob("out/studies/made/cpu/sessions/*.json"))
    return [
        (session["number"], session["started"], session["ended"])
        for session in map(json.loads, (path.read_text() for path in files))
    ]


def test_sessions_are_apart_in_time(lab: Lab):
    """What is trained in between is part of the wait."""
    lab.carry(scales=at(apart_min=5))
    assert lab.waits == [pytest.approx(5, abs=0.5)] * 2
    assert "waiting 5.0 min: sessions of timing are 5 minutes apart" in lab.said
    assert lab.tasks[:2] == ["bench session 1", "mha, seed 0"]
    lab.train_s = 200
    lab.waits.clear()
    lab.carry("long", "long", scales=at(apart_min=5))
    assert lab.waits == []
    # before each seed's runs
    assert [i for i, task in enumerate(lab.tasks[9:]) if "session" in task] == [0, 3, 6]


def test_sessions_on_another_day_are_added(lab: Lab):
    few = lab.carry(scales=at(sessions=2))["M.speed"]
    assert (few["word"], few["reason"], few["n"]) == ("inconclusive", "missing", 2)
    told = [lab.carry(scales=at(sessions=n))["M.speed"] for n in (3, 5, 6)]
    assert [(row["n"], row["exploratory"], row["notes"]) for row in told] == [
        (3, None, []),
        (3, None, []),
        (6, None, ["2 analyses"]),
    ]
    assert [number for number, _, _ in spans(lab)] == [1, 2, 3, 4, 5, 6]
    assert [task for task in lab.tasks if "session" in task] == [f"bench session {n}" for n in range(1, 7)]
    assert lab.carry(scales=at(sessions=3))["M.speed"]["n"] == 6  # what is there counts


def test_a_session_that_fails_is_named_and_its_place_has_no_more(lab: Lab, monkeypatch: pytest.MonkeyPatch):
    calls = list[int]()

    def fails(session: Session, folder: Path, number: int) -> None:
        calls.append(number)
        raise FailedError("bench, session 1: no memory; see a.log")

    monkeypatch.setattr(Session, "run", fails)
    done = lab.done()
    assert (done.problems, calls) == (["bench, session 1: no memory; see a.log"], [1])
    assert {(arm, seed) for arm, seed in done.evidence.runs} == {
        (arm, seed) for arm in ARMS for seed in range(3)
    }
    assert lab.carry(run=False)["M.loss"]["word"] == "confirmed"


def test_a_request_to_stop_while_waiting_keeps_what_there_is(lab: Lab, monkeypatch: pytest.MonkeyPatch):
    def stop(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(lab, "sleep", stop)
    with pytest.raises(StoppedError, match="stopped; what was trained and timed is kept"):
        lab.carry(scales=at(apart_min=5))
    assert [task for task in lab.tasks if "session" in task] == ["bench session 1"]
    assert len(lab.lines("run")) == 6


# --- runs of another machine --------------------------------------------------------------------------------


def test_runs_of_another_machine_are_taken_a_seed_whole_or_not_at_all(lab: Lab):
    done = lab.done(claims=[LOSS])
    path = write_rows(done.part, done.records)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text(
        "".join(
            json.dumps(row) + "\n"
            for row in lines
            if (row["record"]["arm"], row["record"]["seed"]) != ("mqa", 1)
        )
    )
    tasks, lab.host = lab.tasks, "there"
    lab.loss = lambda run: 5.0
    row = lab.carry("there", claims=[LOSS])["M.loss"]
    assert lab.tasks[len(tasks) :] == ["mha, seed 1", "mqa, seed 1"]  # both, so that a pair is of one machine
    assert (row["n"], row["exploratory"]) == (3, None)
    taken = {(run.arm, run.seed) for run, _ in lab.done("there", claims=[LOSS]).records}
    assert taken == {("mha", 1), ("mqa", 1)}


# --- the command --------------------------------------------------------------------------------------------


def test_results_as_json_are_alone_on_stdout(lab: Lab, capsys: pytest.CaptureFixture[str]):
    """And the same as those that are written."""
    written(lab.root / "made", study())
    assert main([str(lab.root / "made"), f"output_dir={lab.root / 'out'}", "--json"]) == 0
    printed = capsys.readouterr()
    (path,) = (lab.root / "made").glob("results.*.json")
    content = json.loads(path.read_text())
    assert {"schema_version": content["schema_version"], **json.loads(printed.out)} == content
    assert printed.out.count("\n") == 1
    assert "M.loss" in printed.err
