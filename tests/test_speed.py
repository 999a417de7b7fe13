"""`nocap.bench`: the order of blocks, the verdicts' level, what a planted difference comes out as, and a real bench of seconds."""

from __future__ import annotations

import json
import math
import re
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from nocap import bench as command
from nocap import outside
from nocap.config import hardware
from nocap.config.keys import InputError
from nocap.config.trainer import Compile, Device, Precision
from nocap.measure import bench as measure
from nocap.measure import contestant
from nocap.measure.arms import BenchArm, compose_arm, compose_arms, interleave, order, step_config, suite
from nocap.measure.clock import Clock, clock_of
from nocap.measure.contestant import Contestant, DivergedError, StepInfo
from nocap.measure.external import ExternalContestant, compose_externals, load
from nocap.measure.rounds import LIMIT, Narrow, Rounds, confidence_for, judge, signed_rank, signed_rank_needs
from nocap.measure.text import render_bench
from nocap.store.measurement import Measurement
from nocap.store.metrics import METRICS
from nocap.training import memory
from tests.conftest import EXPLODING, REPO

NANO = ("model=nano", "trainer.device=cpu", "trainer.precision=fp32", "trainer.micro_batch=2", "trainer.batch_tokens=256")


@pytest.fixture(scope="module")
def arms() -> list[BenchArm]:
    return compose_arms(NANO, ["mlp=gelu4x", "mlp=gelu3x", "attention=mha"])


# --- the order ---------------------------------------------------------------------------------------------------------------------


def test_two_arms_go_a_b_b_a_then_b_a_a_b():
    assert [order(2, round_=r) for r in range(2)] == [[0, 1, 1, 0], [1, 0, 0, 1]]


@pytest.mark.parametrize("n", [2, 3, 5, 8])
def test_every_arm_has_every_place_once_in_n_rounds(n: int):
    for cycle in range(3):
        rounds = np.array([order(n, round_=cycle * n + r) for r in range(n)])
        assert (np.sort(rounds[:, :n], axis=0) == np.arange(n)[:, None]).all()
        assert (rounds[:, :n] == rounds[:, : n - 1 : -1]).all()  # and back


def test_neighbours_change_from_cycle_to_cycle():
    pairs = {pair for r in range(60) for pair in zip(order(4, round_=r), order(4, round_=r)[1:], strict=False)}
    assert len([pair for pair in pairs if pair[0] != pair[1]]) == 4 * 3


class Machine:
    """A clock that only its arms move, on a machine that slows down evenly."""

    def __init__(self, *, drift: float) -> None:
        self.drift, self.blocks = drift, 0

    def arm(self, cost_s: float) -> Callable[[], float]:
        def block() -> float:
            self.blocks += 1
            return cost_s * (1 + self.drift * self.blocks)

        return block


def test_an_even_drift_cancels_to_the_last_digit():
    machine = Machine(drift=0.01)  # 60% slower within a round's neighbours of ten rounds
    times = interleave([machine.arm(s) for s in (1.0, 1.0, 1.1, 0.8)], enough=lambda times: len(times) == 10)
    judged = judge(measured(times.mean(axis=2)), limit=0.03, confidence=0.99)
    assert judged.control.ratio is not None
    assert (judged.control.ratio.mid, judged.control.half_width) == (pytest.approx(1, abs=1e-12), pytest.approx(0, abs=1e-12))
    ratios = [verdict.ratio.mid for verdict in judged.arms if verdict.ratio]
    assert ratios == [pytest.approx(1 / 1.1), pytest.approx(1 / 0.8)]
    assert [verdict.word for verdict in judged.arms] == ["slower", "faster"]


def test_a_slow_first_instance_is_no_gain_of_the_arms():
    """Equal arms, of which the first instance is 1% slow: over many benches the ratio is 1, where it was 1.005."""
    rng, ratios, first = np.random.default_rng(7), [], []
    for _ in range(150):
        judged = judge(noisy(rng.normal(0, 0.01, (12, 3)) + np.array([0.01, 0.0, 0.0])), limit=0.03, confidence=0.99)
        assert judged.control.ratio is not None
        assert judged.arms[0].ratio is not None
        ratios.append(np.log(judged.arms[0].ratio.mid))
        first.append(np.log(judged.control.ratio.mid))
    error = 1.96 * np.std(ratios) / np.sqrt(len(ratios))
    assert abs(np.mean(ratios)) < error < 0.002
    assert np.mean(first) == pytest.approx(0.01, abs=0.001)  # the control shows it


# --- signed ranks --------------------------------------------------------------------------------------------------------------------

# Hollander & Wolfe: Hamilton's depression scale of nine patients before and after a tranquilliser.
BEFORE = [1.83, 0.50, 1.62, 2.48, 1.68, 1.88, 1.55, 3.06, 1.30]
AFTER = [0.878, 0.647, 0.598, 2.05, 1.06, 1.29, 1.06, 3.14, 1.29]


