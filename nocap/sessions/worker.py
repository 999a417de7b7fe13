"""A session, in a process of its own: `python -m nocap.sessions.worker RESULT` reads from stdin
what it is to measure, and writes the file. Studies hold sessions, and grids for `--plan` and
`--time`.

Where training is repeated by a seed, all else is repeated by a session: the same arms again, in a
fresh process. Steps are timed interleaved by `nocap.measure`, and profiled. Decoding takes turns,
too.
"""

from __future__ import annotations

from nocap.launch import environment
from nocap.launch.process import die_with_parent, leave

if __name__ == "__main__":
    # before the imports below, which take seconds
    die_with_parent(environment.parent())

import gc
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, pairwise
from pathlib import Path
from statistics import median

import msgspec
import torch

from nocap.config import hardware
from nocap.config.compose import compose
from nocap.config.errors import FailedError
from nocap.config.outgoing_text import guarded
from nocap.config.run import Run
from nocap.generation.engines import Cached, Engine, Recompute, windows
from nocap.generation.sampling import TokenSampler, generate
from nocap.measure.attention_lengths import attention_ms, exponent, with_window
from nocap.measure.bench import carry_out, clock_of, timed_rounds
from nocap.measure.bench_arms import step_config
from nocap.measure.bench_result import ArmStatus, BenchedArm
from nocap.measure.profile import profile
from nocap.measure.profiler_events import allocated_bytes
from nocap.measure.profiler_ranges import part_of
from nocap.measure.timed_arm import TimedArm
from nocap.model.attention_facts import first_window, kernel_name
from nocap.model.build import build_model
from nocap.model.flops import component_flops
from nocap.model.language_model import LanguageModel
from nocap.sessions.figures import (
    UNSET,
    DecodingFigures,
    Figures,
    LengthFigures,
    PartFigures,
    RoundFigures,
    StepFigures,
)
from nocap.sessions.places import COMPILED_CACHE, NO_CACHE
from nocap.sessions.session_file import SessionRequest
from nocap.step_parts import HELD
from nocap.store.record_files import write_json
from nocap.store.times import now
from nocap.training import allocator

FiguresByArm = Mapping[str, Figures]


def main(path: Path) -> None:
    """Measure what stdin asks for, and write it to the path."""
    request = msgspec.json.decode(sys.stdin.read(), type=SessionRequest)
    runs = {name: compose(overrides) for name, overrides in request.arms.items()}
    first = next(iter(runs.values()))
    trainer = first.trainer
    allocator.use(trainer.malloc)
    measured = KINDS[request.kind](runs, **request.how)
    session = msgspec.to_builtins(request)
    session["ended"] = now()
    session["hardware"] = hardware.describe(trainer.device, trainer.threads)
    session["measured"] = {"arms": msgspec.to_builtins(measured)}
    write_json(path, session)


# --- timed steps ----------------------------------------------------------------------------------


def time_steps(runs: Mapping[str, Run], *, rounds: int) -> FiguresByArm:
    """Measure speed, memory and work of each arm, the first of them the baseline. Arms whose step
    is the same are timed once.

    Errors:
        FailedError: the baseline cannot be timed.
    """
    twins = _twins(runs)
    distinct = dict.fromkeys(twins.values())
    arms = [TimedArm(name, runs[name]) for name in distinct]
    result = carry_out(arms, seconds=math.inf, rounds=rounds)
    base = result.arms[0]
    if base.status is not ArmStatus.measured:
        raise FailedError(f"the baseline, {base.label}: {base.status}: {base.reason}")
    timed = {arm.label: arm for arm in result.arms}
    return {name: _figures(timed[twins[name]], run) for name, run in runs.items()}


def _figures(arm: BenchedArm, run: Run) -> StepFigures:
    """Return the figures of a timed step, with what is counted of the run."""
    facts = arm.facts
    memory_mib: dict[str, float | None] | None = None
    if facts.memory_mib is not None:
        memory_mib = dict(facts.memory_mib)
    return StepFigures(
        status=arm.status,
        reason=arm.reason,
        tokens_per_s=arm.tokens_per_s,
        step_ms=arm.step_ms,
        flops_per_token=facts.flops_per_token,
        flops_basis=facts.flops_basis,
        params=facts.params,
        kernel=facts.kernel,
        memory_mib=memory_mib,
        tokens_per_step=facts.tokens_per_step,
        component_flops=_component_flops(run),
        kv_bytes=kv_bytes(run),
    )


