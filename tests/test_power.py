"""What a grid or a study can show, before it is trained: against other simulated tables and a
noncentral t, the noise against its formula, and what `--plan` says."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from nocap.judge import interval
from nocap.judge.cautious_interval import Declared
from nocap.judge.gain import width_of
from nocap.judge.interval import of_arms
from nocap.judge.power import (
    NoiseAtEqualLoss,
    detectable,
    detectable_by_claim,
    detectable_time,
    noise_at_equal_loss,
    noise_of,
)
from nocap.metrics import METRICS
from nocap.store.record import Record
from nocap.store.runs import load_runs
from tests.conftest import Door
from tests.grids import CELL
from tests.test_compare import gelu3x, write_run


@pytest.mark.parametrize(("arms", "seeds"), [(5, 3), (5, 8)])
def test_the_least_difference_is_shown_in_four_of_five_tables(arms: int, seeds: int) -> None:
    """One arm of a table has the effect."""
    rng = np.random.default_rng(11)
    least = detectable(math.sqrt(2), seeds, arms=arms)
    shown = 0
    for _ in range(1000):
        own = rng.normal(size=(arms, seeds))
        noise = own - rng.normal(size=(1, seeds))
        noise[0] += least
        shown += of_arms(noise.tolist())[0].low > 0
    assert 0.76 <= shown / 1000 <= 0.84


@pytest.mark.parametrize("seeds", [3, 6])
def test_of_one_arm_it_is_that_of_a_noncentral_t(seeds: int) -> None:
    least = detectable(1.0, seeds, arms=1)
    quantile = stats.t.ppf(0.975, seeds - 1)
    root = least * math.sqrt(seeds)
    power = stats.nct.sf(quantile, seeds - 1, root)
    assert power == pytest.approx(0.8, abs=0.03)


def test_two_seeds_show_nothing() -> None:
    assert detectable(0.01, 2, arms=1) == math.inf


@pytest.mark.parametrize(
    ("n", "known"), [(3, None), (6, None), (3, Declared(sd=1.0, df=8, source="made"))], ids=str
)
def test_a_claim_shows_its_least_gain_in_four_of_five_analyses(
    n: int, known: Declared | None
) -> None:
    """By its own interval at its look, with the noise that was declared."""
    width = width_of(METRICS["val_loss"], known)
    least = detectable_by_claim(1.0, n, width=width)
    rng = np.random.default_rng(5)
    pairs = least + rng.normal(size=(4000, n))
    halves = [width(float(row.std(ddof=1)), n, interval.analysis_of(n)) for row in pairs]
    found = pairs.mean(axis=1) > halves
    assert np.mean(found) == pytest.approx(0.8, abs=0.03)


# --- the time at equal loss -----------------------------------------------------------------------


def test_of_a_slope_that_is_known_it_is_that_of_a_noncentral_t() -> None:
    """Then a seed's logarithm has the noise of its pace, and that of its loss over the slope."""
    noise = NoiseAtEqualLoss(loss=0.001, pace=0.03, slope=-0.1, ends=1e-9)
    spread = math.hypot(0.03, 0.001 / 0.1)
    for seeds in (3, 6):
        least = -math.log(1 - detectable_time(noise, seeds, levels=1))
        quantile = stats.t.ppf(0.975, seeds - 1)
        root = least / spread * math.sqrt(seeds)
        power = stats.nct.sf(quantile, seeds - 1, root)
        assert power == pytest.approx(0.8, abs=0.04)
    stricter = -math.log(1 - detectable_time(noise, 6, levels=1, look=2))
    quantile = stats.t.ppf(1 - 0.025 / 4, 5)
    root = stricter / spread * math.sqrt(6)
    power = stats.nct.sf(quantile, 5, root)
    assert power == pytest.approx(0.8, abs=0.04)


def z_by_hand(
    losses: np.ndarray, pace: np.ndarray, short: np.ndarray, long: np.ndarray
) -> np.ndarray:
    """z of arms beside the first one, as docs/statistics.md has it: logarithms (arms, seeds) and
    (seeds,)."""
    slope = (long - short) / math.log(2)
    b = slope.mean()
    d = losses - losses[0]
    m = d.mean(axis=1, keepdims=True) / b
    return pace - pace[0] - m - (d - m * slope) / b


