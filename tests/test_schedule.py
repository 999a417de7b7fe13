"""Schedules at points where their value is known in closed form."""

import itertools
import math

import pytest

from nocap.config.compose import compose
from nocap.options.schedule import Schedule
from nocap.options.schedule.decay import Constant, Cosine, Linear, Wsd

STEPS = 1000
WARMUP = 100
DECAY = 300
CONSTANT = Constant(warmup_steps=WARMUP)
LINEAR = Linear(warmup_steps=WARMUP, final=0.2)
COSINE = Cosine(warmup_steps=WARMUP, final=0.2)
WSD = Wsd(warmup_steps=WARMUP, decay_steps=DECAY, final=0.2)


def curve(spec: Schedule, steps: int = STEPS) -> list[float]:
    return [spec.multiplier(step=step, steps=steps) for step in range(steps)]


@pytest.mark.parametrize("spec", [CONSTANT, LINEAR, COSINE, WSD], ids=lambda spec: spec.kind)
def test_warm_up_is_a_straight_line_that_starts_above_zero_and_after_it_nothing_rises(
    spec: Schedule,
):
    values = curve(spec)
    expected = [(step + 1) / WARMUP for step in range(WARMUP)]
    assert values[:WARMUP] == expected
    for earlier, later in itertools.pairwise(values[WARMUP - 1 :]):
        assert later <= earlier


POINTS = [
    (CONSTANT, 100, 1.0),
    (CONSTANT, 999, 1.0),
    (LINEAR, 100, 1.0),
    (LINEAR, 550, 0.6),
    (LINEAR, 999, 0.2 + 0.8 / 900),
    (COSINE, 100, 1.0),
    (COSINE, 400, 0.2 + 0.8 * 0.75),  # a third of the way: (1 + cos 60°) / 2
    (COSINE, 550, 0.6),
    (COSINE, 700, 0.2 + 0.8 * 0.25),
    (COSINE, 999, 0.2 + 0.4 * (1 + math.cos(math.pi * 899 / 900))),
    (WSD, 100, 1.0),
    (WSD, 699, 1.0),
    (WSD, 700, 1.0),
    (WSD, 850, 0.6),
    (WSD, 999, 0.2 + 0.8 / 300),
]


@pytest.mark.parametrize(("spec", "step", "value"), POINTS)
def test_closed_form_points(spec: Schedule, step: int, value: float):
    multiplier = spec.multiplier(step=step, steps=STEPS)
    assert multiplier == pytest.approx(value, abs=1e-12)


@pytest.mark.parametrize(
    "spec",
    [Linear(warmup_steps=5, final=0), Cosine(warmup_steps=5, final=0), Constant(warmup_steps=5)],
)
def test_nothing_but_warm_up(spec: Schedule):
    expected = [0.2, 0.4, 0.6, 0.8, 1.0]
    assert curve(spec, steps=5) == expected


def test_neither_warm_up_nor_decay():
    flat = Wsd(warmup_steps=0, decay_steps=0, final=0.0)
    assert curve(flat, steps=3) == [1.0, 1.0, 1.0]
    expected = [1.0, 1.0, 0.75, 0.5, 0.25]
    assert curve(Wsd(warmup_steps=1, decay_steps=4, final=0.0), steps=5) == expected


def test_the_challenges_formula_at_every_step():
    run = compose(["experiment=nocap_baseline"])
    for it in range(4768):
        if it < 256:
            lr = 0.0018 * (it + 1) / 256
        else:
            lr = 0.0018 * min(1024, 4768 - it) / 1024
        multiplier = run.schedule.multiplier(step=it, steps=run.trainer.steps)
        assert run.optimizer.lr * multiplier == lr
