"""The time at equal loss: against closed forms, simulated grids and real rows; what is refused; and
the cells that `--equal-loss` adds."""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nocap.config.compose import composed
from nocap.config.plain import to_plain
from nocap.judge.compare import compare
from nocap.judge.comparison import Comparison
from nocap.judge.comparison_json import result_of
from nocap.judge.comparison_schema import to_json
from nocap.judge.equal_loss import slopes, times
from nocap.judge.interval import of_pairs
from nocap.launch import baseline_lengths
from nocap.launch.grid import Grid, plan_grid
from nocap.report import comparison_page as page
from nocap.report.comparison_tables import render
from nocap.store.record import Curve, Record
from nocap.store.record_files import digest
from nocap.store.runs import Found, load_runs
from tests.conftest import REPO, Door
from tests.grids import CELL

SHARED = REPO.parent / "shared"
STEPS = 150
NAMES = {"attention": ("flash", "gqa"), "mlp": ("gelu4x", "swiglu")}


def record(
    attention: str,
    mlp: str,
    seed: int,
    loss: float,
    *,
    steps: int = STEPS,
    pace: float = 1.0,
    machine: str = "a",
) -> Record:
    """A finished run as a grid of `NAMES` leaves it; one of other steps shows a length of the first
    arm."""
    warmup = math.floor(0.05 * steps + 0.5)
    config = {
        "attention.kind": attention,
        "mlp.kind": mlp,
        "trainer.steps": steps,
        "schedule.warmup_steps": warmup,
    }
    base = "nano-flash-gelu4x"
    arm = f"nano-{attention}-{mlp}" + (f"-{steps}" if steps != STEPS else "")
    name = f"nano-{attention}-{mlp}-s{seed}"
    summary = {
        "status": "finished",
        "steps": steps,
        "tokens": steps * 1024,
        "val_loss": loss,
        "token_us": pace,
        "clock_s": {"train": 1.0},
        "hardware": {"name": machine, "fingerprint": machine},
    }
    manifest = {
        "options": {"attention": attention, "mlp": mlp},
        "attempts": [{"swept": ["attention", "mlp", "seed"]}],
    }
    identity = digest([arm, seed])
    return Record(
        folder=Path(f"{arm}-s{seed}"),
        identity=identity,
        name=name,
        arm=arm,
        seed=seed,
        status="finished",
        started="",
        config=config,
        parts={},
        manifest=manifest,
        summary=summary,
        curve=Curve(),
        length_of=base if steps != STEPS else None,
    )


def grid(
    change: Callable[[Record], Record] = lambda each: each, *, seeds: int = 6, gain: float = 0.02
) -> Comparison:
    """Four arms, of which swiglu's are lower by `gain` and gqa's take 0.9 of the time, and the
    baseline's lengths, by a power law of the steps."""
    rng = np.random.default_rng(3)
    records = []
    for seed in range(seeds):
        for attention in NAMES["attention"]:
            for mlp in NAMES["mlp"]:
                noise = rng.normal(0, 0.002)
                loss = 2.3 - gain * (mlp == "swiglu") + noise
                if attention == "gqa":
                    pace = 0.9
                else:
                    pace = 1.0
                records.append(record(attention, mlp, seed, loss, pace=pace))
        for steps in (105, 210):
            noise = rng.normal(0, 0.002)
            loss = 2.3 * (steps / STEPS) ** -0.1 + noise
            records.append(record("flash", "gelu4x", seed, loss, steps=steps))
    return compare(Found(records=[change(each) for each in records]), baseline="flash gelu4x")


def at_equal_loss(comparison: Comparison, arm: str) -> dict[str, Any]:
    content = to_json(result_of(comparison))
    json.dumps(content, allow_nan=False)
    return next(row["equal_loss"] for row in content["arms"] if row["label"] == arm)


# --- the estimate ---------------------------------------------------------------------------------


def test_an_arm_without_noise_has_the_closed_form() -> None:
    """Losses 3·steps^-0.1; the arm's loss is that of 1.2 times the steps, and each takes 1.1 of the
    time."""
    ones = np.ones(4)
    losses = {steps: 3.0 * ones * steps**-0.1 for steps in (105, 150, 180, 210)}
    slope = slopes(losses[105], losses[210], ratio=2.0)
    assert slope == pytest.approx([-0.1] * 4)
    gain = math.log(1.1) * ones
    z = times(losses[180], losses[150], slope, gain)
    ratio = np.exp(z)
    assert ratio == pytest.approx([1.1 / 1.2] * 4)


