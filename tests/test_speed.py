"""`nocap.bench`: the order of blocks, the verdicts' level, what a planted difference comes out as,
and a real bench of seconds."""

import itertools
import json
import math
import weakref
from dataclasses import asdict
from itertools import count

import numpy as np
import pytest
import torch

from nocap import bench as command
from nocap import outside
from nocap.config import hardware
from nocap.config.trainer import Compile, Device, Precision
from nocap.judge import bench_speeds
from nocap.judge.cautious_interval import of_pairs
from nocap.measure import bench as measure
from nocap.measure.bench import LIMIT, carry_out, interleave, order
from nocap.measure.bench_arms import compose_arm, compose_arms, compose_measured
from nocap.measure.bench_result import Facts
from nocap.measure.clock import Clock
from nocap.measure.timed_arm import DivergedError, TimedArm, block_steps
from nocap.options.optimizer import soap
from nocap.training.memory_limit import ran_out, within_memory
from tests.conftest import EXPLODING

NANO = (
    "model=nano",
    "trainer.device=cpu",
    "trainer.precision=fp32",
    "trainer.micro_batch=2",
    "trainer.batch_tokens=256",
)


def judged(times):
    """What the judge says of rounds × instances × blocks: the control, then the arms after the
    baseline."""
    return bench_speeds.judge(times.mean(axis=2))


def words(times):
    found = judged(times)
    return [each and each.word_with_reason for each in (found.control, *found.arms)]


def nano(overrides=""):
    return compose_arm(NANO, overrides).run


# --- the order ------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [2, 3, 5, 8])
def test_every_arm_has_every_place_once_in_n_rounds(n):
    for cycle in range(3):
        orders = [order(n, round_=cycle * n + r) for r in range(n)]
        rounds = np.array(orders)
        sorted_rounds = np.sort(rounds[:, :n], axis=0)
        assert (sorted_rounds == np.arange(n)[:, None]).all()
        halves = rounds[:, :n] == rounds[:, : n - 1 : -1]
        assert (halves).all()  # and back


def test_an_even_drift_cancels_to_the_last_digit():
    at = count(1)  # 60% slower within a round's neighbours of ten rounds
    blocks = [lambda s=s: s * (1 + 0.01 * next(at)) for s in (1.0, 1.0, 1.1, 0.8)]
    times = interleave(blocks, enough=lambda times: len(times) == 10)
    found = judged(times)
    assert found.control.estimate.mid == pytest.approx(0, abs=1e-12)
    assert found.control.estimate.half_width == pytest.approx(0, abs=1e-12)
    mids = [arm.estimate.exp().mid for arm in found.arms]
    assert mids == pytest.approx([1 / 1.1, 1 / 0.8])
    assert words(times) == ["no difference shown", "worse", "better"]


# --- the verdicts ---------------------------------------------------------------------------------


def blocks(logs):
    """Times of rounds × instances of log times."""
    doubled = np.repeat(logs[:, :, None], 2, axis=2)
    return np.exp(doubled)


def around(*centres, spread=0.01, n=20):
    """Rounds that lie evenly around each instance's log time, the instances' noise unrelated."""
    rng = np.random.default_rng(0)
    steps = np.linspace(-spread, spread, n)
    rows = [centre + rng.permutation(steps) for centre in centres]
    return blocks(np.stack(rows, axis=1))


WORDS = [
    (around(0, 0, 0.1), "no difference shown", "worse"),
    (around(0, 0, -0.1), "no difference shown", "better"),
    (around(0, 0, 0), "no difference shown", "no difference shown"),
    (around(0, 0, 0.1, spread=0.2), "no difference shown", "no difference shown"),
    # by no more than the baseline differs from itself
    (around(0, 0.05, 0.1), "better", "no difference shown"),
    # as the second instance, to which it is compared
    (around(0, 0.02, 0.02), "better", "no difference shown"),
    (around(0, 0, 0.1, n=2), "no verdict (n=2)", "no verdict (n=2)"),
]


