"""Time what is taken apart, plain and under the profiler: a training step, a forward, a prompt, a token."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.profiler import record_function

from nocap.config.run import Run
from nocap.config.trainer import Compile, Device
from nocap.data.batches import microbatches
from nocap.generation.engines import Cached, Engine, engine_for
from nocap.measure.parts import BETWEEN, MARK, STEP, Moments, Ranges, busy_ms, profiler, read_moments
from nocap.measure.subject import Of, Subject
from nocap.measure.timed import Clock, TimedArm, random_tokens
from nocap.model.gpt import build_model
from nocap.store.metrics import HELD
from nocap.training import memory
from nocap.training.ledger import Ledger
from nocap.training.step import autocast, build, configure_numerics, enter_step, fetch, forward_of

MOST_MICROBATCHES = 2  # the second one shows what accumulating gradients costs; more would show nothing new
WARM = 2  # calls before the first that counts
TOKEN_REPEATS = 10  # times as many of a decoded token, which takes milliseconds

Row = dict[str, Any]


def log(line: str) -> None:
    """Progress, apart from the result."""
    print(line, file=sys.stderr, flush=True)


@dataclass(frozen=True, kw_only=True, slots=True)
class WatchedSteps:
    subject: Subject
    # how it ran (`plain`, eager as the parts are; `profiled`; `compiled` where the config asks for it) → its
    # clocks
    steps: dict[str, Row]
    moments: Moments  # of the fastest profiled one, the least disturbed
    between_ms: float  # of it, what is no module's
    ranges: Ranges  # of the run as it was measured
    memory_mib: dict[str, float]  # held, by part; `cache`: keys and values


# --- one call, again and again ------------------------------------------------------------------------------


def idle() -> None:
    """Make nothing ready."""


@dataclass(kw_only=True, slots=True)
class Taken:
    """What is timed. A call marks its own beginning and end for the profiler."""

    call: Callable[[], object]
    synchronize: Callable[[], None]
    ready: Callable[[], None] = idle  # before each call, untimed

    def clocked(self) -> Row:
        """One call, timed by the wall and by this process; it ends when the device has finished."""
        self.ready()
        self.synchronize()
        began = time.perf_counter()
        cpu = time.process_time()
        self.call()
        self.synchronize()
        return {
            "wall_ms": (time.perf_counter() - began) * 1e3,
            "cpu_ms": (time.process_time() - cpu) * 1e3,
            "gpu_busy": None,
        }

    def fastest(self, repeats: int) -> Row:
        return min((self.clocked() for _ in range(repeats)), key=lambda step: step["wall_ms"])


@dataclass(frozen=True, kw_only=True, slots=True)
class Watched:
    plain: Row
    profiled: Row
    moments: Moments
    between_ms: float


def watch(
    taken: Taken,
    ranges: Ranges,
    around: Callable[[], AbstractContextManager[object]],
    *,
    repeats: int,
    trace: Path | None,
) -> Watched:
    """Time it without the profiler, then with it, and read the fastest. `around` puts the ranges on the
    model."""
    on_cuda = ranges.run.trainer.device is Device.cuda
    plain = taken.fastest(repeats)
    profiled: Row = {"wall_ms": math.inf}
    for _ in range(repeats):
        ranges.reset()
        with around(), profiler(on_cuda=on_cuda) as prof:
            step = taken.clocked()
        if step["wall_ms"] < profiled["wall_ms"]:
            profiled = step
            moments = read_moments(prof, ranges, on_cuda=on_cuda)
            work_ms = busy_ms(prof)
            if trace is not None:
                prof.export_chrome_trace(str(trace))
    between = [key for key in moments if key[:2] == BETWEEN]
    between_ms = sum(moments.pop(key) for key in between)
    return Watched(plain=busy(plain, work_ms), profiled=profiled, moments=moments, between_ms=between_ms)


def compiled_step(taken: Taken, *, repeats: int, on_cuda: bool) -> Row:
    """What is compiled, whole: nothing sees into it."""
    step = taken.fastest(repeats)
    with profiler(on_cuda=on_cuda) as prof:
        taken.clocked()
    return busy(step, busy_ms(prof))


def busy(step: Row, busy_ms: float) -> Row:
    """The step with the share of it in which the GPU worked. `busy_ms` are kernels': what the profiler costs
    the host is in neither."""
    return {**step, "gpu_busy": min(1.0, busy_ms / step["wall_ms"]) if busy_ms else None}


# --- a training step ----------------------------------------------------------------------------------------


class _Marks(Ledger):
    """The loop's clock ledger, whose lines become ranges of the profiler: the step, and within it the wait
    for data."""

    @contextmanager
    def charge(self, line: str) -> Iterator[None]:
        with super().charge(line), record_function(MARK + {"train": STEP}.get(line, line)):
            yield


def measurable(run: Run) -> Run:
    """The same step, as it is in the end, with at most two micro-batches, uncompiled: a compiled graph cannot
    be taken apart by module."""
    run = run.in_the_end()
    t = run.trainer
    tokens = min(microbatches(run), MOST_MICROBATCHES) * t.micro_batch * run.model.seq_len * t.devices
    trainer = replace(t, compile=Compile.off, cuda_graphs=False, batch_tokens=tokens)
    return run.varied(trainer=trainer, optimizer=run.optimizer.at_batch(tokens))


def measure_step(run: Run, *, repeats: int, trace: Path | None) -> WatchedSteps:
    """Train a few steps and watch.

    Errors:
        torch.OutOfMemoryError: the device's memory does not hold the step.
    """
    eager = measurable(run)
    arm = _warm(eager)
    ranges = Ranges(eager)
    model = arm.built.model
    arm.ledger = _Marks(started=arm.job.started)
    with ranges.around(model), memory.saved_for_backward(model.parameters(), on_save=ranges.keep):
        arm.step()
    memory_mib = arm.facts.memory_mib or {}
    watched = watch(_step(arm), ranges, partial(ranges.around, model), repeats=repeats, trace=trace)
    held = {part: memory_mib[part] for part in HELD}
    del model
    arm.close()
    steps = {"plain": watched.plain, "profiled": watched.profiled}
    if run.trainer.compile is not Compile.off or run.trainer.cuda_graphs:
        t = replace(eager.trainer, compile=run.trainer.compile, cuda_graphs=run.trainer.cuda_graphs)
        arm = _warm(replace(eager, trainer=t))
        steps["compiled"] = compiled_step(_step(arm), repeats=repeats, on_cuda=t.device is Device.cuda)
        arm.close()  # a CUDA graph goes before the context that it is of
    return _measured(Subject(), watched, steps, ranges, {**held, "cache": 0.0})


def _step(arm: TimedArm) -> Taken:
    """One training step, as it is trained."""
    return Taken(call=arm.step, synchronize=arm.job.world.synchronize)


def _warm(run: Run) -> TimedArm:
    arm = TimedArm("", run)
    arm.warm(Clock.wall)
    return arm


def _measured(
    subject: Subject, watched: Watched, steps: dict[str, Row], ranges: Ranges, memory_mib: dict[str, float]
) -> WatchedSteps:
    return WatchedSteps(
        subject=subject,
        steps=steps,
        moments=watched.moments,
        between_ms=watched.between_ms,
        ranges=ranges,
        memory_mib=memory_mib,
    )


# --- a forward ----------------------------------------------------------------------------------------------


def measure_forward(run: Run, *, repeats: int, trace: Path | None) -> WatchedSteps:
    """Compute the loss of a micro-batch without gradients, in the precision of training, and watch."""
    subject = Subject(of=Of.forward)
    eager = at_compile(run, Compile.off)
    with _forward(eager) as (taken, model):
        ranges = Ranges(eager)
        watched = watch(taken, ranges, partial(ranges.around, model), repeats=repeats, trace=trace)
        parameters_mib = memory.n_bytes(model.parameters()) / memory.MIB
    steps = {"plain": watched.plain, "profiled": watched.profiled}
    if run.trainer.compile is not Compile.off:
        with _forward(at_compile(run, run.trainer.compile)) as (taken, _):
            steps["compiled"] = compiled_step(
                taken, repeats=repeats, on_cuda=run.trainer.device is Device.cuda
            )
    return _measured(subject, watched, steps, ranges, _held(parameters_mib))


def at_compile(run: Run, compile: Compile) -> Run:
    """The run with this compilation, and without CUDA graphs, which hold a backward too."""
    return run.varied(trainer=replace(run.trainer, compile=compile, cuda_graphs=False))


@contextmanager
def _forward(run: Run) -> Iterator[tuple[Taken, torch.nn.Module]]:
    """What is timed, warm, and its model."""
    configure_numerics(run)
    with random_tokens(run) as job:
        trainee = build(job)
        enter_step(run, trainee.model, 0)
        batch = fetch(job, trainee, step=0).long()
        given = forward_of(trainee, batch, step=0)

        @torch.no_grad()
        def call() -> None:
            with record_function(MARK + STEP), autocast(run, run.trainer.precision):
                trainee.model(*given)

        taken = Taken(call=call, synchronize=job.world.synchronize)
        for _ in range(WARM):
            taken.clocked()
        yield taken, trainee.model
    memory.give_back(job.world.device)


def _held(parameters_mib: float, cache_bytes: int = 0) -> dict[str, float]:
    """Memory where nothing is trained."""
    held = dict.fromkeys(HELD, 0.0)
    return {**held, "parameters": parameters_mib, "cache": cache_bytes / memory.MIB}


# --- text ---------------------------------------------------------------------------------------------------


def measure_text(
    run: Run, *, prompt: int, texts: int, repeats: int, trace: Path | None
) -> list[WatchedSteps]:
    """Read a random prompt and decode a token after it, as `nocap.generate` does, and watch both."""
    configure_numerics(run)
    device = torch.device(run.trainer.device.value)
    model = build_model(run, vocab_size=run.tokenizer.vocab_size).to(device).eval()
    enter_step(run, model, 0)
    engine = engine_for(model, run, batch=texts, capacity=run.model.seq_len, log=log)
    draws = torch.Generator().manual_seed(run.seed)
    tokens_1T = torch.randint(run.tokenizer.vocab_size, (1, prompt), generator=draws).to(device)
    tokens_B = tokens_1T[0, -1].expand(texts).clone()
    calls: dict[Of, Callable[[], object]] = {
        Of.prefill: lambda: engine.prefill(tokens_1T),
        Of.token: lambda: engine.decode(tokens_B),
    }
    cached = isinstance(engine, Cached)
    held = _held(memory.n_bytes(model.parameters()) / memory.MIB, engine.cache_bytes)
    measured = list[WatchedSteps]()
    for of, call in calls.items():
        subject = Subject(of=of, prompt=prompt, texts=texts, cached=cached)
        taken = _text(engine, call, of, prompt=prompt, device=device)
        ranges = Ranges(run)
        times = repeats * TOKEN_REPEATS if of is Of.token else repeats

        def around(ranges: Ranges = ranges) -> AbstractContextManager[object]:
            stack = ExitStack()
            stack.enter_context(ranges.around(model))
            stack.enter_context(ranges.around_engine(engine))
            return stack

        watched = watch(taken, ranges, around, repeats=times, trace=trace if of is Of.token else None)
        steps = {"plain": watched.plain, "profiled": watched.profiled}
        measured.append(_measured(subject, watched, steps, ranges, held))
    return measured


def _text(engine: Engine, call: Callable[[], object], of: Of, *, prompt: int, device: torch.device) -> Taken:
    """A prompt or a token, warm."""

    def marked() -> None:
        with record_function(MARK + STEP):
            call()

    def synchronize() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    taken = Taken(
        call=marked,
        synchronize=synchronize,
        ready=(lambda: engine.rewind(prompt)) if of is Of.token else idle,
    )
    for _ in range(WARM):
        taken.clocked()
    return taken