@pytest.mark.parametrize(
    ("levels", "others", "seeds"), [(3, 1, 4), (2, 3, 3)], ids=["by arm", "by factor"]
)
def test_the_least_gain_in_time_is_shown_in_four_of_five_grids(
    levels: int, others: int, seeds: int
) -> None:
    """Whole grids with a gain of the first level's: half of it in its pace, half in its loss."""
    noise = NoiseAtEqualLoss(loss=0.002, pace=0.01, slope=-0.1, ends=0.0015)
    gain = -math.log(1 - detectable_time(noise, seeds, levels=levels, others=others))
    rng = np.random.default_rng(9)
    shown = 0
    for _ in range(1000):
        shape = (levels + 1, others, seeds)
        losses = rng.normal(0, noise.loss / math.sqrt(2), shape)
        shape = (levels + 1, others, seeds)
        pace = rng.normal(0, noise.pace / math.sqrt(2), shape)
        losses[1] += noise.slope * gain / 2  # worth so many more steps
        pace[1] -= gain / 2
        short = noise.slope * math.log(0.7) + rng.normal(0, noise.ends, seeds)
        long = noise.slope * math.log(1.4) + rng.normal(0, noise.ends, seeds)
        flat = losses.reshape(-1, seeds)
        flat_pace = pace.reshape(-1, seeds)
        z = z_by_hand(flat, flat_pace, short, long)
        by_level = z.reshape(levels + 1, others, seeds).mean(axis=1)
        differences = by_level[1:] - by_level[0]
        first = of_arms((differences).tolist())[0]
        shown += first.high < 0
    assert shown / 1000 == pytest.approx(0.8, abs=0.04)


NOISES = [
    # whose slope is seldom known
    (NoiseAtEqualLoss(loss=0.001, pace=0.01, slope=-0.1, ends=0.1), 3),
    # whose arms lie beyond the ends
    (NoiseAtEqualLoss(loss=0.3, pace=0.01, slope=-0.1, ends=0.001), 3),
    (NoiseAtEqualLoss(loss=0.001, pace=0.01, slope=0.1, ends=0.001), 3),  # whose loss rises
    (NoiseAtEqualLoss(loss=0.001, pace=0.01, slope=-0.1, ends=0.001), 2),
]


@pytest.mark.parametrize(("noise", "seeds"), NOISES)
def test_a_table_that_is_refused_shows_nothing(noise: NoiseAtEqualLoss, seeds: int) -> None:
    assert detectable_time(noise, seeds, levels=1) == math.inf


def alike(root: Path, rng: np.random.Generator, *, lengths: bool = True) -> None:
    """Four seeds of two arms with their times, and of the baseline at half and at twice the
    steps."""
    for seed in range(4):
        for make, level in ((write_run, 3.3), (gelu3x, 3.32)):
            noise = rng.normal(0, 0.01)
            speed = 1000 * math.exp(rng.normal(0, 0.02))
            make(root, seed=seed, loss=level + noise, config={"trainer.steps": 400}, speed=speed)
        for steps in (200, 800) if lengths else ():
            noise = rng.normal(0, 0.01)
            loss = 3.3 * (steps / 400) ** -0.1 + noise
            write_run(
                root,
                seed=seed,
                loss=loss,
                config={"trainer.steps": steps},
                swept=("trainer.steps",),
            )


def by(records: list[Record], words: str, steps: int) -> list[Record]:
    """Those of an arm, by their seeds."""
    own = []
    for record in records:
        if words in record.name and record.config["trainer.steps"] == steps:
            own.append(record)
    return sorted(own, key=lambda record: record.seed)


def logs(records: list[Record], metric: str) -> np.ndarray:
    return np.log([record.value(metric) for record in records])


def test_the_noise_of_a_time_is_that_of_paces_losses_and_the_baselines_lengths(
    tmp_path: Path,
) -> None:
    alike(tmp_path, np.random.default_rng(4))
    records = load_runs([tmp_path]).records
    base = by(records, "gelu4x", 400)
    arm = by(records, "gelu3x", 400)
    noise = noise_at_equal_loss(records, {**base[0].config, "seed": 0})
    assert isinstance(noise, NoiseAtEqualLoss)
    pace = logs(base, "token_us") - logs(arm, "token_us")
    assert noise.pace == pytest.approx(pace.std(ddof=1))
    losses = logs(base, "val_loss") - logs(arm, "val_loss")
    deviation = losses.std(ddof=1)
    assert noise.loss == pytest.approx(deviation, rel=0.01)
    short_ones = logs(by(records, "gelu4x", 200), "val_loss")
    falls = logs(by(records, "gelu4x", 800), "val_loss") - short_ones
    expected = falls.mean() / math.log(4)
    assert noise.slope == pytest.approx(expected)
    assert noise.ends == pytest.approx(falls.std(ddof=1) / math.sqrt(2))


