"""An option that draws is a function of the run's seed: the same again, after a resume, on any
number of ranks, and beside activation checkpointing. What an idea changes with the step is so
too."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from nocap import outside
from nocap.config.compose import compose
from nocap.config.keys import InputError
from nocap.config.paths import cache_root
from nocap.data.batches import val_windows
from nocap.data.prepare import prepare
from nocap.training.trained import trained
from nocap.training.validation import validate
from nocap.training.world import join
from tests.attempts import state_of
from tests.conftest import SMALL, Door, rows_of, the_run, used
from tests.in_process import planned, start

SOURCE = """\
from dataclasses import dataclass
import random
import torch
from torch import nn
from nocap.options.mlp import Mlp
from nocap.options.optimizer.adamw import AdamW


class Dropped(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up = nn.Linear(width, width)
        self.dropout = nn.Dropout(0.3)

    def forward(self, x):
        return {drawn} if self.training else self.up(x)


@dataclass(kw_only=True, slots=True)
class Mine(Mlp):
    random = True
    kind: str = "{name}"

    def build(self, d_model):
        return Dropped(d_model)
"""
DROPOUT = "self.dropout(self.up(x))"
OWN_GENERATOR = "self.up(x) * random.random()"


def put(folder: Path, option: str, code: str, keys: str) -> None:
    """Write an option from outside, as GROUP/NAME, with the keys of its yaml."""
    path = folder / option
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_suffix(".py").write_text(code)
    path.with_suffix(".yaml").write_text(keys)


def written(folder: Path, drawn: str, name: str) -> Path:
    source = SOURCE.format(drawn=drawn, name=name)
    put(folder, f"mlp/{name}", source, f"kind: {name}\n")
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("draws"), DROPOUT, "dropped")


@pytest.fixture
def dropped(folder: Path) -> Iterator[None]:
    with used(str(folder)):
        yield


@pytest.mark.usefixtures("dropped")
@pytest.mark.slow
def test_the_same_run_draws_the_same_and_another_seed_others(tmp_path: Path) -> None:
    first = planned(tmp_path / "first", "mlp=dropped")
    second = planned(tmp_path / "second", "mlp=dropped")
    other = planned(tmp_path / "other", "mlp=dropped", "seed=1")
    third = planned(tmp_path / "third", "mlp=dropped")
    for plan in (first, second, third, other):
        start(plan)

    assert state_of(first.run_dir) == state_of(second.run_dir)
    assert state_of(first.run_dir) == state_of(third.run_dir)
    assert state_of(first.run_dir) != state_of(other.run_dir)


@pytest.mark.usefixtures("dropped")
def test_a_resumed_run_draws_what_an_uninterrupted_one_draws(tmp_path: Path) -> None:
    whole = planned(tmp_path / "whole", "mlp=dropped")
    start(whole)
    stopped = planned(tmp_path / "stopped", "mlp=dropped")
    assert start(stopped, stop_after=3).status == "preempted"
    assert start(stopped).status == "finished"
    assert state_of(whole.run_dir) == state_of(stopped.run_dir)


@pytest.mark.usefixtures("dropped")
@pytest.mark.parametrize("part", ["block", pytest.param("mlp", marks=pytest.mark.slow)])
def test_what_the_backward_pass_computes_again_draws_the_same_again(
    part: str, tmp_path: Path
) -> None:
    plain = planned(tmp_path / "plain", "mlp=dropped")
    again = planned(tmp_path / "again", "mlp=dropped", f"trainer.activation_checkpointing={part}")
    for plan in (plain, again):
        start(plan)
    rows = rows_of(plain.run_dir)
    plain_losses = [row["train/loss"] for row in rows if "train/loss" in row]
    rows = rows_of(again.run_dir)
    assert [row["train/loss"] for row in rows if "train/loss" in row] == plain_losses


@pytest.mark.slow
def test_two_ranks_draw_what_one_draws(folder: Path, tmp_path: Path, door: Door) -> None:
    for devices in (1, 2):
        words = [f"output_dir=of{devices}", f"trainer.devices={devices}", "mlp=dropped"]
        done = door("--config-dir", str(folder), *SMALL, *words)
        assert done.code == 0, done.err
    one, two = (rows_of(the_run(tmp_path / f"of{devices}")) for devices in (1, 2))
    for name in ("train/loss", "val/loss"):
        expected = [row[name] for row in one if name in row]
        shown = [row[name] for row in two if name in row]
        assert shown == pytest.approx(expected, rel=1e-5)


def test_another_generator_than_torchs_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOCAP_OUTSIDE", outside.state())
    outside.use([written(tmp_path / "own", OWN_GENERATOR, "own_generator")])
    with pytest.raises(
        InputError, match=r"mlp.kind=own_generator must draw from torch's own generator"
    ):
        start(planned(tmp_path, "mlp=own_generator"))


@pytest.mark.usefixtures("dropped")
def test_cuda_graphs_are_refused_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nocap.config.hardware.cuda_devices", lambda: 1)
    monkeypatch.setattr("nocap.config.hardware.check_device", lambda *device: None)
    words = [*SMALL, "mlp=dropped", "trainer.device=cuda", "trainer.cuda_graphs=true"]
    with pytest.raises(
        ValueError, match=r"trainer\.cuda_graphs must be false, because an option of this run draws"
    ):
        compose(words)


# --- what an idea changes with the step -----------------------------------------------------------

GROWING = """\
from dataclasses import dataclass
from torch import nn
from nocap.options.ideas import Idea


@dataclass(kw_only=True, slots=True)
class Growing(Idea):
    kind: str = "grows"

    def build(self, run, *, vocab_size):
        part = nn.Module()
        part.factor = 1.0
        return part

    def before_forward(self, part, model, *, step):
        part.factor = 1.0 + step

    def embed(self, part, x_BTC, context):
        return x_BTC * part.factor
"""


@pytest.fixture
def growing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path / "growing", "ideas/grows", GROWING, "# @package ideas.grows\nkind: grows\n")
    monkeypatch.setenv("NOCAP_OUTSIDE", outside.state())
    outside.use([tmp_path / "growing"])


@pytest.mark.usefixtures("growing")
@pytest.mark.slow
def test_a_validation_after_a_resume_has_the_step_that_was_trained_last(tmp_path: Path) -> None:
    whole = planned(tmp_path / "whole", "ideas=[grows]")
    start(whole)
    stopped = planned(tmp_path / "stopped", "ideas=[grows]")
    start(stopped, stop_after=2)  # the step that is validated next is the first of the next attempt
    start(stopped)
    rows = rows_of(whole.run_dir)
    losses = [row["val/loss"] for row in rows if "val/loss" in row]
    rows = rows_of(stopped.run_dir)
    assert [row["val/loss"] for row in rows if "val/loss" in row] == losses


@pytest.mark.usefixtures("growing")
def test_a_loaded_model_has_the_loss_that_was_validated(tmp_path: Path) -> None:
    plan = planned(tmp_path / "out", "ideas=[grows]")
    start(plan)
    run, model, _ = trained(plan.run_dir)
    dataset = prepare(run.data, run.tokenizer, cache_dir=cache_root(run.cache_dir))
    windows = val_windows(run, dataset.val)
    world = join(run.trainer.device)
    loss = validate(model, windows, run=run, world=world)
    assert loss == rows_of(plan.run_dir)[-1]["val/loss"]


# --- what draws outside of a forward --------------------------------------------------------------

NOISE = """\
from dataclasses import dataclass
import torch
from torch import nn
from nocap.options.ideas import Idea


@dataclass(kw_only=True, slots=True)
class Noise(Idea):
    kind: str = "noise"

    def build(self, run, *, vocab_size):
        part = nn.Module()
        part.factor = 1.0
        return part

    def build_around(self, run, model):
        return nn.Module()

    def before_forward(self, part, model, *, step):
        part.factor = 1 + float(torch.rand(()))

    def embed(self, part, x_BTC, context):
        return x_BTC * part.factor

    def before_clip(self, part, model, *, step):
        self.add_noise(model)

    def before_step(self, part, model, *, step):
        self.add_noise(model)

    def add_noise(self, model):
        for p in model.parameters():
            p.grad += 0.1 * torch.randn_like(p)
"""
JITTER = """\
from dataclasses import dataclass
from random import random
from nocap.options.schedule import Schedule


@dataclass(kw_only=True, slots=True)
class Jitter(Schedule):
    kind: str = "jitter"

    def shape(self, *, step, steps):
        return random()
"""


@pytest.fixture
def noisy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "noisy"
    put(folder, "ideas/noise", NOISE, "# @package ideas.noise\nkind: noise\n")
    put(folder, "schedule/jitter", JITTER, "kind: jitter\nwarmup_steps: 0\n")
    monkeypatch.setenv("NOCAP_OUTSIDE", outside.state())
    outside.use([folder])
    return folder


@pytest.mark.usefixtures("noisy")
@pytest.mark.slow
def test_an_update_draws_the_same_again_and_after_a_resume(tmp_path: Path) -> None:
    first = planned(tmp_path / "first", "ideas=[noise]")
    second = planned(tmp_path / "second", "ideas=[noise]")
    stopped = planned(tmp_path / "stopped", "ideas=[noise]")
    other = planned(tmp_path / "other", "ideas=[noise]", "seed=1")
    for plan in (first, second, other):
        start(plan)
    start(stopped, stop_after=3)
    start(stopped)

    assert state_of(first.run_dir) == state_of(second.run_dir)
    assert state_of(first.run_dir) == state_of(stopped.run_dir)
    assert state_of(first.run_dir) != state_of(other.run_dir)


@pytest.mark.slow
def test_an_update_on_two_ranks_draws_what_one_draws(
    noisy: Path, tmp_path: Path, door: Door
) -> None:
    for devices in (1, 2):
        words = [f"output_dir=of{devices}", f"trainer.devices={devices}", "ideas=[noise]"]
        done = door("--config-dir", str(noisy), *SMALL, *words)
        assert done.code == 0, done.err
    one, two = (rows_of(the_run(tmp_path / f"of{devices}")) for devices in (1, 2))
    for name in ("train/loss", "val/loss"):
        expected = [row[name] for row in one if name in row]
        shown = [row[name] for row in two if name in row]
        assert shown == pytest.approx(expected, rel=1e-5)


@pytest.mark.usefixtures("noisy")
def test_a_schedule_that_draws_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"schedule.kind=jitter must depend only on the step"):
        start(planned(tmp_path / "out", "schedule=jitter"))