@pytest.mark.parametrize(("times", "control", "arm"), WORDS)
def test_a_bench_says_a_word_of_each_arm(times, control, arm):
    assert words(times) == [control, arm]


def test_an_arm_that_failed_has_no_estimate_and_spoils_no_other():
    times = around(0, 0, 0.1, 0)
    times[5:, 3] = np.nan
    assert words(times)[1:] == ["worse", None]


def test_the_interval_is_the_judges_wider_by_the_controls_bias_and_for_more_arms():
    times = around(0, 0.02, 0.1, 0.1)
    logs = np.log(times.mean(axis=2))
    drift = (logs[:, 1] - logs[:, 0]).mean()
    bias = float(abs(drift))
    both = judged(times).arms[0].estimate
    verdict = judged(times[:, :3])
    alone = verdict.arms[0].estimate
    expected = of_pairs(logs[:, 1] - logs[:, 2], bias=bias, comparisons=2)
    assert both == expected
    assert both.half_width > alone.half_width > 0.02


def gauss(rng, shape):
    return rng.normal(size=shape)


def contended(rng, shape):
    """One block in seven meets a busy neighbour and is slower by far."""
    noise = rng.normal(size=shape)
    tail = rng.random(shape) < 1 / 7
    return noise + tail * rng.exponential(6.0, shape)


def resembling(rng, shape):
    """Rounds that resemble the round before (0.3)."""
    noise = rng.normal(size=shape)
    for i in range(1, len(noise)):
        noise[i] += 0.3 * noise[i - 1]
    return noise


def stopped(rng, noise, *, sd, effect=0.0):
    """The verdict on one arm where rounds go on until the intervals are narrow, at most 200."""
    effects = np.array([0, 0, effect])
    times = blocks(sd * noise(rng, (200, 3)) + effects)
    narrow = (n for n in range(3, 200) if judged(times[:n]).are_narrow(LIMIT[Device.cpu]))
    (arm,) = judged(times[: next(narrow, 200)]).arms
    assert arm is not None
    return arm.word_with_reason


@pytest.mark.slow
@pytest.mark.parametrize("noise", [gauss, contended, resembling])
def test_level_and_power_by_simulation(noise):
    """At 5%, more than 16 of 200 have a chance of 2%."""
    rng = np.random.default_rng(2)
    false_alarms = sum(stopped(rng, noise, sd=0.04) != "no difference shown" for _ in range(200))
    assert false_alarms <= 16
    better = [stopped(rng, noise, sd=0.04, effect=0.01) for _ in range(100)]
    assert better.count("better") <= 2
    worse = [stopped(rng, noise, sd=0.02, effect=0.1) for _ in range(100)]
    assert worse.count("worse") >= 95


# --- a bench on a clock of its own ----------------------------------------------------------------

KNOWN = Facts(
    tokens_per_step=256,
    steps_per_block=1,
    warm_up_s=0.0,
    flops_per_token=1e6,
    flops_basis="arithmetic",
    params=1,
    kernel="flash",
    memory_mib={
        "peak": 1.0,
        "parameters": 1.0,
        "gradients": 0.0,
        "optimizer": 0.0,
        "activations": 0.0,
    },
)
LABELS = ("mlp=gelu4x", "mlp=gelu3x", "attention=mha")
TOP = {
    "schema_version",
    "words",
    "kind",
    "date",
    "started",
    "ended",
    "hardware",
    "clock",
    "limit",
    "rounds",
}
TOP |= {"spent_s", "peak_flops", "control", "arms", "measurements"}
ARM = {
    "label",
    "status",
    "reason",
    "verdict",
    "speed",
    "tokens_per_s",
    "step_ms",
    "speed_by_flops",
    "mfu",
}
ARM |= {"config", "seconds_per_token"}


