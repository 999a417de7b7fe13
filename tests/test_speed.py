"""`nocap.bench`: the order of blocks, the verdicts' level, what a planted difference comes out as, and a real bench of seconds."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nocap import bench as command
from nocap.config import hardware
from nocap.config.trainer import Device
from nocap.judge.rounds import LIMIT, Narrow, Rounds, confidence_for, judge
from nocap.judge.stats import signed_rank_needs
from nocap.measure import bench as measure
from nocap.measure.arms import BenchArm, compose_arm, compose_arms, interleave, order, step_config, suite
from nocap.measure.clock import Clock, clock_of
from nocap.measure.contestant import Contestant, DivergedError, StepInfo
from nocap.measure.text import render_bench
from nocap.store.measurement import METRICS, Measurement
from nocap.training import memory

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
        (around(0, 0.02, 0.02), "in order", "no difference shown"),  # 1% from the baselines' middle: less than they are from each other
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


def test_without_its_baseline_a_bench_fails(arms: list[BenchArm], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    def make(arm: BenchArm) -> Fake:
        return Fake(Machine(drift=0).arm(1.0), fails_at=3, error=MemoryError("no more"))

    with pytest.raises(measure.BaselineError, match="the baseline, mlp=gelu4x: does not fit: no more"):
        fake_bench(arms, make)
    monkeypatch.setattr(measure, "Contestant", lambda arm, clock: make(arm))
    assert command.main([*NANO, "--arm", "", "--arm", "attention=mha"]) == 1
    assert capsys.readouterr().err == "nocap: the baseline, (no change): does not fit: no more\n"


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
    top = {"kind", "date", "hardware", "clock", "limit", "rounds", "spent_s", "peak_flops", "control", "arms", "measurements"}
    assert set(result) == top
    keys = {"label", "status", "reason", "verdict", "speed", "half_width", "tokens_per_s", "step_ms", "speed_by_flops", "mfu", "config"}
    keys |= {"tokens_per_step", "steps_per_block", "warm_up_s", "flops_per_token", "flops_basis", "params", "kernel", "memory_mib"}
    keys |= {"seconds_per_token"}
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


# --- the real thing ----------------------------------------------------------------------------------------------------------------


@pytest.fixture
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


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
    with pytest.raises(DivergedError, match="its gradient's norm nan"):
        Contestant(compose_arm(NANO, "optimizer.lr=1e30 schedule.warmup_steps=0"), clock=Clock.cpu)


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
