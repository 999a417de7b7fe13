"""Sittings: which sessions are one, when the next is held, and that an interval covers tomorrow's."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from nocap.judge import sittings as clock
from nocap.judge.verdict import Reason, Word
from nocap.store.measurement import Per
from nocap.store.record import write_json
from nocap.study import sittings as study_sittings
from nocap.study.cells import StoppedError
from nocap.study.evidence import Evidence
from nocap.study.looks import judge
from nocap.study.measured import measurements
from nocap.study.plan import prepare, sittings_of
from nocap.study.sessions import Session, SessionError
from nocap.study.sittings import Place, Sittings, places_of
from tests.studies import LOSS, NOW, SEEN, SPEED, Json, at, claim, later, loaded, record, session, study

BEGAN = datetime.fromisoformat(NOW)


def spans(*minutes: tuple[float, float]) -> list[clock.Span]:
    return [(BEGAN + timedelta(minutes=start), BEGAN + timedelta(minutes=end)) for start, end in minutes]


# --- the clock ---------------------------------------------------------------------------------------------------------------------


def test_sessions_close_together_are_one_sitting():
    assert clock.sittings(spans((0, 1), (2, 3), (7.9, 9), (14, 15)), apart_min=5) == [1, 1, 1, 2]  # between an end and a start
    assert clock.sittings(spans((14, 15), (0, 8), (8, 13)), apart_min=5) == [1, 1, 1]  # long ones, back to back, in any order
    assert clock.sittings(spans((20, 21), (0, 10), (1, 2)), apart_min=5) == [2, 1, 1]
    assert clock.sittings(spans((0, 1), (1, 2)), apart_min=0) == [1, 2]
    assert clock.sittings([], apart_min=5) == []


# --- the attack: one quiet sitting -------------------------------------------------------------------------------------------------


def speeds(sessions: Sequence[tuple[float, float]], *, seeds: int = 3) -> Evidence:
    """Sessions as (minute of its start, log of the arm's speed over the baseline's), and losses that pass any guard."""
    bench = [
        session(
            {"mha": {**SEEN, "tokens_per_s": 1e3}, "mqa": {**SEEN, "tokens_per_s": 1e3 * math.exp(x)}}, seed=i % seeds, started=later(at)
        )
        for i, (at, x) in enumerate(sessions)
    ]
    runs = {(arm, seed): record(arm, seed, 12, 3.0 + 0.001 * seed) for arm in ("mha", "mqa") for seed in range(seeds)}
    return Evidence(bench=bench, runs=runs)


def test_an_interval_covers_tomorrows_sitting(tmp_path: Path):
    """Sittings differ by 10%, sessions of one by 0.5%. A t-interval of three sessions of one misses; three sittings cover."""
    one = loaded(tmp_path / "made", study(claims=[SPEED, LOSS]))
    rng, true, covered, missed = np.random.default_rng(8), math.log(1.25), 0, 0
    for _ in range(500):
        today, apart = true + rng.normal(0, 0.1), true + rng.normal(0, 0.1, 3)
        quiet, spread = today + rng.normal(0, 0.005, 3), apart + rng.normal(0, 0.005, 3)
        missed += bool(stats.ttest_1samp(quiet, true).pvalue < 0.05)
        interval = judge(one.claims[0], one, "cpu", speeds([(10.0 * i, x) for i, x in enumerate(spread)])).primary.interval()
        covered += interval.low <= true <= interval.high
    assert missed / 500 > 0.85
    assert covered / 500 >= 0.96  # 98.6%


@pytest.mark.parametrize(("minutes", "n", "word"), [((0, 1, 2), 1, None), ((0, 1, 10), 2, None), ((0, 10, 20), 3, Word.confirmed)])
def test_fewer_than_three_sittings_decide_nothing(tmp_path: Path, minutes: Sequence[float], n: int, word: Word | None):
    one = loaded(tmp_path / "made", study(claims=[SPEED, LOSS]))
    evidence = speeds([(at, 0.22 + 0.0001 * at) for at in minutes])
    verdict = judge(one.claims[0], one, "cpu", evidence)
    assert (verdict.n, verdict.primary.per, verdict.more()) == (n, Per.sitting, None)
    assert {(lack.metric, lack.per, lack.repeat) for lack in verdict.missing} == {("tokens_per_s", "sitting", i) for i in range(n + 1, 4)}
    assert (verdict.word, verdict.reason) == ((word, None) if word else (Word.inconclusive, Reason.missing))
    timed = [m for m in measurements(one.claims[0], one, evidence) if m.metric.name == "tokens_per_s" and m.arm == "mqa"]
    assert [m.repeat for m in timed] == list(range(1, n + 1))


def test_a_sitting_is_the_log_mean_of_its_sessions(tmp_path: Path):
    one = loaded(tmp_path / "made", study(claims=[SPEED, LOSS]))
    found = measurements(one.claims[0], one, speeds([(0, 0.1), (1, 0.3), (10, 0.2), (20, 0.2)]))
    values = [m.value for m in found if (m.arm, m.metric.name) == ("mqa", "tokens_per_s")]
    assert values == pytest.approx([1e3 * math.exp(0.2)] * 3)


def test_a_sitting_in_which_an_arm_was_not_timed_has_no_pair(tmp_path: Path):
    one = loaded(tmp_path / "made", study(claims=[SPEED, LOSS]))
    evidence = speeds([(10.0 * i, 0.2) for i in range(4)])
    alone = [*evidence.bench[:1], session({"mha": {**SEEN, "tokens_per_s": 1e3}}, started=later(10)), *evidence.bench[2:]]
    found = measurements(one.claims[0], one, replace(evidence, bench=alone))
    assert [m.repeat for m in found if m.metric.name == "tokens_per_s"] == [1, 2, 3, 1, 2, 3]


def test_a_count_is_exact_and_needs_one_session(tmp_path: Path):
    cache = claim(SPEED, id="M.kv", metric="kv_bytes", expected=[4.0, None], mechanism={"rule": "kv", "formula": "f"}, guards=[])
    one = loaded(tmp_path / "made", study(claims=[cache, LOSS]))
    counted = Evidence(bench=[session({"mha": {"kv_bytes": 512}, "mqa": {"kv_bytes": 128}})])
    verdict = judge(one.claims[0], one, "cpu", counted)
    assert (verdict.word, verdict.primary.per, verdict.n) == (Word.confirmed, Per.exact, 1)
    assert math.exp(verdict.primary.interval().mid) == pytest.approx(4.0)
    differs = [*counted.bench, session({"mha": {"kv_bytes": 512}, "mqa": {"kv_bytes": 120}}, seed=1)]
    assert judge(one.claims[0], one, "cpu", replace(counted, bench=differs)).reason is Reason.missing
    plan = prepare(one, "cpu", output_dir=str(tmp_path / "out"))
    assert sittings_of(plan, "bench") == 1
    assert [len(place.sessions) for place in places_of(plan, plan.train)] == [1]


# --- when they are held ------------------------------------------------------------------------------------------------------------


class Clock:
    """A made machine: a session takes a minute, and waiting passes at once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.minute, self.held, self.waits, self.fails = 0.0, list[tuple[str, int, int, float]](), list[float](), False
        monkeypatch.setattr(study_sittings, "run_all", self.run_all)
        monkeypatch.setattr(study_sittings, "datetime", self)
        monkeypatch.setattr(study_sittings.time, "sleep", self.sleep)
        monkeypatch.setattr(Session, "key", lambda one: "key")

    def now(self) -> datetime:
        return BEGAN + timedelta(minutes=self.minute)

    def sleep(self, seconds: float) -> None:
        self.waits.append(seconds / 60)
        self.minute += seconds / 60

    def run_all(self, sessions: Sequence[Session], folder: Path, *, log: Any) -> None:
        for one in sessions:
            if self.fails:
                raise SessionError("no")
            self.held.append((one.what, one.seed, one.repeat, self.minute))
            started, self.minute = later(self.minute), self.minute + 1
            path = one.path(folder)
            path.parent.mkdir(exist_ok=True, parents=True)
            write_json(path, {"seed": one.seed, "started": started, "ended": later(self.minute), "arms": {arm: [] for arm in one.arms}})