@pytest.mark.parametrize(
    ("planted", "seeds"),
    [(1.0, 3), (0.9, 3), *(pytest.param(x, 6, marks=pytest.mark.slow) for x in (1.0, 0.9))],
)
def test_intervals_hold_the_planted_time(planted: float, seeds: int) -> None:
    """Of 10,000 simulated pairs of arms, with noise as nano's seeds have."""
    rng = np.random.default_rng(7)
    held = 0
    for _ in range(10_000):
        noise = rng.normal(0, 0.009, (4, seeds))
        short = 2.3 * 0.7**-0.08 * np.exp(noise[0])
        base = 2.3 * np.exp(noise[1])
        long = 2.3 * 1.4**-0.08 * np.exp(noise[2])
        arm = 2.3 * planted**0.08 * np.exp(noise[3])  # worth 1/planted of the steps
        slopes_here = slopes(short, long, ratio=2.0)
        z = times(arm, base, slopes_here, np.zeros(seeds))
        estimate = of_pairs(z.tolist())
        held += estimate.low <= math.log(planted) <= estimate.high
    assert 0.945 <= held / 10_000 <= 0.975


@pytest.mark.skipif(
    not (SHARED / "seed_noise").is_dir(), reason="the rows of 240 real runs are not here"
)
def test_real_rows_have_the_figures_that_other_code_has() -> None:
    """Twelve seeds of swiglu and gqa: alone, and over the levels of the other key."""
    place = SHARED / "seed_noise"
    lines = (place / "nano_attention_mlp_40_seeds.csv").read_text().splitlines()
    records = []
    for cells in csv.DictReader(lines):
        seed = int(cells["seed"])
        if seed < 12:
            loss = float(cells["val_loss"])
            records.append(record(cells["attention"], cells["mlp"], seed, loss))
    text = (place / "nano_baseline_lengths.csv").read_text()
    for cells in csv.DictReader(text.splitlines()):
        seed = int(cells["seed"])
        loss = float(cells["val_loss"])
        steps = int(cells["steps"])
        records.append(record("flash", "gelu4x", seed, loss, steps=steps))
    base = []
    for each in records:
        if each.config["attention.kind"] == "flash" and each.config["mlp.kind"] == "gelu4x":
            base.append(each)
    alone = {
        "swiglu": ("flash", "swiglu", (1.158, 1.094, 1.226)),
        "gqa": ("gqa", "gelu4x", (0.960, 0.911, 1.010)),
    }
    for attention, mlp, expected in alone.values():
        arm = []
        for each in records:
            if (each.config["attention.kind"], each.config["mlp.kind"]) == (attention, mlp):
                arm.append(each)
        _, row = compare(Found(records=[*base, *arm])).arms
        assert row.equal_loss is not None
        assert worth(row.equal_loss.ratio) == pytest.approx(expected, abs=0.0006)
    # each as the one level of its key: gqa over three MLPs, swiglu over two attentions
    levels = by_level(records)
    share = worth(levels["gqa"].ratio)
    assert share == pytest.approx((0.971, 0.945, 0.998), abs=0.0006)
    levels = by_level([each for each in records if each.config["mlp.kind"] != "gelu3x"])
    share_of_swiglu = worth(levels["swiglu"].ratio)
    assert share_of_swiglu == pytest.approx((1.168, 1.127, 1.211), abs=0.0006)


def by_level(records: list[Record]) -> dict[str, Any]:
    factors = compare(Found(records=records), baseline="flash gelu4x").factors
    assert factors is not None
    equal_losses: dict[str, Any] = {}
    for factor in factors.factors:
        for level in factor.levels:
            equal_losses[level.name] = level.equal_loss
    return equal_losses


def worth(ratio: Any) -> tuple[float, float, float]:
    """How many of the baseline's steps a loss is worth, where all steps take the same time."""
    return 1 / ratio.mid, 1 / ratio.high, 1 / ratio.low


# --- in a comparison ------------------------------------------------------------------------------


