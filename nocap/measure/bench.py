"""A bench from its arms to its result: warm up, interleave until the intervals are narrow or the time is spent, judge."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, fields
from datetime import date
from typing import Any

import numpy as np
import torch

from nocap.config import hardware
from nocap.config.keys import InputError
from nocap.config.trainer import Device
from nocap.measure.arms import BenchArm, Times, interleave
from nocap.measure.clock import Clock, clock_of
from nocap.measure.contestant import Contestant, StepInfo
from nocap.measure.external import ExternalContestant
from nocap.measure.roofline import matmul_flops
from nocap.measure.rounds import LIMIT, Narrow, SpeedVerdict, confidence_for, judge, signed_rank_needs
from nocap.store.measurement import Measurement, now
from nocap.store.metrics import METRICS
from nocap.training import memory

WARM_SHARE = 0.6  # of the time: an arm whose turn to warm up comes later is left out


class BaselineError(RuntimeError):
    """The baseline cannot be timed, and nothing can be compared with it."""


@dataclass(kw_only=True, slots=True)
class BenchResult:
    """An arm in the result; `None` where there is nothing to report."""

    info: StepInfo | None
    label: str
    status: str  # measured, not measured, failed, or does not fit
    reason: str | None
    verdict: str | None
    speed: dict[str, float] | None  # ratio, low, high: tokens/s over those of the baseline's second instance, with its interval
    half_width: float | None  # of the speed's logarithm
    tokens_per_s: float | None
    step_ms: float | None
    speed_by_flops: float | None  # what arithmetic alone would give
    mfu: dict[str, float | None]  # of the nominal and of the measured peak
    config: dict[str, Any]
    seconds_per_token: list[list[float]] | None  # (rounds, 2)

    def plain(self) -> dict[str, Any]:
        """As JSON: the same keys for every arm, the info' among them."""
        content = asdict(self)
        return {**dict.fromkeys(f.name for f in fields(StepInfo)), **(content.pop("info") or {}), **content}


CONTROL = ("verdict", "speed", "half_width", "tokens_per_s", "warm_up_s", "seconds_per_token")  # of the baseline against itself


# --- the arms while they are timed


class Lane:
    """An arm's place in the bench, also when it could not be timed."""

    def __init__(self, arm: BenchArm) -> None:
        self.arm, self.status, self.reason = arm, "measured", ""
        self.info: StepInfo | None = None
        self._timed: Contestant | None = None

    @property
    def measured(self) -> bool:
        return self.status == "measured"

    def warm(self, make: Callable[[BenchArm], Contestant]) -> None:
        try:
            self._timed = make(self.arm)
        except Exception as error:  # one arm that cannot run stops no other
            if self.arm.external is not None and isinstance(error, InputError):
                raise  # a mistake in a file: nothing has been timed yet
            self._fail(error)

    def block(self) -> float:
        """NaN from the moment the arm fails."""
        if self._timed is None:
            return math.nan
        try:
            return self._timed.block()
        except Exception as error:
            self._fail(error)
            return math.nan

    def leave_out(self, reason: str) -> None:
        self.status, self.reason = "not measured", reason

    def close(self) -> None:
        if self._timed is not None:
            self.info = self._timed.info()
            self._timed.close()
            self._timed = None

    def _fail(self, error: Exception) -> None:
        line, _, rest = str(error).strip().partition("\n")
        line += " " + rest.strip().partition("\n")[0] if line.endswith(":") else ""  # a compiler's: what it passes on
        self.status, self.reason = ("does not fit", line) if memory.ran_out(error) else ("failed", f"{type(error).__name__}: {line}")
        error.__traceback__ = None  # its frames hold the arm's tensors
        self.close()
        memory.give_back(torch.device(self.arm.run.trainer.device.value))


class Budget:
    """The time that a bench may take, and its number of rounds where that is given."""

    def __init__(self, *, seconds: float, rounds: int | None) -> None:
        self.seconds, self.rounds, self._began = seconds, rounds, time.monotonic()

    def spent(self) -> float:
        return time.monotonic() - self._began


def _contestant(arm: BenchArm, clock: Clock) -> Contestant:
    return (Contestant if arm.external is None else ExternalContestant)(arm, clock=clock)


