"""A bench from its arms to its result: warm up, take turns until the intervals are narrow or the time is
spent, compare.

A round has two blocks of each arm, there and back, and gives one log ratio an arm, to the baseline's second
instance: what is built and timed first has come out 0.5 to 1% slow, and the first instance, the control, is
only there to show it. The interval is that of all clocks (`judge.cautious`), over rounds, wider by what the
baseline differs from itself. All of it is of one session.

Rounds go on until the intervals are narrow enough. Their width does not depend on where they lie, so that
stopping on it keeps the level (`tests/test_speed.py` simulates it).
"""

from __future__ import annotations

import copy
import gc
import math
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import date
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from nocap.config import hardware
from nocap.config.keys import require
from nocap.config.trainer import Device
from nocap.judge.cautious import CLOCK_BIAS, of_pairs
from nocap.judge.interval import CONFIDENCE, LEAST_PAIRS, Estimate
from nocap.judge.losses import difference
from nocap.measure.roofline import matmul_flops
from nocap.measure.timed import Clock, TimedArm
from nocap.store.metrics import METRICS, Measurement, now
from nocap.training import memory

# (rounds, instances, 2): seconds a token in the two blocks of each; NaN from where it failed
Times = NDArray[np.float64]
# half-width of an interval, of the ratio's logarithm, that needs no more rounds
LIMIT = {Device.cpu: 0.03, Device.cuda: 0.01}
WARM_SHARE = 0.6  # of the time: an arm whose turn to warm up comes later is left out


def bench(
    arms: Sequence[TimedArm],
    *,
    seconds: float,
    rounds: int | None = None,
    log: Callable[[str], None] = lambda line: None,
    keep: Callable[[dict[str, Any]], None] = lambda result: None,
) -> dict[str, Any]:
    """Time the arms against the first one. The result as JSON types, which `keep` gets after each round.

    Without `rounds`, rounds go on until every interval is within the limit or `seconds`, warm-up included,
    are spent. Where the baseline fails or does not fit, the other arms are timed, and compared with nothing.

    Errors:
        ValueError: the arms are on different devices.
    """
    started, began, trainer = now(), time.monotonic(), arms[0].run.trainer
    devices = sorted({arm.run.trainer.device.value for arm in arms})
    require(
        len(devices) == 1,
        "trainer.device",
        "be the same in all arms: they share a clock",
        " and ".join(devices),
    )
    clock = clock_of(arms)
    instances = [copy.copy(arms[0]), *arms]  # the control comes first

    def spent() -> float:
        return time.monotonic() - began

    def result(times: Times) -> dict[str, Any]:
        return {
            "kind": "bench",
            "date": date.today().isoformat(),
            "started": started,
            "clock": clock.value,
            **_result(instances, times, peaks),
            "ended": now(),
            "spent_s": {"warm_up": warm_up_s, "all": spent()},
        }

    def enough(times: Times) -> bool:
        keep(result(times))
        log(f"round {len(times)}, {spent():.0f} s")
        alone = any(arm.status != "measured" for arm in instances[:2])
        if rounds is not None or alone:
            return len(times) >= (rounds or LEAST_PAIRS)
        narrow = all(each.half_width <= LIMIT[trainer.device] for each in estimates(times) if each)
        return narrow or spent() + (spent() - warm_up_s) / len(times) > seconds

    with _room(trainer.device):
        warm_up(instances, clock, seconds=None if rounds is not None else seconds, log=log)
        peaks = _peaks(instances)
        warm_up_s = spent()
        return result(in_turns(instances, enough=enough))


def timed_rounds(
    arms: Sequence[TimedArm], *, seconds: float, log: Callable[[str], None] = lambda line: None
) -> list[list[float]]:
    """Return the seconds a token of each arm in each round: the mean of its two blocks, (arms, rounds).
    Rounds go on for so many seconds without the warm-up, and there are three at least. NaN from where an arm
    failed."""
    instances = [copy.copy(arms[0]), *arms]  # what is built first can come out slow, and is left out
    trainer = arms[0].run.trainer
    clock = clock_of(arms)
    with _room(trainer.device):
        warm_up(instances, clock, seconds=None, log=log)
        began = time.monotonic()

        def enough(times: Times) -> bool:
            return len(times) >= LEAST_PAIRS and time.monotonic() - began >= seconds

        times = in_turns(instances, enough=enough)
    of_arms: list[list[float]] = times.mean(axis=2).T[1:].tolist()
    return of_arms


def clock_of(arms: Sequence[TimedArm]) -> Clock:
    """Return the one clock of arms that are on the same kind of device."""
    return Clock.of(arms[0].run.trainer.device, max(arm.run.trainer.threads for arm in arms))


def _room(device: Device) -> AbstractContextManager[None]:
    """Bound the memory of the process; not on CUDA, which reserves addresses by the terabyte."""
    return memory.bounded() if device is Device.cpu else nullcontext()


def warm_up(
    instances: Sequence[TimedArm], clock: Clock, *, seconds: float | None, log: Callable[[str], None]
) -> None:
    """Build the arms, the baseline twice, one after another. An arm whose turn comes when most of `seconds`
    has gone is not measured, unless it is the baseline."""
    began = time.monotonic()
    for i, arm in enumerate(instances):
        spent = time.monotonic() - began
        if i > 1 and seconds is not None and spent > WARM_SHARE * seconds:
            arm.status = "not measured"
            arm.reason = f"the arms before it took {spent:.0f} s of {seconds:g} s to warm up"
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