def test_a_comparison_shows_it_by_arm_and_by_factor() -> None:
    comparison = grid()
    content = to_json(result_of(comparison))
    labels = [row["label"] for row in content["arms"]]
    assert labels == ["flash gelu4x", "flash swiglu", "gqa gelu4x", "gqa swiglu"]
    expected = [(105, 6), (210, 6)]
    counts = [(each["steps"], len(each["runs"])) for each in content["lengths"]]
    assert counts == expected
    assert content["not_compared"] == []
    swiglu = at_equal_loss(comparison, "flash swiglu")["ratio"]
    assert swiglu["low"] < (2.28 / 2.3) ** 10 < swiglu["high"]
    assert at_equal_loss(comparison, "gqa gelu4x")["outcome"] == "better"
    levels = {}
    for factor in content["by_factor"]["factors"]:
        for level in factor["levels"]:
            levels[level["level"]] = level["equal_loss"]
    gqa = levels["gqa"]
    assert gqa["ratio"]["low"] < 0.9 < gqa["ratio"]["high"]
    ratio = at_equal_loss(comparison, "gqa gelu4x")["ratio"]
    assert gqa["ratio"]["high"] < ratio["high"]
    shown = render(comparison)
    assert re.search(r"^attention=gqa .* 0\.\d+ \[0\.\d+, 0\.\d+\]$", shown, re.M)
    assert re.search(r"^found: .*\n +attention=gqa.* of the time at equal loss", shown)
    assert "with 105, 150 and 210 steps" in shown
    html = page.render(comparison)
    assert "time at equal loss" in html


def test_nothing_of_it_is_shown_where_the_baseline_has_no_other_lengths() -> None:
    records = []
    for seed in range(3):
        for mlp in NAMES["mlp"]:
            records.append(record("flash", mlp, seed, 2.3 + 0.01 * seed))
    comparison = compare(Found(records=records))
    assert [row.equal_loss for row in comparison.arms] == [None, None]
    assert "equal loss" not in render(comparison)


def test_lengths_of_another_arm_are_named_and_are_no_arms() -> None:
    """As where `--baseline` names another arm than the first."""
    records = [record for row in grid().arms for record in row.arm.all]
    records += [record for arm in grid().lengths for record in arm.all]
    comparison = compare(Found(records=records), baseline="gqa gelu4x")
    assert [row.equal_loss for row in comparison.arms] == [None] * 4
    assert comparison.not_compared == []
    (line,) = comparison.problems
    assert line.startswith(
        "there is no time at equal loss, because 12 runs of other lengths belong to another arm"
    )


def test_lengths_that_were_swept_show_it_without_asking() -> None:
    """They stay arms of the table."""
    records = [record for row in grid().arms for record in row.arm.all]
    swept = []
    for arm in grid().lengths:
        for each in arm.all:
            swept.append(replace(each, length_of=None))
    found = Found(records=[*records, *swept])
    comparison = compare(found, baseline=records[0].identity)
    assert len(comparison.arms) == 6
    trainer_steps = [arm.config["trainer.steps"] for arm in comparison.lengths]
    assert trainer_steps == [105, 210]
    swiglu = next(row for row in comparison.arms if row.arm.config["mlp.kind"] == "swiglu")
    assert swiglu.equal_loss is not None
    assert swiglu.equal_loss.ratio is not None


def lost(each: Record) -> Record:
    """The baseline's lengths lack a seed."""
    if each.length_of and each.seed == 5:
        return replace(each, status="failed")
    return each


def on_another_machine(each: Record) -> Record:
    hardware = {"name": "b", "fingerprint": "b"}
    if "gqa" in each.arm:
        summary = {**each.summary, "hardware": hardware}
    else:
        summary = each.summary
    return replace(each, summary=summary)


def untimed(each: Record) -> Record:
    if "gqa" in each.arm:
        summary = {**each.summary, "token_us": None}
    else:
        summary = each.summary
    return replace(each, summary=summary)


def flat(each: Record) -> Record:
    """The baseline learns nothing more after 105 steps."""
    loss = 2.3 + 0.001 * (each.seed % 3) * (-1) ** (each.config["trainer.steps"] // 105)
    if each.length_of:
        return replace(each, summary={**each.summary, "val_loss": loss})
    return each


REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    "beyond the ends": (
        {"gain": 0.3},
        "flash swiglu",
        "the arm's loss is outside the range that the baseline reaches in 105 to 210 steps",
    ),
    "another machine": ({"change": on_another_machine}, "gqa gelu4x", "other hardware: 1 × b (b)"),
    "no time": ({"change": untimed}, "gqa gelu4x", "a run's record has no time a token"),
    "a flat baseline": (
        {"change": flat},
        "flash swiglu",
        "how fast the baseline's loss falls with its steps is not",
    ),
    "a seed lost": (
        {"change": lost},
        "flash swiglu",
        "the baseline's other lengths have fewer than 3 seeds",
    ),
}