def _component_flops(run: Run) -> dict[str, float | None]:
    return dict(component_flops(run, vocab_size=run.tokenizer.vocab_size))


def _twins(runs: Mapping[str, Run]) -> dict[str, str]:
    """Return, for each arm, the first arm that has the same step."""
    first: dict[str, str] = {}
    return {name: first.setdefault(repr(step_config(run)), name) for name, run in runs.items()}


def time_rounds(runs: Mapping[str, Run], *, seconds: float) -> FiguresByArm:
    """Measure the seconds a token of each arm in rounds, for so long. Arms whose step is the same
    are timed once."""
    twins = _twins(runs)
    arms = {name: TimedArm(name, runs[name]) for name in dict.fromkeys(twins.values())}
    in_turns = list(arms.values())
    clock = clock_of(in_turns)
    times = dict(zip(arms, timed_rounds(in_turns, seconds=seconds), strict=True))
    figures = dict[str, RoundFigures]()
    for name in runs:
        twin = twins[name]
        arm = arms[twin]
        is_measured = arm.status is ArmStatus.measured
        figures[name] = RoundFigures(
            clock=clock.value,
            status=arm.status,
            reason=arm.reason,
            seconds_per_token=times[twin] if is_measured else UNSET,
        )
    return figures


def kv_bytes(run: Run) -> int | None:
    """Count the bytes of a token in the cache, in fp32; `None`: there is no cache."""
    if windows(run, run.model.seq_len) is None:
        return None
    d_head = run.model.d_model // run.model.n_head
    return 2 * run.model.n_layer * run.attention.n_kv_heads * d_head * 4


# --- parts of a step ------------------------------------------------------------------------------


def profile_parts(runs: Mapping[str, Run], *, repeats: int) -> FiguresByArm:
    """Measure the milliseconds, the MiB kept for the backward, and the parameters of each part of
    each arm's step."""
    figures = dict[str, PartFigures]()
    for name, run in runs.items():
        profiled = profile(run, [], compose, repeats=repeats, trace=None, ceilings=False)
        held = profiled.memory_mib.measured
        figures[name] = PartFigures(
            ms={row.part: row.ms for row in profiled.parts},
            mib=held.kept,
            memory_mib={part: getattr(held, part) for part in HELD},
            params=part_params(run),
            step_ms=profiled.step.ms,
            unattributed_ms=profiled.step.unattributed_ms,
            kernel=profiled.kernel,
            component_flops=_component_flops(run),
        )
    return figures


def part_params(run: Run) -> dict[str, int]:
    """Count the parameters by part, a tied head's with the embedding."""
    with torch.device("meta"):
        model = build_model(run, vocab_size=run.tokenizer.vocab_size)
    modules = dict(model.named_modules())
    params = dict[str, int]()
    for name, parameter in model.named_parameters():
        path = name.rpartition(".")[0]
        part = part_of(run, path, modules)
        while part is None:
            path = path.rpartition(".")[0]
            part = part_of(run, path, modules)
        params[part] = params.get(part, 0) + parameter.numel()
    return params


def time_lengths(runs: Mapping[str, Run], *, T: Sequence[int]) -> FiguresByArm:
    """Measure the exponent of each arm's attention in T: scores and weighted sum of one layer,
    forward and backward. A window does not grow."""
    figures = dict[str, LengthFigures]()
    for name, run in runs.items():
        window = first_window(run)
        ms = [attention_ms(with_window(run, t, window=window or 1)) for t in T]
        figures[name] = LengthFigures(
            T=list(T),
            attention_ms=ms,
            exponent=exponent(T, ms),
            window=window,
            params=sum(part_params(run).values()),
            kernel=kernel_name(run, run.trainer.precision),
        )
    return figures


# --- decoding -------------------------------------------------------------------------------------

TEXTS = 3  # each engine writes so many in a session, in turns


