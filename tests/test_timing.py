"""`--time`: the arms of a grid timed in turns, what the comparison makes of it, and what is
refused."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from nocap.config.compose import composed
from nocap.judge.compare import compare
from nocap.judge.comparison import Comparison
from nocap.judge.comparison_json import result_of
from nocap.judge.comparison_schema import to_json
from nocap.judge.interval import of_arms, of_pairs
from nocap.launch.grid import plan_grid
from nocap.report.comparison_tables import render
from nocap.sessions.in_turns import InTurns, arms_of
from nocap.sessions.session import Session
from nocap.store.grid_timing import Timing
from nocap.store.runs import Found
from tests.conftest import Door
from tests.grids import CELL
from tests.test_equal_loss import at_equal_loss, grid

ARMS = "optimizer.lr=0.003,0.002"
SPEEDS = {
    "nano-flash-gelu4x": 1.0,
    "nano-flash-swiglu": 1.1,
    "nano-gqa-gelu4x": 0.8,
    "nano-gqa-swiglu": 0.88,
}


def timing(*, noise: float = 0.0, rounds: int = 12) -> Timing:
    """The arms of `test_equal_loss.grid` on another machine, in rounds with this deviation."""
    rng = np.random.default_rng(5)
    seconds = {}
    for arm, speed in SPEEDS.items():
        ratio = np.exp(rng.normal(0, noise, rounds))
        seconds[arm] = (1e-4 * speed * ratio).tolist()
    return Timing(
        started="2026-11-28T10:00:00+00:00",
        machine="b",
        machine_name="b",
        clock="process CPU time, one thread",
        seconds=seconds,
        left_out={},
    )


def timed(of: Timing) -> Comparison:
    plain = grid()
    records = []
    for row in plain.arms:
        records.extend(row.arm.all)
    for arm in plain.lengths:
        records.extend(arm.all)
    return compare(Found(records=records, timings=[of]), baseline="flash gelu4x")


# --- two kinds of repeats -------------------------------------------------------------------------


def test_repeats_of_another_kind_add_their_mean_and_their_variance() -> None:
    """Welch's interval of a mean less a mean of the values turned."""
    rng = np.random.default_rng(1)
    seeds = rng.normal(0.1, 0.02, 5)
    rounds = rng.normal(-0.3, 0.01, 14)
    test = stats.ttest_ind(seeds, -rounds, equal_var=False)
    expected = test.confidence_interval(0.95)
    estimate = of_pairs(seeds.tolist(), beside=rounds.tolist())

    assert estimate.low == pytest.approx(expected.low)
    assert estimate.high == pytest.approx(expected.high)
    assert estimate.n == 5


@pytest.mark.parametrize("arms", [1, pytest.param(4, marks=pytest.mark.slow)])
def test_intervals_of_two_kinds_of_repeats_hold_the_truth(arms: int) -> None:
    """All arms of a table together, in at least 94% of 2,000 tables."""
    rng = np.random.default_rng(2)
    held = 0
    for _ in range(2000):
        losses = rng.normal(0, 0.02, (arms + 1, 4))
        clocks = rng.normal(0, 0.01, (arms + 1, 6))
        seeds = (losses[1:] - losses[:1]).tolist()
        rounds = (clocks[1:] - clocks[:1]).tolist()
        estimates = of_arms(seeds, beside=rounds)
        held += all(each.low <= 0 <= each.high for each in estimates)
    assert held / 2000 >= 0.94


def test_too_few_rounds_give_no_interval() -> None:
    half_width = of_pairs([1.0, 1.1, 1.2], beside=[0.0, 0.1]).half_width
    assert half_width == math.inf
    estimates = of_arms([[1.0, 1.1, 1.2]] * 2, beside=[[0.0, 0.1]] * 2)
    half_width = estimates[0].half_width
    assert half_width == math.inf


# --- what the comparison makes of it --------------------------------------------------------------


def test_speeds_are_those_of_the_timing() -> None:
    comparison = timed(timing(noise=0.01))
    rows = {row.label: row for row in comparison.arms}
    swiglu = rows["flash swiglu"].times["token_us"]
    assert swiglu.estimate is not None
    assert swiglu.estimate.low < 1.1 < swiglu.estimate.high
    assert swiglu.estimate.n == 12
    assert swiglu.mean == pytest.approx(110, rel=0.01)
    ratio = rows["flash gelu4x"].times["token_us"]
    assert ratio.mean == pytest.approx(100, rel=0.01)
    factors = comparison.factors
    assert factors is not None
    gqa = factors.factors[0].levels[0].speed
    assert gqa is not None
    assert gqa.low < 0.8 < gqa.high
    shown = render(comparison)
    assert "timed in turns: 12 rounds by process CPU time, one thread, on b, 2026-11-28." in shown
    content = to_json(result_of(comparison))
    assert content["timing"]["rounds"] == 12
    json.dumps(to_json(result_of(comparison)), allow_nan=False)


def test_the_time_at_equal_loss_has_the_noise_of_both() -> None:
    """Without noise of the rounds it is as wide as without them; with noise it is wider."""
    quiet = at_equal_loss(timed(timing()), "gqa gelu4x")["ratio"]
    of_runs = at_equal_loss(grid(), "gqa gelu4x")["ratio"]
    # the runs' own times are 0.9 of the baseline's, and have no noise
    assert quiet["mean"] == pytest.approx(of_runs["mean"] * 0.8 / 0.9)
    expected = math.log(of_runs["high"] / of_runs["low"])
    quiet_width = math.log(quiet["high"] / quiet["low"])
    assert quiet_width == pytest.approx(expected, rel=0.02)
    noisy = at_equal_loss(timed(timing(noise=0.2)), "gqa gelu4x")["ratio"]
    noisy_width = math.log(noisy["high"] / noisy["low"])
    quiet_width = math.log(quiet["high"] / quiet["low"])
    assert noisy_width > 1.2 * quiet_width


