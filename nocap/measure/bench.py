"""A bench from its arms to its result: warm up, take turns until the intervals are narrow or the
time is spent, ask the judge.

A round has two blocks of each arm, there and back. `nocap.judge.bench_speeds` compares the arms;
all of it is of one session. Rounds go on until the intervals are narrow enough. Their width does
not depend on where they lie, so that stopping on it keeps the level (`tests/test_speed.py`
simulates it).
"""

from __future__ import annotations

import copy
import gc
import math
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from datetime import date
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from nocap.config import hardware
from nocap.config.keys import require
from nocap.config.trainer import Device, Trainer
from nocap.judge import bench_speeds
from nocap.judge.differences import Difference
from nocap.judge.interval import LEAST_PAIRS
from nocap.measure.bench_result import ArmStatus, Bench, BenchedArm, FlopPeak, Mfu
from nocap.measure.clock import Clock
from nocap.measure.peaks import matmul_flops
from nocap.measure.timed_arm import TimedArm
from nocap.store.times import now
from nocap.training.memory_limit import within_memory

# (rounds, instances, 2): seconds a token in the two blocks of each; NaN from where it failed
Times = NDArray[np.float64]
# half-width of an interval, of the ratio's logarithm, that needs no more rounds
LIMIT = {Device.cpu: 0.03, Device.cuda: 0.01}
WARM_SHARE = 0.6  # of the time: an arm whose turn to warm up comes later is left out


def carry_out(
    arms: Sequence[TimedArm],
    *,
    seconds: float,
    rounds: int | None = None,
    log: Callable[[str], None] = lambda line: None,
    keep: Callable[[Bench], None] = lambda result: None,
) -> Bench:
    """Time the arms against the first one, and return the result, which `keep` gets after each
    round.

    Without `rounds`, rounds go on until every interval is within the limit or `seconds`, warm-up
    included, are spent. Where the baseline fails or does not fit, the other arms are timed, and
    compared with nothing.

    Errors:
        ValueError: the arms are on different devices.
    """
    device = _device_of(arms)
    session = _Session(
        instances=[copy.copy(arms[0]), *arms],
        clock=clock_of(arms),
        seconds=seconds,
        rounds=rounds,
        log=log,
        keep=keep,
        started=now(),
        began=time.monotonic(),
    )
    with _room(device):
        session.warm_up()
        times = in_turns(session.instances, enough=session.is_enough)
        return session.result(times)


def _device_of(arms: Sequence[TimedArm]) -> Device:
    """Return the kind of device that all arms are on.

    Errors:
        ValueError: there is more than one.
    """
    devices = sorted({arm.run.trainer.device.value for arm in arms})
    rule = "be the same in all arms, because one clock times them"
    require(len(devices) == 1, "trainer.device", rule, " and ".join(devices))
    return arms[0].run.trainer.device