class Raced:
    """The command, whose arms take no step: of each the time of a block is given, or an error, once
    it has been timed so often."""

    def __init__(self, folder, monkeypatch):
        self.folder = folder
        self.patch = monkeypatch
        monkeypatch.setattr(measure, "matmul_flops", lambda device, precision: 1e12)

    def __call__(self, block, *flags, fails=None, warm=lambda: 0.0):
        fails = fails or {}
        done = {}

        def tried(arm):
            at, error = fails.get(arm.label, (math.inf, None))
            done[arm.label] = done.get(arm.label, -1) + 1
            if error is not None and done[arm.label] >= at:
                raise error

        def warmed(arm, clock):
            tried(arm)
            arm.steps = 1
            arm.facts = KNOWN
            arm.fake = block(arm.label)
            warm()

        def timed_(arm):
            tried(arm)
            return float(arm.fake())

        self.patch.setattr(TimedArm, "warm", warmed)
        self.patch.setattr(TimedArm, "block", timed_)
        path = self.folder / "bench.json"
        arms = itertools.chain(*(("--arm", label) for label in LABELS))
        code = command.main([*NANO, *arms, *flags, "--json", str(path)])
        return code, json.loads(path.read_text()) if path.exists() else {}


@pytest.fixture
def raced(tmp_path, monkeypatch):
    return Raced(tmp_path, monkeypatch)


def still(label):
    return lambda: 1.0


def test_an_arm_that_runs_out_in_its_warm_up_leaves_nothing_behind(monkeypatch):
    graphs = []

    def out_of_memory(self):
        assert self.grad_fn is not None
        kept = next(fn for fn, _ in self.grad_fn.next_functions if fn is not None)
        mark = kept.metadata.setdefault("mark", torch.ones(1))
        graphs.append(weakref.ref(mark))
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torch.Tensor, "backward", out_of_memory)
    arm = TimedArm("", nano())

    assert math.isnan(arm.tried(lambda: arm.warm(Clock.cpu)))
    assert arm.status == "does not fit"
    assert [graph() for graph in graphs] == [None]


class Ring:
    """Refers to itself, as a compiled module does."""

    def __init__(self):
        self.itself = self


def test_an_arm_that_runs_out_in_a_round_leaves_nothing_to_the_next(monkeypatch):
    arm, other = TimedArm("", nano()), TimedArm("", nano())
    arm.built = Ring()
    built = weakref.ref(arm.built)

    def run_out():
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(arm, "block", run_out)
    monkeypatch.setattr(other, "block", lambda: float(built() is None))
    times = measure.in_turns([arm, other], enough=lambda times: True)
    assert arm.status == "does not fit"
    assert times[0, 1].tolist() == [1.0, 1.0]


@pytest.mark.slow
def test_a_lost_baseline_loses_no_other_arm(raced):
    code, result = raced(still, fails={"mlp=gelu4x": (3, MemoryError("no more"))})
    base, *others = result["arms"]
    assert code == 1
    assert base["status"] == "does not fit"
    assert base["tokens_per_s"] is None
    assert result["rounds"] == 3
    expected = [(None, pytest.approx(1.0))] * 2
    assert [(arm["speed"], arm["tokens_per_s"]) for arm in others] == expected


@pytest.mark.slow
def test_a_bench_is_in_its_file_after_each_round(raced, monkeypatch):
    kept = []
    monkeypatch.setattr(command, "write_json", lambda path, content: kept.append(content["rounds"]))
    raced(still, "--rounds", "4")
    assert kept == [1, 2, 3, 4]


@pytest.mark.slow
def test_time_ends_a_bench_that_stays_noisy(raced, monkeypatch):
    now = iter(range(10_000))
    rng = np.random.default_rng(0)
    monkeypatch.setattr(measure.time, "monotonic", lambda: float(next(now)))
    _, result = raced(lambda label: lambda: float(np.exp(rng.normal())), "--seconds", "100")
    assert 3 < result["rounds"] < 100