def place(folder: Path, seeds: Sequence[int], *, arms: Sequence[str] = ("mha",), sittings: int = 3) -> Place:
    made: dict[str, Any] = {"kind": "parts", "how": {}}
    sessions = [Session(**made, what=arm, seed=seed, arms={arm: object()}) for seed in seeds for arm in arms]  # type: ignore[dict-item]
    return Place(name="parts", sessions=sessions, sittings=sittings, apart_min=5, folder=folder)


def test_seeds_are_dealt_over_sittings_that_are_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    made, log = Clock(monkeypatch), list[str]()
    timing = Sittings([place(tmp_path, range(6))], problems=[], log=log.append)
    timing.hold_due()
    made.minute += 3  # a training that is too short
    timing.hold_due()
    made.minute += 10  # and one that is long enough
    timing.hold_due()
    timing.hold_all()
    assert [(seed, minute) for _, seed, _, minute in made.held] == [(0, 0), (3, 1), (1, 15), (4, 16), (2, 22), (5, 23)]
    assert made.waits == [pytest.approx(5)]
    assert log == ["waiting 5.0 min: sittings of timing are 5 minutes apart"]
    assert timing.waiting() == []
    timing.hold_all()
    assert len(made.held) == 6


def test_fewer_seeds_than_sittings_are_timed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    made = Clock(monkeypatch)
    Sittings([place(tmp_path, [4], arms=("mha", "mqa"))], problems=[], log=print).hold_all()
    assert [row[:3] for row in made.held] == [("mha", 4, 1), ("mqa", 4, 1), ("mha", 4, 2), ("mqa", 4, 2), ("mha", 4, 3), ("mqa", 4, 3)]
    more = place(tmp_path, [4], arms=("mha", "mqa"), sittings=4)  # on another day
    assert (more.held(), more.left(), len(more.results())) == (3, 1, 6)
    made.minute += 1000
    Sittings([more], problems=[], log=print).hold_all()
    assert more.held() == 4
    assert made.waits == [pytest.approx(5)] * 2