def test_signed_ranks():
    found = signed_rank([a - b for a, b in zip(BEFORE, AFTER, strict=True)])
    assert (found.mid, found.low, found.high) == (pytest.approx(0.46), pytest.approx(0.010), pytest.approx(0.786))


@pytest.mark.parametrize("n", [6, 9, 40])
@pytest.mark.parametrize("confidence", [0.95, 0.99])
def test_signed_ranks_turn_wilcoxons_test_around(n: int, confidence: float):
    sample = np.random.default_rng(n).standard_t(2, n)
    if n < signed_rank_needs(confidence):
        with pytest.raises(ValueError, match=r"an interval at 0\.99 needs at least 8 values, got 6"):
            signed_rank(sample, confidence=confidence)
        return
    found = signed_rank(sample, confidence=confidence)
    for edge, inward in ((found.low, 1), (found.high, -1)):
        inside, outside = (stats.wilcoxon(sample - edge - side * inward * 1e-9, method="exact").pvalue for side in (1, -1))
        assert outside <= 1 - confidence < inside


# --- the verdicts ------------------------------------------------------------------------------------------------------------------


def measured(seconds: np.ndarray[Any, Any]) -> Rounds:
    """Measurements of rounds × arms of seconds a token."""
    metric = METRICS["tokens_per_s"]
    return [[Measurement(arm=str(i), repeat=n, metric=metric, value=1 / s) for n, s in enumerate(arm)] for i, arm in enumerate(seconds.T)]


def noisy(logs: np.ndarray[Any, Any]) -> Rounds:
    """Rounds × arms of log times."""
    return measured(np.exp(logs))


def around(*centres: float, spread: float = 0.01, n: int = 20) -> Rounds:
    """Rounds that lie evenly around each arm's log time, the arms' noise unrelated."""
    rng = np.random.default_rng(0)
    steps = np.linspace(-spread, spread, n)
    return noisy(np.stack([centre + rng.permutation(steps) for centre in centres], axis=1))


@pytest.mark.parametrize(
    ("times", "control", "arm"),
    [
        (around(0, 0, 0.1), "in order", "slower"),
        (around(0, 0, -0.1), "in order", "faster"),
        (around(0, 0, 0), "in order", "no difference shown"),
        (
            around(0, 0, 0.1, spread=0.2),
            "no verdict: the machine is too noisy (the baseline against itself ±",
            "no verdict: the machine is too",
        ),
        (
            around(0, 0.05, 0.1),
            "no verdict: the machine is too noisy (the baseline against itself is off by -5",
            "no verdict: the machine is too",
        ),
        (around(0, 0.02, 0.02), "in order", "no difference shown"),  # as the second instance, to which it is compared
        (around(0, 0, 0.1, n=7), "no verdict: 7 rounds, and an interval needs 8", "no verdict: 7 rounds, and an interval needs 8"),
    ],
)
def test_words(times: Rounds, control: str, arm: str):
    judged = judge(times, limit=0.03, confidence=0.99)
    assert judged.control.word.startswith(control)
    assert judged.arms[0].word.startswith(arm)


def test_one_noisy_arm_spoils_no_other():
    times = [*around(0, 0, 0.1), *around(0.1, spread=0.2)]
    judged = judge(times, limit=0.03, confidence=0.99)
    assert [verdict.word.partition(" (")[0] for verdict in judged.arms] == ["slower", "no verdict: the machine is too noisy"]
    assert not judged.narrow


def test_more_arms_need_wider_intervals():
    assert [confidence_for(n) for n in (0, 1, 5, 10)] == [0.99, 0.99, 0.99, 0.995]  # 0: the baseline and its control
    assert [signed_rank_needs(confidence_for(n)) for n in (1, 5, 10)] == [8, 8, 9]