@pytest.mark.parametrize(("how", "arm", "why"), REFUSED.values(), ids=REFUSED)
def test_what_it_cannot_say_is_refused_with_the_reason(
    how: dict[str, Any], arm: str, why: str
) -> None:
    comparison = grid(**how)
    at = at_equal_loss(comparison, arm)
    assert at["ratio"] is None
    assert at["outcome"] == "no verdict"
    assert at["refused"].startswith(why)
    assert f"] {why}" in render(comparison)


# --- the cells ------------------------------------------------------------------------------------


def planned(*words: str, swept: tuple[str, ...] = ("attention", "seed")) -> tuple[Grid, Grid]:
    """A grid, and the same with the baseline's other lengths."""
    cells = []
    for seed in (0, 1):
        for attention in ("flash", "gqa"):
            cells.append((*CELL, *words, f"attention={attention}", f"seed={seed}"))
    plain = plan_grid(cells, swept=swept, compose=composed, log=print)
    more = baseline_lengths.cells_of(plain, composed)
    return plain, plan_grid(cells, swept=swept, compose=composed, log=print, lengths=more)


@pytest.mark.slow
def test_the_baseline_gets_whole_schedules_at_its_other_lengths(tmp_path: Path) -> None:
    words = ["trainer.steps=100", "schedule=wsd", f"output_dir={tmp_path}"]
    plain, whole = planned(*words, "schedule.warmup_steps=9", "schedule.decay_steps=30")
    added = [cell for cell in whole.cells if cell.plan.request and cell.plan.request.length_of]
    assert len(whole.cells) - len(plain.cells) == 4
    assert len(added) == 4
    runs = [cell.plan.run for cell in added]
    expected = [(0, 70), (0, 140), (1, 70), (1, 140)]
    assert [(run.seed, run.trainer.steps) for run in runs] == expected
    warmup_steps = [run.schedule.warmup_steps for run in runs]
    assert warmup_steps == [6, 13, 6, 13]
    decay_steps = [to_plain(run.schedule)["decay_steps"] for run in runs]
    assert decay_steps == [21, 42, 21, 42]
    compiles = {run.trainer.compile for run in runs}
    assert compiles == {plain.cells[0].plan.run.trainer.compile}
    kinds = {run.attention.kind for run in runs}
    assert kinds == {plain.cells[0].plan.run.attention.kind}
    bases = {cell.plan.request.length_of for cell in added}
    assert bases == {plain.cells[0].plan.arm}
    for cell in added:
        assert f"trainer.steps={cell.plan.run.trainer.steps}" in cell.label
    assert baseline_lengths.cost(plain, whole) == (
        "equal loss: the baseline also trains for 70 and 140 steps: 4 runs more, as much as 2.1 "
        "arms"
    )


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["trainer.steps=1"], "trainer.steps must be 2 or more with --equal-loss, got 1"),
        (["--zip", "search=random"], "--zip does not work with search=random"),
        (["trainer.steps=10,20"], "--equal-loss does not work if you sweep trainer.steps"),
    ],
)
def test_where_there_are_no_other_lengths_it_is_refused(
    here: Door, words: list[str], why: str
) -> None:
    done = here("--equal-loss", *CELL, *words, "seed=0,1", "attention=flash,gqa")
    assert done.code == 2
    assert why in done.err
    assert not list(Path("outputs").glob("runs/*"))


def test_a_grid_trains_them_and_tells_the_time_at_equal_loss(tmp_path: Path, here: Door) -> None:
    """A length that was trained before, as a run of its own, shows a length in this grid."""
    assert here(*CELL, "trainer.steps=7", "seed=0").code == 0
    done = here("--equal-loss", *CELL, "trainer.steps=10", "attention=flash,gqa", "seed=0")
    assert done.code == 0
    assert "equal loss: the baseline also trains for 7 and 14 steps: 2 runs more" in done.out
    assert "4 finished; 3 trained now" in done.out
    assert "2 arms from 2 runs; baseline: flash" in done.out
    assert "the baseline's other lengths have fewer than 3 seeds of the table" in done.out
    (folder,) = (tmp_path / "outputs" / "grids").iterdir()
    comparison = compare(load_runs([folder]))
    trainer_steps = [arm.config["trainer.steps"] for arm in comparison.lengths]
    assert trainer_steps == [7, 14]
    assert [len(arm.runs) for arm in comparison.lengths] == [1, 1]
