"""Looks at a growing study: levels against published bounds, and what a claim decides when."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy import stats as scipy_stats

from nocap.judge.noise import Prior
from nocap.judge.sequential import levels, spent
from nocap.judge.verdict import Judge, Reason, Word
from tests.test_verdict import LOSS, judge, seeded, speeds

NINE = [3, 6, 9]
QUIET = {"val_loss": Prior(sd=0.01, df=8, source="made")}


@pytest.mark.parametrize(
    ("counts", "bounds"),  # of Lan & DeMets's O'Brien-Fleming-like spending at a one-sided 0.025, as ldBounds 2.0 tabulates them
    [((1, 2), (2.9626, 1.9686)), ((1, 2, 3), (3.7103, 2.5114, 1.9930)), ((1, 2, 3, 4, 5), (4.8769, 3.3569, 2.6803, 2.2898, 2.0310))],
)
def test_levels_are_the_published_bounds(counts: tuple[int, ...], bounds: tuple[float, ...]):
    assert [float(scipy_stats.norm.isf(level)) for level in levels(counts, 0.025)] == pytest.approx(bounds, abs=2e-4)
    assert levels(tuple(3 * n for n in counts), 0.025) == pytest.approx(levels(counts, 0.025))  # shares count, not numbers


def test_one_look_spends_all_and_many_spend_no_more():
    assert levels((7,), 0.05) == (0.05,)
    assert spent(0.05, 1.0) == pytest.approx(0.05)
    counts = (3, 5, 6, 12)
    found = levels(counts, 0.05)
    assert list(found) == sorted(found)
    paths = np.random.default_rng(0).normal(size=(400_000, counts[-1])).cumsum(axis=1)
    z = np.stack([paths[:, n - 1] / math.sqrt(n) for n in counts], axis=1)
    crossed = (z > scipy_stats.norm.isf(found)).cumsum(axis=1) > 0
    for i, n in enumerate(counts):
        assert crossed[:, i].mean() == pytest.approx(spent(0.05, n / 12), abs=0.0015)


def test_a_claims_looks():
    made = seeded(9, looks=NINE)
    assert [made.at_look(i)[0] for i in (1, 2, 3)] == [[1, 2, 3], [1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 6, 7, 8, 9]]
    assert [made.at_look(i)[1] for i in (1, 2, 3)] == pytest.approx(levels((3, 6, 9), 0.05))
    for i in (0, 4):
        with pytest.raises(ValueError, match=f"look must be one of the 3 declared, got {i}"):
            made.at_look(i)
    for old in (1, [], [9]):  # one look
        assert seeded(9, looks=old).at_look(1) == (list(range(1, 10)), 0.05)
        assert seeded(9, looks=old) == seeded(9) != made


def grown(gains: list[float], of: int = 9, *, noise: Any = QUIET, **changed: Any) -> Judge:
    """A claim of a lower loss with looks at 3, 6 and 9 pairs, of which so many are there."""
    made = seeded(of, looks=NINE, **{**LOSS, **changed})
    values = [3.4 - gain for gain in gains] + [3.4] * (of - len(gains))
    without = [("gqa", seed) for seed in range(len(gains) + 1, of + 1)]
    return judge(made, ("val_loss", values, [3.4] * of), without=without, noise=noise)


def test_a_decision_at_an_early_look_stays():
    early = grown([0.040, 0.043, 0.041]).last_complete()
    assert (early.word, early.look, early.n, early.missing) == (Word.confirmed, 1, 3, [])
    later = grown([0.040, 0.043, 0.041, *[-0.1] * 6])
    assert later.last_complete() == early
    assert later.verdict().word is not Word.confirmed


def test_an_early_look_asks_for_more_than_the_last():
    """The same three pairs, t = 0.02 / (0.01 / √3) = 3.46 with 10 degrees of freedom, confirm alone and not as a first look."""
    gains = [0.019, 0.020, 0.021]
    assert 0.0007 < scipy_stats.t.sf(0.02 / (0.01 / math.sqrt(3)), 10) < 0.05
    alone = judge(seeded(3, **LOSS), ("val_loss", [3.4 - g for g in gains], [3.4] * 3), noise=QUIET).verdict()
    first = grown(gains)
    assert (alone.word, first.last_complete().word) == (Word.confirmed, Word.inconclusive)
    assert first.last_complete().reason is Reason.undecided
    assert first.more() == {"seed": 3}  # up to the next look
    second = grown([*gains, 0.02, 0.019, 0.021]).last_complete()
    assert (second.word, second.look, second.n) == (Word.confirmed, 2, 6)
    shown, short = first.last_complete().interval, alone.interval
    assert shown is not None
    assert short is not None
    assert shown.half_width == pytest.approx(0.01 / math.sqrt(3) * scipy_stats.t.isf(levels((3, 6, 9), 0.025)[0], 10))
    assert short.half_width == pytest.approx(0.01 / math.sqrt(3) * scipy_stats.t.isf(0.025, 10))


def test_what_a_look_misses_is_named():
    found = grown([0.04, 0.04]).last_complete()
    assert (found.word, found.look, found.missing) == (Word.inconclusive, 1, ["val_loss of gqa, seed 3"])
    between = grown([0.0, 0.001, -0.001, 0.0]).last_complete()  # four of six: the first look counts
    assert (between.look, between.n, between.missing) == (1, 3, [])
    whole = grown([0.01, -0.01] * 4 + [0.0])
    assert (whole.last_complete().look, whole.last_complete().n) == (3, 9)


def test_equivalent_is_said_at_the_last_look_only():
    slack = {"slack": {"cpu": 0.1}}
    early = grown([0.0, 0.001, -0.001], **slack).last_complete()
    assert (early.word, early.reason) == (Word.inconclusive, Reason.undecided)
    assert grown([0.0, 0.001, -0.001] * 3, **slack).last_complete().word is Word.equivalent
    assert grown([0.0, 0.001, -0.001, *[0.06] * 6], **slack).last_complete().word is Word.confirmed


def test_a_refutation_may_come_early_too():
    assert grown([-0.06, -0.061, -0.059]).last_complete().reason is Reason.below
    guarded = seeded(9, looks=NINE, guards=[])
    assert judge(guarded, speeds([1.0, 1.001, 1.002] * 3)).last_complete().look == 1


def test_more_seeds_beyond_the_declared_are_counted_from_the_last_look():
    judging = grown([0.004, -0.003, 0.002] * 3)
    found = judging.last_complete()
    assert (found.word, found.look) == (Word.inconclusive, 3)
    more = (judging.more() or {}).get("seed")
    assert more is not None
    assert more > 0


def test_more_seeds_go_to_the_first_look_that_has_enough():
    """Eight pairs would decide, and looks are at three, six and nine."""
    judging = grown([0.026, 0.019, 0.0225], noise={"val_loss": Prior(sd=0.02, df=8, source="made")}, expected=[0.0, None])
    alone = judge(seeded(3, **{**LOSS, "expected": [0.0, None]}), ("val_loss", [3.374, 3.381, 3.3775], [3.4] * 3), noise=judging.noise)
    wanted = 3 + (alone.more() or {"seed": 0})["seed"]
    assert 6 < wanted <= 9
    assert judging.more() == {"seed": 6}