def _result(instances: Sequence[TimedArm], times: Times, peaks: dict[str, dict[str, Any]]) -> dict[str, Any]:
    trainer, log_ratios = instances[0].run.trainer, estimates(times)
    machine = hardware.describe(trainer.device, trainer.threads)
    control, *rows = [
        _row(arm, times[:, i], log_ratios[i], base=instances[1], peaks=peaks)
        for i, arm in enumerate(instances)
    ]
    return {
        "peak_flops": peaks,
        "hardware": machine,
        "limit": {"half_width": LIMIT[trainer.device], "confidence": CONFIDENCE},
        "rounds": len(times),
        "control": {
            key: control[key]
            for key in ("verdict", "speed", "tokens_per_s", "warm_up_s", "seconds_per_token")
        },
        "arms": rows,
        "measurements": [
            each.json() for row in rows for each in _measurements(row, str(machine["fingerprint"]))
        ],
    }


def order(n: int, *, round_: int) -> list[int]:
    """The instances of a round's blocks: A B C C B A, so that a machine whose speed drifts evenly slows all
    alike; then B C A A C B, and so on. Over n rounds each has every place once; then the neighbours
    change."""
    cycle, shift = divmod(round_, n)
    there = np.roll(np.random.default_rng(cycle).permutation(n) if cycle else np.arange(n), -shift).tolist()
    return [*there, *reversed(there)]


def interleave(blocks: Sequence[Callable[[], float]], *, enough: Callable[[Times], bool]) -> Times:
    """Rounds of blocks until `enough` of the times so far; at least one round."""
    rounds: list[list[list[float]]] = []
    while not rounds or not enough(np.array(rounds)):
        rounds.append([[] for _ in blocks])
        for i in order(len(blocks), round_=len(rounds) - 1):
            rounds[-1][i].append(blocks[i]())
    return np.array(rounds)


def estimates(times: Times) -> list[Estimate | None]:
    """Of each instance's tokens/s over those of the second one: the log ratio. `None`: it is the second, or
    it failed."""
    logs = np.log(times.mean(axis=2))
    control = of_pairs(logs[:, 1] - logs[:, 0])
    bias = max(CLOCK_BIAS, abs(control.mid))  # an arm must differ by more than the baseline does from itself
    others = [
        of_pairs(logs[:, 1] - arm, bias=bias, comparisons=max(1, logs.shape[1] - 2)) for arm in logs.T[2:]
    ]
    known = [each if math.isfinite(each.mid) else None for each in (control, *others)]
    return [known[0], None, *known[1:]]


def _peaks(arms: Sequence[TimedArm]) -> dict[str, dict[str, Any]]:
    """Find the FLOP/s of the arms that were timed, by precision and threads: by the data sheet, where there
    is one, and of a large matrix product here."""
    peaks = dict[str, dict[str, Any]]()
    trainers = {_peak_of(arm): arm.run.trainer for arm in arms if arm.status == "measured"}
    for name, t in trainers.items():
        torch.set_num_threads(t.threads)
        nominal, source = hardware.peak_flops(t.device, t.precision)
        measured = matmul_flops(t.device, t.precision)
        peaks[name] = {"nominal": nominal, "nominal_source": source, "measured": measured}
    return peaks


def _peak_of(arm: TimedArm) -> str:
    """Name the peak that bounds an arm: `fp32`, or `fp32, 2 threads`."""
    t = arm.run.trainer
    has_threads = t.device is Device.cpu and t.threads > 1
    return f"{t.precision.value}, {t.threads} threads" if has_threads else t.precision.value


def _row(
    arm: TimedArm,
    times: Times,
    log_ratio: Estimate | None,
    *,
    base: TimedArm,
    peaks: dict[str, dict[str, Any]],
) -> dict[str, Any]:
    """An arm in the result, with the same keys for every arm; null where there is nothing to report. Its
    tokens/s are the geometric mean over rounds, as its ratio is."""
    timed, flops, base_flops = (
        arm.status == "measured",
        arm.facts["flops_per_token"],
        base.facts["flops_per_token"],
    )
    tokens_per_s = math.exp(-np.log(times.mean(axis=1)).mean()) if timed else None
    peak = peaks.get(_peak_of(arm), {})
    rate = flops * tokens_per_s if flops and tokens_per_s else None
    ratio = log_ratio.exp() if log_ratio and log_ratio.n >= LEAST_PAIRS else None
    return {
        **arm.facts,
        "label": arm.label,
        "status": arm.status,
        "reason": arm.reason,
        "verdict": difference(log_ratio, metric="tokens_per_s").verdict if log_ratio else None,
        "speed": {"ratio": ratio.mid, "low": ratio.low, "high": ratio.high} if ratio else None,
        "tokens_per_s": tokens_per_s,
        "step_ms": arm.facts["tokens_per_step"] / tokens_per_s * 1e3 if tokens_per_s else None,
        # what arithmetic alone would give
        "speed_by_flops": base_flops / flops if rate and base_flops else None,
        "mfu": {
            kind: rate / peak[kind] if rate and peak.get(kind) else None for kind in ("nominal", "measured")
        },
        "config": arm.config,
        "seconds_per_token": times.tolist() if timed else None,
    }


def _measurements(row: dict[str, Any], where: str) -> list[Measurement]:
    """Tokens/s round by round: the mean over its two blocks."""
    metric, when, seconds = METRICS["tokens_per_s"], now(), row["seconds_per_token"] or []
    return [
        Measurement(arm=row["label"], repeat=n, metric=metric, value=2 / sum(blocks), where=where, when=when)
        for n, blocks in enumerate(seconds)
    ]