@dataclass(kw_only=True)
class _Session:
    """A bench while it goes on."""

    instances: Sequence[TimedArm]  # the control, which is the baseline's first; the arms
    clock: Clock
    seconds: float  # until the intervals are narrow, and no longer than this
    rounds: int | None  # or so many rounds
    log: Callable[[str], None]
    keep: Callable[[Bench], None]
    started: str
    began: float  # by the monotonic clock
    warm_up_s: float = 0.0
    peaks: dict[str, FlopPeak] = field(default_factory=dict)

    @property
    def trainer(self) -> Trainer:
        """Return the baseline's settings."""
        return self.instances[0].run.trainer

    @property
    def spent_s(self) -> float:
        """Return the seconds since the bench began."""
        return time.monotonic() - self.began

    def warm_up(self) -> None:
        """Build the instances, and measure the peaks that bound them."""
        limit_s = None if self.rounds is not None else self.seconds
        warm_up(self.instances, self.clock, seconds=limit_s, log=self.log)
        self.peaks = _peaks(self.instances)
        self.warm_up_s = self.spent_s

    def is_enough(self, times: Times) -> bool:
        """Keep the result so far; say whether it needs no more rounds, or has no time for them."""
        self.keep(self.result(times))
        self.log(f"round {len(times)}, {self.spent_s:.0f} s")
        is_alone = any(arm.status is not ArmStatus.measured for arm in self.instances[:2])
        if self.rounds is not None or is_alone:
            return len(times) >= (self.rounds or LEAST_PAIRS)
        if _compared(times).are_narrow(LIMIT[self.trainer.device]):
            return True
        next_s = (self.spent_s - self.warm_up_s) / len(times)
        return self.spent_s + next_s > self.seconds

    def result(self, times: Times) -> Bench:
        """Return what these rounds show."""
        machine = hardware.describe(self.trainer.device, self.trainer.threads)
        control, *arms = _benched(self.instances, times, self.peaks)
        return Bench(
            date=date.today().isoformat(),
            started=self.started,
            ended=now(),
            clock=self.clock.value,
            peaks=self.peaks,
            hardware=machine,
            limit=LIMIT[self.trainer.device],
            rounds=len(times),
            control=control,
            arms=arms,
            warm_up_s=self.warm_up_s,
            spent_s=self.spent_s,
        )


def timed_rounds(
    arms: Sequence[TimedArm], *, seconds: float, log: Callable[[str], None] = lambda line: None
) -> list[list[float]]:
    """Return the seconds a token of each arm in each round: the mean of its two blocks, (arms,
    rounds). Rounds go on for so many seconds without the warm-up, and there are three at least. NaN
    from where an arm failed."""
    instances = [
        copy.copy(arms[0]),
        *arms,
    ]  # what is built first can come out slow, and is left out
    trainer = arms[0].run.trainer
    clock = clock_of(arms)
    with _room(trainer.device):
        warm_up(instances, clock, seconds=None, log=log)
        began = time.monotonic()

        def enough(times: Times) -> bool:
            return len(times) >= LEAST_PAIRS and time.monotonic() - began >= seconds

        times = in_turns(instances, enough=enough)
    by_arm: list[list[float]] = times.mean(axis=2).T[1:].tolist()
    return by_arm


def clock_of(arms: Sequence[TimedArm]) -> Clock:
    """Return the one clock of arms that are on the same kind of device."""
    return Clock.of(arms[0].run.trainer.device, max(arm.run.trainer.threads for arm in arms))


def _room(device: Device) -> AbstractContextManager[None]:
    """Bound the memory of the process; not on CUDA, which reserves addresses by the terabyte."""
    return within_memory() if device is Device.cpu else nullcontext()


def warm_up(
    instances: Sequence[TimedArm],
    clock: Clock,
    *,
    seconds: float | None,
    log: Callable[[str], None],
) -> None:
    """Build the arms, the baseline twice, one after another. An arm whose turn comes when most of
    `seconds` has gone is not measured, unless it is the baseline."""
    began = time.monotonic()
    for i, arm in enumerate(instances):
        spent = time.monotonic() - began
        if i > 1 and seconds is not None and spent > WARM_SHARE * seconds:
            arm.status = ArmStatus.not_measured
            arm.reason = (
                f"no time is left: the arms before took {spent:.0f} s of {seconds:g} s to warm up"
            )
            continue
        log(f"warming up {arm.label}" + (", again" if i == 1 else ""))
        arm.tried(partial(arm.warm, clock))


def in_turns(instances: Sequence[TimedArm], *, enough: Callable[[Times], bool]) -> Times:
    """Return the times of rounds of these arms, which are closed after the last."""
    gc.collect()
    gc.freeze()  # the collector need not walk through all arms in the middle of one's block
    times = interleave([partial(arm.tried, arm.block) for arm in instances], enough=enough)
    gc.unfreeze()
    for arm in instances:
        arm.close()
    return times


