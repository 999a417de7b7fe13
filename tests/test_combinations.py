"""Options in combination train and learn, through the loop's own step. Compiled regions compute
what eager does."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch

from nocap.config.compose import compose
from nocap.config.run import Run
from nocap.training.build import configure_numerics
from nocap.training.ledger import Ledger
from nocap.training.warm_up import warm_up
from tests.conftest import REPO
from tests.test_ideas import advance, trainee_of

STEPS = 8


def options(group: str) -> list[str]:
    """Every yaml of the group: a new option is in the product without a word here."""
    paths = (REPO / "conf" / group).glob("*.yaml")
    return sorted(path.stem for path in paths)


@cache
def small(*overrides: str) -> Run:
    """A run of some thousand parameters. Cached: composing takes longer than training it."""
    return compose(
        [
            *(
                "tracker=none",
                "data=synthetic",
                "data.train_tokens=100000",
                "data.val_tokens=20000",
                "model=nano",
            ),
            *(
                "model.d_model=32",
                "model.seq_len=40",
                "trainer.device=cpu",
                "trainer.threads=1",
                f"trainer.steps={STEPS}",
            ),
            *("trainer.micro_batch=8", "trainer.batch_tokens=640", "trainer.val_tokens=640"),
            *overrides,
        ]
    )


def losses(run: Run) -> list[float]:
    configure_numerics(run)
    job, trainee = trainee_of(run, Path())
    warm_up(job, trainee, Ledger(started=job.started))
    return [update.loss for update in advance(job, trainee, *range(STEPS))]


GROUPS = ("attention", "mlp", "schedule", "optimizer")
NAMES = [options(group) for group in GROUPS]
# each option of a group beside others of the others
COMBINATIONS = [
    tuple(names[(i + k * (i // len(names))) % len(names)] for k, names in enumerate(NAMES))
    for i in range(max(12, *map(len, NAMES)))
]


def test_what_takes_the_place_of_a_decay_is_refused_beside_one() -> None:
    for schedule in {*NAMES[2]} - {"constant"}:
        with pytest.raises(ValueError, match="schedule must end at the peak learning rate with"):
            small(f"schedule={schedule}", "optimizer=schedule_free", "trainer.steps=100")


@pytest.mark.parametrize(
    "combination",
    [COMBINATIONS[0], *(pytest.param(each, marks=pytest.mark.slow) for each in COMBINATIONS[1:])],
    ids="-".join,
)
def test_every_combination_of_parts_learns(combination: tuple[str, ...]) -> None:
    attention, mlp, schedule, optimizer = combination
    rates = ["optimizer.lr=0.02", *(["optimizer.muon_lr=0.02"] if optimizer == "muon" else [])]
    if optimizer == "schedule_free":
        kept = "constant"
    else:
        kept = schedule
    optimizer_run = small(f"optimizer={optimizer}", *rates)
    plain = small(f"attention={attention}")
    mlp_run = small(f"mlp={mlp}")
    schedule_run = small(f"schedule={kept}")
    curve = losses(
        replace(
            plain,
            mlp=mlp_run.mlp,
            schedule=schedule_run.schedule,
            optimizer=optimizer_run.optimizer,
        )
    )
    for loss in curve:
        assert math.isfinite(loss)
    assert curve[-1] < curve[0] - 0.3, curve


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # torch's compiler warns of its own deprecated parts
def test_compiled_regions_have_eagers_losses() -> None:
    """Compiled whole, each attention: tests/test_contract.py."""
    # dynamo compiles a class eight times in a process, and no more; a run is a process of its own
    torch.compiler.reset()
    words = ("attention=mha", "trainer.precision=fp32", "model.seq_len=80", "trainer.micro_batch=4")
    eager = losses(small(*words, "trainer.compile=off"))
    compiled = losses(small(*words, "trainer.compile=regional"))
    assert compiled == pytest.approx(eager, abs=2e-5)