def time_decoding(
    runs: Mapping[str, Run], *, engines: Mapping[str, str], prompt: int, new: int, vocab_size: int
) -> FiguresByArm:
    """Measure the speed and allocations of decoding on the arms' device, by the kernels that
    `nocap.generate` has. Weights are random, and the engines must write the same text."""
    runs = {name: run.varied(attention=run.attention.portable()) for name, run in runs.items()}
    first = next(iter(runs.values()))
    torch.set_num_threads(first.trainer.threads)
    device = torch.device(first.trainer.device.value)
    generator = torch.Generator().manual_seed(0)
    prompt_1T = torch.randint(vocab_size, (1, prompt), generator=generator).to(device)
    models = dict[str, LanguageModel]()
    for name, run in runs.items():
        models[name] = build_model(run, vocab_size=vocab_size).to(device).eval()
    built = dict[str, Engine]()
    for name, model in models.items():
        built[name] = _engine(engines[name], model, runs[name], capacity=prompt + new)
    for engine in built.values():
        _write(engine, prompt_1T, seed=0, new=2)
    texts: dict[str, list[DecodedText]] = {name: [] for name in built}
    for seed in range(TEXTS):
        for name, engine in built.items():
            texts[name].append(_write(engine, prompt_1T, seed=seed, new=new))
    _check_texts(runs, texts)
    figures = dict[str, DecodingFigures]()
    for name, own in texts.items():
        run = runs[name]
        allocated = allocated_bytes(partial(_write, seed=0, new=new), built[name], prompt_1T)
        text_s = median(sum(text.seconds) for text in own)
        token_s = median(chain(*(text.seconds for text in own)))
        figures[name] = DecodingFigures(
            decode_tokens_per_s=new / text_s,
            decode_ms=token_s * 1e3,
            decode_mb=allocated / (new + 1) / 1e6,
            collections=median(text.collections for text in own),
            engine=engines[name],
            params=sum(parameter.numel() for parameter in models[name].parameters()),
            kernel=kernel_name(run, run.trainer.precision),
        )
    return figures


def _write(engine: Engine, prompt_1T: torch.Tensor, *, seed: int, new: int) -> DecodedText:
    """Write a token, and `new` more that are timed."""
    collections_before = _collections()
    sampler = TokenSampler(temperature=1.0, top_k=0, seed=seed, sequences=1, max_tokens=new + 1)
    tokens = list[int]()
    moments = list[float]()
    for token in generate(engine, prompt_1T, sampler, max_tokens=new + 1):
        tokens.append(int(token))  # waits for the device, as a reader of the text would
        moments.append(time.perf_counter())
    seconds = [end - begin for begin, end in pairwise(moments)]
    collections = _collections() - collections_before
    return DecodedText(tokens=tokens, seconds=seconds, collections=collections)


def _check_texts(runs: Mapping[str, Run], texts: Mapping[str, Sequence[DecodedText]]) -> None:
    """Check that engines of one model wrote the same texts."""
    first = dict[str, list[list[int]]]()
    for name, of_arm in texts.items():
        tokens = [text.tokens for text in of_arm]
        same = tokens == first.setdefault(repr(runs[name]), tokens)
        assert same, "engines of one model must write the same text"


@dataclass(frozen=True, kw_only=True, slots=True)
class DecodedText:
    """A text that an engine wrote."""

    tokens: list[int]
    seconds: list[float]  # of each token after the first
    collections: int  # of garbage, meanwhile


def _engine(name: str, model: LanguageModel, run: Run, *, capacity: int) -> Engine:
    """Return an engine by its name, one of `ENGINES`. `capacity`: tokens that its cache holds."""
    if name == NO_CACHE:
        return Recompute(model)
    return Cached(model, run, batch=1, capacity=capacity, compiled=name == COMPILED_CACHE)


def _collections() -> int:
    """Count the runs of Python's garbage collector so far, of all generations."""
    return sum(generation["collections"] for generation in gc.get_stats())


KINDS: dict[str, Callable[..., FiguresByArm]] = {
    "steps": time_steps,
    "rounds": time_rounds,
    "parts": profile_parts,
    "lengths": time_lengths,
    "decoding": time_decoding,
}

if __name__ == "__main__":
    with guarded():
        main(Path(sys.argv[1]))
    leave(0)  # as `nocap.config.entry` does where a GPU was used
