"""The record of a profile, one `ProfileJson`: what was counted and what was timed, put together."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import date
from typing import Any

from nocap.config import hardware
from nocap.config.plain import to_plain
from nocap.config.run import Run
from nocap.config.trainer import Device
from nocap.data.batches import microbatches
from nocap.measure.clock import Clock
from nocap.measure.mixer_moments import FUSED
from nocap.measure.profile_groups import ProfileRow, by_layer, by_part, grouped, rated
from nocap.measure.profile_schema import (
    DoubtsJson,
    HardwareJson,
    HeldJson,
    MemoryJson,
    PartJson,
    Peak,
    ProfileJson,
    StepJson,
    TextJson,
)
from nocap.measure.profiler_events import Key, of_modules
from nocap.measure.profiler_timing import WatchedSteps
from nocap.measure.roofline import Count, OpWork
from nocap.measure.subject import Subject
from nocap.model.attention_facts import kernel_name
from nocap.model.flops import flops_per_token
from nocap.step_parts import HELD, PARTS, STEP_PARTS
from nocap.training import memory

# Beyond these limits a CPU was busy: on a quiet one a process had 1.00 of its core, products came
# to 0.92 of the peak at most.
LEAST_CORE = 0.8
MOST_OF_PEAK = 1.1


def record(
    overrides: Sequence[str], *, counted: Count, peak: Peak, measured: WatchedSteps
) -> ProfileJson:
    """Return the profile. A row is what a module cost in one direction of a whole optimizer step as
    the config has it: ms, calls, bytes, FLOPs, and its bound by the roofline. Of a forward, a
    prompt or a token the same."""
    run = counted.run
    subject = measured.subject
    share = _core_share(run, measured)
    rows = list(_rows(counted, peak, measured, share))
    attributed_ms = sum(row.ms for row in rows)
    step_ms = attributed_ms + _unattributed_ms(run, measured, attributed_ms, share)
    parts = by_part(rows, step_ms)
    moments = list(_of_moments(rows, counted, peak, measured))
    flops, basis = _flops_per_token(counted, subject)
    doubts = _doubts(run, measured, parts, peak)
    facts: dict[str, Any] = hardware.describe(run.trainer.device, run.trainer.threads)
    return ProfileJson(
        of=subject.of,
        date=date.today().isoformat(),
        words=list(overrides),
        config=to_plain(run),
        vocab_size=run.tokenizer.vocab_size,
        tokens=subject.tokens(run),
        text=_text(subject),
        flops_per_token=flops,
        flops_basis=basis,
        not_counted=counted.not_counted,
        kernel=kernel_name(run, run.trainer.precision),
        hardware=HardwareJson(**facts),
        roof=peak,
        clock=_clock(run, share),
        trusted=_is_quiet(run, doubts),
        doubts=doubts,
        step=_step(run, measured, step_ms, attributed_ms),
        groups=grouped(moments, step_ms),
        parts=parts,
        layers=by_layer(rows, step_ms),
        rows=[rated(row, step_ms) for row in rows],
        memory_mib=_memory(measured),
    )


def _text(subject: Subject) -> TextJson | None:
    if not subject.of.generates:
        return None
    return TextJson(prompt=subject.prompt, texts=subject.texts, cached=subject.cached)


def _doubts(run: Run, measured: WatchedSteps, parts: Sequence[PartJson], peak: Peak) -> DoubtsJson:
    clocks = (measured.seen.plain, measured.seen.profiled)
    # Bytes are no bound here: a cache is faster than the copy that was measured.
    fastest = max(row.flop_s or 0.0 for row in parts)
    return DoubtsJson(
        core=min(clock.cpu_ms / clock.wall_ms for clock in clocks),
        peak=fastest / peak.flops[run.trainer.precision.value],
    )


def _is_quiet(run: Run, doubts: DoubtsJson) -> bool:
    if run.trainer.device is Device.cuda:
        return True
    return doubts.core >= LEAST_CORE and doubts.peak <= MOST_OF_PEAK


def _step(run: Run, measured: WatchedSteps, step_ms: float, attributed_ms: float) -> StepJson:
    plain = measured.seen.plain
    profiled = measured.seen.profiled
    slowdown = profiled.wall_ms / plain.wall_ms
    if _clock_of(run) is Clock.cpu:
        slowdown = profiled.cpu_ms / plain.cpu_ms
    return StepJson(
        ms=step_ms,
        attributed_ms=attributed_ms,
        unattributed_ms=step_ms - attributed_ms,
        profiler=slowdown,
        microbatches=microbatches(run),
        measured_microbatches=microbatches(measured.ranges.run),
        plain=plain,
        profiled=profiled,
        compiled=measured.compiled,
        compile=run.trainer.compile.value,
        cuda_graphs=run.trainer.cuda_graphs,
    )


def _memory(measured: WatchedSteps) -> MemoryJson:
    held = {part: measured.memory_mib[part] for part in HELD}
    mib_by_part = {part: n / memory.MIB for part, n in measured.ranges.kept.items()}
    in_memory = HeldJson(**held, kept=mib_by_part)
    return MemoryJson(measured=in_memory, cache=measured.memory_mib["cache"])


def _flops_per_token(counted: Count, subject: Subject) -> tuple[float | None, str]:
    """Return the FLOPs of a token, and how they are known: of training by formula where there is
    one, else counted."""
    run = counted.run
    if subject.of.trains:
        return flops_per_token(run, vocab_size=run.tokenizer.vocab_size)
    if counted.not_counted is not None:
        return None, f"not counted ({counted.not_counted})"
    flops = sum(work.flops for work in counted.work.values())
    return flops / subject.tokens(run), "counted"


def _unattributed_ms(run: Run, measured: WatchedSteps, attributed_ms: float, share: float) -> float:
    """Return what no module accounts for in the step. On a GPU: the device's waiting in a step
    without the profiler, whose own work on the host would be counted as such."""
    times = microbatches(run) / microbatches(measured.ranges.run)
    if run.trainer.device is Device.cuda:
        return max(0.0, measured.seen.plain.wall_ms * times - attributed_ms)
    return measured.seen.between_ms * share * times


def _clock_of(run: Run) -> Clock:
    return Clock.of(run.trainer.device, run.trainer.threads)


def _core_share(run: Run, measured: WatchedSteps) -> float:
    """Return what profiled milliseconds are multiplied by: the share of them that this process had
    a core."""
    if _clock_of(run) is not Clock.cpu:
        return 1.0
    clocks = measured.seen.profiled
    return clocks.cpu_ms / clocks.wall_ms


def _clock(run: Run, share: float) -> str:
    """Return how the record describes its times."""
    clock = _clock_of(run)
    if clock is Clock.cuda:
        return "device time of the kernels"
    if clock is Clock.wall:
        return f"wall time, {run.trainer.threads} threads"
    return (
        f"process CPU time: the profiler's wall time × {share:.2f}, the share of it that "
        "this process had a core"
    )


def _rows(counted: Count, peak: Peak, measured: WatchedSteps, share: float) -> Iterator[ProfileRow]:
    ranges = measured.ranges
    n = microbatches(counted.run)
    m = microbatches(ranges.run)
    measured_ms = of_modules(measured.seen.moments)
    keys = dict.fromkeys(measured_ms)
    for key in counted.work:
        path, _ = key
        if ranges.part[path] not in STEP_PARTS:
            keys[key] = None
    if measured.subject.of.trains:
        # of one rank: 0
        keys["reduction", "backward"] = None
    for path, direction in keys:
        ms = measured_ms.get((path, direction), 0.0)
        work = counted.work.get((path, direction), OpWork())
        part = ranges.part.get(path, path if path in PARTS else "other")
        times = _times(part, n, m)
        calls = ranges.calls.get(path, int(ms > 0))
        yield ProfileRow(
            path=path,
            part=part,
            layer=_layer(path),
            direction=direction,
            ms=ms * share * times,
            calls=round(calls * times),
            flops=work.flops * n,
            bytes=work.bytes * n,
            bound_ms=work.bound_ms(peak) * n,
        )


def _layer(path: str) -> int | None:
    match = re.match(r"blocks\.(\d+)", path)
    if match is None:
        return None
    return int(match.group(1))


def _of_moments(
    rows: Iterable[ProfileRow], counted: Count, peak: Peak, measured: WatchedSteps
) -> Iterator[ProfileRow]:
    """Give the same rows, a mixer's by its moments, where it was taken apart."""
    n = microbatches(counted.run)
    moments = defaultdict[Key, dict[str | None, float]](dict)
    for (path, direction, moment), each_ms in measured.seen.moments.items():
        moments[path, direction][moment] = each_ms
    for row in rows:
        key = (row.path, row.direction)
        ms = moments[key]
        if not set(ms) - {None}:
            yield row
            continue
        mixer = counted.work.get(key, OpWork())
        mixer_ms = sum(ms.values())
        works = mixer.by_moment()
        if FUSED in ms and not counted.as_run:  # counted by a kernel that anything runs
            works = {FUSED: mixer}
        elif not set(works) <= set(ms):
            works = {_longest(ms): mixer}
        for moment, own_ms in ms.items():
            work = works.get(moment, OpWork())
            own_row_ms = row.ms * own_ms / mixer_ms if mixer_ms else 0.0
            yield replace(
                row,
                detail=moment,
                ms=own_row_ms,
                flops=work.flops * n,
                bytes=work.bytes * n,
                bound_ms=work.bound_ms(peak) * n,
            )


def _longest(ms: Mapping[str | None, float]) -> str | None:
    (moment, _) = max(ms.items(), key=lambda each: each[1])
    return moment


def _times(part: str, n: int, m: int) -> float:
    """Return how often the step of `n` micro-batches does what was measured over `m`: only those
    after the first add gradients up, and the update comes once."""
    if part not in STEP_PARTS or part == "data":
        return n / m
    if part == "accumulate" and m > 1:
        return (n - 1) / (m - 1)
    return 1.0
