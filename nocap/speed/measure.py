"""A bench from its arms to its result: warm up, interleave until the intervals are narrow or the time is spent, judge, record."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from datetime import date
from typing import Any, Protocol

import numpy as np

from nocap.config import hardware
from nocap.config.run import Run
from nocap.config.trainer import Device
from nocap.judge.stats import signed_rank_needs
from nocap.measure.roof import matmul_flops
from nocap.speed.arms import Arm, step_config
from nocap.speed.clock import Clock, clock_of
from nocap.speed.contestant import Contestant
from nocap.speed.rounds import Times, interleave
from nocap.speed.verdict import LIMIT, Judged, Narrow, Verdict, confidence_for, judge
from nocap.training import memory

WARM_SHARE = 0.6  # of the time: an arm whose turn to warm up comes later is left out


class BaselineError(RuntimeError):
    """The baseline cannot be timed, and nothing can be compared with it."""


class Timed(Protocol):
    """What a bench asks of an arm that is warm."""

    def block(self) -> float:
        """Seconds a token over a block of steps."""

    def facts(self) -> dict[str, Any]:
        """What is known besides the times."""

    def close(self) -> None:
        """Give the memory back."""


class Lane:
    """An arm's place in the bench, also when it could not be timed."""

    def __init__(self, arm: Arm) -> None:
        self.arm, self.status, self.reason, self.facts = arm, "measured", "", dict[str, Any]()
        self._timed: Timed | None = None

    def warm(self, make: Callable[[Arm], Timed]) -> None:
        try:
            self._timed = make(self.arm)
        except Exception as error:  # one arm that cannot run stops no other
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
            self.facts = self._timed.facts()
            self._timed.close()
            self._timed = None

    def _fail(self, error: Exception) -> None:
        line, _, rest = str(error).strip().partition("\n")
        line += " " + rest.strip().partition("\n")[0] if line.endswith(":") else ""  # a compiler's: what it passes on
        self.status, self.reason = ("does not fit", line) if memory.ran_out(error) else ("failed", f"{type(error).__name__}: {line}")
        error.__traceback__ = None  # its frames hold the arm's tensors
        self.close()


