"""One profile from beginning to end: count what is taken apart, take it under the profiler, and
bound it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import msgspec

from nocap.config.run import Run
from nocap.config.trainer import Device
from nocap.launch.plan import check_compiler
from nocap.measure.ceilings import Composer, options_ceilings
from nocap.measure.peaks import measure_peak
from nocap.measure.profile_record import record
from nocap.measure.profile_schema import CeilingsJson, ProfileJson
from nocap.measure.profiler_timing import (
    WatchedSteps,
    log,
    measure_forward,
    measure_step,
    measure_text,
)
from nocap.measure.roofline import Count, count
from nocap.measure.subject import Subject, SubjectKind
from nocap.training import allocator
from nocap.training.build import configure_numerics
from nocap.training.memory_limit import ran_out, within_memory


@dataclass(frozen=True, kw_only=True, slots=True)
class ProfileQuestion:
    """A question of what is to be profiled, and how."""

    generate: bool = False  # a prompt, and a token after it
    forward: bool = False  # a forward, without gradients; neither: a training step
    prompt: int = 0  # tokens
    texts: int = 1
    repeats: int
    trace: Path | None = None
    ceilings: bool = False

    @property
    def first(self) -> SubjectKind:
        """Return what is taken apart, of a text the first of both."""
        if self.generate:
            return SubjectKind.prefill
        if self.forward:
            return SubjectKind.forward
        return SubjectKind.step


def profile(
    run: Run,
    overrides: Sequence[str],
    compose: Composer,
    *,
    repeats: int,
    trace: Path | None = None,
    ceilings: bool = False,
) -> ProfileJson:
    """Return the profile of a run's training step. `compose` makes the run that the user's
    overrides and more of them describe.

    Errors:
        ValueError: the step does not fit into this machine's memory, or diverges.
    """
    question = ProfileQuestion(repeats=repeats, trace=trace, ceilings=ceilings)
    (step,) = profiles(run, overrides, compose, question).values()
    return step


def profiles(
    run: Run, overrides: Sequence[str], compose: Composer, question: ProfileQuestion
) -> dict[str, ProfileJson]:
    """Return what is taken apart → its profile: of a step, a forward, or of prefill and token.

    Errors:
        ValueError: it does not fit into this machine's memory, or diverges.
    """
    check_compiler(run)
    try:
        # CUDA reserves addresses by the terabyte
        with within_memory() if run.trainer.device is Device.cpu else nullcontext():
            allocator.use(run.trainer.malloc)
            return _profiles(run, overrides, compose, question)
    except (RuntimeError, MemoryError) as error:
        if not ran_out(error):
            raise
        cause = str(error).partition("\n")[0]
        what = question.first.title
        lower = f"trainer.micro_batch than {run.trainer.micro_batch}"
        if question.generate:
            lower = "--texts or --prompt"
        raise ValueError(
            f"the {what} must fit into the device's memory; set a smaller {lower} ({cause})"
        ) from error


def _profiles(
    run: Run, overrides: Sequence[str], compose: Composer, question: ProfileQuestion
) -> dict[str, ProfileJson]:
    subject = Subject(of=question.first, prompt=question.prompt, texts=question.texts)
    run = subject.run(run)
    configure_numerics(run)
    counted = count(run, vocab_size=run.tokenizer.vocab_size, subject=subject)
    log("measuring the peaks: a large product and a large copy")
    peak = measure_peak(run.trainer.device)
    results = dict[str, ProfileJson]()
    for measured in _measure(run, question):
        if measured.subject != subject:
            counted = count(run, vocab_size=run.tokenizer.vocab_size, subject=measured.subject)
        result = record(overrides, counted=counted, peak=peak, measured=measured)
        if question.ceilings:
            log("counting the work of each option")
            result = with_ceilings(result, counted, compose)
        results[measured.subject.of.value] = result
    return results


def _measure(run: Run, question: ProfileQuestion) -> list[WatchedSteps]:
    sizes = f"{run.trainer.micro_batch} × {run.model.seq_len} tokens"
    repeats = question.repeats
    trace = question.trace
    if question.generate:
        log(f"measuring a prompt of {question.prompt} tokens, and a token after it")
        return measure_text(
            run, prompt=question.prompt, texts=question.texts, repeats=repeats, trace=trace
        )
    if question.forward:
        log(f"measuring {2 * repeats} forwards of {sizes}")
        return [measure_forward(run, repeats=repeats, trace=trace)]
    log(f"measuring {2 * repeats + 1} steps of {sizes}")
    return [measure_step(run, repeats=repeats, trace=trace)]


def with_ceilings(result: ProfileJson, counted: Count, compose: Composer) -> ProfileJson:
    """Return the profile with what each option can win at most."""
    ms = {row.part: row.ms for row in result.parts}
    table = options_ceilings(counted, compose, result.roof, ms, result.step.unattributed_ms)
    return msgspec.structs.replace(result, ceilings=CeilingsJson(table=table))
