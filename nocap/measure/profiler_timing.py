"""Time what a profile is of, plain and under torch's profiler: a training step, a forward, a
prompt, a token."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import msgspec
import torch
from torch.profiler import record_function

from nocap.config.run import Run
from nocap.config.trainer import Compile, Device
from nocap.data.batches import microbatches
from nocap.generation.engines import Cached, Engine, engine_for
from nocap.measure.clock import Clock
from nocap.measure.profile_schema import ClocksJson
from nocap.measure.profiler_events import BETWEEN, Moments, busy_ms, profiler, read_moments
from nocap.measure.profiler_ranges import MARK, STEP, Ranges
from nocap.measure.subject import Subject, SubjectKind
from nocap.measure.timed_arm import TimedArm, random_tokens
from nocap.model.build import build_model
from nocap.step_parts import HELD
from nocap.training import memory
from nocap.training.build import autocast, build, configure_numerics
from nocap.training.ledger import Ledger
from nocap.training.step import enter_step, fetch, forward_of

# the second one shows what accumulating gradients costs; more would show nothing new
MOST_MICROBATCHES = 2
WARM = 2  # calls before the first that counts
TOKEN_REPEATS = 10  # times as many of a decoded token, which takes milliseconds


def log(line: str) -> None:
    """Print a line of progress, apart from the result."""
    print(line, file=sys.stderr, flush=True)


@dataclass(frozen=True, kw_only=True, slots=True)
class Observation:
    """What was seen of the fastest call, the least disturbed: eager, as the parts are."""

    plain: ClocksJson  # without the profiler
    profiled: ClocksJson
    moments: Moments
    between_ms: float  # what is no module's


@dataclass(frozen=True, kw_only=True, slots=True)
class WatchedSteps:
    """What was measured of a subject."""

    subject: Subject
    seen: Observation
    compiled: ClocksJson | None  # None: the config does not ask for it
    ranges: Ranges  # of the run as it was measured
    memory_mib: dict[str, float]  # held, by part; `cache`: keys and values


# --- one call, again and again --------------------------------------------------------------------


def idle() -> None:
    """Make nothing ready."""


@dataclass(kw_only=True, slots=True)
class Action:
    """What is timed. A call marks its own beginning and end for the profiler."""

    call: Callable[[], object]
    synchronize: Callable[[], None]
    ready: Callable[[], None] = idle  # before each call, untimed

    def clock(self) -> ClocksJson:
        """Make one call, timed by the wall and by this process; it ends when the device has
        finished."""
        self.ready()
        self.synchronize()
        wall_s = time.perf_counter()
        cpu_s = time.process_time()
        self.call()
        self.synchronize()
        wall_ms = (time.perf_counter() - wall_s) * 1e3
        cpu_ms = (time.process_time() - cpu_s) * 1e3
        return ClocksJson(wall_ms=wall_ms, cpu_ms=cpu_ms)

    def fastest(self, repeats: int) -> ClocksJson:
        """Make so many calls, and return the clocks of the fastest."""
        return min((self.clock() for _ in range(repeats)), key=lambda clocks: clocks.wall_ms)


def watch(
    action: Action,
    ranges: Ranges,
    around: Callable[[], AbstractContextManager[object]],
    *,
    repeats: int,
    trace: Path | None,
) -> Observation:
    """Time it without the profiler, then with it, and read the fastest. `around` puts the ranges on
    the model."""
    on_cuda = ranges.run.trainer.device is Device.cuda
    plain = action.fastest(repeats)
    least_ms = math.inf
    for _ in range(repeats):
        ranges.reset()
        with around(), profiler(on_cuda=on_cuda) as prof:
            clocks = action.clock()
        if clocks.wall_ms < least_ms:
            least_ms = clocks.wall_ms
            profiled = clocks
            moments = read_moments(prof, ranges, on_cuda=on_cuda)
            work_ms = busy_ms(prof)
            if trace is not None:
                prof.export_chrome_trace(str(trace))
    between = [key for key in moments if key[:2] == BETWEEN]
    between_ms = sum(moments.pop(key) for key in between)
    return Observation(
        plain=busy(plain, work_ms), profiled=profiled, moments=moments, between_ms=between_ms
    )


def compiled_step(action: Action, *, repeats: int, on_cuda: bool) -> ClocksJson:
    """Time what is compiled as one: nothing sees into it."""
    clocks = action.fastest(repeats)
    with profiler(on_cuda=on_cuda) as prof:
        action.clock()
    return busy(clocks, busy_ms(prof))


def busy(clocks: ClocksJson, busy_ms: float) -> ClocksJson:
    """Return the clocks with the share in which the GPU worked. `busy_ms` are kernels': what the
    profiler costs the host is in neither."""
    share = min(1.0, busy_ms / clocks.wall_ms) if busy_ms else None
    return msgspec.structs.replace(clocks, gpu_busy=share)


# --- a training step ------------------------------------------------------------------------------


class _Marks(Ledger):
    """The loop's clock ledger, whose lines become ranges of the profiler: the step, and within it
    the wait for data."""

    @contextmanager
    def charge(self, line: str) -> Iterator[None]:
        with super().charge(line), record_function(MARK + {"train": STEP}.get(line, line)):
            yield


def measurable(run: Run) -> Run:
    """Return the same step, as it is in the end, with at most two micro-batches, uncompiled: a
    compiled graph cannot be taken apart by module."""
    run = run.in_the_end()
    t = run.trainer
    tokens = (
        min(microbatches(run), MOST_MICROBATCHES) * t.micro_batch * run.model.seq_len * t.devices
    )
    trainer = replace(t, compile=Compile.off, cuda_graphs=False, batch_tokens=tokens)
    return run.varied(trainer=trainer, optimizer=run.optimizer.at_batch(tokens))


def measure_step(run: Run, *, repeats: int, trace: Path | None) -> WatchedSteps:
    """Train a few steps and watch.

    Errors:
        torch.OutOfMemoryError: the device's memory does not hold the step.
    """
    eager = measurable(run)
    arm = _warm(eager, _Marks(started=time.monotonic()))
    ranges = Ranges(eager)
    model = arm.built.model
    with ranges.around(model), memory.saved_for_backward(model.parameters(), on_save=ranges.keep):
        arm.step()
    memory_mib = arm.facts.memory_mib or {}
    around = partial(ranges.around, model)
    seen = watch(_step(arm), ranges, around, repeats=repeats, trace=trace)
    held = {part: memory_mib[part] for part in HELD}
    del model
    arm.close()
    compiled = None
    if run.trainer.compile is not Compile.off or run.trainer.cuda_graphs:
        t = replace(eager.trainer, compile=run.trainer.compile, cuda_graphs=run.trainer.cuda_graphs)
        compiled_arm = _warm(replace(eager, trainer=t))
        on_cuda = t.device is Device.cuda
        compiled = compiled_step(_step(compiled_arm), repeats=repeats, on_cuda=on_cuda)
        compiled_arm.close()  # a CUDA graph goes before the context that it is of
    memory_mib = {**held, "cache": 0.0}
    return WatchedSteps(
        subject=Subject(), seen=seen, compiled=compiled, ranges=ranges, memory_mib=memory_mib
    )


def _step(arm: TimedArm) -> Action:
    """Return one training step, as it is trained."""
    return Action(call=arm.step, synchronize=arm.job.world.synchronize)


def _warm(run: Run, ledger: Ledger | None = None) -> TimedArm:
    arm = TimedArm("", run)
    arm.warm(Clock.wall, ledger=ledger)
    return arm


# --- a forward ------------------------------------------------------------------------------------


def measure_forward(run: Run, *, repeats: int, trace: Path | None) -> WatchedSteps:
    """Compute the loss of a micro-batch without gradients, in the precision of training, and
    watch."""
    eager = at_compile(run, Compile.off)
    with _forward(eager) as (action, model):
        ranges = Ranges(eager)
        seen = watch(action, ranges, partial(ranges.around, model), repeats=repeats, trace=trace)
        parameters_mib = memory.n_bytes(model.parameters()) / memory.MIB
    compiled = None
    if run.trainer.compile is not Compile.off:
        on_cuda = run.trainer.device is Device.cuda
        with _forward(at_compile(run, run.trainer.compile)) as (action, _):
            compiled = compiled_step(action, repeats=repeats, on_cuda=on_cuda)
    return WatchedSteps(
        subject=Subject(of=SubjectKind.forward),
        seen=seen,
        compiled=compiled,
        ranges=ranges,
        memory_mib=_held(parameters_mib),
    )


def at_compile(run: Run, compile: Compile) -> Run:
    """Return the run with this compilation, and without CUDA graphs, which hold a backward too."""
    return run.varied(trainer=replace(run.trainer, compile=compile, cuda_graphs=False))


@contextmanager
def _forward(run: Run) -> Iterator[tuple[Action, torch.nn.Module]]:
    """Give what is timed, warm, and its model."""
    configure_numerics(run)
    with random_tokens(run) as job:
        trainee = build(job)
        enter_step(run, trainee.model, 0)
        batch = fetch(job, trainee, step=0).long()
        inputs = forward_of(trainee, batch, step=0)

        @torch.no_grad()
        def call() -> None:
            with record_function(MARK + STEP), autocast(run, run.trainer.precision):
                trainee.model(*inputs)

        action = Action(call=call, synchronize=job.world.synchronize)
        for _ in range(WARM):
            action.clock()
        yield action, trainee.model
    memory.give_back(job.world.device)


def _held(parameters_mib: float, cache_bytes: int = 0) -> dict[str, float]:
    """Return the memory where nothing is trained."""
    held = dict.fromkeys(HELD, 0.0)
    return {**held, "parameters": parameters_mib, "cache": cache_bytes / memory.MIB}


# --- text -----------------------------------------------------------------------------------------


def measure_text(
    run: Run, *, prompt: int, texts: int, repeats: int, trace: Path | None
) -> list[WatchedSteps]:
    """Read a random prompt and decode a token after it, as `nocap.generate` does, and watch
    both."""
    configure_numerics(run)
    device = torch.device(run.trainer.device.value)
    model = build_model(run, vocab_size=run.tokenizer.vocab_size).to(device).eval()
    enter_step(run, model, 0)
    engine = engine_for(model, run, batch=texts, capacity=run.model.seq_len, log=log)
    draws = torch.Generator().manual_seed(run.seed)
    tokens_1T = torch.randint(run.tokenizer.vocab_size, (1, prompt), generator=draws).to(device)
    tokens_B = tokens_1T[0, -1].expand(texts).clone()
    calls: dict[SubjectKind, Callable[[], object]] = {
        SubjectKind.prefill: lambda: engine.prefill(tokens_1T),
        SubjectKind.token: lambda: engine.decode(tokens_B),
    }
    cached = isinstance(engine, Cached)
    held = _held(memory.n_bytes(model.parameters()) / memory.MIB, engine.cache_bytes)
    measured = list[WatchedSteps]()
    for of, call in calls.items():
        subject = Subject(of=of, prompt=prompt, texts=texts, cached=cached)
        action = _text(engine, call, of, prompt=prompt, device=device)
        ranges = Ranges(run)
        times = repeats * TOKEN_REPEATS if of is SubjectKind.token else repeats

        def around(ranges: Ranges = ranges) -> AbstractContextManager[object]:
            stack = ExitStack()
            stack.enter_context(ranges.around(model))
            stack.enter_context(ranges.around_engine(engine))
            return stack

        seen = watch(
            action, ranges, around, repeats=times, trace=trace if of is SubjectKind.token else None
        )
        measured.append(
            WatchedSteps(subject=subject, seen=seen, compiled=None, ranges=ranges, memory_mib=held)
        )
    return measured


def _text(
    engine: Engine,
    call: Callable[[], object],
    of: SubjectKind,
    *,
    prompt: int,
    device: torch.device,
) -> Action:
    """Return a prompt or a token, warm."""

    def marked() -> None:
        with record_function(MARK + STEP):
            call()

    def synchronize() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    rewind = partial(engine.rewind, prompt)
    action = Action(
        call=marked, synchronize=synchronize, ready=rewind if of is SubjectKind.token else idle
    )
    for _ in range(WARM):
        action.clock()
    return action