@pytest.mark.slow
def test_an_arm_whose_turn_comes_too_late_is_left_out(raced, monkeypatch):
    warmed = []
    # after three of them, 60% of 100 s have passed
    monkeypatch.setattr(measure.time, "monotonic", lambda: 25.0 * len(warmed))
    _, result = raced(still, "--seconds", "100", warm=lambda: warmed.append(0.0) or 0.0)
    statuses = [arm["status"] for arm in result["arms"]]
    assert statuses == ["measured", "measured", "not measured"]
    assert (
        result["arms"][2]["reason"]
        == "no time is left: the arms before took 75 s of 100 s to warm up"
    )


@pytest.mark.slow
def test_the_result_has_one_schema(raced, capsys):
    """Whatever became of an arm, and strict JSON; an arm that does not fit or fails is a line."""
    big = 0, torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 6 GiB\nmore")
    fails = {"mlp=gelu3x": big, "attention=mha": (5, OSError("gone"))}
    code, result = raced(still, "--rounds", "8", fails=fails)
    assert code == 1  # one failed
    assert set(result) == TOP
    for arm in result["arms"]:
        assert set(arm) == ARM | set(asdict(KNOWN))
    expected = [
        ("measured", None),
        ("does not fit", "CUDA out of memory. Tried to allocate 6 GiB"),
        ("failed", "OSError: gone"),
    ]
    ends = [(arm["status"], arm["reason"]) for arm in result["arms"]]
    assert ends == expected
    out = capsys.readouterr().out
    assert "\nmlp=gelu3x: does not fit: CUDA out of memory. Tried to allocate 6 GiB\n" in out
    assert result["hardware"]["name"] == hardware.device_name(Device.cpu)
    seconds = result["arms"][0]["seconds_per_token"]
    first = {"arm": "mlp=gelu4x", "repeat": 0, "metric": "tokens_per_s", "unit": "tokens/s"}
    first |= {"better": "higher", "ending": "measured", "value": 2 / sum(seconds[0])}
    assert result["measurements"][0].items() >= first.items()
    text = json.dumps(result, allow_nan=False)
    assert json.loads(text) == result
    code, result = raced(still, fails={"mlp=gelu3x": big})
    # the first look is enough
    assert code == 0
    assert result["rounds"] == 3


# --- arms and refusals ----------------------------------------------------------------------------


REFUSED = [
    ((), "--arm must be typed at least twice (the first --arm is the baseline), got 0"),
    (
        ("--arm", "mlp=gelu3x"),
        "--arm must be typed at least twice (the first --arm is the baseline), got 1",
    ),
    (
        ("--arm", "", "--arm", "attention=nope"),
        "--arm 'attention=nope': attention/nope is no option",
    ),
    (("--arm", "", "--arm", "trainer.nope=1"), "--arm 'trainer.nope=1': "),
    (("--arm", "", "--arm", "'"), '--arm "\'": No closing quotation'),
    (
        ("--arm", "", "--arm", "attention=flash"),
        "--arm 'attention=flash' must change the training step",
    ),
    (
        ("--arm", "seed=0", "--arm", "seed=1 trainer.steps=9"),
        "must change the training step, got the same step as --arm 'seed=0'",
    ),
    (
        ("--arm", "", "--arm", "trainer.devices=2 trainer.micro_batch=1"),
        "trainer.devices must be 1, because a bench times one device, got 2",
    ),
    (("--arm", "", "--arm", "mlp=gelu3x", "--rounds", "2"), "--rounds must be at least 3, got 2"),
    (
        ("--arm", "", "--arm", "mlp=gelu3x", "--rounds", "3", "--seconds", "9"),
        "--seconds does not work with --rounds: give only one of the two",
    ),
    (
        ("--arm", "", "--arm", "mlp=gelu3x", "--seconds", "nan"),
        "--seconds must be a finite number above 0, got nan",
    ),
    (
        ("--arm", "", "--arm", "mlp=gelu3x", "--json", "/dev/null/x"),
        "--json must be a file that can be written, got /dev/null/x",
    ),
]


