"""The race with peers, `experiments/peers`: their arms get the tokens of nocap's own, and are timed
and told as these. The peers' checkouts are not here; small steps stand for them."""

from __future__ import annotations

import importlib
import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from nocap.config.run import Run
from nocap.config.trainer import Device
from nocap.measure import bench as measure
from nocap.measure import timed_arm
from nocap.measure.bench_arms import compose_arm
from nocap.measure.clock import Clock
from nocap.measure.timed_arm import TimedArm
from tests.conftest import REPO

HERE = REPO / "experiments" / "peers"
NANO = (
    "model=nano",
    "trainer.device=cpu",
    "trainer.precision=fp32",
    "trainer.micro_batch=2",
    "trainer.batch_tokens=256",
)
BIGRAM = """
import torch
import torch.nn.functional as F
from dataclasses import dataclass
from nocap.training.optimizer import undecorated

@dataclass
class Bigram:
    table: torch.nn.Embedding

    def __post_init__(self):
        self.parameters = [self.table.weight]
        self.optimizers = [undecorated(torch.optim.SGD)(self.parameters, lr=1.0, momentum=0.9)]
        self.settings = {"model": "bigram"}
        self.seen = []

    def __call__(self, tokens):
        self.seen.append(tokens)
        loss = F.cross_entropy(self.table(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        self.optimizers[0].step()
        self.optimizers[0].zero_grad()
        return loss.detach()

def build(request):
    table = torch.nn.Embedding(request.vocab_size, request.vocab_size)
    torch.nn.init.zeros_(table.weight)
    return Bigram(table)
"""
REQUEST = {
    "n_layer": 2,
    "d_model": 64,
    "n_head": 4,
    "vocab_size": 257,
    "seq_len": 64,
    "micro_batch": 2,
}
REQUEST |= {
    "batch_tokens": 256,
    "microbatches": 2,
    "threads": 1,
    "device": "cpu",
    "precision": "fp32",
}
REQUEST |= {"compile": "off", "seed": 0}
STEP = (
    "class Step:\n parameters=[__import__('torch').zeros(2)]\n settings={}\n def "
    "__call__(self, tokens): "
)
BUILD = "\nbuild = lambda request: Step()"


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def peers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """Return the folder of steps that stand for peers, which are imported as the race imports its
    own."""
    names = {*sys.modules}
    monkeypatch.syspath_prepend(str(HERE))
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    brought = set()
    for folder in (HERE, tmp_path):
        for path in folder.glob("*.py"):
            brought.add(path.stem)
    for name in (sys.modules.keys() - names) & brought:
        del sys.modules[name]


@pytest.fixture
def peer_arm(peers: Path) -> ModuleType:
    return importlib.import_module("peer_arm")


def nano(*words: str) -> Run:
    return compose_arm([*NANO, *words], "").run