def bench(
    arms: Sequence[Arm],
    *,
    seconds: float,
    rounds: int | None = None,
    make: Callable[[Arm, Clock], Timed] = lambda arm, clock: Contestant(arm, clock=clock),
    say: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Time the arms against the first one, which runs twice: the second is the control. A JSON object.

    Without `rounds`, rounds go on until every interval is within the limit or `seconds`, warm-up included, are spent.

    Errors:
        BaselineError: the baseline fails or does not fit.
    """
    began, clock = time.monotonic(), clock_of(arm.run for arm in arms)
    device = arms[0].run.trainer.device
    limit, confidence = LIMIT[device], confidence_for(len(arms) - 1)
    lanes = [Lane(arm) for arm in (arms[0], *arms)]

    def spent() -> float:
        return time.monotonic() - began

    with memory.bounded() if device is Device.cpu else nullcontext():  # CUDA reserves addresses by the terabyte
        for i, lane in enumerate(lanes):
            if i > 1 and rounds is None and spent() > WARM_SHARE * seconds:
                lane.leave_out(f"the arms before it took {spent():.0f} s of {seconds:g} s to warm up")
                continue
            say(f"warming up {lane.arm.label}" + (", again" if i == 1 else ""))
            lane.warm(lambda arm: make(arm, clock))
            _check_baseline(lanes[: min(i + 1, 2)])
        warm_up_s = spent()

        narrow = Narrow(limit=limit, confidence=confidence)

        def enough(times: Times) -> bool:
            _check_baseline(lanes[:2])
            say(f"round {len(times)}, {spent():.0f} s")
            if rounds is not None:
                return len(times) >= rounds
            a_round = (spent() - warm_up_s) / len(times)
            return spent() + a_round > seconds or narrow(times[:, _live(times)])

        gc.collect()
        gc.freeze()  # the collector need not walk through all arms in the middle of one's block
        try:
            times = interleave([lane.block for lane in lanes], enough=enough)
        finally:
            gc.unfreeze()
        for lane in lanes:
            lane.close()
        runs = {lane.arm.run.trainer.precision.value: lane.arm.run for lane in lanes if lane.status == "measured"}
        peaks = {precision: _peaks(run) for precision, run in runs.items()}
    live = _live(times)
    judged = judge(times[:, live], limit=limit, confidence=confidence)
    verdicts = dict(zip(live[2:], judged.arms, strict=True))
    described = [_describe(lane, times[:, i], verdicts.get(i), lanes[0], peaks) for i, lane in enumerate(lanes)]
    return {
        "kind": "bench",
        "date": date.today().isoformat(),
        "hardware": hardware.describe(device, arms[0].run.trainer.threads),
        "clock": clock.value,
        "limit": {"half_width": limit, "confidence": confidence, "least_rounds": signed_rank_needs(confidence)},
        "rounds": len(times),
        "spent_s": {"warm_up": warm_up_s, "all": spent()},
        "peak_flops": peaks,
        "control": _control(judged, described[1]),
        "arms": [described[0], *described[2:]],
    }


def _live(times: Times) -> list[int]:
    """The arms that have not failed."""
    return [i for i in range(times.shape[1]) if np.isfinite(times[:, i]).all()]


def _check_baseline(lanes: Sequence[Lane]) -> None:
    for lane in lanes:
        if lane.status != "measured":
            raise BaselineError(f"the baseline, {lane.arm.label}: {lane.status}: {lane.reason}")


def _peaks(run: Run) -> dict[str, Any]:
    """FLOP/s in this run's precision: by the data sheet, where there is one, and as a large matrix product measures it."""
    t = run.trainer
    nominal, source = hardware.peak_flops(t.device, t.precision)
    return {"nominal": nominal, "nominal_source": source, "measured": matmul_flops(t.device, t.precision)}


def _describe(lane: Lane, times: Times, verdict: Verdict | None, base: Lane, peaks: dict[str, Any]) -> dict[str, Any]:
    """An arm's part of the result: null where there is nothing to say, the same keys for all."""
    facts, timed = lane.facts, lane.status == "measured"
    tokens_per_s = 1 / float(np.median(times.mean(axis=1))) if timed else None
    flops = facts["flops_per_token"] * tokens_per_s if timed and tokens_per_s else None
    peak = peaks.get(lane.arm.run.trainer.precision.value, {})
    by_flops = base.facts["flops_per_token"] / facts["flops_per_token"] if timed else None
    ratio = verdict.ratio if verdict else None
    return {
        "label": lane.arm.label,
        "status": lane.status,
        "reason": lane.reason or None,
        "verdict": verdict.word if verdict else None,
        "speed": {"ratio": ratio.mid, "low": ratio.low, "high": ratio.high} if ratio else None,
        "half_width": verdict.half_width if verdict else None,
        "tokens_per_s": tokens_per_s,
        "step_ms": facts["tokens_per_step"] / tokens_per_s * 1e3 if tokens_per_s else None,
        "speed_by_flops": by_flops,
        "mfu": {kind: flops / peak[kind] if flops and peak.get(kind) else None for kind in ("nominal", "measured")},
        **{key: facts.get(key) for key in FACTS},
        "config": step_config(lane.arm.run),
        "seconds_per_token": times.tolist() if timed else None,
    }


FACTS = ("tokens_per_step", "steps_per_block", "warm_up_s", "flops_per_token", "flops_basis", "params", "kernel", "memory_mib")


def _control(judged: Judged, again: dict[str, Any]) -> dict[str, Any]:
    """The baseline against itself."""
    ratio = judged.control.ratio
    return {
        "verdict": judged.control.word,
        "speed": {"ratio": ratio.mid, "low": ratio.low, "high": ratio.high} if ratio else None,
        "half_width": judged.control.half_width,
        **{key: again[key] for key in ("tokens_per_s", "warm_up_s", "seconds_per_token")},
    }
