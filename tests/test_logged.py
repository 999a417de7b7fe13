"""What a module logs: the mean of what it computed, in every way of training, and no loss
changes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from nocap import outside
from nocap.config.compose import compose
from nocap.config.keys import InputError
from nocap.model.logged import Logs, log
from tests.conftest import SMALL, Door, rows_of, the_run
from tests.test_ideas import advance, trainee_of

CODE = """
from dataclasses import dataclass

import torch.nn.functional as F
from torch import nn

from nocap.model.logged import log
from nocap.options.mlp import Mlp


class Gated(nn.Module):
    def __init__(self, d_model):
        super().__init__()
        self.up = nn.Linear(d_model, d_model, bias=False)

    def forward(self, x_BTC):
        gate_BTC = F.sigmoid(self.up(x_BTC))
        {log}
        return x_BTC * gate_BTC


@dataclass(kw_only=True)
class GatedMlp(Mlp):
    kind: str = "gated"

    def build(self, d_model):
        return Gated(d_model)
"""
LOG = 'log(self, "gate", gate_BTC)'


def gated(folder: Path, log: str = LOG) -> list[str]:
    (folder / "mlp").mkdir(parents=True)
    text = CODE.format(log=log)
    (folder / "mlp" / "gated.py").write_text(text)
    (folder / "mlp" / "gated.yaml").write_text("kind: gated\n")
    words = [word for word in SMALL if not word.startswith("mlp")]
    return [*words, "mlp=gated"]


def gate_of(model: torch.nn.Module, tokens: torch.Tensor) -> float:
    """The mean gate of all layers, in a forward without the record."""
    gates = []
    for block in model.blocks:
        f = block.mlp.f
        f.up.register_forward_hook(lambda module, given, out: gates.append(out.sigmoid().mean()))
    model(tokens[:, :-1], tokens[:, 1:])
    return torch.stack(gates).mean().item()


def test_the_row_has_the_mean_of_layers_and_micro_batches(tmp_path: Path) -> None:
    words = gated(tmp_path / "mine")
    outside.use([tmp_path / "mine"])
    job, trainee = trainee_of(compose(words), tmp_path)
    other = trainee_of(compose(words), tmp_path)[1]
    sequences = range(2048 // job.run.model.seq_len)
    tokens = torch.from_numpy(trainee.train.read(sequences)).long()
    (update,) = advance(job, trainee, 0)
    gate = gate_of(other.model, tokens)
    assert update.logged == pytest.approx({"gate": gate}, rel=1e-6)


def trained(
    door: Door, folder: Path, words: list[str], log: str, *more: str
) -> list[dict[str, float]]:
    base = gated(folder / "mine", log)
    out = f"output_dir={folder / 'out'}"
    done = door("--config-dir", str(folder / "mine"), *base, *words, *more, out)
    assert done.code == 0, done.err
    return rows_of(the_run(folder / "out"))


WAYS_TO_TRAIN = [
    ["trainer.compile=off"],
    ["trainer.compile=regional"],
    ["trainer.compile=full"],
    ["trainer.compile=off", "trainer.devices=2", "trainer.micro_batch=4"],
    ["trainer.compile=regional", "trainer.devices=2", "trainer.micro_batch=4"],
    ["trainer.compile=off", "trainer.activation_checkpointing=block"],
    ["trainer.compile=regional", "trainer.activation_checkpointing=mlp"],
]


@pytest.mark.slow
@pytest.mark.parametrize("words", WAYS_TO_TRAIN, ids=" ".join)
def test_it_is_logged_however_it_trains_and_changes_no_loss(
    words: list[str], door: Door, tmp_path: Path
) -> None:
    rows = trained(door, tmp_path / "with", words, LOG)
    plain = trained(door, tmp_path / "without", words, "pass")
    eager = trained(door, tmp_path / "eager", ["trainer.compile=off"], LOG)
    losses = [row.get("train/loss") for row in rows]
    assert losses == [row.get("train/loss") for row in plain]
    expected = [row.get("val/loss") for row in plain]
    assert [row.get("val/loss") for row in rows] == expected
    assert "log/gate" not in plain[0]
    gates = [row["log/gate"] for row in rows if "train/loss" in row]
    logged = [row["log/gate"] for row in eager if "train/loss" in row]
    assert gates == pytest.approx(logged, rel=1e-4)
    assert len(gates) == 12


def test_the_summary_has_the_last_value(door: Door, tmp_path: Path) -> None:
    rows = trained(door, tmp_path, ["trainer.compile=off", "trainer.steps=3"], LOG)
    summary = json.loads((the_run(tmp_path / "out") / "summary.json").read_text())
    gates = [row["log/gate"] for row in rows if "log/gate" in row]
    assert len(gates) == 3
    assert summary["logged"] == {"gate": gates[-1]}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('log(self, "gate", 0.5)', "log of 'gate' must get a tensor, got float"),
        (
            'log(Mlp(kind="x"), "gate", gate_BTC)',
            "log of 'gate' must get a module of the model, such as an idea's part, got Mlp",
        ),
        (
            'log(self, "a b", gate_BTC)',
            "must have at most 64 characters, which are letters, digits and _ . -, got 'a b'",
        ),
    ],
)
def test_what_cannot_be_logged_is_refused(line: str, message: str, tmp_path: Path) -> None:
    words = gated(tmp_path / "mine", line)
    outside.use([tmp_path / "mine"])
    job, trainee = trainee_of(compose(words), tmp_path)
    with pytest.raises(InputError, match=message):
        advance(job, trainee, 0)


def test_nothing_is_logged_outside_training() -> None:
    module = torch.nn.Identity()
    logs = Logs(module)
    log(module.eval(), "gate", torch.ones(2))
    assert logs.means() == {}
