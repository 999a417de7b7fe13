"""One profile from beginning to end: count what is taken apart, take it under the profiler, bound it; and the
record, one JSON object."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any

from nocap.config import hardware
from nocap.config.plain import to_plain
from nocap.config.run import Run
from nocap.config.trainer import Device
from nocap.data.batches import microbatches
from nocap.launch.plan import check_compiler
from nocap.measure.groups import grouped, rated, summed
from nocap.measure.mixing import FUSED
from nocap.measure.parts import Key, of_modules
from nocap.measure.profiled import Row, WatchedSteps, log, measure_forward, measure_step, measure_text
from nocap.measure.roofline import Composer, Count, OpWork, Peak, count, measure_peak, options_ceilings
from nocap.measure.subject import Of, Subject
from nocap.measure.timed import Clock
from nocap.model.flops import flops_per_token
from nocap.options.attention import kernel_name
from nocap.store.metrics import HELD, PARTS, STEP_PARTS
from nocap.training import allocator, memory
from nocap.training.step import configure_numerics

# Beyond these limits a CPU was busy: on a quiet one a process had 1.00 of its core, products came to 0.92 of
# the peak at most.
LEAST_CORE, MOST_OF_PEAK = 0.8, 1.1


@dataclass(frozen=True, kw_only=True, slots=True)
class ProfileQuestion:
    """What is to be profiled, and how."""

    generate: bool = False  # a prompt, and a token after it
    forward: bool = False  # a forward, without gradients; neither: a training step
    prompt: int = 0  # tokens
    texts: int = 1
    repeats: int
    trace: Path | None = None
    ceilings: bool = False

    @property
    def first(self) -> Of:
        """What is taken apart, of a text the first of both."""
        if self.generate:
            return Of.prefill
        return Of.forward if self.forward else Of.step


def profile(
    run: Run,
    overrides: Sequence[str],
    compose: Composer,
    *,
    repeats: int,
    trace: Path | None = None,
    ceilings: bool = False,
) -> dict[str, Any]:
    """The profile of a run's training step, as JSON types. `compose` makes the run that the user's overrides
    and more of them describe.

    Errors:
        ValueError: the step does not fit into this machine's memory, or diverges.
    """
    (profiled,) = profiles(
        run, overrides, compose, ProfileQuestion(repeats=repeats, trace=trace, ceilings=ceilings)
    ).values()
    return profiled


def profiles(run: Run, overrides: Sequence[str], compose: Composer, asked: ProfileQuestion) -> dict[str, Row]:
    """What is taken apart → its profile, as JSON types: of a step, a forward, or of prefill and token.

    Errors:
        ValueError: it does not fit into this machine's memory, or diverges.
    """
    check_compiler(run)
    try:
        # CUDA reserves addresses by the terabyte
        with memory.bounded() if run.trainer.device is Device.cpu else nullcontext():
            allocator.use(run.trainer.malloc)
            return _profiles(run, overrides, compose, asked)
    except (RuntimeError, MemoryError) as error:
        if not memory.ran_out(error):
            raise
        cause = str(error).partition("\n")[0]
        remedy = "--texts or --prompt" if asked.generate else f"trainer.micro_batch={run.trainer.micro_batch}"
        what = asked.first.title
        raise ValueError(f"the {what} must fit into the device's memory; lower {remedy} ({cause})") from error


def _profiles(
    run: Run, overrides: Sequence[str], compose: Composer, asked: ProfileQuestion
) -> dict[str, Row]:
    subject = Subject(of=asked.first, prompt=asked.prompt, texts=asked.texts)
    run = subject.run(run)
    configure_numerics(run)
    counted = count(run, vocab_size=run.tokenizer.vocab_size, subject=subject)
    log("measuring the peaks: a large product and a large copy")
    peak = measure_peak(run.trainer.device)
    results = dict[str, Row]()
    for measured in _measure(run, asked):
        if measured.subject != subject:
            counted = count(run, vocab_size=run.tokenizer.vocab_size, subject=measured.subject)
        result = record(overrides, counted=counted, peak=peak, measured=measured)
        if asked.ceilings:
            log("counting what each option would do")
            ms = {row["part"]: row["ms"] for row in result["parts"]}
            rest_ms = result["step"]["unattributed_ms"]
            result["ceilings"] = {"table": options_ceilings(counted, compose, peak, ms, rest_ms)}
        results[measured.subject.of.value] = result
    return results


def _measure(run: Run, asked: ProfileQuestion) -> list[WatchedSteps]:
    sizes = f"{run.trainer.micro_batch} × {run.model.seq_len} tokens"
    if asked.generate:
        log(f"measuring a prompt of {asked.prompt} tokens, and a token after it")
        return measure_text(
            run, prompt=asked.prompt, texts=asked.texts, repeats=asked.repeats, trace=asked.trace
        )
    if asked.forward:
        log(f"measuring {2 * asked.repeats} forwards of {sizes}")
        return [measure_forward(run, repeats=asked.repeats, trace=asked.trace)]
    log(f"measuring {2 * asked.repeats + 1} steps of {sizes}")
    return [measure_step(run, repeats=asked.repeats, trace=asked.trace)]


# --- the record


def record(overrides: Sequence[str], *, counted: Count, peak: Peak, measured: WatchedSteps) -> dict[str, Any]:
    """What `--json` writes. A row is what a module cost in one direction of a whole optimizer step as the
    config has it: ms, calls, bytes, FLOPs, and its bound by the roofline. Of a forward, a prompt or a token
    the same."""
    run = counted.run
    subject = measured.subject
    scale, clock = _clock(run, measured)
    rows = list(_rows(counted, peak, measured, scale))
    attributed_ms = sum(row["ms"] for row in rows)
    whole_ms = attributed_ms + _unattributed_ms(run, measured, attributed_ms, scale)
    parts = summed(rows, ("part",), whole_ms)
    moments = list(_of_moments(rows, counted, peak, measured))
    flops, basis = _flops_per_token(counted, subject)
    plain = measured.steps["plain"]
    profiled = measured.steps["profiled"]
    clocked = "cpu_ms" if Clock.of(run.trainer.device, run.trainer.threads) is Clock.cpu else "wall_ms"
    core = min(step["cpu_ms"] / step["wall_ms"] for step in (plain, profiled))
    # Bytes are no bound here: a cache is faster than the copy that was measured.
    of_peak = max(row["flop_s"] or 0.0 for row in parts) / peak.flops[run.trainer.precision.value]
    quiet = run.trainer.device is Device.cuda or (core >= LEAST_CORE and of_peak <= MOST_OF_PEAK)
    return {
        "kind": "profile",
        "of": subject.of.value,
        "date": date.today().isoformat(),
        "words": list(overrides),
        "config": to_plain(run),
        "vocab_size": run.tokenizer.vocab_size,
        "tokens": subject.tokens(run),
        "text": {"prompt": subject.prompt, "texts": subject.texts, "cached": subject.cached}
        if subject.of.generates
        else None,
        "flops_per_token": flops,
        "flops_basis": basis,
        "not_counted": counted.not_counted,  # why the rows have no FLOPs, bytes and bounds
        "kernel": kernel_name(run, run.trainer.precision),
        "hardware": hardware.describe(run.trainer.device, run.trainer.threads),
        "roof": asdict(peak),
        "clock": clock,
        "trusted": quiet,
        "doubts": {"core": core, "peak": of_peak},
        "step": {
            "ms": whole_ms,
            "attributed_ms": attributed_ms,
            "unattributed_ms": whole_ms - attributed_ms,
            "profiler": profiled[clocked] / plain[clocked],  # the control: times as slow with it
            "microbatches": microbatches(run),
            "measured_microbatches": microbatches(measured.ranges.run),
            **dict.fromkeys(("plain", "profiled", "compiled")),
            **measured.steps,
            "compile": run.trainer.compile.value,
            "cuda_graphs": run.trainer.cuda_graphs,
        },
        "groups": grouped(moments, whole_ms),
        "parts": parts,
        "layers": summed([row for row in rows if row["layer"] is not None], ("layer", "part"), whole_ms),
        "rows": [rated(row, whole_ms) for row in rows],
        "memory_mib": {
            "measured": {
                **{part: measured.memory_mib[part] for part in HELD},
                "kept": {part: n / memory.MIB for part, n in measured.ranges.kept.items()},
            },
            "cache": measured.memory_mib["cache"],
        },
    }


def _flops_per_token(counted: Count, subject: Subject) -> tuple[float | None, str]:
    """FLOPs of a token, and how they are known: of training by formula where there is one, else counted."""
    run = counted.run
    if subject.of.trains:
        return flops_per_token(run, vocab_size=run.tokenizer.vocab_size)
    if counted.not_counted is not None:
        return None, f"not counted ({counted.not_counted})"
    return sum(work.flops for work in counted.work.values()) / subject.tokens(run), "counted"


def _unattributed_ms(run: Run, measured: WatchedSteps, attributed_ms: float, scale: float) -> float:
    """What no module accounts for in the step. On a GPU: the device's waiting in a step without the profiler,
    whose own work on the host would be taken for it."""
    times = microbatches(run) / microbatches(measured.ranges.run)
    if run.trainer.device is Device.cuda:
        return max(0.0, measured.steps["plain"]["wall_ms"] * times - attributed_ms)
    return measured.between_ms * scale * times


def _clock(run: Run, measured: WatchedSteps) -> tuple[float, str]:
    """What profiled milliseconds are multiplied by, and how the record describes the result."""
    clock, step = Clock.of(run.trainer.device, run.trainer.threads), measured.steps["profiled"]
    share = step["cpu_ms"] / step["wall_ms"] if clock is Clock.cpu else 1.0
    return share, {
        Clock.cuda: "device time of the kernels",
        Clock.wall: f"wall time, {run.trainer.threads} threads",
        Clock.cpu: f"process CPU time: the profiler's wall time × {share:.2f}, the share of it that "
        "this process had a core",
    }[clock]


def _rows(counted: Count, peak: Peak, measured: WatchedSteps, scale: float) -> Iterator[Row]:
    ranges, n, m = measured.ranges, microbatches(counted.run), microbatches(measured.ranges.run)
    counted_keys = (key for key in counted.work if ranges.part[key[0]] not in STEP_PARTS)
    # of one rank: 0
    measured_ms = of_modules(measured.moments)
    around = [("reduction", "backward")] if measured.subject.of.trains else []
    for path, direction in dict.fromkeys([*measured_ms, *counted_keys, *around]):
        ms = measured_ms.get((path, direction), 0.0)
        work = counted.work.get((path, direction), OpWork())
        part = ranges.part.get(path, path if path in PARTS else "other")
        times = _times(part, n, m)
        layer = re.match(r"blocks\.(\d+)", path)
        yield {
            "path": path,
            "part": part,
            "layer": int(layer.group(1)) if layer else None,
            "direction": direction,
            "ms": ms * scale * times,
            "calls": round(ranges.calls.get(path, int(ms > 0)) * times),
            "flops": work.flops * n,
            "bytes": work.bytes * n,
            "bound_ms": work.bound_ms(peak) * n,
        }


def _of_moments(rows: Iterable[Row], counted: Count, peak: Peak, measured: WatchedSteps) -> Iterator[Row]:
    """The same rows, a mixer's by its moments, where it was taken apart."""
    n = microbatches(counted.run)
    moments = defaultdict[Key, dict[str | None, float]](dict)
    for (path, direction, moment), each_ms in measured.moments.items():
        moments[path, direction][moment] = each_ms
    for row in rows:
        key = row["path"], row["direction"]
        ms = moments[key]
        if not set(ms) - {None}:
            yield {**row, "detail": None}
            continue
        whole = counted.work.get(key, OpWork())
        whole_ms = sum(ms.values())
        works = whole.by_moment()
        if FUSED in ms and not counted.as_run:  # counted by a kernel that anything runs
            works = {FUSED: whole}
        elif not set(works) <= set(ms):
            works = {_longest(ms): whole}
        for moment, own_ms in ms.items():
            work = works.get(moment, OpWork())
            yield {
                **row,
                "detail": moment,
                "ms": row["ms"] * own_ms / whole_ms if whole_ms else 0.0,
                "flops": work.flops * n,
                "bytes": work.bytes * n,
                "bound_ms": work.bound_ms(peak) * n,
            }


def _longest(ms: Mapping[str | None, float]) -> str | None:
    (moment, _) = max(ms.items(), key=lambda each: each[1])
    return moment


def _times(part: str, n: int, m: int) -> float:
    """How often the step of `n` micro-batches does what was measured over `m`: only those after the first add
    gradients up, and the update comes once."""
    if part not in STEP_PARTS or part == "data":
        return n / m
    return (n - 1) / (m - 1) if part == "accumulate" and m > 1 else 1.0
