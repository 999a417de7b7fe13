"""What a grid can show, before it is trained: against other simulated tables and a noncentral t, the noise
against its formula, and what `--plan` says."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from nocap.judge.interval import of_arms
from nocap.judge.power import detectable, noise_of
from nocap.store.runs import load
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
        noise = rng.normal(size=(arms, seeds)) - rng.normal(size=(1, seeds))
        noise[0] += least
        shown += of_arms(noise.tolist())[0].low > 0
    assert 0.76 <= shown / 1000 <= 0.84


@pytest.mark.parametrize("seeds", [3, 6])
def test_of_one_arm_it_is_that_of_a_noncentral_t(seeds: int) -> None:
    least = detectable(1.0, seeds, arms=1)
    power = stats.nct.sf(stats.t.ppf(0.975, seeds - 1), seeds - 1, least * math.sqrt(seeds))
    assert power == pytest.approx(0.8, abs=0.03)


def test_two_seeds_show_nothing() -> None:
    assert detectable(0.01, 2, arms=1) == math.inf


def test_the_noise_is_that_of_pairs_of_runs_alike(tmp_path: Path) -> None:
    """Of other steps it is another, and of another batch none."""
    rng = np.random.default_rng(2)
    losses = 3.3 + rng.normal(0, 0.01, (2, 4))
    config = {"trainer.steps": 400, "trainer.batch_tokens": 64}
    for seed in range(4):
        write_run(tmp_path, seed=seed, loss=losses[0, seed], config=config)
        gelu3x(tmp_path, seed=seed, loss=losses[1, seed], config=config)
        gelu3x(tmp_path, seed=seed, loss=9.0 + seed, config={**config, "trainer.batch_tokens": 128})
        write_run(
            tmp_path, seed=seed, loss=3.0 + 0.5 * losses[0, seed], config={**config, "trainer.steps": 800}
        )
        gelu3x(tmp_path, seed=seed, loss=3.0 + 0.5 * losses[1, seed], config={**config, "trainer.steps": 800})
    records = load([tmp_path]).records
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
    assert "what 3 seeds can show is not known: no two arms of this model, data, batch" in before.out
    assert here("--multirun", *grid).code == 0
    after = here("--multirun", "--plan", *grid, "norm=layernorm,rmsnorm")
    assert after.code == 0
    assert re.search(r"seeds +arm by arm +by factor, attention +by factor, norm", after.out)
    rows = [line.split() for line in after.out.splitlines() if re.match(r" +(3|6|12) +0\.\d+ ", line)]
    assert [row[0] for row in rows] == ["3", "6", "12"]
    least = [float(row[1]) for row in rows]
    assert least == sorted(least, reverse=True)
    assert all(float(row[2]) < float(row[1]) for row in rows)
    assert "from 3 pairs of such runs" in after.out
