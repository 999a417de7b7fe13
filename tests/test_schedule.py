"""Schedules at points where their value is known in closed form."""

import itertools

import pytest

from nocap.config.compose import compose
from nocap.config.paths import conf_dir
from nocap.options.schedule import Schedule
from nocap.options.schedule.decay import Constant, Cosine, Linear, Wsd

STEPS, WARMUP, DECAY = 1000, 100, 300
CONSTANT = Constant(warmup_steps=WARMUP)
LINEAR = Linear(warmup_steps=WARMUP, final=0.2)
COSINE = Cosine(warmup_steps=WARMUP, final=0.2)
WSD = Wsd(warmup_steps=WARMUP, decay_steps=DECAY, final=0.2)
ALL = pytest.mark.parametrize("spec", [CONSTANT, LINEAR, COSINE, WSD], ids=lambda spec: spec.kind)
OPTIONS = sorted(path.stem for path in (conf_dir() / "schedule").glob("*.yaml"))


def curve(spec: Schedule, steps: int = STEPS) -> list[float]:
    return [spec.multiplier(step=step, steps=steps) for step in range(steps)]


@ALL
def test_warm_up_is_a_straight_line_that_starts_above_zero(spec: Schedule):
    assert curve(spec)[:WARMUP] == [(step + 1) / WARMUP for step in range(WARMUP)]


@ALL
def test_after_warm_up_it_never_rises(spec: Schedule):
    after = curve(spec)[WARMUP - 1 :]
    assert after[0] == 1
    assert all(later <= earlier for earlier, later in itertools.pairwise(after))


@pytest.mark.parametrize(
    ("spec", "step", "value"),
    [
        (CONSTANT, 100, 1.0),
        (CONSTANT, 999, 1.0),
        (LINEAR, 100, 1.0),
        (LINEAR, 550, 0.6),
        (LINEAR, 999, 0.2 + 0.8 / 900),
        (COSINE, 100, 1.0),
        (COSINE, 400, 0.2 + 0.8 * 0.75),  # a third of the way: (1 + cos 60°) / 2
        (COSINE, 550, 0.6),
        (COSINE, 700, 0.2 + 0.8 * 0.25),
        (WSD, 100, 1.0),
        (WSD, 699, 1.0),
        (WSD, 700, 1.0),
        (WSD, 850, 0.6),
        (WSD, 999, 0.2 + 0.8 / 300),
    ],
)
def test_closed_form_points(spec: Schedule, step: int, value: float):
    assert spec.multiplier(step=step, steps=STEPS) == pytest.approx(value, abs=1e-12)


@pytest.mark.parametrize("final", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("kind", [Linear, Cosine, Wsd])
def test_it_ends_just_above_final(kind: type, final: float):
    more = {"decay_steps": DECAY} if kind is Wsd else {}
    last = kind(warmup_steps=0, final=final, **more).multiplier(step=STEPS - 1, steps=STEPS)
    assert final <= last < final + 0.005


@pytest.mark.parametrize(
    "spec", [Linear(warmup_steps=5, final=0), Cosine(warmup_steps=5, final=0), Constant(warmup_steps=5)]
)
def test_nothing_but_warm_up(spec: Schedule):
    assert curve(spec, steps=5) == [0.2, 0.4, 0.6, 0.8, 1.0]


def test_neither_warm_up_nor_decay():
    assert curve(Wsd(warmup_steps=0, decay_steps=0, final=0.0), steps=3) == [1.0, 1.0, 1.0]
    assert curve(Wsd(warmup_steps=1, decay_steps=4, final=0.0), steps=5) == [1.0, 1.0, 0.75, 0.5, 0.25]


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("steps", [1, 20, 600])
def test_every_option_works_at_every_length(option: str, steps: int):
    spec = compose([f"schedule={option}", f"trainer.steps={steps}"]).schedule
    values = curve(spec, steps=steps)
    assert all(0 < value <= 1 for value in values)
    assert max(values) == 1


def test_the_challenges_formula_at_every_step():
    run = compose(["experiment=nocap_baseline"])
    for it in range(4768):
        if it < 256:
            lr = 0.0018 * (it + 1) / 256
        elif it < 4768 - 1024:
            lr = 0.0018
        else:
            lr = 0.0018 * (4768 - it) / 1024
        assert run.optimizer.lr * run.schedule.multiplier(step=it, steps=run.trainer.steps) == lr