@pytest.mark.parametrize(("words", "said"), REFUSED)
def test_what_a_bench_cannot_time_is_refused_in_a_line(words, said, capsys):
    with pytest.raises(SystemExit, match="2"):
        command.main([*NANO, *words])
    err = capsys.readouterr().err
    assert said in err, err
    assert err.count("\n") == 1, err


def test_arms_of_two_devices_are_refused(monkeypatch):
    monkeypatch.setattr(hardware, "check_device", lambda device, devices: None)
    with pytest.raises(ValueError, match=r"trainer\.device must be the same in all arms"):
        carry_out(
            [TimedArm(label, nano(label)) for label in ("", "trainer.device=cuda")], seconds=1
        )


@pytest.mark.slow
def test_one_thread_on_a_cpu_and_nothing_is_compiled_unless_asked_for():
    words = ["model=small", "trainer.device=cpu"]  # a training of it would be compiled
    asked = [compose_arm(words, more).run.trainer for more in ("", "trainer.compile=regional")]
    expected = [(1, Compile.off), (1, Compile.regional)]
    assert [(each.threads, each.compile) for each in asked] == expected
    clocks = [Clock.of(Device.cpu, threads) for threads in (1, 2)]
    assert clocks == [Clock.cpu, Clock.wall]


def test_a_bench_of_runs_of_a_length_takes_their_default_and_the_baseline_decides_for_all_arms(
    monkeypatch,
):
    monkeypatch.setattr(hardware, "native_bf16", lambda: False)
    monkeypatch.setattr(hardware, "cpp_compiler", lambda: "/usr/bin/g++")
    arms = ["", "model.n_layer=40"]
    lasting = ["trainer.steps=100000"]
    cases = (
        ([], arms, ["off", "off"]),
        (lasting, [*arms, "trainer.compile=off"], ["full", "full", "off"]),
        ([*lasting, "model.n_layer=60"], [""], ["regional"]),  # 11.8 million weights
    )
    for words, labels, chosen in cases:
        runs = compose_arms(["model=tiny", "trainer.device=cpu", *words], labels)
        assert [run.trainer.compile.value for run in runs.values()] == chosen


# --- a peak for each arm --------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [(1, 2), (2, 1), (2, 3)])
def test_each_arm_has_the_peak_of_its_own_threads(threads, monkeypatch):
    """Two threads multiply twice as fast: by their peak one thread used half as much as it did."""
    before = torch.get_num_threads()
    monkeypatch.setattr(
        measure, "matmul_flops", lambda device, precision: 1e9 * torch.get_num_threads()
    )
    arms = [TimedArm(str(n), nano(f"trainer.threads={n}")) for n in threads]
    peaks = measure._peaks(arms)
    torch.set_num_threads(before)
    for arm, n in zip(arms, threads, strict=True):
        arm.facts = Facts(flops_per_token=1e6, tokens_per_step=1)
        seconds = np.full((3, 2), 1e-3)
        row = measure._arm(arm, seconds, None, base=arm, peaks=peaks)
        assert row.mfu.measured == pytest.approx(1 / n)


# --- the real thing -------------------------------------------------------------------------------