def test_sessions_back_to_back_of_before_are_one_sitting_and_two_more_are_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    made = Clock(monkeypatch)
    old = place(tmp_path, range(3))
    made.run_all(old.sessions, tmp_path, log=print)
    assert (old.held(), old.left()) == (1, 2)
    Sittings([old], problems=[], log=print).hold_all()
    assert old.held() == 3
    assert [row[2] for row in made.held] == [1, 1, 1, 2, 2]


def test_a_sitting_that_was_cut_short_is_held_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    made = Clock(monkeypatch)
    both = place(tmp_path, [0, 1, 2], arms=("mha", "mqa"))
    made.run_all(both.sessions[:1], tmp_path, log=print)
    Sittings([both], problems=[], log=print).hold_all()
    assert both.held() == 3
    assert {(what, seed) for what, seed, _, _ in made.held} == {(arm, seed) for arm in ("mha", "mqa") for seed in range(3)}


def test_an_arm_that_a_later_look_leaves_out_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    made = Clock(monkeypatch)
    every: dict[str, Any] = {"mha": object(), "mqa": object(), "gqa": object()}
    first = [Session(kind="steps", what="pace", seed=seed, arms=every, how={}) for seed in range(3)]
    fewer = [replace(first[0], seed=seed, arms={"mha": object(), "mqa": object()}) for seed in range(3, 7)]  # type: ignore[dict-item]
    look = Place(name="pace", sessions=first, sittings=3, apart_min=5, folder=tmp_path)
    Sittings([look], problems=[], log=print).hold_all()
    later_look = replace(look, sessions=[*first, *fewer])
    assert (later_look.held(), later_look.left()) == (3, 1)
    Sittings([later_look], problems=[], log=print).hold_all()
    assert [row[1:3] for row in made.held] == [(seed, 1) for seed in range(7)]
    only = replace(look, sessions=fewer, sittings=2)
    assert (only.held(), only.left()) == (1, 1)  # their sitting; those of the others do not time what they time


def test_a_place_whose_session_fails_is_given_up_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    made, problems = Clock(monkeypatch), list[str]()
    made.fails = True
    Sittings([place(tmp_path, [0])], problems=problems, log=print).hold_all()
    assert problems == ["parts: no"]


def test_a_request_to_stop_while_waiting_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    made = Clock(monkeypatch)
    timing = Sittings([place(tmp_path, range(3))], problems=[], log=print)

    def stop(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(study_sittings.time, "sleep", stop)
    with pytest.raises(StoppedError, match="stopped while waiting; what was trained and timed is kept"):
        timing.hold_all()
    assert len(made.held) == 1


@pytest.mark.parametrize(
    ("changed", "reason"), [({"sittings": 0}, "sittings must be at least 1"), ({"apart_min": -1}, "apart_min must be at least 0")]
)
def test_refusals(tmp_path: Path, changed: Json, reason: str):
    with pytest.raises(ValueError, match=reason):
        loaded(tmp_path / "made", study(scales=at(**changed)))