def bench(
    arms: Sequence[BenchArm],
    *,
    seconds: float,
    rounds: int | None = None,
    make: Callable[[BenchArm, Clock], Contestant] = _contestant,
    log: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Time the arms against the first one, which runs twice: the second is the control. The result as JSON types.

    Without `rounds`, rounds go on until every interval is within the limit or `seconds`, warm-up included, are spent.

    Errors:
        BaselineError: the baseline fails or does not fit.
        InputError: an external arm's file has a mistake.
    """
    started = now()
    budget, clock, device = Budget(seconds=seconds, rounds=rounds), clock_of([arm.run for arm in arms]), arms[0].run.trainer.device
    lanes = [Lane(arm) for arm in (arms[0], *arms)]
    rule = Narrow(limit=LIMIT[device], confidence=confidence_for(len(arms) - 1))
    with memory.bounded() if device is Device.cpu else nullcontext():  # CUDA reserves addresses by the terabyte
        _warm_up(lanes, lambda arm: make(arm, clock), budget, log)
        warm_up_s = budget.spent()
        times = _measure(lanes, rule, budget, log)
        peaks = _peaks(lanes)
    base, control, *others = (result.plain() for result in _judged(lanes, times, rule, peaks))
    return {
        "kind": "bench",
        "date": date.today().isoformat(),
        "started": started,
        "ended": now(),
        "hardware": hardware.describe(device, arms[0].run.trainer.threads),
        "clock": clock.value,
        "limit": {"half_width": rule.limit, "confidence": rule.confidence, "least_rounds": signed_rank_needs(rule.confidence)},
        "rounds": len(times),
        "spent_s": {"warm_up": warm_up_s, "all": budget.spent()},
        "peak_flops": peaks,
        "control": {key: control[key] for key in CONTROL},
        "arms": [base, *others],
        "measurements": [one.json() for arm in _measurements(lanes, times) for one in arm],
    }


def _warm_up(lanes: Sequence[Lane], make: Callable[[BenchArm], Contestant], budget: Budget, log: Callable[[str], None]) -> None:
    for i, lane in enumerate(lanes):
        if i > 1 and budget.rounds is None and budget.spent() > WARM_SHARE * budget.seconds:
            lane.leave_out(f"the arms before it took {budget.spent():.0f} s of {budget.seconds:g} s to warm up")
            continue
        log(f"warming up {lane.arm.label}" + (", again" if i == 1 else ""))
        lane.warm(make)
        _check_baseline(lanes[: min(i + 1, 2)])


def _measure(lanes: Sequence[Lane], narrow: Narrow, budget: Budget, log: Callable[[str], None]) -> Times:
    warm_up_s = budget.spent()

    def enough(times: Times) -> bool:
        _check_baseline(lanes[:2])
        log(f"round {len(times)}, {budget.spent():.0f} s")
        if budget.rounds is not None:
            return len(times) >= budget.rounds
        round_s = (budget.spent() - warm_up_s) / len(times)
        return budget.spent() + round_s > budget.seconds or narrow(_measurements(lanes, times))

    gc.collect()
    gc.freeze()  # the collector need not walk through all arms in the middle of one's block
    try:
        times = interleave([lane.block for lane in lanes], enough=enough)
    finally:
        gc.unfreeze()
    for lane in lanes:
        lane.close()
    return times


def _live(times: Times) -> list[int]:
    """The arms that have not failed."""
    return [i for i in range(times.shape[1]) if np.isfinite(times[:, i]).all()]


def _measurements(lanes: Sequence[Lane], times: Times) -> list[list[Measurement]]:
    """Tokens/s of each arm that has not failed, round by round: the mean over its two blocks."""
    where = hardware.describe(lanes[0].arm.run.trainer.device, lanes[0].arm.run.trainer.threads)["fingerprint"]
    metric, when, seconds = METRICS["tokens_per_s"], now(), times.mean(axis=2)
    return [
        [
            Measurement(arm=lanes[i].arm.label, repeat=n, metric=metric, value=1 / float(s), where=str(where), when=when)
            for n, s in enumerate(seconds[:, i])
        ]
        for i in _live(times)
    ]


def _check_baseline(lanes: Sequence[Lane]) -> None:
    for lane in lanes:
        if not lane.measured:
            raise BaselineError(f"the baseline, {lane.arm.label}: {lane.status}: {lane.reason}")


def _peaks(lanes: Sequence[Lane]) -> dict[str, dict[str, Any]]:
    """FLOP/s by precision of the arms that were timed: by the data sheet, where there is one, and of a large matrix product here."""
    peaks = {}
    for t in {lane.arm.run.trainer.precision: lane.arm.run.trainer for lane in lanes if lane.measured}.values():
        nominal, source = hardware.peak_flops(t.device, t.precision)
        peaks[t.precision.value] = {"nominal": nominal, "nominal_source": source, "measured": matmul_flops(t.device, t.precision)}
    return peaks


def _judged(lanes: Sequence[Lane], times: Times, rule: Narrow, peaks: dict[str, dict[str, Any]]) -> list[BenchResult]:
    judged = judge(_measurements(lanes, times), limit=rule.limit, confidence=rule.confidence)
    verdicts = dict(zip(_live(times)[1:], [judged.control, *judged.arms], strict=True))
    return [_arm_result(lane, times[:, i], verdicts.get(i), lanes[0], peaks) for i, lane in enumerate(lanes)]


def _arm_result(lane: Lane, times: Times, verdict: SpeedVerdict | None, base: Lane, peaks: dict[str, dict[str, Any]]) -> BenchResult:
    info, ratio = lane.info if lane.measured else None, verdict.ratio if verdict else None
    tokens_per_s = step_ms = by_flops = None
    mfu: dict[str, float | None] = {"nominal": None, "measured": None}
    if info and base.info:
        tokens_per_s = 1 / float(np.median(times.mean(axis=1)))
        step_ms = info.tokens_per_step / tokens_per_s * 1e3
    if info and info.flops_per_token and tokens_per_s and base.info and base.info.flops_per_token:
        by_flops = base.info.flops_per_token / info.flops_per_token
        peak, flops = peaks[lane.arm.run.trainer.precision.value], info.flops_per_token * tokens_per_s
        mfu = {kind: flops / peak[kind] if peak[kind] else None for kind in mfu}
    return BenchResult(
        info=lane.info,
        label=lane.arm.label,
        status=lane.status,
        reason=lane.reason or None,
        verdict=verdict.word if verdict else None,
        speed={"ratio": ratio.mid, "low": ratio.low, "high": ratio.high} if ratio else None,
        half_width=verdict.half_width if verdict else None,
        tokens_per_s=tokens_per_s,
        step_ms=step_ms,
        speed_by_flops=by_flops,
        mfu=mfu,
        config=lane.arm.config,
        seconds_per_token=times.tolist() if lane.measured else None,
    )