def test_a_peers_arm_gets_the_tokens_of_nocaps_own(
    peers: Path, peer_arm: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    (peers / "a_bigram.py").write_text(BIGRAM)
    run = nano("trainer.steps=5")
    read: list[torch.Tensor] = []
    own = TimedArm("", run)
    other = peer_arm.PeerArm("", run, "a_bigram")
    own.warm(Clock.cpu)
    forward = own.built.forward

    def reading(x: torch.Tensor, y: torch.Tensor) -> Any:
        joined = torch.cat([x, y[:, -1:]], dim=1)
        read.append(joined)
        return forward(x, y)

    monkeypatch.setattr(own.built, "forward", reading)
    own.at = 0
    other.warm(Clock.cpu)
    losses = [other.step() for _ in range(8)]
    for _ in range(7):
        own.step()
    batches = other.built.seen
    assert len(batches) == 1 + 3 + 8
    for batch, other_batch in zip(batches, read, strict=False):
        assert batch.dtype is torch.int64
        assert torch.equal(batch, other_batch)
    assert losses[0] == pytest.approx(math.log(257), abs=0.1)
    other.close()
    mib = other.facts.memory_mib
    assert mib is not None
    table_mib = 257**2 * 4 / 2**20
    assert other.facts.params == 257**2
    assert other.facts.flops_per_token is None
    assert mib["parameters"] == pytest.approx(table_mib)
    assert mib["gradients"] == pytest.approx(table_mib)
    assert mib["optimizer"] == pytest.approx(table_mib)
    assert mib["peak"] > 3 * table_mib + 256 * 257 * 4 / 2**20  # the logits, kept for the backward


@pytest.mark.slow
def test_the_race_times_peers_as_nocaps_own_and_reads_its_file(
    peers: Path,
    peer_arm: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One whose loss is not finite after a while fails, and stops no other."""
    monkeypatch.setattr(timed_arm, "BLOCK_S", dict.fromkeys(Device, 0.005))
    monkeypatch.setattr(measure, "matmul_flops", lambda device, precision: 1e12)
    (peers / "a_bigram.py").write_text(BIGRAM)
    late = "if len(self.seen) < 9: return loss.detach()\n        return float('nan')"
    text = BIGRAM.replace("return loss.detach()", late)
    (peers / "diverges.py").write_text(text)
    race = importlib.import_module("race")
    base = [*NANO, "model.seq_len=64", "trainer.compile=off", "tracker=none"]
    settings = {"own": [], "a_bigram": ["fp32 off"], "diverges": ["fp32 off"]}
    assert race.race(base, settings, peers / "x.1.json", 3) == 1
    out = capsys.readouterr().out
    assert "a_bigram.py trainer.precision=fp32 trainer.compile=off" in out
    assert (
        "diverges.py trainer.precision=fp32 trainer.compile=off: failed: DivergedError: a step must"
        in out
    )
    written = json.loads((peers / "x.1.json").read_text())
    assert written["words"] == base
    own, other, failed = written["arms"]
    assert own["status"] == "measured"
    assert other["status"] == "measured"
    assert failed["status"] == "failed"
    assert other["kernel"] is None
    assert other["mfu"] == {"nominal": None, "measured": None}
    external = other["config"]["external"]
    assert external["file"] == "a_bigram.py"
    assert external["request"] == REQUEST
    assert external["settings"] == {"model": "bigram"}
    assert race.model_of(other) == "bigram"
    assert race.short(other) == "fp32, eager"
    assert race.speed_over(other, own).mid > 1  # a table against a transformer


MISTAKES = [
    ("def build(): ...", "TypeError: build() takes 0 positional arguments but 1 was given"),
    ("def build(request):\n raise KeyError('a\\nb')", "KeyError: 'a\\nb'"),
    ("def build(request):\n raise SystemExit(3)", "SystemExit: 3"),
    ("def build(request): ...", "AttributeError: 'NoneType' object has no attribute 'parameters'"),
    (f"{STEP}return None{BUILD}", "TypeError: "),
    (
        f"{STEP}return 0.0{BUILD}",
        "InputError: a step must update its parameters, got one that changes none",
    ),
    (
        f"{STEP}self.parameters[0].add_(1); return 0.0\n settings={{1: print}}{BUILD}",
        "TypeError: Object of type builtin_function_or_method is not",
    ),
]


@pytest.mark.parametrize(("source", "said"), MISTAKES)
def test_a_mistake_in_a_peers_file_fails_its_arm(
    peers: Path, peer_arm: ModuleType, source: str, said: str
) -> None:
    (peers / "wrong.py").write_text(source)
    arm = peer_arm.PeerArm("", nano(), "wrong")
    assert math.isnan(arm.tried(lambda: arm.warm(Clock.cpu)))
    assert arm.status == "failed"
    assert str(arm.reason)[: len(said)] == said


def test_the_smallest_file_is_an_arm(peer_arm: ModuleType) -> None:
    arm = peer_arm.PeerArm("", nano(), "bigram")
    arm.warm(Clock.cpu)
    assert arm.config["external"]["settings"]["model"] == "bigrams"
    arm.close()


def test_every_peer_names_the_folder_that_it_lacks(
    peers: Path, peer_arm: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    race = importlib.import_module("race")
    assert race.PEERS == ("nocap_test", "nanogpt", "nanochat")
    for name in race.PEERS:
        monkeypatch.delenv(name.upper(), raising=False)
        arm = peer_arm.PeerArm("", nano(), name)
        assert math.isnan(arm.tried(lambda arm=arm: arm.warm(Clock.cpu)))
        assert f"the environment variable {name.upper()} must name a folder with" in str(arm.reason)


def test_the_table_follows_from_the_sessions_that_are_there(peer_arm: ModuleType) -> None:
    race = importlib.import_module("race")
    _, table, _ = (HERE / "README.md").read_text().split(race.MARK)
    assert table.strip() == race.table()