def test_a_timing_that_lacks_an_arm_is_named_and_not_used() -> None:
    whole = timing()
    seconds = {arm: x for arm, x in whole.seconds.items() if "gqa-swiglu" not in arm}
    short = replace(whole, seconds=seconds)
    comparison = timed(short)
    assert comparison.timing is None
    why = (
        "the timing of 2026-11-28T10:00:00+00:00 lacks gqa swiglu, so the speeds are from the runs"
    )
    assert why in comparison.problems


def test_an_arm_that_could_not_be_timed_says_why() -> None:
    whole = timing()
    fewer = {arm: x for arm, x in whole.seconds.items() if arm != "nano-gqa-swiglu"}
    comparison = timed(
        replace(whole, seconds=fewer, left_out={"nano-gqa-swiglu": "does not fit: 9 GiB"})
    )
    row = next(row for row in comparison.arms if row.label == "gqa swiglu")

    assert row.times["token_us"].refused == "not timed in turns: does not fit: 9 GiB"
    assert row.equal_loss is not None
    assert row.equal_loss.refused == "not timed in turns: does not fit: 9 GiB"
    assert comparison.factors is not None
    assert comparison.factors.factors[0].levels[0].speed is None


# --- from the command -----------------------------------------------------------------------------


def sessions(folder: Path) -> list[Path]:
    return sorted(folder.glob("outputs/grids/*/sessions/rounds-*.json"))


@pytest.mark.slow
def test_a_grid_is_timed_once_and_a_damaged_timing_is_named(tmp_path: Path, here: Door) -> None:
    words = ["--multirun", *CELL, "attention=flash,gqa"]
    first = here(*words, "--time", "0.01")
    assert first.code == 0
    assert (
        "after the last run, nocap times 2 arms in turns, for 0.01 s and the warm-up" in first.out
    )
    assert re.search(r"timed in turns, \d+ rounds by process CPU time, one thread, on ", first.out)
    (file,) = sessions(tmp_path)
    before = file.read_bytes()
    again = here(*words, "--time", "0.01")
    assert again.code == 0
    assert file.read_bytes() == before
    without = here(*words)
    assert "timed in turns" in without.out
    file.write_text('{"started": "today"}')
    damaged = here(*words)
    assert damaged.code == 0
    assert "note: nocap leaves out a timing: " in damaged.out
    assert f"{file.name}: it must have hardware" in damaged.out
    content = json.loads(before)
    first = next(iter(content["measured"]["arms"].values()))
    first["seconds_per_token"].append(0.001)
    file.write_text(json.dumps(content))
    assert (
        f"{file.name} must have the same number of rounds for each arm (the file is damaged: "
        in here(*words).out
    )


def test_a_grid_of_the_same_arms_takes_the_timing_of_the_one_before(tmp_path: Path) -> None:
    """As the looks of `--until-shown` do, whose grids differ in their seeds alone."""
    cells = [(*CELL, f"attention={name}", f"output_dir={tmp_path}") for name in ("flash", "gqa")]
    one = plan_grid(cells, swept=["attention"], compose=composed, log=print)
    more = []
    for cell in cells:
        for seed in (0, 1):
            more.append((*cell, f"seed={seed}"))
    two = plan_grid(more, swept=["attention", "seed"], compose=composed, log=print)
    session = Session(place="rounds", arms=arms_of(one), how={"seconds": 5.0})
    path = session.path(one.folder, 1)
    path.parent.mkdir(parents=True)
    at = "2026-11-28T10:00:00+00:00"
    arm = {
        "clock": "process CPU time",
        "status": "measured",
        "reason": None,
        "seconds_per_token": [0.1],
    }
    content = {
        "kind": "rounds",
        "place": "rounds",
        "key": session.key,
        "number": 1,
        "how": {},
        "arms": {},
    }
    text = json.dumps({**content, "started": at, "ended": at, "measured": {"arms": {"a": arm}}})
    path.write_text(text)
    assert one.folder != two.folder
    InTurns(seconds=5.0).measure(two, one.folder)
    path_there = session.path(two.folder, 1)
    assert path_there.read_bytes() == path.read_bytes()


REFUSED = [
    (["--time", "0"], "--time must be a number of seconds above 0 (as in --time 60), got 0"),
    (["--time", "nan"], "--time must be a number of seconds above 0 (as in --time 60), got nan"),
    (["--time", "soon"], "--time must be a number of seconds above 0 (as in --time 60), got soon"),
    (["--time", "9", "trainer.devices=2"], "trainer.devices must be 1 with --time"),
    (["--time", "9", "hydra/launcher=slurm"], "--time does not work on a cluster"),
    (["--time", "9", "--plan", "trainer.devices=2"], "trainer.devices must be 1 with --time"),
    (
        ["--time", "9", "search=random", "optimizer.wd=interval(1e-4,1e-2)"],
        "--time does not work with search=",
    ),
]


@pytest.mark.parametrize(("words", "why"), REFUSED)
def test_what_cannot_be_timed_is_refused(
    words: list[str], why: str, here: Door, tmp_path: Path
) -> None:
    done = here("--multirun", *CELL, ARMS, *words)
    assert done.code == 2
    assert why in done.err
    assert not (tmp_path / "outputs" / "runs").exists()