def order(n: int, *, round_: int) -> list[int]:
    """Return the instances of a round's blocks: A B C C B A, so that a machine whose speed drifts
    evenly slows all alike; then B C A A C B, and so on. Over n rounds each has every place once;
    then the neighbours change."""
    cycle, shift = divmod(round_, n)
    instances = np.random.default_rng(cycle).permutation(n) if cycle else np.arange(n)
    first = np.roll(instances, -shift).tolist()
    return [*first, *reversed(first)]


def interleave(blocks: Sequence[Callable[[], float]], *, enough: Callable[[Times], bool]) -> Times:
    """Return rounds of blocks until `enough` of the times so far; at least one round."""
    rounds: list[list[list[float]]] = []
    while not rounds or not enough(np.array(rounds)):
        rounds.append([[] for _ in blocks])
        for i in order(len(blocks), round_=len(rounds) - 1):
            rounds[-1][i].append(blocks[i]())
    return np.array(rounds)


def _compared(times: Times) -> bench_speeds.Speeds:
    """Return how fast the instances are beside the baseline, by the means of their two blocks."""
    return bench_speeds.judge(times.mean(axis=2))


def _peaks(arms: Sequence[TimedArm]) -> dict[str, FlopPeak]:
    """Find the FLOP/s of the arms that were timed, by precision and threads: by the data sheet,
    where there is one, and of a large matrix product here."""
    peaks = dict[str, FlopPeak]()
    trainers = {_peak_of(arm): arm.run.trainer for arm in arms if arm.status is ArmStatus.measured}
    for name, t in trainers.items():
        torch.set_num_threads(t.threads)
        nominal, source = hardware.peak_flops(t.device, t.precision)
        measured = matmul_flops(t.device, t.precision)
        peaks[name] = FlopPeak(nominal=nominal, nominal_source=source, measured=measured)
    return peaks


def _peak_of(arm: TimedArm) -> str:
    """Name the peak that bounds an arm: `fp32`, or `fp32, 2 threads`."""
    t = arm.run.trainer
    has_threads = t.device is Device.cpu and t.threads > 1
    return f"{t.precision.value}, {t.threads} threads" if has_threads else t.precision.value


def _benched(
    instances: Sequence[TimedArm], times: Times, peaks: dict[str, FlopPeak]
) -> list[BenchedArm]:
    """Return the instances in the result, the control first."""
    compared = _compared(times)
    differences = [compared.control, None, *compared.arms]
    base = instances[1]
    arms = list[BenchedArm]()
    for i, (arm, speed) in enumerate(zip(instances, differences, strict=True)):
        arms.append(_arm(arm, times[:, i], speed, base=base, peaks=peaks))
    return arms


def _arm(
    arm: TimedArm,
    times: Times,
    speed: Difference | None,
    *,
    base: TimedArm,
    peaks: dict[str, FlopPeak],
) -> BenchedArm:
    """Return an arm in the result. `times`: (rounds, 2)."""
    facts = arm.facts
    tokens_per_s = None
    rate = None  # FLOP/s
    by_flops = None
    if arm.status is ArmStatus.measured:
        tokens_per_s = math.exp(-np.log(times.mean(axis=1)).mean())
        if facts.flops_per_token:
            rate = facts.flops_per_token * tokens_per_s
            base_flops = base.facts.flops_per_token
            by_flops = base_flops / facts.flops_per_token if base_flops else None
    return BenchedArm(
        label=arm.label,
        status=arm.status,
        reason=arm.reason,
        facts=facts,
        speed=speed,
        tokens_per_s=tokens_per_s,
        speed_by_flops=by_flops,
        mfu=_mfu(rate, peaks.get(_peak_of(arm))),
        config=arm.config,
        seconds_per_token=times.tolist() if arm.status is ArmStatus.measured else None,
    )


def _mfu(rate: float | None, peak: FlopPeak | None) -> Mfu:
    """Return the share of the peak that so many FLOP/s are."""
    if rate is None or peak is None:
        return Mfu()
    nominal = rate / peak.nominal if peak.nominal else None
    measured = rate / peak.measured if peak.measured else None
    return Mfu(nominal=nominal, measured=measured)