@pytest.fixture
def one_thread():
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_a_bench_measures_eight_layers_against_two(tmp_path, capsys):
    """Eight layers against two, and an arm that no memory has room for."""
    # matrices of 4 TB
    giant = "model.d_model=1048576"
    path = tmp_path / "deep" / "result.json"
    arms = ["--arm", "", "--arm", "model.n_layer=8", "--arm", giant]
    assert command.main([*NANO, *arms, "--rounds", "8", "--json", str(path)]) == 0
    result = json.loads(path.read_text())
    two, eight, none = result["arms"]
    assert result["schema_version"] == 1
    assert result["clock"] == "process CPU time, one thread"
    assert none["status"] == "does not fit"
    assert f"{giant}: does not fit: " in capsys.readouterr().out
    assert eight["speed"]["high"] < 0.8
    expected = eight["tokens_per_step"] / eight["step_ms"] * 1e3
    assert eight["tokens_per_s"] == pytest.approx(expected)
    layers = [arm["config"]["model"]["n_layer"] for arm in (two, eight)]
    assert layers == [2, 8]
    assert 0 < eight["mfu"]["measured"] < 1
    mib = eight["memory_mib"]
    assert mib["parameters"] == pytest.approx(4 * eight["params"] / 2**20, rel=1e-3)
    assert mib["optimizer"] == pytest.approx(2 * mib["parameters"], rel=1e-3)
    rest = sum(mib.values()) - mib["peak"]
    assert mib["peak"] == pytest.approx(rest)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize(
    ("wanted", "period", "steps"),
    [(3.4, 1, 3), (0.2, 1, 1), (3, 10, 10), (26, 10, 30), (400, 1, 400)],
)
def test_a_block_is_whole_periods(wanted: float, period: int, steps: int):
    assert block_steps(wanted, period=period) == steps


@pytest.mark.usefixtures("one_thread")
def test_a_block_of_soap_has_the_update_of_its_bases(monkeypatch):
    """It comes once in so many steps, and is most of their time."""
    arm = TimedArm("soap", nano("optimizer=soap optimizer.basis_every=4"))
    arm.warm(Clock.cpu)
    updates = []
    monkeypatch.setattr(soap, "follow", lambda average, basis: updates.append(1) or basis.float())
    arm.block()
    assert arm.facts.steps_per_block % 4 == 0
    parameters = arm.built.model.blocks.parameters()
    matrices = sum(p.ndim == 2 for p in parameters)
    assert len(updates) == 2 * matrices * arm.facts.steps_per_block // 4


def test_a_period_that_is_too_long_is_refused():
    with pytest.raises(
        ValueError, match=r"the optimizer must have a period of at most 100 steps .*, got 101"
    ):
        block_steps(3, period=101)


def test_an_arm_takes_the_trainers_steps():
    """Made-up tokens are uniform, so that it starts at ln V; the schedule begins anew after the
    last step."""
    losses = []
    for _ in range(2):
        arm = TimedArm("", nano("trainer.steps=5"))
        arm.warm(Clock.cpu)
        losses.append([arm.step() for _ in range(8)])
    assert losses[0][0] == pytest.approx(math.log(257), abs=0.3)
    assert losses[1] == losses[0]


@pytest.mark.usefixtures("one_thread")
def test_a_diverged_step_is_no_step():
    outside.use([EXPLODING[1]])
    arm = TimedArm("", nano(EXPLODING[2]))
    with pytest.raises(DivergedError, match="gradient norm nan"):
        arm.warm(Clock.cpu)


def test_memory_that_is_not_there_is_refused_at_once():
    with within_memory(), pytest.raises(RuntimeError) as refused:
        torch.empty(2**45, dtype=torch.uint8)
    assert ran_out(refused.value)
    assert not ran_out(RuntimeError("shapes cannot be multiplied"))


# --- peaks ----------------------------------------------------------------------------------------

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
def test_a_chip_has_its_own_peak_or_none(monkeypatch, name):
    monkeypatch.setattr(hardware, "cuda_devices", lambda: (name,))
    assert hardware.peak_flops(Device.cuda, Precision.bf16)[0] == CHIPS[name]


@pytest.mark.parametrize("plus", ["", "+", "++"])
def test_a_step_is_measured_compiled_where_a_length_is_given(monkeypatch, plus):
    monkeypatch.setattr(hardware, "cpp_compiler", lambda: "/usr/bin/g++")
    words = ["model=small", "trainer.device=cpu"]
    measured = compose_measured([*words, f"{plus}trainer.steps=5000"])
    assert measured.run.trainer.compile is Compile.regional
    assert compose_measured(words).run.trainer.compile is Compile.off