def gauss(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    return rng.normal(size=shape)


def contended(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """One block in seven meets a busy neighbour and is slower by far."""
    return rng.normal(size=shape) + (rng.random(shape) < 1 / 7) * rng.exponential(6.0, shape)


def resembling(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Rounds that resemble the round before (0.3)."""
    noise = rng.normal(size=shape)
    for i in range(1, len(noise)):
        noise[i] += 0.3 * noise[i - 1]
    return noise


def stopped(rng: np.random.Generator, noise: Callable[..., np.ndarray[Any, Any]], *, sd: float, effect: float = 0.0) -> Any:
    """The verdict on one arm where rounds go on until the intervals are narrow, at most 200."""
    logs = sd * noise(rng, (200, 3)) + np.array([0, 0, effect])
    narrow = Narrow(limit=0.03, confidence=0.99)
    n = next((n for n in range(1, 200) if narrow(noisy(logs[:n]))), 200)
    return judge(noisy(logs[:n]), limit=0.03, confidence=0.99).arms[0]


def test_stopping_when_narrow_keeps_the_level():
    rng = np.random.default_rng(1)
    verdicts = [stopped(rng, contended, sd=0.02) for _ in range(150)]
    words = [verdict.word for verdict in verdicts]
    assert sum(word in ("faster", "slower") for word in words) <= 5  # at 1%, more has a chance of 0.4%
    assert words.count("no difference shown") >= 100  # and there are verdicts
    assert abs(np.mean([math.log(verdict.ratio.mid) for verdict in verdicts])) < 0.002  # noise that only slows makes no arm look fast


@pytest.mark.slow
@pytest.mark.parametrize(("noise", "most"), [(gauss, 0.02), (contended, 0.02), (resembling, 0.05)])
def test_level_and_power_by_simulation(noise: Callable[..., np.ndarray[Any, Any]], most: float):
    rng = np.random.default_rng(2)
    null = [stopped(rng, noise, sd=0.04).word for _ in range(1000)]
    assert sum(word in ("faster", "slower") for word in null) <= most * 1000
    one = [stopped(rng, noise, sd=0.04, effect=0.01).word for _ in range(300)]
    assert one.count("faster") <= 6
    ten = [stopped(rng, noise, sd=0.04, effect=0.1).word for _ in range(300)]
    assert ten.count("slower") >= 0.9 * sum(not word.startswith("no verdict") for word in ten)
    assert sum(word.startswith("no verdict") for word in ten) <= 30


# --- a bench on a clock of its own -------------------------------------------------------------------------------------------------

INFO = StepInfo(
    tokens_per_step=256,
    steps_per_block=1,
    warm_up_s=0.0,
    flops_per_token=1e6,
    flops_basis="arithmetic",
    params=1,
    kernel="flash",
    memory_mib={"peak": 1.0, "parameters": 1.0, "gradients": 0.0, "optimizer": 0.0, "activations": 0.0},
)


class Fake:
    """An arm of known cost; `fails_at` blocks it raises."""

    def __init__(self, block: Callable[[], float], *, fails_at: int = -1, error: Exception | None = None) -> None:
        self._block, self._left, self._error = block, fails_at, error

    def block(self) -> float:
        self._left -= 1
        if self._error is not None and self._left < 0:
            raise self._error
        return self._block()

    def info(self) -> StepInfo:
        return INFO

    def close(self) -> None:
        pass


def fake_bench(arms: list[BenchArm], make: Callable[[BenchArm], Fake], **options: Any) -> dict[str, Any]:
    return measure.bench(arms, seconds=options.pop("seconds", 60), make=lambda arm, clock: make(arm), **options)


def test_a_planted_tenth_comes_out_exactly(arms: list[BenchArm]):
    machine, costs = Machine(drift=0.001), {"mlp=gelu4x": 1e-5, "mlp=gelu3x": 1.1e-5, "attention=mha": 1e-5}
    result = fake_bench(arms, lambda arm: Fake(machine.arm(costs[arm.label])))
    base, slower, same = result["arms"]
    assert (slower["speed"]["ratio"], slower["verdict"]) == (pytest.approx(1 / 1.1), "slower")
    assert (same["speed"]["ratio"], same["verdict"]) == (pytest.approx(1), "no difference shown")
    assert (result["control"]["speed"]["ratio"], result["control"]["verdict"]) == (pytest.approx(1), "in order")
    assert base["verdict"] is None
    assert base["step_ms"] == pytest.approx(2.56 * (1 + 0.001 * machine.blocks / 2), rel=1e-3)
    assert result["rounds"] == 8  # the first look is enough
    assert np.shape(base["seconds_per_token"]) == (8, 2)


def test_an_arm_that_does_not_fit_or_fails_is_a_line(
    arms: list[BenchArm], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    errors = {"mlp=gelu3x": torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 6 GiB\nmore"), "attention=mha": OSError("gone")}
    fails = {"mlp=gelu3x": 0, "attention=mha": 5}

    def make(arm: BenchArm) -> Fake:
        if fails.get(arm.label) == 0:
            raise errors[arm.label]
        return Fake(Machine(drift=0).arm(1.0), fails_at=fails.get(arm.label, -1), error=errors.get(arm.label))

    result = fake_bench(arms, make)
    assert [(arm["status"], arm["reason"]) for arm in result["arms"]] == [
        ("measured", None),
        ("does not fit", "CUDA out of memory. Tried to allocate 6 GiB"),
        ("failed", "OSError: gone"),
    ]
    assert result["control"]["verdict"] == "in order"
    text = render_bench(result)
    assert "\nmlp=gelu3x: does not fit: CUDA out of memory. Tried to allocate 6 GiB\n" in text
    monkeypatch.setattr(measure, "bench", lambda *args, **options: result)
    assert command.main([*NANO, "--arm", "mlp=gelu4x", "--arm", "attention=mha"]) == 1  # one failed
    del result["arms"][2]
    assert command.main([*NANO, "--arm", "mlp=gelu4x", "--arm", "attention=mha"]) == 0  # one does not fit
    capsys.readouterr()


def test_an_arm_that_runs_out_in_its_warm_up_leaves_nothing_behind(arms: list[BenchArm], monkeypatch: pytest.MonkeyPatch):
    graphs: list[weakref.ref[torch.Tensor]] = []

    def out_of_memory(self: torch.Tensor) -> None:
        assert self.grad_fn is not None
        kept = next(fn for fn, _ in self.grad_fn.next_functions if fn is not None)
        graphs.append(weakref.ref(kept.metadata.setdefault("mark", torch.ones(1))))
        raise torch.OutOfMemoryError("CUDA out of memory")

    def make(arm: BenchArm) -> Any:
        if arm.label == "mlp=gelu3x":
            with monkeypatch.context() as patch:
                patch.setattr(torch.Tensor, "backward", out_of_memory)
                return Contestant(arm, clock=Clock.cpu)
        return Fake(Machine(drift=0).arm(1.0))

    result = fake_bench(arms, make)
    assert result["arms"][1]["status"] == "does not fit"
    assert [graph() for graph in graphs] == [None]


def test_without_its_baseline_a_bench_fails(arms: list[BenchArm], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    def make(arm: BenchArm) -> Fake:
        return Fake(Machine(drift=0).arm(1.0), fails_at=3, error=MemoryError("no more"))

    with pytest.raises(measure.BaselineError, match="the baseline, mlp=gelu4x: does not fit: no more"):
        fake_bench(arms, make)
    monkeypatch.setattr(measure, "Contestant", lambda arm, clock: make(arm))
    assert command.main([*NANO, "--arm", "", "--arm", "attention=mha"]) == 1
    assert capsys.readouterr().err == "nocap: the baseline, (no change): does not fit: no more\n"


@pytest.mark.slow
def test_time_ends_a_bench_that_stays_noisy(arms: list[BenchArm], monkeypatch: pytest.MonkeyPatch):
    now = iter(range(10_000))
    monkeypatch.setattr(measure.time, "monotonic", lambda: float(next(now)))
    rng = np.random.default_rng(0)
    result = fake_bench(arms, lambda arm: Fake(lambda: float(np.exp(rng.normal()))), seconds=100)
    assert 8 < result["rounds"] < 100
    assert all(arm["verdict"].startswith("no verdict: the machine is too noisy") for arm in result["arms"][1:])
    assert result["control"]["half_width"] > LIMIT[Device.cpu]
    exact = fake_bench(arms, lambda arm: Fake(lambda: float(np.exp(rng.normal()))), seconds=1, rounds=9)
    assert exact["rounds"] == 9


def test_an_arm_whose_turn_comes_too_late_is_left_out(arms: list[BenchArm], monkeypatch: pytest.MonkeyPatch):
    clock = {"now": 0.0}
    monkeypatch.setattr(measure.time, "monotonic", lambda: clock["now"])

    def make(arm: BenchArm) -> Fake:
        clock["now"] += 25  # s: after three of them, 60% of 100 s have passed
        return Fake(Machine(drift=0).arm(1.0))

    result = fake_bench(arms, make, seconds=100)
    assert [arm["status"] for arm in result["arms"]] == ["measured", "measured", "not measured"]
    assert result["arms"][2]["reason"] == "the arms before it took 75 s of 100 s to warm up"


def test_the_result_has_one_schema(arms: list[BenchArm]):
    """Whatever became of an arm, and strict JSON."""

    def make(arm: BenchArm) -> Fake:
        if arm.label == "attention=mha":
            raise MemoryError("no more")
        return Fake(Machine(drift=0).arm(1.0))

    result = fake_bench(arms, make)
    top = {
        "kind",
        "date",
        "started",
        "ended",
        "hardware",
        "clock",
        "limit",
        "rounds",
        "spent_s",
        "peak_flops",
        "control",
        "arms",
        "measurements",
    }
    assert set(result) == top
    keys = {"label", "status", "reason", "verdict", "speed", "half_width", "tokens_per_s", "step_ms", "speed_by_flops", "mfu", "config"}
    keys |= {"tokens_per_step", "steps_per_block", "warm_up_s", "flops_per_token", "flops_basis", "params", "kernel", "memory_mib"}
    keys |= {"seconds_per_token", "settings"}
    assert all(set(arm) == keys for arm in result["arms"])
    assert result["hardware"]["name"] == hardware.device_name(Device.cpu)
    seconds = result["arms"][0]["seconds_per_token"]
    first = {"arm": "mlp=gelu4x", "repeat": 0, "metric": "tokens_per_s", "unit": "tokens/s", "better": "higher", "ending": "measured"}
    assert result["measurements"][0].items() >= {**first, "value": 2 / sum(seconds[0])}.items()
    assert json.loads(json.dumps(result, allow_nan=False)) == result


# --- arms and refusals -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "--arm must be given at least twice, the baseline first, got 0 of them"),
        (("--arm", "mlp=gelu3x"), "--arm must be given at least twice, the baseline first, got 1 of them"),
        (("--arm", "", "--arm", "attention=nope"), "--arm 'attention=nope': Could not find 'attention/nope'"),
        (("--arm", "", "--arm", "trainer.nope=1"), "--arm 'trainer.nope=1': "),
        (("--arm", "", "--arm", "'"), '--arm "\'": No closing quotation'),
        (("--arm", "", "--arm", "attention=flash"), "--arm 'attention=flash' must differ from the others in what a training step executes"),
        (
            ("--arm", "seed=0", "--arm", "seed=1 trainer.steps=9"),
            "must differ from the others in what a training step executes, got 'seed=0'",
        ),
        (
            ("--arm", "", "--arm", "trainer.devices=2 trainer.micro_batch=1"),
            "trainer.devices must be 1: one device is timed at a time, got 2",
        ),
        (("--arm", "", "--arm", "mlp=gelu3x", "--rounds", "7"), "--rounds must be at least 8 for an interval, got 7"),
        (("--arm", "", "--arm", "mlp=gelu3x", "--seconds", "nan"), "--seconds must be above 0, got nan"),
        (("--arm", "", "--arm", "mlp=gelu3x", "--json", "/dev/null/x"), "--json must be a file that can be written, got /dev/null/x"),
        (("--suite", "cpu", "--arm", "mlp=gelu3x"), "--arm must be left out with --suite, which has its own, got 1 of them"),
    ],
)
def test_refusals(words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as left:
        command.main([*NANO, *words])
    assert left.value.code == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1


def test_a_rank_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(SystemExit):
        command.main([*NANO, "--arm", "", "--arm", "mlp=gelu3x"])
    assert capsys.readouterr().err == "nocap: nocap.bench must be started by itself, got a rank of torchrun\n"


def test_arms_of_two_devices_are_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(hardware, "check_device", lambda device, devices: None)
    with pytest.raises(ValueError, match=r"trainer\.device must be the same in all arms: they share a clock, got cpu and cuda"):
        compose_arms(NANO, ["", "trainer.device=cuda"])


def test_threads_choose_the_clock(arms: list[BenchArm]):
    assert clock_of([arm.run for arm in arms]) is Clock.cpu
    assert clock_of([arms[0].run, compose_arm(NANO, "trainer.threads=2").run]) is Clock.wall
    small = compose_arm(["model=small", "trainer.device=cpu"], "").run.trainer  # a training of it would be compiled
    assert (small.threads, small.compile) == (1, Compile.off)
    assert compose_arm(["model=small", "trainer.device=cpu"], "trainer.compile=regional").run.trainer.compile is Compile.regional


@pytest.mark.parametrize("name", ["cpu", "gpu"])
def test_a_suite_holds_each_option_once(name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(hardware, "check_device", lambda device, devices: None)
    base, overrides, _ = suite(name, [])
    arms = compose_arms(base, overrides)
    changed = " ".join(overrides)
    for option in (
        "flash",
        "mha",
        "gqa",
        "mqa",
        "sliding",
        "hybrid",
        "gelu4x",
        "gelu3x",
        "swiglu",
        "relu2",
        "fp32",
        "bf16",
        "regional",
        "off",
        "8",
        "block",
    ):
        assert f"={option}" in changed
    assert {arm.run.trainer.batch_tokens for arm in arms} == {8 * 1024 if name == "gpu" else 512}
    plain, *others = (step_config(arm.run) for arm in arms)
    assert all(sum(one[group] != plain[group] for group in plain) == 1 for one in others)  # an arm is one change
    assert {arm.run.trainer.device.value for arm in arms} == {"cuda" if name == "gpu" else "cpu"}


# --- external arms -----------------------------------------------------------------------------------------------------------------

BIGRAM = """
import torch
import torch.nn.functional as F
from dataclasses import dataclass
from nocap.training.optimizer import undecorated

@dataclass
class Bigram:
    table: torch.nn.Embedding
    request: object

    def __post_init__(self):
        self.parameters = [self.table.weight]
        self.optimizers = [undecorated(torch.optim.SGD)(self.parameters, lr=1.0, momentum=0.9)]
        self.settings = {"model": "bigram", "precision": self.request.precision}
        self.seen = []

    def __call__(self, tokens):
        self.seen.append(tokens)
        loss = F.cross_entropy(self.table(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        self.optimizers[0].step()
        self.optimizers[0].zero_grad()
        return loss.detach()

def build(request, *, scale="0"):
    print("what a file prints is not the result")
    bigram = Bigram(torch.nn.Embedding(request.vocab_size, request.vocab_size), request)
    torch.nn.init.constant_(bigram.table.weight, float(scale))
    return bigram
"""


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short blocks, and a peak that is not measured."""
    monkeypatch.setattr(contestant, "BLOCK_S", dict.fromkeys(Device, 0.005))
    monkeypatch.setattr(measure, "matmul_flops", lambda device, precision: 1e12)


@pytest.fixture
def bigram(tmp_path: Path) -> Path:
    path = tmp_path / "bigram.py"
    path.write_text(BIGRAM)
    return path


@pytest.mark.usefixtures("one_thread")
def test_an_external_arm_gets_the_tokens_of_nocaps_own(bigram: Path, arms: list[BenchArm], monkeypatch: pytest.MonkeyPatch):
    own, read = Contestant(compose_arm(NANO, "trainer.steps=5"), clock=Clock.cpu), list[torch.Tensor]()
    forward = own._trainee.forward
    monkeypatch.setattr(own._trainee, "forward", lambda x, y: read.append(torch.cat([x, y[:, -1:]], dim=1)) or forward(x, y))
    own._step = 0
    other = ExternalContestant(replace(arms[0], run=own.run, external=load(bigram, [])), clock=Clock.cpu)
    losses = [other.step().loss for _ in range(8)]
    for _ in range(7):
        own.step()
    assert len(other._call.seen) == 1 + 3 + 8
    assert all(torch.equal(a, b) for a, b in zip(other._call.seen, read, strict=False))
    assert other._call.seen[0].dtype is torch.int64
    assert losses[0] == pytest.approx(math.log(257), abs=0.1)
    info = other.info()
    table = 257**2 * 4 / 2**20
    assert (info.params, info.flops_per_token, info.settings) == (257**2, None, {"model": "bigram", "precision": "fp32"})
    assert [info.memory_mib[part] for part in ("parameters", "gradients", "optimizer")] == pytest.approx([table] * 3)
    assert info.memory_mib["peak"] > 3 * table + 256 * 257 * 4 / 2**20  # the logits, kept for the backward


@pytest.mark.usefixtures("one_thread", "quick")
def test_an_external_arm_is_timed_and_shown_as_the_others(bigram: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    external = ["--arm-external", f"{bigram} scale=1 trainer.precision=bf16"]
    assert command.main([*NANO, "--arm", "", *external, "--rounds", "8", "--json", str(tmp_path / "r.json")]) == 0
    printed = capsys.readouterr()
    assert "bigram.py scale=1 trainer.precision=bf16: model bigram, precision bf16" in printed.out
    assert "what a file prints" not in printed.out
    own, other = json.loads((tmp_path / "r.json").read_text())["arms"]
    assert set(own) == set(other)
    assert other["status"] == "measured"
    assert other["speed"]["low"] > 2
    assert (own["settings"], other["settings"]) == (None, {"model": "bigram", "precision": "bf16"})
    assert (other["mfu"], other["speed_by_flops"], other["kernel"]) == ({"nominal": None, "measured": None}, None, None)
    config = other["config"]["external"]
    assert (config["file"], config["options"]) == ("bigram.py", {"scale": "1"})
    asked = {
        "n_layer": 2,
        "d_model": 64,
        "n_head": 4,
        "vocab_size": 257,
        "seq_len": 128,
        "micro_batch": 2,
        "batch_tokens": 256,
        "threads": 1,
    }
    assert config["request"] == {**asked, "device": "cpu", "precision": "bf16", "compile": "off", "seed": 0}


STEP = "class Step:\n parameters=[__import__('torch').zeros(2)]\n settings={}\n def __call__(self, tokens): "
BUILD = "\nbuild = lambda request: Step()"


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("x = 1", "x.py must define a function build(request), got NoneType"),
        ("1/0", "x.py cannot be run: ZeroDivisionError, line 1: division by zero"),
        ("def build(", "x.py cannot be run: SyntaxError, line 1: "),
        ("raise SystemExit(0)", "x.py cannot be run: SystemExit, line 1: 0"),
        ("def build(): ...", "x.py: build(): too many positional arguments"),
        ("def build(request, *, lr): ...", "x.py: build(request, *, lr): missing a required argument: 'lr'"),
        ("def build(request):\n raise KeyError('a\\nb')", "x.py cannot build its step: KeyError, line 2: 'a\\nb'"),
        ("def build(request): ...", "x.py cannot build its step: TypeError: build must return a callable step, got None"),
        ("build = lambda request: print", "build must return a step with its tensors as parameters, got []"),
        (f"{STEP}return 0.0\n settings={{1: 2}}{BUILD}", "a step with settings, a dict of plain JSON values"),
        (f"{STEP}return 0.0\n optimizers=[1]{BUILD}", "a step whose optimizers are torch's, got [1]"),
        (f"{STEP}return 0.0\n flops_per_token=0{BUILD}", "a step whose flops_per_token is above 0, got 0"),
        (f"{STEP}return 0.0{BUILD}", "x.py must update its parameters, got a step that changes none"),
        (f"{STEP}return None{BUILD}", "x.py cannot take a step: TypeError: "),
        (f"{STEP}tokens.nope{BUILD}", "x.py cannot take a step: AttributeError, line 4: "),
    ],
)
def test_a_mistake_in_an_external_file_is_one_line(source: str, said: str, tmp_path: Path, arms: list[BenchArm]):
    (tmp_path / "x.py").write_text(source)
    with pytest.raises(InputError, match=re.escape(said)) as refused:
        ExternalContestant(replace(arms[0], external=load(tmp_path / "x.py", [])), clock=Clock.cpu)
    assert "\n" not in str(refused.value)


def test_a_mistake_ends_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "x.py").write_text("def build(request): return 1/0")
    monkeypatch.setattr(measure, "Contestant", lambda arm, clock: Fake(Machine(drift=0).arm(1.0)))
    with pytest.raises(SystemExit) as left:
        command.main([*NANO, "--arm", "", "--arm-external", str(tmp_path / "x.py")])
    assert left.value.code == 2
    said = f"nocap: {tmp_path / 'x.py'} cannot build its step: ZeroDivisionError, line 1: division by zero\n"
    assert capsys.readouterr().err == said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("",), "--arm-external '': "),
        (("/nowhere/x.py",), "--arm-external '/nowhere/x.py': [Errno 2] No such file"),
        (("{} nope",), "an option of the file must be name=value, got nope"),
        (("{} nope=1",), "bigram.py: build(request, *, scale='0'): got an unexpected keyword argument 'nope'"),
        (("{} model.n_layer=3",), "an override must be of trainer.compile, trainer.micro_batch, trainer.precision, got model.n_layer=3"),
        (("{} trainer.precision=fp8",), "trainer.precision"),
        (("{} '",), "No closing quotation"),
        (("{}", "{}"), "must differ from the others, got 'bigram.py'"),
    ],
)
def test_refused_external_arms(words: tuple[str, ...], said: str, bigram: Path, arms: list[BenchArm]):
    with pytest.raises(InputError, match=re.escape(said)):
        compose_externals(NANO, [typed.format(bigram) for typed in words], arms[0])


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ("trainer.batch_tokens=512", "trainer.batch_tokens must be the baseline's 256: set it for all arms, outside --arm, got 512"),
        ("model.seq_len=64", "model.seq_len must be the baseline's 128: set it for all arms, outside --arm, got 64"),
        ("tokenizer=gpt2", "the vocabulary must be the baseline's 257: set it for all arms, outside --arm, got 50257"),
    ],
)
def test_an_external_arm_has_the_baselines_tokens(other: str, said: str, bigram: Path, arms: list[BenchArm]):
    with pytest.raises(InputError, match=re.escape(said)):
        compose_externals([*NANO, other], [str(bigram)], arms[0])