def test_what_is_missing_for_it_is_said(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    alike(tmp_path, rng, lengths=False)
    records = load_runs([tmp_path]).records
    without = (
        "there are no runs of the baseline with three seeds at a shorter and at a longer length"
    )
    assert noise_at_equal_loss(records, records[0].config) == without
    one = by(records, "gelu4x", 400)
    alone = "no two arms have three common seeds with a time a token on one machine"
    assert noise_at_equal_loss(one, one[0].config) == alone


# --- the noise of losses, and the command ---------------------------------------------------------


def test_the_noise_is_that_of_pairs_of_runs_alike(tmp_path: Path) -> None:
    """Of other steps it is another, and of another batch none."""
    rng = np.random.default_rng(2)
    losses = 3.3 + rng.normal(0, 0.01, (2, 4))
    config = {"trainer.steps": 400, "trainer.batch_tokens": 64}
    for seed in range(4):
        write_run(tmp_path, seed=seed, loss=losses[0, seed], config=config)
        gelu3x(tmp_path, seed=seed, loss=losses[1, seed], config=config)
        others_loss = {**config, "trainer.batch_tokens": 128}
        gelu3x(tmp_path, seed=seed, loss=9.0 + seed, config=others_loss)
        longer = {**config, "trainer.steps": 800}
        write_run(tmp_path, seed=seed, loss=3.0 + 0.5 * losses[0, seed], config=longer)
        longer = {**config, "trainer.steps": 800}
        gelu3x(tmp_path, seed=seed, loss=3.0 + 0.5 * losses[1, seed], config=longer)
    records = load_runs([tmp_path]).records
    own = next(record for record in records if "gelu4x" in record.name)
    noise = noise_of(records, own.config)
    sd = (losses[0] - losses[1]).std(ddof=1)

    assert noise[400].sd == pytest.approx(sd)
    assert noise[400].pairs == 4
    assert noise[800].sd == pytest.approx(0.5 * sd)
    assert [*noise] == [400, 800]
    assert noise_of(records, {**own.config, "trainer.batch_tokens": 32}) == {}


@pytest.mark.slow
def test_plan_says_what_the_grid_can_show(here: Door) -> None:
    grid = [*CELL, "attention=flash,gqa", "seed=0,1,2"]
    before = here("--multirun", "--plan", *grid)
    assert (
        "nocap does not know which difference 3 seeds can show: no two arms of this model, data, "
        in before.out
    )
    assert here("--multirun", *grid).code == 0
    between = here("--multirun", "--plan", *grid)
    assert (
        "nocap does not know which gain in time at equal loss 3 seeds can show: there are no "
        in between.out
    )
    assert "at a shorter and at a longer length (--equal-loss trains and times them)" in between.out
    assert here("--multirun", "--equal-loss", *grid).code == 0
    after = here("--multirun", "--plan", *grid, "norm=rmsnorm,layernorm")
    assert after.code == 0
    assert re.search(r"seeds +arm by arm +by factor, attention +by factor, norm", after.out)
    lines = after.out.splitlines()
    rows = [line.split() for line in lines if re.match(r" +(3|6|12) +0\.\d+ ", line)]
    assert [row[0] for row in rows] == ["3", "6", "12"]
    least = [float(row[1]) for row in rows]
    assert least == sorted(least, reverse=True)
    for row in rows:
        assert float(row[2]) < float(row[1])
    assert "from 3 pairs of such runs" in after.out
    assert "gains in the time at equal loss that are shown in 80% of grids" in after.out
    assert re.search(
        r"^noise of the time a token between two arms with the same seed: \d+\.\d%; ",
        after.out,
        re.M,
    )
    lines = after.out.splitlines()
    gains = [line.split() for line in lines if re.match(r" +(3|6|12) +(\d+\.\d%|–) ", line)]
    assert [row[0] for row in gains] == ["3", "6", "12"]
    for row in gains:
        assert len(row) == 4