def test_without_a_baseline_there_is_no_race(bigram: Path, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        command.main([*NANO, "--arm-external", str(bigram)])
    assert "--arm must be given for the baseline, got 0 of them" in capsys.readouterr().err


@pytest.mark.usefixtures("one_thread", "quick")
def test_an_external_arm_that_fails_later_is_a_line(bigram: Path, arms: list[BenchArm]):
    """It stops no other, and a loss that is not finite is no step."""
    reasons = {
        "return 1/0": "cannot take a step: ZeroDivisionError, line 25: division by zero",
        "return float('nan')": "the loss is nan after ",
    }
    raced = [arms[0]]
    for last in reasons:
        bigram.write_text(BIGRAM.replace("return loss.detach()", f"if len(self.seen) < 9: return loss.detach()\n        {last}"))
        raced.append(replace(arms[0], label=last, external=load(bigram, [])))

    def make(arm: BenchArm) -> Any:
        return ExternalContestant(arm, clock=Clock.cpu) if arm.external else Fake(Machine(drift=0).arm(1.0))

    base, *failed = fake_bench(raced, make, rounds=8)["arms"]
    assert base["status"] == "measured"
    assert [arm["status"] for arm in failed] == ["failed"] * 2
    assert all(reason in arm["reason"] for reason, arm in zip(reasons.values(), failed, strict=True))


def test_the_documented_file_is_the_example():
    example = REPO / "experiments" / "peers" / "bigram.py"
    assert example.read_text().partition('"""\n\n')[2] in (REPO / "docs" / "measuring.md").read_text()
    assert load(example, ["rate=2"]).options == {"rate": "2"}


# --- the real thing ----------------------------------------------------------------------------------------------------------------


@pytest.fixture
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_a_real_bench(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Eight layers against two, and an arm that no memory has room for."""
    giant = "model.d_model=1048576"  # matrices of 4 TB
    arms = [word for words in ("", "model.n_layer=8", giant) for word in ("--arm", words)]
    assert command.main([*NANO, *arms, "--rounds", "8", "--json", str(tmp_path / "deep" / "result.json")]) == 0
    out = capsys.readouterr().out
    result = json.loads((tmp_path / "deep" / "result.json").read_text())
    two, eight, none = result["arms"]
    assert (result["schema_version"], result["suite"], result["clock"]) == (1, None, "process CPU time, one thread")
    assert none["status"] == "does not fit"
    assert f"{giant}: does not fit: " in out
    assert eight["speed"]["high"] < 0.8
    assert eight["tokens_per_s"] == pytest.approx(eight["tokens_per_step"] / eight["step_ms"] * 1e3)
    assert [arm["config"]["model"]["n_layer"] for arm in (two, eight)] == [2, 8]
    assert eight["mfu"]["nominal"] is None
    assert 0 < eight["mfu"]["measured"] < 1
    memory_mib = eight["memory_mib"]
    assert memory_mib["parameters"] == pytest.approx(4 * eight["params"] / 2**20, rel=1e-3)
    assert memory_mib["optimizer"] == pytest.approx(2 * memory_mib["parameters"], rel=1e-3)
    assert memory_mib["peak"] == pytest.approx(sum(mib for part, mib in memory_mib.items() if part != "peak"))


@pytest.mark.usefixtures("one_thread")
def test_a_contestant_takes_the_trainers_steps():
    """Made-up tokens are uniform, so that it starts at ln V; the schedule begins anew after the last step."""
    arm = compose_arm(NANO, "trainer.steps=5")
    contestant = Contestant(arm, clock=Clock.cpu)
    losses = [contestant.step().loss for _ in range(8)]
    assert losses[0] == pytest.approx(math.log(257), abs=0.3)
    again = Contestant(arm, clock=Clock.cpu)
    assert [again.step().loss for _ in range(8)] == losses


@pytest.mark.usefixtures("one_thread")
def test_a_diverged_step_is_no_step():
    outside.use([EXPLODING[1]])
    with pytest.raises(DivergedError, match="its gradient's norm nan"):
        Contestant(compose_arm(NANO, EXPLODING[2]), clock=Clock.cpu)


def test_memory_that_is_not_there_is_refused_at_once():
    with memory.bounded(), pytest.raises(RuntimeError) as refused:
        torch.empty(2**45, dtype=torch.uint8)
    assert memory.ran_out(refused.value)
    assert not memory.ran_out(RuntimeError("shapes cannot be multiplied"))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="times a GPU, and there is none")
def test_a_real_bench_on_a_gpu():
    arms = compose_arms(["model=small", "trainer.device=cuda", "trainer.compile=off"], ["", "model.n_layer=12"])
    result = measure.bench(arms, seconds=60, rounds=8)
    one, two = result["arms"]
    assert result["clock"] == "CUDA events"
    assert two["speed"]["high"] < 0.9
    assert two["memory_mib"]["peak"] > one["memory_mib"]["peak"] > sum(one["memory_mib"][part] for part in ("parameters", "optimizer"))


# --- peaks -------------------------------------------------------------------------------------------------------------------------

CHIPS = {
    "NVIDIA H200": 989e12,
    "NVIDIA H200 NVL": 835e12,
    "NVIDIA H100 80GB HBM3": 989e12,
    "NVIDIA H100 PCIe": 756e12,
    "NVIDIA H100 80GB HBM3 MIG 1g.10gb": None,
    "NVIDIA B200": 2250e12,
    "NVIDIA A100-SXM4-40GB": 312e12,
    "NVIDIA A100 80GB PCIe": 312e12,
    "NVIDIA L4": 121e12,
    "NVIDIA L40S": 362e12,
    "NVIDIA L40": None,
    "NVIDIA GH200 480GB": 989e12,
    "NVIDIA GeForce RTX 4090": 165.2e12,
    "NVIDIA GeForce RTX 4090 D": None,
    "NVIDIA GeForce RTX 4090 Laptop GPU": None,
    "NVIDIA GeForce RTX 4080 SUPER": 104.4e12,
    "NVIDIA GeForce RTX 3090 Ti": 80e12,
    "NVIDIA GeForce RTX 5090 Laptop GPU": None,
}


@pytest.mark.parametrize("name", CHIPS)
def test_a_chip_has_its_own_peak_or_none(monkeypatch: pytest.MonkeyPatch, name: str):
    monkeypatch.setattr(hardware, "cuda_devices", lambda: (name,))
    assert hardware.peak_flops(Device.cuda, Precision.bf16)[0] == CHIPS[name]
